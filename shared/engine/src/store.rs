//! What the engine needs from the outside, as traits. The adapters are in `shared/aws`, the files in `shared/local`.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use payguard_model::{KeyGroup, ProcessingTime};
use prost::Message;

use crate::error::StoreError;
use crate::gc::Collected;
use crate::ids::{Attempt, Seq, StageId, TaskId};
use crate::logic::DecodeError;
use crate::page::{Page, PageAddress};
use crate::row::{CommitRow, Head, InputState};

/// What the ledger said to a commit. Only reads tell more (see [`crate::commit`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommitReply {
    /// Both writes are durable.
    Committed,
    /// A condition failed: the head was not at `seq - 1`, or the row exists.
    Refused,
    /// No answer, or one that does not say whether the writes were made.
    Unknown(String),
}

/// What the ledger said to a request for a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseReply {
    /// The caller holds the lease until the time it asked for.
    Acquired,
    /// Somebody else holds it.
    Held {
        /// When it ends.
        until: ProcessingTime,
    },
}

/// Bounds of one read of the log.
#[derive(Clone, Copy, Debug)]
pub struct RowLimits {
    /// Rows at most.
    pub rows: u32,
}

/// Heads that are installed together at most: what one transaction of the table takes.
pub const MAX_INSTALLED: usize = 100;

/// The coordination table: heads, logs, registry, leases. Reads are strongly consistent.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// The task's head; `None` when it has never committed.
    async fn load_head(&self, task: &TaskId) -> Result<Option<Head>, StoreError>;

    /// Writes log row `row.seq` and the head's step from `row.seq - 1`, both or neither.
    ///
    /// The same call with the same attempt may be repeated; it is applied at most once.
    async fn commit(&self, task: &TaskId, head: &Head, row: &CommitRow) -> Result<CommitReply, StoreError>;

    /// Writes one row of a log that is being restored and has no head yet; the same row may be written again.
    ///
    /// `Refused` when another attempt has written the row. Nothing reads it before its head is installed.
    async fn install_row(&self, task: &TaskId, row: &CommitRow) -> Result<CommitReply, StoreError>;

    /// Writes the first heads of restored tasks, all or none; at most [`MAX_INSTALLED`] of them.
    ///
    /// `Refused` when one of them has a head, be it the same: only reads tell.
    async fn install_heads(&self, heads: &[(TaskId, Head)]) -> Result<CommitReply, StoreError>;

    /// One log row.
    async fn load_row(&self, task: &TaskId, seq: Seq) -> Result<Option<CommitRow>, StoreError>;

    /// Log rows after `after`, ascending, possibly fewer than there are. A gap is an error of kind `Missing`: the rows
    /// in it may have been collected.
    async fn load_rows(&self, task: &TaskId, after: Seq, limits: RowLimits) -> Result<Vec<CommitRow>, StoreError>;

    /// The log rows that are left after `after`, ascending: those that were collected are passed over.
    async fn remaining_rows(&self, task: &TaskId, after: Seq, limits: RowLimits) -> Result<Vec<CommitRow>, StoreError>;

    /// Removes log rows, in no order; those that are not there are no error. Only for rows that nobody needs.
    async fn delete_rows(&self, task: &TaskId, seqs: &[Seq]) -> Result<(), StoreError>;

    /// Adds to what has been collected.
    async fn add_collected(&self, done: &Collected) -> Result<(), StoreError>;

    /// What has been collected since the pipeline began.
    async fn collected(&self) -> Result<Collected, StoreError>;

    /// Adds a task to its stage's registry. Repeating it changes nothing.
    async fn register(&self, task: &TaskId) -> Result<(), StoreError>;

    /// The registered tasks of a stage, sorted.
    async fn tasks(&self, stage: &StageId) -> Result<Vec<TaskId>, StoreError>;

    /// Takes or prolongs the lease of `task` for `owner`. Efficiency only: safety never depends on it.
    async fn acquire_lease(
        &self,
        task: &TaskId,
        owner: &str,
        now: ProcessingTime,
        until: ProcessingTime,
    ) -> Result<LeaseReply, StoreError>;

    /// Gives the lease back if `owner` still holds it.
    async fn release_lease(&self, task: &TaskId, owner: &str) -> Result<(), StoreError>;
}

/// What the state table said to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutReply {
    /// Written.
    Written,
    /// The table holds this version or a younger one; nothing was changed.
    Stale,
}

/// The state table: versioned pages of keyed state.
#[async_trait]
pub trait StateTable: Send + Sync {
    /// All pages of a stage's key group, strongly consistent, in any order.
    async fn load_pages(&self, stage: &StageId, group: KeyGroup) -> Result<Vec<Page>, StoreError>;

    /// Writes a page unless the table holds its version or a younger one.
    async fn put_page(&self, page: &Page) -> Result<PutReply, StoreError>;

    /// Removes a page if it is not younger than `version`.
    async fn delete_page(&self, address: &PageAddress, version: u64) -> Result<(), StoreError>;
}

/// The segment store. Keys are unique per attempt, so nothing is ever overwritten.
#[async_trait]
pub trait SegmentStore: Send + Sync {
    /// Stores an object.
    async fn put(&self, key: &str, bytes: Bytes) -> Result<(), StoreError>;

    /// Reads `len` bytes from `offset`. Fewer bytes come back when the object is shorter; an object that is not there
    /// is an error of kind `Missing`.
    async fn get(&self, key: &str, offset: u64, len: u64) -> Result<Bytes, StoreError>;

    /// The first `limit` keys that begin with `prefix`, ascending; at most 1000.
    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<String>, StoreError>;

    /// Removes objects, at most 1000; those that are not there are no error. Only for objects that nobody needs.
    async fn delete(&self, keys: &[String]) -> Result<(), StoreError>;
}

/// Hints that a task may have input. Never carries truth: a lost wake-up is swept up by `clock`.
#[async_trait]
pub trait Waker: Send + Sync {
    /// Tells `task` to look for input.
    async fn wake(&self, task: &TaskId);
}

/// The machine's clock.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> ProcessingTime;
}

/// Where fresh attempt ids come from.
pub trait AttemptIds: Send + Sync {
    /// An id that nobody else will ever use; at most 36 characters.
    fn next(&self) -> Attempt;
}

/// A record on its way out: `topic` names a Kafka topic or a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SinkRecord {
    /// Topic or table.
    pub topic: &'static str,
    /// Key that orders records of the topic.
    pub key: String,
    /// JSON text without a line end.
    pub value: Vec<u8>,
}

/// One atomic write of a sink task: the records of commit `seq` and the position they lead to.
#[derive(Clone, Debug)]
pub struct SinkBatch {
    /// The commit these records belong to; the sink must be at `seq - 1`.
    pub seq: Seq,
    /// The task's inputs after the batch: the sink stores them with the records.
    pub inputs: BTreeMap<String, InputState>,
    /// What was counted in the batch; stored with the position, so that no count is lost with an answer.
    pub counters: BTreeMap<String, u64>,
    /// The records, in order.
    pub records: Vec<SinkRecord>,
}

/// Where a sink stands for one task: durable together with the records.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SinkPosition {
    /// The newest batch.
    pub seq: Seq,
    /// The task's inputs after it.
    pub inputs: BTreeMap<String, InputState>,
    /// What was counted in it.
    pub counters: BTreeMap<String, u64>,
}

/// A [`SinkPosition`] as sinks store it.
#[derive(Clone, PartialEq, prost::Message)]
struct StoredSinkPosition {
    /// The newest batch.
    #[prost(uint64, tag = "1")]
    seq: u64,
    /// The task's inputs after it.
    #[prost(btree_map = "string, message", tag = "2")]
    inputs: BTreeMap<String, InputState>,
    /// What was counted in it.
    #[prost(btree_map = "string, uint64", tag = "3")]
    counters: BTreeMap<String, u64>,
}

impl SinkPosition {
    /// The position after a batch.
    #[must_use]
    pub fn after(batch: &SinkBatch) -> SinkPosition {
        SinkPosition { seq: batch.seq, inputs: batch.inputs.clone(), counters: batch.counters.clone() }
    }

    /// Bytes to store.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let SinkPosition { seq, inputs, counters } = self.clone();
        StoredSinkPosition { seq: seq.0, inputs, counters }.encode_to_vec()
    }

    /// Reads what was stored.
    ///
    /// # Errors
    /// When it is not what [`SinkPosition::to_bytes`] gave.
    pub fn from_bytes(bytes: &[u8]) -> Result<SinkPosition, DecodeError> {
        let StoredSinkPosition { seq, inputs, counters } = StoredSinkPosition::decode(bytes)?;
        Ok(SinkPosition { seq: Seq(seq), inputs, counters })
    }
}

/// What a sink said to a batch.
#[derive(Clone, PartialEq, Debug)]
pub enum SinkReply {
    /// Records and position are durable.
    Written,
    /// The sink is not at `seq - 1`: somebody else wrote, or our own write had succeeded unseen. Nothing was changed.
    Elsewhere(SinkPosition),
}

/// A place outside the pipeline where records become visible exactly once.
///
/// The position lives in the sink, in one transaction with the records; the ledger follows it.
#[async_trait]
pub trait Sink: Send + Sync {
    /// Where the sink stands for `task`. Who asks is about to write: a sink that can tell executors apart stops others now.
    async fn position(&self, task: &TaskId) -> Result<SinkPosition, StoreError>;

    /// Writes a batch if the sink is at `batch.seq - 1` for `task`.
    async fn write(&self, task: &TaskId, batch: &SinkBatch) -> Result<SinkReply, StoreError>;

    /// Whether positions can vanish from the sink although what was written is there, as a broker's can. Such a sink
    /// takes a batch without records from any earlier position: a task whose sink has forgotten goes on from the
    /// ledger, and the records of the one batch that the ledger may not know of yet are written twice.
    fn can_forget(&self) -> bool {
        false
    }
}

/// Is told about every record that a sink has made visible.
pub trait SinkObserver: Send + Sync {
    /// Called once per record, after its batch is durable; `topic` is the stage's name for it.
    fn on_record(&self, topic: &str, value: &[u8]);
}

/// A file of a [`FileStore`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileInfo {
    /// Its path, parts separated by `/`.
    pub path: String,
    /// Its length.
    pub bytes: u64,
}

/// Files by path, each written and read whole: a folder on disk or a prefix in S3. For savepoints.
#[async_trait]
pub trait FileStore: Send + Sync {
    /// Where the files are, for people.
    fn location(&self) -> String;

    /// Writes a file, in place of an earlier one. A reader sees the whole file or none.
    async fn put_file(&self, path: &str, bytes: Bytes) -> Result<(), StoreError>;

    /// Reads a file; `None` when there is none.
    async fn get_file(&self, path: &str) -> Result<Option<Bytes>, StoreError>;

    /// All files whose path begins with `prefix`, sorted by path.
    async fn list_files(&self, prefix: &str) -> Result<Vec<FileInfo>, StoreError>;

    /// Removes a file. Removing one that is not there changes nothing.
    async fn delete_file(&self, path: &str) -> Result<(), StoreError>;
}
