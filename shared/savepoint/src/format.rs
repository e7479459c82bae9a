//! What a savepoint consists of: the manifest, files of state, files of records in flight.
//!
//! The manifest is JSON; the other files are sequences of protobuf messages, each after its length as a varint. Numbers
//! of fields and names of keys are never used again for something else; a change that an older reader would get wrong
//! is another [`FORMAT`].

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Buf, Bytes};
use payguard_engine::layout::{FIRST, Layout, Taken};
use payguard_engine::{Broadcast, Head, InputState, Position, TaskId};
use payguard_model::EventTime;
use prost::Message;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

mod entries;

pub(crate) use entries::encode;
pub use entries::{IdEntry, KeyedEntry, SavedRecord, SavedRow, SavedSlice, decode_keys, encode_keys};

use crate::error::{Refusal, SavepointError};

/// The format that is written and read here.
pub const FORMAT: u32 = 1;
/// The file that makes a savepoint exist.
pub(crate) const MANIFEST: &str = "manifest.json";

/// What a savepoint holds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The savepoint's name.
    pub name: String,
    /// Tells two savepoints of one name apart.
    pub id: String,
    /// The pipeline it was taken of.
    pub pipeline: String,
    /// When the cut was complete, milliseconds since the epoch.
    pub created_at_ms: i64,
    /// Version of the code that took it.
    pub code: String,
    /// The schema of what that code stored (see [`SCHEMA`](payguard_engine::row::SCHEMA)); 0: from before it had a number.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub schema: u32,
    /// Key groups of every stage.
    pub key_groups: u32,
    /// The stages in order of flow.
    pub stages: Vec<SavedStage>,
    /// The streams between them.
    pub streams: Vec<SavedStream>,
    /// The tasks that had committed something.
    pub tasks: Vec<SavedTask>,
    /// The tasks that were registered, whether they had committed or not.
    pub registered: Vec<String>,
    /// The files of state.
    pub state: Vec<StateFile>,
    /// XXH3 (64 bits) of this document with this field empty and without white space.
    pub checksum: String,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A stage as of the cut.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedStage {
    /// Its id.
    pub id: String,
    /// Ids of its operators.
    pub operators: Vec<String>,
    /// The shards it began with; those that it has now are told by its newest tasks.
    pub shards: u32,
}

/// A stream as of the cut.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedStream {
    /// Its name.
    pub name: String,
    /// The stage that emits it.
    pub producer: String,
    /// The stage that reads it.
    pub consumer: String,
    /// What decides the shard of a record.
    pub keying: String,
}

/// A task as of the commit it is captured at.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedTask {
    /// `stage/instance`.
    pub task: String,
    /// The commit.
    pub seq: u64,
    /// Its watermark, milliseconds (the smallest number: none; the greatest: the end).
    pub watermark_ms: i64,
    /// Whether all its inputs were idle.
    pub idle: bool,
    /// Its generation of shards.
    pub generation: u32,
    /// Shards of its generation; 0 for a task that has none.
    pub shards: u32,
    /// The layout that has taken over from it: it reads nothing any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sealed: Option<SavedLayout>,
    /// What tasks of earlier generations had taken of its inputs beyond `inputs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken: Vec<SavedTaken>,
    /// How far it had read its inputs.
    pub inputs: BTreeMap<String, SavedInput>,
    /// Its earliest processing-time timer, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_timer_ms: Option<i64>,
    /// Totals since it began.
    pub counters: BTreeMap<String, u64>,
    /// Newest measurements.
    pub gauges: BTreeMap<String, i64>,
    /// The value it had decided, if it decides one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<SavedBroadcast>,
    /// Version of the broadcast value it worked with.
    pub pinned: u64,
    /// Its records in flight: rows `after + 1` to `seq`.
    pub rows: SavedRows,
}

/// A position in an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedInput {
    /// Last offset or row read to its end.
    pub at: i64,
    /// Records read of the row after it.
    pub within: u32,
    /// The input's watermark there, milliseconds.
    pub watermark_ms: i64,
    /// Whether it was idle there.
    pub idle: bool,
}

/// How a stage's key groups are shared out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedLayout {
    /// Grows by one with every change.
    pub generation: u32,
    /// Tasks of the stage.
    pub shards: u32,
}

/// What a task of an earlier generation had taken of its inputs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedTaken {
    /// Its generation.
    pub generation: u32,
    /// Its first key group.
    pub from_group: u32,
    /// Its last key group, exclusive.
    pub to_group: u32,
    /// How far it had read its inputs: rows to their ends, and records of the next.
    pub inputs: BTreeMap<String, (i64, u32)>,
}

/// A broadcast value.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedBroadcast {
    /// Its version.
    pub version: u64,
    /// Its protobuf bytes in base64.
    pub value: String,
}

/// Which rows of a task are in flight, and where they are.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedRows {
    /// Every reader has read this row to its end.
    pub after: u64,
    /// Records in those rows by stream, where the reader has not read the row to its end.
    pub records: BTreeMap<String, u64>,
    /// The files, in order.
    pub files: Vec<DataFile>,
}

/// A file and how to tell that it is whole.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataFile {
    /// Its path; the savepoint's name comes first.
    pub path: String,
    /// Its messages.
    pub entries: u64,
    /// Its length.
    pub bytes: u64,
    /// XXH3 (64 bits) of its bytes, 16 hexadecimal digits.
    pub checksum: String,
}

/// The state of one operator in one key group.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateFile {
    /// The stage.
    pub stage: String,
    /// Id of the operator's state.
    pub operator: String,
    /// The key group.
    pub group: u32,
    /// The file.
    #[serde(flatten)]
    pub file: DataFile,
}

/// The part of a manifest that every format has.
#[derive(Deserialize)]
struct AnyFormat {
    format: u64,
}

impl Manifest {
    /// The document, with its checksum.
    ///
    /// # Errors
    /// Never for a manifest that was captured: all its keys are text.
    pub fn write(mut self) -> Result<Bytes, serde_json::Error> {
        self.checksum = self.computed_checksum()?;
        serde_json::to_vec_pretty(&self).map(Bytes::from)
    }

    /// Reads the document of savepoint `name`.
    ///
    /// # Errors
    /// When it is damaged or of another format.
    pub fn read(name: &str, bytes: &[u8]) -> Result<Manifest, SavepointError> {
        let path = format!("{name}/{MANIFEST}");
        let damaged = |detail: String| SavepointError::Damaged { path: path.clone(), detail };
        let AnyFormat { format } = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
        if format != u64::from(FORMAT) {
            return Err(Refusal::UnknownFormat { name: name.to_owned(), found: format, known: FORMAT }.into());
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
        let computed = manifest.computed_checksum().map_err(|e| damaged(e.to_string()))?;
        if computed != manifest.checksum {
            return Err(damaged(format!("checksum {computed} where it says {}", manifest.checksum)));
        }
        Ok(manifest)
    }

    fn computed_checksum(&self) -> Result<String, serde_json::Error> {
        let bare = Manifest { checksum: String::new(), ..self.clone() };
        Ok(checksum(&serde_json::to_vec(&bare)?))
    }

    /// All files but the manifest.
    pub fn files(&self) -> impl Iterator<Item = &DataFile> {
        self.state.iter().map(|s| &s.file).chain(self.tasks.iter().flat_map(|t| &t.rows.files))
    }

    /// Whether every task had come to the end of its input: all windows were closed, nothing is in flight.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let mut tasks = self.tasks.iter().filter(|task| task.sealed.is_none());
        tasks.all(|task| task.watermark_ms == EventTime::MAX.0)
    }

    /// The newest generation of a stage's shards.
    #[must_use]
    pub fn generation(&self, stage: &str) -> u32 {
        let of_stage = self.tasks.iter().filter(|task| task.task.split_once('/').is_some_and(|(own, _)| own == stage));
        of_stage.map(|task| task.generation).max().unwrap_or(FIRST)
    }

    /// Entries and bytes of state by stage and operator.
    #[must_use]
    pub fn sizes(&self) -> BTreeMap<(String, String), (u64, u64)> {
        let mut sizes: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
        for StateFile { stage, operator, file, .. } in &self.state {
            let size = sizes.entry((stage.clone(), operator.clone())).or_default();
            *size = (size.0 + file.entries, size.1 + file.bytes);
        }
        sizes
    }

    /// Records in flight of all tasks.
    #[must_use]
    pub fn records_in_flight(&self) -> u64 {
        self.tasks.iter().flat_map(|task| task.rows.records.values()).sum()
    }
}

impl SavedTask {
    /// The task as of `head`.
    #[must_use]
    pub fn of(task: &TaskId, head: &Head) -> SavedTask {
        let broadcast = head
            .broadcast
            .as_ref()
            .map(|b| SavedBroadcast { version: b.version, value: BASE64_STANDARD.encode(&b.value) });
        SavedTask {
            task: task.to_string(),
            seq: head.seq,
            watermark_ms: head.watermark_ms,
            idle: head.idle,
            generation: head.generation,
            shards: head.shards,
            sealed: head.sealed.map(|Layout { generation, shards }| SavedLayout { generation, shards }),
            taken: head.taken.iter().map(SavedTaken::of).collect(),
            inputs: head.inputs.iter().map(|(id, state)| (id.clone(), SavedInput::of(state))).collect(),
            next_timer_ms: head.next_timer_ms,
            counters: head.counters.clone(),
            gauges: head.gauges.clone(),
            broadcast,
            pinned: head.pinned,
            rows: SavedRows::default(),
        }
    }

    /// The broadcast value it had decided.
    ///
    /// # Errors
    /// When it is not base64.
    pub fn broadcast(&self) -> Result<Option<Broadcast>, String> {
        let decode = |b: &SavedBroadcast| {
            let value = BASE64_STANDARD.decode(&b.value).map_err(|e| format!("the value of {}: {e}", self.task))?;
            Ok(Broadcast { version: b.version, value: value.into() })
        };
        self.broadcast.as_ref().map(decode).transpose()
    }
}

impl SavedLayout {
    /// As the engine has it.
    #[must_use]
    pub fn layout(self) -> Layout {
        Layout { generation: self.generation, shards: self.shards }
    }
}

impl SavedTaken {
    fn of(taken: &Taken) -> SavedTaken {
        let Taken { generation, from_group, to_group, ref inputs } = *taken;
        let inputs = inputs.iter().map(|(id, p)| (id.clone(), (p.at, p.within))).collect();
        SavedTaken { generation, from_group, to_group, inputs }
    }

    /// As the engine has it, with those inputs that are `wanted`.
    #[must_use]
    pub fn taken(&self, wanted: impl Fn(&str) -> bool) -> Taken {
        let SavedTaken { generation, from_group, to_group, ref inputs } = *self;
        let inputs = inputs
            .iter()
            .filter(|(id, _)| wanted(id))
            .map(|(id, (at, within))| (id.clone(), Position { at: *at, within: *within }));
        Taken { generation, from_group, to_group, inputs: inputs.collect() }
    }
}

impl SavedInput {
    /// The engine's state of an input.
    #[must_use]
    pub fn of(state: &InputState) -> SavedInput {
        let Position { at, within } = state.position;
        SavedInput { at, within, watermark_ms: state.watermark_ms, idle: state.idle }
    }

    /// An input of which nothing was read.
    #[must_use]
    pub fn untouched() -> SavedInput {
        SavedInput::of(&InputState::untouched(0))
    }

    /// As the engine has it.
    #[must_use]
    pub fn state(self) -> InputState {
        let position = Position { at: self.at, within: self.within };
        InputState { position, watermark_ms: self.watermark_ms, idle: self.idle }
    }
}

impl DataFile {
    /// The description of `entries` messages in `bytes`.
    #[must_use]
    pub fn of(path: String, entries: u64, bytes: &[u8]) -> DataFile {
        DataFile { path, entries, bytes: bytes.len() as u64, checksum: checksum(bytes) }
    }

    /// Checks that these are the bytes that were written.
    ///
    /// # Errors
    /// With what differs.
    pub fn check(&self, bytes: &[u8]) -> Result<(), SavepointError> {
        let damaged = |detail| Err(SavepointError::Damaged { path: self.path.clone(), detail });
        if bytes.len() as u64 != self.bytes {
            return damaged(format!("{} bytes where the manifest says {}", bytes.len(), self.bytes));
        }
        match checksum(bytes) {
            found if found != self.checksum => {
                damaged(format!("checksum {found}, the manifest says {}", self.checksum))
            }
            _ => Ok(()),
        }
    }

    /// The messages in `bytes`, which are as many as the manifest says.
    ///
    /// # Errors
    /// When one does not decode.
    pub fn decode<M: Message + Default>(&self, mut bytes: Bytes) -> Result<Vec<M>, SavepointError> {
        let damaged = |detail| SavepointError::Damaged { path: self.path.clone(), detail };
        let mut messages = Vec::new();
        while bytes.has_remaining() {
            let number = messages.len() + 1;
            let message = M::decode_length_delimited(&mut bytes);
            messages.push(message.map_err(|e| damaged(format!("message {number}: {e}")))?);
        }
        match messages.len() as u64 {
            found if found != self.entries => {
                Err(damaged(format!("{found} messages where the manifest says {}", self.entries)))
            }
            _ => Ok(messages),
        }
    }
}

pub(crate) fn checksum(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

/// Whether `name` can be a savepoint's.
///
/// # Errors
/// When it cannot.
pub(crate) fn check_name(name: &str) -> Result<(), Refusal> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match !name.is_empty() && name.len() <= 100 && name.chars().all(plain) && !name.starts_with(['.', '-']) {
        true => Ok(()),
        false => Err(Refusal::BadName(name.to_owned())),
    }
}

#[cfg(test)]
mod tests;
