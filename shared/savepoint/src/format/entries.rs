//! The messages of the files of a savepoint, and whole files of state.

use bytes::Bytes;
use payguard_engine::Broadcast;
use payguard_engine::export::{Encoding, Held, Keys, Value};
use payguard_engine::layout::Layout;
use payguard_model::ProcessingTime;
use prost::Message;

use super::DataFile;
use crate::error::SavepointError;

/// A key of an operator: message of a state file.
#[derive(Clone, PartialEq, Message)]
pub struct KeyedEntry {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The state: the operator's protobuf message.
    #[prost(bytes = "vec", tag = "2")]
    pub state: Vec<u8>,
    /// Event-time timers, milliseconds, ascending.
    #[prost(sint64, repeated, tag = "3")]
    pub event_timers_ms: Vec<i64>,
    /// Processing-time timers, milliseconds, ascending.
    #[prost(sint64, repeated, tag = "4")]
    pub processing_timers_ms: Vec<i64>,
}

/// An id that deduplication remembers: message of a state file.
#[derive(Clone, PartialEq, Message)]
pub struct IdEntry {
    /// The id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// When it was written, milliseconds of processing time.
    #[prost(sint64, tag = "2")]
    pub written_at_ms: i64,
}

/// A row in flight: message of a file of rows.
#[derive(Clone, PartialEq, Message)]
pub struct SavedRow {
    /// Its seq.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// The producer's watermark after it, milliseconds.
    #[prost(sint64, tag = "2")]
    pub watermark_ms: i64,
    /// Whether the producer was idle then.
    #[prost(bool, tag = "3")]
    pub idle: bool,
    /// Processing time of its batch, milliseconds.
    #[prost(sint64, tag = "4")]
    pub now_ms: i64,
    /// The value it decided, if it decided one.
    #[prost(message, optional, tag = "5")]
    pub broadcast: Option<Broadcast>,
    /// Its records that some reader has not read, by stream and the reader's shard.
    #[prost(message, repeated, tag = "6")]
    pub slices: Vec<SavedSlice>,
    /// The layout that takes over, when the producer is sealed: no records follow.
    #[prost(message, optional, tag = "7")]
    pub sealed: Option<Layout>,
}

/// The records of a row for one shard of a stream's reader.
#[derive(Clone, PartialEq, Message)]
pub struct SavedSlice {
    /// The stream.
    #[prost(string, tag = "1")]
    pub stream: String,
    /// The shard.
    #[prost(uint32, tag = "2")]
    pub shard: u32,
    /// Smallest event time, milliseconds.
    #[prost(sint64, tag = "3")]
    pub min_event_time_ms: i64,
    /// Greatest event time, milliseconds.
    #[prost(sint64, tag = "4")]
    pub max_event_time_ms: i64,
    /// The records in the order they were emitted.
    #[prost(message, repeated, tag = "5")]
    pub records: Vec<SavedRecord>,
    /// Shards among which the stream was shared out.
    #[prost(uint32, tag = "6")]
    pub shards: u32,
}

/// A record in flight.
#[derive(Clone, PartialEq, Message)]
pub struct SavedRecord {
    /// The producer's watermark when it was emitted, milliseconds.
    #[prost(sint64, tag = "1")]
    pub stamp_ms: i64,
    /// Its number among the records of the row.
    #[prost(uint64, tag = "2")]
    pub order: u64,
    /// The stream's protobuf message.
    #[prost(bytes = "bytes", tag = "3")]
    pub payload: Bytes,
    /// The partition of the source record that it comes of.
    #[prost(uint32, tag = "4")]
    pub partition: u32,
    /// The offset of the source record that it comes of.
    #[prost(sint64, tag = "5")]
    pub offset: i64,
}

/// Messages one after the other, each after its length.
pub(crate) fn encode<M: Message>(messages: impl IntoIterator<Item = M>) -> (Bytes, u64) {
    let (mut bytes, mut count) = (Vec::new(), 0);
    for message in messages {
        message.encode_length_delimited(&mut bytes).expect("a vector has room for any message");
        count += 1;
    }
    (Bytes::from(bytes), count)
}

/// The file of one operator and key group, and how many keys are in it.
#[must_use]
pub fn encode_keys(keys: Keys) -> (Bytes, u64) {
    let (mut bytes, mut count) = (Vec::new(), 0);
    for (key, value) in keys {
        let room = "a vector has room for any message";
        match value {
            Value::State(Held { state, event_timers, processing_timers }) => {
                let (event_timers_ms, processing_timers_ms) = (event_timers, processing_timers);
                let entry = KeyedEntry { key, state, event_timers_ms, processing_timers_ms };
                entry.encode_length_delimited(&mut bytes).expect(room);
            }
            Value::WrittenAt(ProcessingTime(written_at_ms)) => {
                IdEntry { id: key, written_at_ms }.encode_length_delimited(&mut bytes).expect(room);
            }
        }
        count += 1;
    }
    (Bytes::from(bytes), count)
}

/// The keys of a file of state.
///
/// # Errors
/// When it does not decode, or holds a key twice.
pub fn decode_keys(encoding: Encoding, file: &DataFile, bytes: Bytes) -> Result<Keys, SavepointError> {
    let keys: Keys = match encoding {
        Encoding::Keyed => file.decode::<KeyedEntry>(bytes)?.into_iter().map(held).collect(),
        Encoding::Ids => file.decode::<IdEntry>(bytes)?.into_iter().map(written).collect(),
    };
    match keys.len() as u64 {
        found if found != file.entries => {
            let detail = format!("{found} different keys in {} entries", file.entries);
            Err(SavepointError::Damaged { path: file.path.clone(), detail })
        }
        _ => Ok(keys),
    }
}

fn held(entry: KeyedEntry) -> (String, Value) {
    let KeyedEntry { key, state, event_timers_ms, processing_timers_ms } = entry;
    let held = Held { state, event_timers: event_timers_ms, processing_timers: processing_timers_ms };
    (key, Value::State(held))
}

fn written(entry: IdEntry) -> (String, Value) {
    (entry.id, Value::WrittenAt(ProcessingTime(entry.written_at_ms)))
}
