//! Names: stages, tasks, streams, inputs, sequence numbers, attempts.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::layout::Layout;

/// Permanent id of a stage, for example `dedup`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StageId(pub Arc<str>);

/// Permanent id of a stream, for example `payments`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub Arc<str>);

/// A task: a stage and its instance, written `stage/instance`.
///
/// The instance of a source stage is the Kafka partition (`payments.raw-0`), of any other stage the shard (`0`), of a
/// stage whose shards were redrawn the generation too (`g2.1of4`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId {
    /// The stage.
    pub stage: StageId,
    /// Kafka partition or shard number.
    pub instance: Arc<str>,
}

/// An input of a task: an upstream task (`dedup/0`) or a Kafka partition (`payments.raw-0`).
pub type InputId = String;

/// Number of a commit in its task's log; the first commit is 1, 0 means "nothing committed".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seq(pub u64);

/// Identity of one attempt to commit; tells our own lost success from someone else's.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attempt(pub String);

impl Seq {
    /// The next commit's number.
    #[must_use]
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

impl StageId {
    /// A stage id from its text.
    #[must_use]
    pub fn new(id: &str) -> StageId {
        StageId(Arc::from(id))
    }
}

impl StreamId {
    /// A stream id from its text.
    #[must_use]
    pub fn new(id: &str) -> StreamId {
        StreamId(Arc::from(id))
    }
}

impl TaskId {
    /// The task of `stage` for a shard.
    #[must_use]
    pub fn shard(stage: &StageId, shard: u32) -> TaskId {
        TaskId { stage: stage.clone(), instance: Arc::from(shard.to_string()) }
    }

    /// The task of a source stage for a Kafka partition.
    #[must_use]
    pub fn partition(stage: &StageId, topic: &str, partition: i32) -> TaskId {
        TaskId { stage: stage.clone(), instance: Arc::from(format!("{topic}-{partition}")) }
    }

    /// The task of a shard of a layout that was redrawn: `g2.1of4` is shard 1 of 4 of the second generation.
    pub(crate) fn of_layout(stage: &StageId, layout: Layout, shard: u32) -> TaskId {
        let instance = format!("g{}.{shard}of{}", layout.generation, layout.shards);
        TaskId { stage: stage.clone(), instance: Arc::from(instance) }
    }

    /// Layout and shard, when the instance is a shard of a layout that was redrawn.
    #[must_use]
    pub fn redrawn(&self) -> Option<(Layout, u32)> {
        let (generation, place) = self.instance.strip_prefix('g')?.split_once('.')?;
        let (shard, shards) = place.split_once("of")?;
        let layout = Layout { generation: generation.parse().ok()?, shards: shards.parse().ok()? };
        Some((layout, shard.parse().ok()?))
    }

    /// Topic and partition, when the instance is a Kafka partition.
    #[must_use]
    pub fn topic_partition(&self) -> Option<(&str, i32)> {
        let (topic, partition) = self.instance.rsplit_once('-')?;
        Some((topic, partition.parse().ok()?))
    }

    /// The shard number, when the instance is one of the layout that the stage began with.
    #[must_use]
    pub fn shard_number(&self) -> Option<u32> {
        self.instance.parse().ok()
    }
}

/// A task id that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("a task is written `stage/instance`, for example `dedup/0`; got `{0}`")]
pub struct BadTaskId(pub String);

impl FromStr for TaskId {
    type Err = BadTaskId;

    fn from_str(text: &str) -> Result<TaskId, BadTaskId> {
        match text.split_once('/') {
            Some((stage, instance)) if !stage.is_empty() && !instance.is_empty() => {
                Ok(TaskId { stage: StageId::new(stage), instance: Arc::from(instance) })
            }
            _ => Err(BadTaskId(text.to_owned())),
        }
    }
}

impl fmt::Display for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stage, self.instance)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
