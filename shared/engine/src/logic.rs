//! What a stage contributes to a task: its operators behind [`StageLogic`], their state behind [`OperatorState`].

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::{BufMut, Bytes};
use payguard_model::{EventTime, KEY_GROUPS, ProcessingTime, key_group, key_group::shard_of};
use prost::Message;

use crate::error::StoreError;
use crate::page::Page;
use crate::row::Broadcast;
use crate::segment::{Arrival, SegmentBuilder, Stamp};
use crate::store::SinkRecord;

/// A record or stored value that does not decode.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub String);

impl From<prost::DecodeError> for DecodeError {
    fn from(error: prost::DecodeError) -> DecodeError {
        DecodeError(error.to_string())
    }
}

/// Counters and gauges of one batch, by operator and name.
#[derive(Debug, Default)]
pub struct Counters {
    counters: Vec<(&'static str, &'static str, u64)>,
    gauges: Vec<(&'static str, &'static str, i64)>,
}

impl Counters {
    /// Adds to a counter.
    pub fn add(&mut self, operator: &'static str, name: &'static str, by: u64) {
        match self.counters.iter_mut().find(|c| c.0 == operator && c.1 == name) {
            Some(counter) => counter.2 += by,
            None => self.counters.push((operator, name, by)),
        }
    }

    /// The counters as `operator.name`.
    #[must_use]
    pub fn counted(&self) -> BTreeMap<String, u64> {
        self.counters.iter().filter(|c| c.2 > 0).map(|(o, n, v)| (format!("{o}.{n}"), *v)).collect()
    }

    /// The gauges as `operator.name`.
    #[must_use]
    pub fn gauges(&self) -> BTreeMap<String, i64> {
        self.gauges.iter().map(|(o, n, v)| (format!("{o}.{n}"), *v)).collect()
    }
}

/// Takes a stage's output records and counters during one batch.
#[derive(Debug)]
pub struct Collector {
    builder: SegmentBuilder,
    counters: Counters,
    watermark: EventTime,
    /// What the consumers' watermark is when they handle what is emitted now, and what that comes of.
    stamp: Stamp,
    now: ProcessingTime,
    origin: Origin,
}

/// The commit a batch is to become.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Origin {
    /// The task.
    pub task: String,
    /// The commit's number.
    pub seq: u64,
}

impl Collector {
    /// A collector for one batch.
    #[must_use]
    pub fn new(builder: SegmentBuilder, watermark: EventTime, now: ProcessingTime, origin: Origin) -> Collector {
        let stamp = Stamp { watermark, arrival: Arrival::default() };
        Collector { builder, counters: Counters::default(), watermark, stamp, now, origin }
    }

    /// The commit that this batch is to become.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The watermark the task has reached.
    #[must_use]
    pub fn watermark(&self) -> EventTime {
        self.watermark
    }

    /// The batch's processing time.
    #[must_use]
    pub fn now(&self) -> ProcessingTime {
        self.now
    }

    /// Moves the watermark; it never goes back (INV-3).
    pub fn advance(&mut self, watermark: EventTime) {
        self.watermark = self.watermark.max(watermark);
        self.stamp.watermark = self.watermark;
    }

    /// Says which source record is handled from here on: what is emitted bears its arrival.
    pub fn handle(&mut self, arrival: Arrival) {
        self.stamp.arrival = arrival;
    }

    /// Moves the watermark to the time of a timer that is due. What the timer emits comes before that watermark:
    /// consumers are told of it afterwards, so that a window's result is not late for a window of theirs.
    pub fn advance_to_timer(&mut self, time: EventTime) {
        self.watermark = self.watermark.max(time);
        self.stamp = Stamp { watermark: self.stamp.watermark.max(time.minus(1)), arrival: Arrival::TIMER };
    }

    /// Emits a message to output stream number `output`, to the consumer shard that owns `key`.
    pub fn emit<M: Message>(&mut self, output: usize, key: &str, event_time: EventTime, message: &M) {
        let len = message.encoded_len();
        let shard = self.shard(output, key);
        self.builder.push(output, shard, self.stamp, event_time, len, |bytes| message.encode_raw(bytes));
    }

    /// Emits a record that is encoded already.
    pub fn emit_encoded(&mut self, output: usize, key: &str, event_time: EventTime, payload: &[u8]) {
        let shard = self.shard(output, key);
        self.builder.push(output, shard, self.stamp, event_time, payload.len(), |bytes| bytes.put_slice(payload));
    }

    /// Adds to a counter.
    pub fn count(&mut self, operator: &'static str, name: &'static str, by: u64) {
        self.counters.add(operator, name, by);
    }

    /// The counters of the batch.
    pub fn counters(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Sets a gauge: the newest value replaces the one before.
    pub fn gauge(&mut self, operator: &'static str, name: &'static str, value: i64) {
        self.counters.gauges.retain(|g| g.0 != operator || g.1 != name);
        self.counters.gauges.push((operator, name, value));
    }

    /// The builder and the counters, at the end of the batch.
    #[must_use]
    pub fn finish(self) -> (SegmentBuilder, Counters) {
        (self.builder, self.counters)
    }

    fn shard(&self, output: usize, key: &str) -> u32 {
        match self.builder.shards(output) {
            1 => 0,
            shards => shard_of(key_group(key, KEY_GROUPS), shards, KEY_GROUPS),
        }
    }
}

/// The operators of one task of a stage. In-memory only and synchronous; the engine drives it.
pub trait StageLogic: Send + Sync {
    /// Handles a record of input stream number `stream` (the order in the topology).
    ///
    /// # Errors
    /// When the record does not decode.
    fn on_record(&mut self, stream: usize, payload: &[u8], out: &mut Collector) -> Result<(), DecodeError>;

    /// Earliest event-time timer; `on_watermark` is called only when the watermark reaches it.
    fn next_event_timer(&self) -> Option<EventTime> {
        None
    }

    /// Fires the event-time timers up to the collector's watermark, in time order.
    fn on_watermark(&mut self, out: &mut Collector) {
        let _ = out;
    }

    /// Earliest processing-time timer: the task wants to run then even without input.
    fn next_processing_timer(&self) -> Option<ProcessingTime> {
        None
    }

    /// Takes over the broadcast value that this batch is handled with. Called before every batch of a stage that
    /// reads one, once there is one.
    ///
    /// # Errors
    /// When the value does not decode.
    fn on_broadcast(&mut self, broadcast: &Broadcast) -> Result<(), DecodeError> {
        let _ = broadcast;
        Ok(())
    }

    /// Called at the start of every batch: fires processing-time timers, forgets what has expired.
    fn on_processing_time(&mut self, out: &mut Collector) {
        let _ = out;
    }

    /// The key of a record of an input stream, by which its producer shared it out. Asked only where the shards of the
    /// stage were redrawn after the record was emitted.
    ///
    /// # Errors
    /// When the record does not decode.
    fn key(&self, stream: usize, payload: &[u8]) -> Result<String, DecodeError>;

    /// The keyed states of the stage, always in the same order.
    fn states(&mut self) -> Vec<&mut dyn OperatorState> {
        Vec::new()
    }
}

/// Pages to write and pages that those replace.
#[derive(Debug, Default)]
pub struct DirtyPages {
    /// (key group, page name, body, expiry in seconds since the epoch).
    pub put: Vec<PageBody>,
    /// (key group, page name): removed once everything in `put` is written and another commit has been made.
    pub delete: Vec<(u32, String)>,
}

/// One page to write.
#[derive(Debug)]
pub struct PageBody {
    /// Key group.
    pub group: u32,
    /// Name within operator and key group.
    pub page: String,
    /// Protobuf bytes.
    pub body: Vec<u8>,
    /// When it may be forgotten, seconds since the Unix epoch.
    pub expires_at_s: Option<i64>,
}

/// The keyed state of one operator in one task.
pub trait OperatorState: Send + Sync {
    /// Permanent id of the operator.
    fn operator(&self) -> &'static str;

    /// The changes since the last call, for the commit; empty when there are none.
    fn take_delta(&mut self) -> Vec<u8>;

    /// Applies the changes of a commit. They count as not flushed.
    ///
    /// # Errors
    /// When the delta does not decode.
    fn apply_delta(&mut self, delta: &[u8]) -> Result<(), DecodeError>;

    /// Takes over stored pages of this operator, all that there are, in any order. Called once, on an empty state.
    ///
    /// # Errors
    /// When a page does not decode.
    fn load(&mut self, pages: Vec<Page>) -> Result<(), DecodeError>;

    /// The pages whose content changed since the last call; they will be written with `version`, which is that of no
    /// other flush. The caller writes them or gives the state up.
    fn take_dirty_pages(&mut self, version: u64) -> DirtyPages;

    /// Rough size of what `take_dirty_pages` would write.
    fn dirty_bytes(&self) -> usize;

    /// Whether the pages are to be written after every commit, not at checkpoints.
    fn writes_through(&self) -> bool {
        false
    }

    /// Keys held.
    fn keys(&self) -> usize;
}

/// A record on its way through a stage that asks others.
#[derive(Clone, Debug)]
pub struct LookupRecord {
    /// Number of the input stream.
    pub stream: usize,
    /// Protobuf bytes.
    pub payload: Bytes,
}

/// What became of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Number of the output stream.
    pub output: usize,
    /// Key that decides the consumer's shard.
    pub key: String,
    /// Event time of the record.
    pub event_time: EventTime,
    /// Protobuf bytes.
    pub payload: Vec<u8>,
}

/// A stage that asks others, a database for example, about its records. It holds no keyed state.
///
/// A batch that is lost to another executor is asked about again: questions must not have side effects.
#[async_trait]
pub trait LookupLogic: Send + Sync {
    /// Answers every record of a batch: one answer each, in order, whatever the others say.
    ///
    /// # Errors
    /// When a record does not decode. Others that fail or are silent are no error: the answer then says so.
    async fn answer(&self, records: &[LookupRecord], counters: &mut Counters) -> Result<Vec<Answered>, DecodeError>;

    /// The key of a record, as [`StageLogic::key`].
    ///
    /// # Errors
    /// When the record does not decode.
    fn key(&self, stream: usize, payload: &[u8]) -> Result<String, DecodeError>;
}

/// What becomes of a message to a task that decides a broadcast value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The message makes this the new value.
    Accepted {
        /// Protobuf bytes.
        value: Vec<u8>,
    },
    /// The value stays; the record goes to the output stream.
    Refused {
        /// Protobuf bytes of the record.
        record: Vec<u8>,
        /// Short reason, for the counter.
        reason: &'static str,
    },
}

/// Decides a broadcast value, message by message.
pub trait BroadcastLogic: Send + Sync {
    /// Judges a message against the value in force (`None`: the defaults).
    ///
    /// # Errors
    /// When the value in force does not decode.
    fn on_message(&self, current: Option<&[u8]>, message: &[u8], now: ProcessingTime) -> Result<Verdict, DecodeError>;
}

/// A source stage's operators: raw records of one Kafka partition in, output streams out.
pub trait SourceLogic: Send + Sync {
    /// Handles one record; returns the time that moves the partition's watermark, if any.
    ///
    /// The collector's watermark is the one made by the records before this one.
    fn on_record(&mut self, record: &SourceRecord<'_>, out: &mut Collector) -> Option<EventTime>;

    /// Called at the end of every batch, for what is measured rather than counted.
    fn end_batch(&mut self, out: &mut Collector) {
        let _ = out;
    }
}

/// A record of a Kafka partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRecord<'a> {
    /// Its offset.
    pub offset: i64,
    /// Kafka timestamp, milliseconds; `None` when the record has none.
    pub timestamp: Option<EventTime>,
    /// Its value; `None` for a tombstone.
    pub value: Option<&'a [u8]>,
    /// The task's watermark may not pass this before the next record: how far another source was when this record
    /// arrived. Replays of files use it to keep the order of arrival across sources.
    pub watermark_bound: Option<EventTime>,
    /// How often it has been sent back from the dead letters ([`REPLAYS_HEADER`]).
    pub replays: u32,
}

/// Header of a record that was sent back from the dead letters: how often, as a decimal number.
pub const REPLAYS_HEADER: &str = "payguard-replays";

/// A sink stage: turns stream records into what its topic or table holds.
pub trait SinkLogic: Send + Sync {
    /// Appends what a record of input stream number `stream` becomes: mostly one record.
    ///
    /// # Errors
    /// When the record does not decode.
    fn render(&self, stream: usize, payload: &[u8], out: &mut Vec<SinkRecord>) -> Result<(), DecodeError>;
}

/// A delta of a whole stage: one part per operator that changed.
#[derive(Clone, PartialEq, Message)]
pub struct StageDelta {
    /// The parts.
    #[prost(message, repeated, tag = "1")]
    pub operators: Vec<OperatorDelta>,
}

/// The changes of one operator's state.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorDelta {
    /// Permanent id of the operator.
    #[prost(string, tag = "1")]
    pub operator: String,
    /// What its [`OperatorState::apply_delta`] reads.
    #[prost(bytes = "vec", tag = "2")]
    pub changes: Vec<u8>,
}

/// Collects the changes of all states of a stage.
#[must_use]
pub fn take_stage_delta(logic: &mut dyn StageLogic) -> Vec<u8> {
    let mut delta = StageDelta::default();
    for state in logic.states() {
        let changes = state.take_delta();
        if !changes.is_empty() {
            delta.operators.push(OperatorDelta { operator: state.operator().to_owned(), changes });
        }
    }
    delta.encode_to_vec()
}

/// Applies a committed delta to all states of a stage.
///
/// # Errors
/// When it does not decode or names an operator the stage does not have.
pub fn apply_stage_delta(logic: &mut dyn StageLogic, bytes: &[u8]) -> Result<(), DecodeError> {
    let delta = StageDelta::decode(bytes)?;
    let mut states = logic.states();
    for part in delta.operators {
        let state = states
            .iter_mut()
            .find(|s| s.operator() == part.operator)
            .ok_or_else(|| DecodeError(format!("state of unknown operator {}", part.operator)))?;
        state.apply_delta(&part.changes)?;
    }
    Ok(())
}

impl From<DecodeError> for StoreError {
    fn from(error: DecodeError) -> StoreError {
        StoreError::new(crate::error::StoreErrorKind::Corrupt, "decode", "state", error.0)
    }
}
