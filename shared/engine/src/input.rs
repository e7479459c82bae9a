//! Reading upstream rows: which slices of a row belong to a task, and getting their bytes.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::error::EngineError;
use crate::ids::{StageId, TaskId};
use crate::merge::BufferedRow;
use crate::row::{CommitRow, SegmentLocation, Slice};
use crate::segment::{self, SliceError, SliceReader};
use crate::store::SegmentStore;

/// One upstream stage of a task and the streams it reads from there.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// The stage that produces.
    pub stage: StageId,
    /// Which of its tasks produce.
    pub producers: Producers,
    /// Its streams that this stage reads: (name, number of the input stream in this stage).
    pub streams: Vec<(String, usize)>,
}

/// The tasks of a stage that produce a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Producers {
    /// All shards of a stage.
    Shards(u32),
    /// Kafka partitions of these topics.
    Partitions(Vec<TopicPartitions>),
    /// The tasks that are registered: a task that never had anything to say is nobody's input.
    Registered,
}

/// The partitions of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicPartitions {
    /// The topic.
    pub topic: String,
    /// Partitions that are known to exist; more may register.
    pub known: u32,
}

impl Upstream {
    /// The tasks that are inputs, given the registered ones, which are needed unless the producers are shards.
    #[must_use]
    pub fn tasks(&self, registered: Vec<TaskId>) -> Vec<TaskId> {
        match &self.producers {
            Producers::Shards(shards) => (0..*shards).map(|shard| TaskId::shard(&self.stage, shard)).collect(),
            Producers::Partitions(topics) => partitions(&self.stage, topics, registered),
            Producers::Registered => registered,
        }
    }

    /// Whether `task` is an input, once it is registered.
    #[must_use]
    pub fn has(&self, task: &TaskId) -> bool {
        self.stage == task.stage
            && match &self.producers {
                Producers::Shards(shards) => task.shard_number().is_some_and(|shard| shard < *shards),
                Producers::Partitions(topics) => is_partition_of(topics, task),
                Producers::Registered => true,
            }
    }
}

/// The tasks of a source stage for these topics: those that must exist and those that registered.
#[must_use]
pub fn partitions(stage: &StageId, topics: &[TopicPartitions], registered: Vec<TaskId>) -> Vec<TaskId> {
    let known = topics.iter().flat_map(|t| {
        let numbers = 0..i32::try_from(t.known).unwrap_or(i32::MAX);
        numbers.map(|partition| TaskId::partition(stage, &t.topic, partition))
    });
    let all: BTreeSet<TaskId> =
        registered.into_iter().filter(|task| is_partition_of(topics, task)).chain(known).collect();
    all.into_iter().collect()
}

fn is_partition_of(topics: &[TopicPartitions], task: &TaskId) -> bool {
    task.topic_partition().is_some_and(|(topic, _)| topics.iter().any(|wanted| wanted.topic == topic))
}

/// Reads the records of a row that are for `shard`.
///
/// # Errors
/// When the segment store fails, the object is not there or the bytes are not those that were committed.
pub async fn open_row(
    store: &dyn SegmentStore,
    producer: &TaskId,
    row: &CommitRow,
    upstream: &Upstream,
    shard: u32,
) -> Result<BufferedRow, EngineError> {
    let mut slices = Vec::new();
    for slice in &row.slices {
        if slice.shard != shard {
            continue;
        }
        let Some((_, stream)) = upstream.streams.iter().find(|(name, _)| *name == slice.stream) else { continue };
        let raw = read_slice(store, producer, row, slice).await?;
        let reader = SliceReader::new(raw, slice.count).map_err(|e| damaged(producer, row, &e))?;
        slices.push((*stream, reader));
    }
    Ok(BufferedRow {
        seq: i64::try_from(row.seq).unwrap_or(i64::MAX),
        watermark: row.watermark(),
        idle: row.idle,
        slices,
    })
}

/// Reads and checks one slice of a row: output records or the state delta.
///
/// # Errors
/// When the segment store fails, the object is not there or the bytes are not those that were committed.
pub async fn read_slice(
    store: &dyn SegmentStore,
    producer: &TaskId,
    row: &CommitRow,
    slice: &Slice,
) -> Result<Bytes, EngineError> {
    let stored = match &row.segment {
        None => Bytes::new(),
        Some(SegmentLocation::Object(key)) => {
            store.get(key, slice.offset, slice.len).await.map_err(|e| match e.kind {
                crate::error::StoreErrorKind::Corrupt => damaged_by(producer, row, e.to_string()),
                _ => EngineError::Store(e),
            })?
        }
        Some(SegmentLocation::Inline(bytes)) => {
            let from = usize::try_from(slice.offset).unwrap_or(usize::MAX).min(bytes.len());
            let len = usize::try_from(slice.len).unwrap_or(usize::MAX).min(bytes.len() - from);
            bytes.slice(from..from + len)
        }
    };
    segment::open(slice, &stored).map_err(|e| damaged(producer, row, &e))
}

/// The error for a row's segment that is not what was written.
#[must_use]
pub fn damaged(producer: &TaskId, row: &CommitRow, error: &SliceError) -> EngineError {
    damaged_by(producer, row, error.to_string())
}

fn damaged_by(producer: &TaskId, row: &CommitRow, detail: String) -> EngineError {
    let object = match &row.segment {
        Some(SegmentLocation::Object(key)) => key.clone(),
        Some(SegmentLocation::Inline(_)) | None => "inline".to_owned(),
    };
    EngineError::DamagedSegment { task: producer.to_string(), seq: row.seq, object, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partitions_of_other_topics_are_not_inputs_and_known_ones_are_from_the_beginning() {
        let stage = StageId::new("parse");
        let topics = [TopicPartitions { topic: "payments.raw".to_owned(), known: 2 }];
        let task = |topic, partition| TaskId::partition(&stage, topic, partition);
        let registered = vec![task("payments.confirmations", 0), task("payments.raw", 1), task("payments.raw", 7)];
        let expected = [task("payments.raw", 0), task("payments.raw", 1), task("payments.raw", 7)];
        assert_eq!(partitions(&stage, &topics, registered), expected);
    }

    #[test]
    fn an_upstream_has_the_tasks_that_it_names_once_they_are_registered() {
        let topics = vec![TopicPartitions { topic: "payments.raw".to_owned(), known: 1 }];
        let tasks = ["parse/payments.raw-0", "parse/payments.raw-7", "parse/rules.config-0", "parse/0", "parse/2"];
        for producers in [Producers::Shards(2), Producers::Partitions(topics), Producers::Registered] {
            let upstream = Upstream { stage: StageId::new("parse"), producers, streams: Vec::new() };
            for task in tasks.map(|task| task.parse::<TaskId>().expect("a task")) {
                assert_eq!(
                    upstream.has(&task),
                    upstream.tasks(vec![task.clone()]).contains(&task),
                    "{task} {upstream:?}"
                );
            }
            assert!(!upstream.has(&"dedup/0".parse().expect("a task")));
        }
    }
}
