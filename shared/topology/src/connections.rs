//! The connections pipeline: one stage of reordering for each variant, side by side on the same rows.

use payguard_engine::StageId;
use payguard_engine::input::TopicPartitions;
use payguard_operators::KeyedOperator;
use payguard_operators::connections::{ArrivalOrder, EventTimeOrder};

use crate::config::Config;
use crate::{SourceTopic, Stage, StageKind, Stream, Topology, stage, stream};

/// A way to put events in order, with a stage and streams of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variant {
    /// Its name, in the configuration and in verdicts.
    pub name: &'static str,
    /// Its stage.
    pub stage: &'static str,
    /// Permanent id of its operator.
    pub operator: &'static str,
    /// What it reads.
    pub events: &'static str,
    /// What it says.
    pub verdicts: &'static str,
    /// What came too late for it.
    pub late: &'static str,
    summary: &'static str,
}

/// All variants there are.
pub const VARIANTS: [Variant; 2] = [
    Variant {
        name: "a",
        stage: stage::REORDER_A,
        operator: ArrivalOrder::ID,
        events: stream::CONNECTIONS_A,
        verdicts: stream::VERDICTS_A,
        late: stream::LATE_A,
        summary: "verdicts on sessions read by arrival",
    },
    Variant {
        name: "b",
        stage: stage::REORDER_B,
        operator: EventTimeOrder::ID,
        events: stream::CONNECTIONS_B,
        verdicts: stream::VERDICTS_B,
        late: stream::LATE_B,
        summary: "verdicts on sessions read by event time",
    },
];

/// The variants that run, in the order in which there are.
pub fn variants(config: &Config) -> impl Iterator<Item = &'static Variant> {
    VARIANTS.iter().filter(|variant| config.connections.variants.iter().any(|name| name == variant.name))
}

/// The topology for a configuration.
pub(crate) fn connections(config: &Config) -> Topology {
    let (alignment, sink_alignment) = config.alignments();
    Topology {
        pipeline: config.pipeline.clone(),
        stages: stages(config),
        streams: streams(config),
        alignment,
        sink_alignment,
        broadcasts: Vec::new(),
    }
}

fn stages(config: &Config) -> Vec<Stage> {
    let new = |id: &str, kind, operators: Vec<&'static str>, states, shards, summary| Stage {
        id: StageId::new(id),
        kind,
        operators,
        states,
        shards,
        summary,
    };
    let partitions = TopicPartitions { topic: config.connections.topic.clone(), known: config.source.partitions };
    let streams = variants(config).map(|variant| variant.events).chain([stream::REJECTED]).collect();
    let parse = StageKind::Source { topics: vec![SourceTopic { partitions, streams }] };
    let mut stages = vec![new(stage::PARSE, parse, vec!["parse"], vec![], 1, "decode, validate, watermark")];
    for variant in variants(config) {
        let shards = config.shards.of(variant.stage).unwrap_or(1);
        let own = vec![variant.operator];
        stages.push(new(variant.stage, StageKind::Operators, own.clone(), own, shards, variant.summary));
    }
    stages.push(new(stage::PUBLISH, StageKind::Sink, vec!["publish"], vec![], 1, "verdicts and all other topics"));
    stages.push(new(stage::CLOCK, StageKind::Schedule, vec![], vec![], 1, "idle partitions, lost wake-ups, garbage"));
    stages
}

fn streams(config: &Config) -> Vec<Stream> {
    let new = |name, producer: &str, consumer: &str, key| Stream {
        name,
        producer: StageId::new(producer),
        consumer: StageId::new(consumer),
        key,
    };
    let mut streams: Vec<Stream> =
        variants(config).map(|v| new(v.events, stage::PARSE, v.stage, "sessionId")).collect();
    streams.push(new(stream::REJECTED, stage::PARSE, stage::PUBLISH, "reason"));
    for variant in variants(config) {
        streams.push(new(variant.verdicts, variant.stage, stage::PUBLISH, "sessionId"));
        streams.push(new(variant.late, variant.stage, stage::PUBLISH, "sessionId"));
    }
    streams
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::System;
    use crate::payguard;

    fn topology(variants: &[&str]) -> Topology {
        let mut config = Config { system: System::Connections, ..Config::default() };
        config.connections.variants = variants.iter().map(|name| (*name).to_owned()).collect();
        payguard(&config)
    }

    #[test]
    fn every_variant_that_runs_has_a_stage_and_streams_of_its_own() {
        let ids = |topology: &Topology| topology.stages.iter().map(|s| s.id.to_string()).collect::<Vec<_>>();
        assert_eq!(ids(&topology(&["b", "a"])), ["parse", "reorder_a", "reorder_b", "publish", "clock"]);
        assert_eq!(ids(&topology(&["b"])), ["parse", "reorder_b", "publish", "clock"]);
        assert_eq!(topology(&["a"]).streams.len(), 4);
        assert_eq!(topology(&["a", "b"]).streams.len(), 7);
    }

    #[test]
    fn every_stream_has_its_ends() {
        let topology = topology(&["a", "b"]);
        for stream in &topology.streams {
            assert!(topology.stage(&stream.producer).is_some() && topology.stage(&stream.consumer).is_some());
        }
    }
}
