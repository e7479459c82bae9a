//! The pipeline as data: stages, streams, operators, shards; and the configuration that shapes it.
//!
//! Functions, local runner, command line, documentation and tests read the same value. Nothing here runs anything.

pub mod begun;
pub mod collection;
pub mod config;
pub mod connections;
pub mod keys;
mod payguard;
mod picture;
pub mod progress;

use payguard_engine::input::{Producers, TopicPartitions, Upstream};
use payguard_engine::layout::{self, Layout};
use payguard_engine::merge::Alignment;
use payguard_engine::task::{OutputStream, TaskPlan};
use payguard_engine::{StageId, TaskId};

pub use config::{Config, ConfigError, System};
pub use payguard::{operator, stage, stream};

/// The topology for a configuration.
#[must_use]
pub fn payguard(config: &Config) -> Topology {
    match config.system {
        System::Payments => payguard::payments(config),
        System::Connections => connections::connections(config),
    }
}

/// What a stage is driven by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StageKind {
    /// Records of Kafka topics; one task per partition.
    Source {
        /// The topics.
        topics: Vec<SourceTopic>,
    },
    /// Messages of one topic, all partitions by one task: it decides a value that other stages read.
    Broadcast {
        /// The topic.
        topic: String,
    },
    /// Upstream logs; operators with keyed state.
    Operators,
    /// Upstream logs; others are asked about each record.
    Lookup,
    /// Upstream logs; records leave the pipeline.
    Sink,
    /// A schedule; no log of its own.
    Schedule,
}

impl StageKind {
    /// Whether its tasks read the logs of other stages.
    #[must_use]
    pub fn reads_logs(&self) -> bool {
        matches!(self, StageKind::Operators | StageKind::Lookup | StageKind::Sink)
    }

    /// Whether its shards can be redrawn while it runs: sinks have their position outside.
    #[must_use]
    pub fn can_be_redrawn(&self) -> bool {
        matches!(self, StageKind::Operators | StageKind::Lookup)
    }
}

/// A topic that a source stage is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceTopic {
    /// Its name and the partitions that are known to exist.
    pub partitions: TopicPartitions,
    /// The streams its records end up in.
    pub streams: Vec<&'static str>,
}

/// A function of the pipeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stage {
    /// Permanent id.
    pub id: StageId,
    /// What drives it.
    pub kind: StageKind,
    /// Permanent ids of its operators.
    pub operators: Vec<&'static str>,
    /// Permanent ids under which they keep state; operators that share a state have one id together.
    pub states: Vec<&'static str>,
    /// Shards; a source has one task per partition instead.
    pub shards: u32,
    /// What it does, in half a sentence.
    pub summary: &'static str,
}

/// A named flow of records from one stage to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Its name.
    pub name: &'static str,
    /// The stage that emits it.
    pub producer: StageId,
    /// The stage that reads it.
    pub consumer: StageId,
    /// The field that decides the consumer's shard.
    pub key: &'static str,
}

/// Stages and streams of one pipeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// Prefixes every key, so that pipelines run side by side.
    pub pipeline: String,
    /// In order of flow.
    pub stages: Vec<Stage>,
    /// In order of flow.
    pub streams: Vec<Stream>,
    /// How the inputs of stages with operators are kept together.
    pub alignment: Alignment,
    /// How those of sinks are.
    pub sink_alignment: Alignment,
    /// Which stage's broadcast value a stage reads: (reader, decider).
    pub broadcasts: Vec<(StageId, StageId)>,
}

impl Topology {
    /// A stage by id.
    #[must_use]
    pub fn stage(&self, id: &StageId) -> Option<&Stage> {
        self.stages.iter().find(|s| s.id == *id)
    }

    /// The streams a stage reads, in the order in which its records name them.
    pub fn inputs<'a>(&'a self, id: &'a StageId) -> impl Iterator<Item = &'a Stream> {
        self.streams.iter().filter(move |s| s.consumer == *id)
    }

    /// The streams a stage emits, in the order in which its operators number them.
    pub fn outputs<'a>(&'a self, id: &'a StageId) -> impl Iterator<Item = &'a Stream> {
        self.streams.iter().filter(move |s| s.producer == *id)
    }

    /// The number of a stage's output stream, if the topology has it.
    #[must_use]
    pub fn output(&self, id: &StageId, stream: &str) -> Option<usize> {
        self.outputs(id).position(|s| s.name == stream)
    }

    /// All tasks of the stages that read upstream logs.
    #[must_use]
    pub fn consumer_tasks(&self) -> Vec<TaskId> {
        let consumers = self.stages.iter().filter(|s| s.kind.reads_logs());
        consumers.flat_map(|s| (0..s.shards).map(|shard| TaskId::shard(&s.id, shard))).collect()
    }

    /// The layout that a stage has now, by the tasks that are known of it.
    #[must_use]
    pub fn layout<'t>(&self, stage: &Stage, known: impl IntoIterator<Item = &'t TaskId>) -> Layout {
        let of_stage: Vec<TaskId> = known.into_iter().filter(|task| task.stage == stage.id).cloned().collect();
        Layout::newest(Layout::first(stage.shards), &of_stage)
    }

    /// The tasks of a stage that reads logs: those it began with and those of layouts that were redrawn, all shards of
    /// each, by generation.
    #[must_use]
    pub fn tasks_of(&self, stage: &Stage, registered: &[TaskId]) -> Vec<TaskId> {
        let first = Layout::first(stage.shards);
        let mut layouts: Vec<Layout> =
            registered.iter().filter_map(|t| t.redrawn()).map(|(layout, _)| layout).collect();
        layouts.push(first);
        layouts.sort_by_key(|layout| layout.generation);
        layouts.dedup();
        layouts.into_iter().flat_map(|layout| layout.tasks(&stage.id)).collect()
    }

    /// What the engine needs to know to run `task`; `None` when the topology has no such task.
    #[must_use]
    pub fn plan(&self, task: &TaskId) -> Option<TaskPlan> {
        let stage = self.stage(&task.stage)?;
        let first = if stage.kind.reads_logs() { Layout::first(stage.shards) } else { Layout::first(1) };
        let (layout, shard) = match stage.kind {
            StageKind::Source { .. } | StageKind::Broadcast { .. } => (first, 0),
            StageKind::Operators | StageKind::Lookup | StageKind::Sink => layout::place(task, first)?,
            StageKind::Schedule => return None,
        };
        let outputs = self.outputs(&stage.id).map(|s| OutputStream {
            stream: s.name.to_owned(),
            consumer: s.consumer.clone(),
            layout: Layout::first(self.stage(&s.consumer).map_or(1, |c| c.shards)),
            is_redrawn: self.stage(&s.consumer).is_some_and(|c| c.kind.can_be_redrawn()),
        });
        Some(TaskPlan {
            task: task.clone(),
            shard,
            layout,
            first,
            upstreams: self.upstreams(&stage.id),
            outputs: outputs.collect(),
            broadcast: self.broadcasts.iter().find(|b| b.0 == stage.id).map(|b| TaskId::shard(&b.1, 0)),
            alignment: if stage.kind == StageKind::Sink { self.sink_alignment } else { self.alignment },
        })
    }

    fn upstreams(&self, id: &StageId) -> Vec<Upstream> {
        let mut upstreams: Vec<Upstream> = Vec::new();
        for (number, stream) in self.inputs(id).enumerate() {
            let named = (stream.name.to_owned(), number);
            match upstreams.iter_mut().find(|u| u.stage == stream.producer) {
                Some(upstream) => upstream.streams.push(named),
                None => upstreams.push(Upstream {
                    stage: stream.producer.clone(),
                    producers: self.producers(&stream.producer, id),
                    streams: vec![named],
                }),
            }
        }
        upstreams
    }

    /// The tasks of `producer` that have something for `consumer`.
    fn producers(&self, producer: &StageId, consumer: &StageId) -> Producers {
        match self.stage(producer).map(|stage| (&stage.kind, stage.shards)) {
            Some((StageKind::Source { topics }, _)) => {
                let is_read = |topic: &&SourceTopic| {
                    self.inputs(consumer).any(|s| s.producer == *producer && topic.streams.contains(&s.name))
                };
                Producers::Partitions(topics.iter().filter(is_read).map(|topic| topic.partitions.clone()).collect())
            }
            Some((StageKind::Broadcast { .. }, _)) => Producers::Registered,
            Some((_, shards)) => Producers::Shards(shards),
            None => Producers::Shards(0),
        }
    }
}
