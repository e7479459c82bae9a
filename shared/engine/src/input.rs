//! Reading upstream rows: which slices of a row belong to a task, and getting their bytes.

use std::collections::BTreeSet;

use bytes::Bytes;
use payguard_model::{EventTime, KeyGroup};

use crate::error::EngineError;
use crate::ids::{StageId, TaskId};
use crate::layout::{self, Layout, View};
use crate::logic::DecodeError;
use crate::merge::BufferedRow;
use crate::row::{CommitRow, SegmentLocation, Slice};
use crate::segment::{self, SliceError, SliceReader};
use crate::store::SegmentStore;
use crate::task::TaskPlan;

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
    /// The tasks that are inputs, given the registered ones. Those of the layout that shards began with are inputs
    /// anyhow; those of a later one are found in the last rows of the ones before, too.
    #[must_use]
    pub fn tasks(&self, registered: Vec<TaskId>) -> Vec<TaskId> {
        match &self.producers {
            Producers::Shards(shards) => {
                let redrawn = registered.into_iter().filter(|task| task.redrawn().is_some());
                (0..*shards).map(|shard| TaskId::shard(&self.stage, shard)).chain(redrawn).collect()
            }
            Producers::Partitions(topics) => partitions(&self.stage, topics, registered),
            Producers::Registered => registered,
        }
    }

    /// Whether `task` is an input, once it is registered.
    #[must_use]
    pub fn has(&self, task: &TaskId) -> bool {
        self.stage == task.stage
            && match &self.producers {
                Producers::Shards(shards) => layout::place(task, Layout::first(*shards)).is_some(),
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

/// Tells the key group of a record, given the number of its input stream and its bytes.
pub type KeyGroupOf<'a> = dyn Fn(usize, &[u8]) -> Result<KeyGroup, DecodeError> + Sync + 'a;

/// Who reads a row: which of its records, and how the key group of one is found.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    /// The streams it reads there.
    pub upstream: &'a Upstream,
    /// Its key groups, and what was taken before it.
    pub view: View<'a>,
    /// The key group of a record.
    pub key_group: &'a KeyGroupOf<'a>,
}

/// Reads the records of a row that are for `reader`.
///
/// # Errors
/// When the segment store fails, the object is not there or the bytes are not those that were committed.
pub async fn open_row(
    store: &dyn SegmentStore,
    producer: &TaskId,
    row: &CommitRow,
    reader: Reader<'_>,
) -> Result<BufferedRow, EngineError> {
    let (input, seq) = (TaskPlan::input_id(producer), i64::try_from(row.seq).unwrap_or(i64::MAX));
    let (mut slices, mut whole) = (Vec::new(), !reader.view.is_partly_taken(&input, seq));
    for slice in &row.slices {
        let groups = Layout::first(slice.shards).groups(slice.shard);
        let wanted = reader.upstream.streams.iter().find(|(name, _)| *name == slice.stream);
        let Some((_, stream)) = wanted.filter(|_| reader.view.needs(&input, seq, &groups)) else { continue };
        let mine = reader.view.groups;
        whole &= mine.start <= groups.start && groups.end <= mine.end;
        let raw = read_slice(store, producer, row, slice).await?;
        slices.push((*stream, SliceReader::new(raw, slice.count).map_err(|e| damaged(producer, row, &e))?));
    }
    if !whole {
        slices = select(slices, &input, seq, reader).map_err(|e| damaged_by(producer, row, e))?;
    }
    // What is sealed has nothing more at any time.
    let watermark = if row.sealed.is_some() { EventTime::MAX } else { row.watermark() };
    Ok(BufferedRow { seq, watermark, idle: row.idle, sealed: row.sealed, slices })
}

/// Picks the reader's records out of slices that hold others too.
fn select(
    slices: Vec<(usize, SliceReader)>,
    input: &str,
    seq: i64,
    reader: Reader<'_>,
) -> Result<Vec<(usize, SliceReader)>, String> {
    let mut records = Vec::new();
    for (stream, slice) in &slices {
        let mut slice = slice.clone();
        while let Some(record) = slice.take().map_err(|e| e.to_string())? {
            let group = (reader.key_group)(*stream, record.payload).map_err(|e| e.to_string())?;
            records.push((record.header.order, group.0));
        }
    }
    let mut mine = reader.view.select(input, seq, &records).into_iter();
    let keep = |(stream, slice): (usize, SliceReader)| {
        let count = slice.count();
        Ok((stream, segment::retain(slice, mine.by_ref().take(count)).map_err(|e| e.to_string())?))
    };
    slices.into_iter().map(keep).collect()
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
        let tasks = tasks.into_iter().chain(["parse/g2.2of3", "parse/g3.0of1"]).collect::<Vec<_>>();
        for producers in [Producers::Shards(2), Producers::Partitions(topics), Producers::Registered] {
            let upstream = Upstream { stage: StageId::new("parse"), producers, streams: Vec::new() };
            for task in tasks.iter().map(|task| task.parse::<TaskId>().expect("a task")) {
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
