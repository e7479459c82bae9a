//! The topics of a Kafka cluster as the stage's sink.

use std::collections::BTreeMap;
use std::sync::Arc;

use payguard_engine::store::SinkObserver;
use payguard_kafka::KafkaClients;
use payguard_sink_kafka::{KafkaSink, KafkaSinkOptions};
use payguard_topology::{Config, System};

use crate::connections::{self, VARIANT_TOPICS, VERDICTS_TOPIC};
use crate::{
    ALERTS_TOPIC, CONFIRMED_TOPIC, DLQ_TOPIC, LATE_TOPIC, PROFILES_TOPIC, REJECTED_RULES_TOPIC, SESSIONS_TOPIC,
};

/// What stands for this sink where one is chosen.
pub const KAFKA: &str = "kafka";

/// The sink of a pipeline, which has connected to nothing yet.
#[must_use]
pub fn sink(clients: KafkaClients, config: &Config, observer: Option<Arc<dyn SinkObserver>>) -> KafkaSink {
    KafkaSink::new(clients, options(config), observer)
}

/// The stage's topics by the names that the configuration gives them.
fn options(config: &Config) -> KafkaSinkOptions {
    match config.system {
        System::Payments => payments(config),
        System::Connections => connections(config),
    }
}

fn connections(config: &Config) -> KafkaSinkOptions {
    let verdicts = &config.connections.verdicts_topic;
    let variants = VARIANT_TOPICS.map(|(variant, topic)| (topic.to_owned(), format!("{verdicts}.{variant}")));
    let mut topics = BTreeMap::from(variants);
    topics.insert(VERDICTS_TOPIC.to_owned(), verdicts.clone());
    topics.insert(connections::DLQ_TOPIC.to_owned(), config.connections.dlq_topic.clone());
    topics.insert(connections::LATE_TOPIC.to_owned(), config.connections.late_topic.clone());
    let transactional_id_prefix = config.transactional_id_prefix();
    KafkaSinkOptions { transactional_id_prefix, topics, position_topic: verdicts.clone() }
}

fn payments(config: &Config) -> KafkaSinkOptions {
    let publish = &config.publish;
    let topics = [
        (ALERTS_TOPIC, &publish.alerts_topic),
        (DLQ_TOPIC, &publish.dlq_topic),
        (LATE_TOPIC, &publish.late_topic),
        (SESSIONS_TOPIC, &publish.sessions_topic),
        (CONFIRMED_TOPIC, &publish.confirmed_topic),
        (PROFILES_TOPIC, &publish.profiles_topic),
        (REJECTED_RULES_TOPIC, &publish.rejected_rules_topic),
    ];
    KafkaSinkOptions {
        transactional_id_prefix: config.transactional_id_prefix(),
        topics: topics.map(|(name, topic)| (name.to_owned(), topic.clone())).into(),
        position_topic: publish.alerts_topic.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TOPICS;

    #[test]
    fn every_topic_of_the_stage_has_a_name_and_by_default_its_own() {
        let options = options(&Config::default());
        for topic in TOPICS {
            assert_eq!(options.topics.get(topic).map(String::as_str), Some(topic));
        }
        assert_eq!((options.topics.len(), &*options.transactional_id_prefix), (TOPICS.len(), "payguard-alerts"));
    }

    #[test]
    fn so_has_every_topic_of_the_connections_pipeline() {
        let options = options(&Config { system: System::Connections, ..Config::default() });
        for topic in connections::TOPICS {
            assert_eq!(options.topics.get(topic).map(String::as_str), Some(topic));
        }
        assert_eq!((options.topics.len(), &*options.position_topic), (connections::TOPICS.len(), VERDICTS_TOPIC));
    }
}
