//! That the broker of the tests keeps Kafka's promises, which stand-ins do not: what exactly-once rests on.

use std::time::Duration;

use payguard_kafka::KafkaContext;
use payguard_kafka::rdkafka::config::ClientConfig;
use payguard_kafka::rdkafka::consumer::{BaseConsumer, Consumer};
use payguard_kafka::rdkafka::error::{KafkaError, RDKafkaErrorCode};
use payguard_kafka::rdkafka::message::Message;
use payguard_kafka::rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use payguard_kafka::rdkafka::{Offset, TopicPartitionList};
use payguard_kafka::testing::{Broker, BrokerOptions};

const ASK: Duration = Duration::from_secs(60);

type Transactional = ThreadedProducer<DefaultProducerContext>;

fn producer(broker: &Broker, id: &str) -> Transactional {
    let mut config = broker.clients().config();
    config.set("transactional.id", id).set("transaction.timeout.ms", "60000").set("linger.ms", "0");
    let producer: Transactional = config.create().unwrap();
    producer.init_transactions(ASK).unwrap();
    producer
}

fn consumer(broker: &Broker, group: &str, isolation: &str) -> BaseConsumer<KafkaContext> {
    let clients = broker.clients();
    let mut config: ClientConfig = clients.config();
    config.set("group.id", group).set("isolation.level", isolation).set("enable.auto.commit", "false");
    config.set("enable.partition.eof", "true").set("auto.offset.reset", "earliest");
    config.create_with_context(clients.context()).unwrap()
}

fn send(producer: &Transactional, topic: &str, value: &str) {
    let record: BaseRecord<'_, str, str> = BaseRecord::to(topic).partition(0).payload(value);
    producer.send(record).map_err(|(error, _)| error).unwrap();
}

/// All values that a reader of the topic sees up to its end.
fn values(broker: &Broker, topic: &str, isolation: &str) -> Vec<String> {
    let consumer = consumer(broker, "reader", isolation);
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&partitions).unwrap();
    let mut values = Vec::new();
    loop {
        match consumer.poll(ASK).expect("the end is told") {
            Ok(message) => values.push(message.payload_view::<str>().unwrap().unwrap().to_owned()),
            Err(KafkaError::PartitionEOF(_)) => return values,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_producer_that_was_replaced_cannot_commit() {
    let broker = Broker::shared();
    broker.create_topic("replaced", 1, &[]);
    let old = producer(broker, "replaced");
    old.begin_transaction().unwrap();
    send(&old, "replaced", "old");
    old.flush(ASK).unwrap();

    let new = producer(broker, "replaced");
    new.begin_transaction().unwrap();
    send(&new, "replaced", "new");
    new.commit_transaction(ASK).unwrap();

    let error = old.commit_transaction(ASK).unwrap_err();
    assert!(
        matches!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::Fenced | RDKafkaErrorCode::ProducerFenced)),
        "{error}"
    );
    assert_eq!(values(broker, "replaced", "read_committed"), ["new"]);
}

#[test]
fn a_broker_has_its_records_and_its_address_after_a_restart() {
    let mut broker = Broker::start(BrokerOptions::default());
    broker.create_topic("kept", 1, &[("retention.ms", "-1")]);
    let bootstrap = broker.bootstrap();
    let producer = producer(&broker, "kept");
    producer.begin_transaction().unwrap();
    send(&producer, "kept", "a");
    producer.commit_transaction(ASK).unwrap();
    // Its mark is in the partition before the broker goes: a node that starts may take a partition that it does not know
    // yet for deleted, and never write the mark.
    while values(&broker, "kept", "read_committed").is_empty() {}
    broker.restart();
    assert_eq!(values(&broker, "kept", "read_committed"), ["a"]);
    assert_eq!(broker.bootstrap(), bootstrap);
}
