//! What the ledger holds: a task's head and its log of commit rows.
//!
//! Both are protobuf messages: old and new code may hold rows of each other, so fields are added, never reused.

use std::collections::BTreeMap;

use bytes::Bytes;
use payguard_model::{EventTime, ProcessingTime};

use crate::ids::{InputId, Seq};
use crate::layout::{Layout, Taken};

/// Number of what this release stores: that of `schema.lock`, which grows with every change of it.
pub const SCHEMA: u32 = 4;

/// How far a task has read one input: everything up to and including `at`, and `within` records of what follows it.
///
/// For a Kafka partition `at` is the last processed offset (-1: none) and `within` is 0. For an upstream task `at` is
/// the last row read to its end (0: none) and `within` counts the records already taken from row `at + 1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Message)]
pub struct Position {
    /// Last offset or row seq processed to its end.
    #[prost(sint64, tag = "1")]
    pub at: i64,
    /// Records processed of the row after `at`.
    #[prost(uint32, tag = "2")]
    pub within: u32,
}

/// What a task knows of one input as of a commit.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct InputState {
    /// How far it is processed.
    #[prost(message, required, tag = "1")]
    pub position: Position,
    /// Its watermark at that position, milliseconds.
    #[prost(sint64, tag = "2")]
    pub watermark_ms: i64,
    /// Whether it was idle there.
    #[prost(bool, tag = "3")]
    pub idle: bool,
}

/// A value that one task decides and others read at the start of a batch, for example the limits of rules.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Broadcast {
    /// Grows by one with every accepted change: one total order for all readers.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Protobuf bytes; what they mean is between writer and readers.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// A task's newest commit and its progress: one row of the coordination table.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Head {
    /// The newest commit (0: none).
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// The attempt that made it.
    #[prost(string, tag = "2")]
    pub attempt: String,
    /// The task's watermark, milliseconds.
    #[prost(sint64, tag = "3")]
    pub watermark_ms: i64,
    /// Whether all inputs are idle.
    #[prost(bool, tag = "4")]
    pub idle: bool,
    /// Every input the task has read.
    #[prost(btree_map = "string, message", tag = "5")]
    pub inputs: BTreeMap<InputId, InputState>,
    /// State of all commits up to here is in the state table.
    #[prost(uint64, tag = "6")]
    pub flushed_seq: u64,
    /// Earliest processing-time timer, milliseconds.
    #[prost(sint64, optional, tag = "7")]
    pub next_timer_ms: Option<i64>,
    /// Grows when the task's shards are redrawn.
    #[prost(uint32, tag = "8")]
    pub generation: u32,
    /// Version of the code that made the commit.
    #[prost(string, tag = "9")]
    pub code: String,
    /// Wall clock of the commit, milliseconds.
    #[prost(sint64, tag = "10")]
    pub committed_at_ms: i64,
    /// Wall clock of the last commit that took input records, milliseconds.
    #[prost(sint64, tag = "11")]
    pub last_input_at_ms: i64,
    /// Totals since the task began, by counter.
    #[prost(btree_map = "string, uint64", tag = "12")]
    pub counters: BTreeMap<String, u64>,
    /// Newest measurements, by gauge.
    #[prost(btree_map = "string, sint64", tag = "13")]
    pub gauges: BTreeMap<String, i64>,
    /// The value the task has decided last, if it decides one.
    #[prost(message, optional, tag = "14")]
    pub broadcast: Option<Broadcast>,
    /// Version of the broadcast value that the newest batch was handled with (0: none).
    #[prost(uint64, tag = "15")]
    pub pinned: u64,
    /// Shards of the task's layout; 0 for a task that has none.
    #[prost(uint32, tag = "16")]
    pub shards: u32,
    /// The layout that takes over, when the task is sealed: it reads nothing any more.
    #[prost(message, optional, tag = "17")]
    pub sealed: Option<Layout>,
    /// What tasks of earlier generations have taken of the inputs, as long as that is more than this task has read.
    #[prost(message, repeated, tag = "18")]
    pub taken: Vec<Taken>,
    /// Where the savepoint is that the task was restored from; empty when it began by itself.
    #[prost(string, tag = "19")]
    pub restored_from: String,
    /// [`SCHEMA`] of the code that made the commit.
    #[prost(uint32, tag = "20")]
    pub schema: u32,
}

/// Where a commit's segment is.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum SegmentLocation {
    /// In the row itself.
    #[prost(bytes = "bytes", tag = "7")]
    Inline(Bytes),
    /// One object of the segment store, by key.
    #[prost(string, tag = "8")]
    Object(String),
}

/// One run of records in a segment, all for one stream and one shard of its consumer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Slice {
    /// Stream name.
    #[prost(string, tag = "1")]
    pub stream: String,
    /// Shard of the consumer stage.
    #[prost(uint32, tag = "2")]
    pub shard: u32,
    /// First byte in the segment.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    /// Bytes in the segment.
    #[prost(uint64, tag = "4")]
    pub len: u64,
    /// Records.
    #[prost(uint32, tag = "5")]
    pub count: u32,
    /// CRC-32 of the bytes.
    #[prost(fixed32, tag = "6")]
    pub crc: u32,
    /// Smallest event time, milliseconds.
    #[prost(sint64, tag = "7")]
    pub min_event_time_ms: i64,
    /// Greatest event time, milliseconds.
    #[prost(sint64, tag = "8")]
    pub max_event_time_ms: i64,
    /// Bytes after decompression.
    #[prost(uint64, tag = "9")]
    pub raw_len: u64,
    /// Shards among which the stream was shared out; 0 for a state delta.
    #[prost(uint32, tag = "10")]
    pub shards: u32,
}

/// One commit: immutable once written.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitRow {
    /// Number in the task's log.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// The attempt that made it.
    #[prost(string, tag = "2")]
    pub attempt: String,
    /// Positions before, of the inputs that moved.
    #[prost(btree_map = "string, message", tag = "3")]
    pub from: BTreeMap<InputId, Position>,
    /// Inputs after, of those that moved.
    #[prost(btree_map = "string, message", tag = "4")]
    pub to: BTreeMap<InputId, InputState>,
    /// The task's watermark after, milliseconds.
    #[prost(sint64, tag = "5")]
    pub watermark_ms: i64,
    /// Whether all inputs are idle.
    #[prost(bool, tag = "6")]
    pub idle: bool,
    /// Where the segment is; absent when the commit has neither output nor delta.
    #[prost(oneof = "SegmentLocation", tags = "7, 8")]
    pub segment: Option<SegmentLocation>,
    /// Output records of the segment.
    #[prost(message, repeated, tag = "9")]
    pub slices: Vec<Slice>,
    /// State changes of the segment; absent when nothing changed.
    #[prost(message, optional, tag = "10")]
    pub delta: Option<Slice>,
    /// Processing time the batch ran at, used by TTLs and processing-time timers, milliseconds.
    #[prost(sint64, tag = "11")]
    pub now_ms: i64,
    /// What was counted in this batch.
    #[prost(btree_map = "string, uint64", tag = "12")]
    pub counters: BTreeMap<String, u64>,
    /// Version of the code.
    #[prost(string, tag = "13")]
    pub code: String,
    /// Generation of the task's shards.
    #[prost(uint32, tag = "14")]
    pub generation: u32,
    /// The value this commit decided, if it decided one.
    #[prost(message, optional, tag = "15")]
    pub broadcast: Option<Broadcast>,
    /// Version of the broadcast value that the batch was handled with (0: none).
    #[prost(uint64, tag = "16")]
    pub pinned: u64,
    /// The layout that takes over, when the task is sealed: this commit has no records, and none after it has.
    #[prost(message, optional, tag = "17")]
    pub sealed: Option<Layout>,
    /// [`SCHEMA`] of the code.
    #[prost(uint32, tag = "18")]
    pub schema: u32,
}

impl Head {
    /// The head of a task that has committed nothing.
    #[must_use]
    pub fn empty() -> Head {
        Head { watermark_ms: EventTime::MIN.0, generation: 1, ..Head::default() }
    }

    /// The newest commit.
    #[must_use]
    pub fn seq(&self) -> Seq {
        Seq(self.seq)
    }

    /// The task's watermark.
    #[must_use]
    pub fn watermark(&self) -> EventTime {
        EventTime(self.watermark_ms)
    }

    /// Wall clock of the newest commit.
    #[must_use]
    pub fn committed_at(&self) -> ProcessingTime {
        ProcessingTime(self.committed_at_ms)
    }

    /// Whether the task is sealed and all of its state is in the state table, for the tasks that take over.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.sealed.is_some() && self.flushed_seq + 1 >= self.seq
    }

    /// Whether the task's input has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.watermark() == EventTime::MAX
    }
}

impl InputState {
    /// An input nothing was read of; `at` is what "none" means for it (-1 for offsets, 0 for rows).
    #[must_use]
    pub fn untouched(at: i64) -> InputState {
        InputState { position: Position { at, within: 0 }, watermark_ms: EventTime::MIN.0, idle: false }
    }

    /// The input's watermark.
    #[must_use]
    pub fn watermark(&self) -> EventTime {
        EventTime(self.watermark_ms)
    }
}

impl CommitRow {
    /// The task's watermark after this commit.
    #[must_use]
    pub fn watermark(&self) -> EventTime {
        EventTime(self.watermark_ms)
    }
}
