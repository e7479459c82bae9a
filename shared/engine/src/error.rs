//! What can go wrong. Losing a race is never an error: it is an outcome (`commit::CommitOutcome`).

use std::error::Error;

use crate::ids::TaskId;
use crate::logic::DecodeError;

/// What the caller has to do about a store's failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreErrorKind {
    /// Not reachable, throttled, disk full: retry with backoff, then fail the invocation so that it is repeated.
    Unavailable,
    /// The store answered with something that is not what was written: stop, nothing may be skipped.
    Corrupt,
    /// What was asked for is not there. Whoever read of it in a head looks at the head again: it may have been collected
    /// since; when the head is still the newest, something that is needed is lost (INV-5).
    Missing,
    /// A newer release stored it: older code would drop what it does not know.
    Newer,
    /// The request itself is wrong (missing table, no permission, too large): repeating it will not help.
    Invalid,
}

/// A store (ledger, state table, segment store) could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {target}: {detail}")]
pub struct StoreError {
    /// What the caller has to do.
    pub kind: StoreErrorKind,
    /// What was tried, for example `put object`.
    pub operation: &'static str,
    /// On what: table and key, bucket and key, task and seq.
    pub target: String,
    /// What the store said.
    pub detail: String,
    /// The cause.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// A failure without a cause of its own.
    #[must_use]
    pub fn new(
        kind: StoreErrorKind,
        operation: &'static str,
        target: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        StoreError { kind, operation, target: target.into(), detail: detail.into(), source: None }
    }
}

/// A task could not go on. Its in-memory state must not be used any more; the next invocation loads it anew.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Bytes that a committed row names are truncated or altered. Nothing was skipped.
    #[error("task {task} seq {seq}: segment {object} is damaged: {detail}")]
    DamagedSegment {
        /// The task that wrote it.
        task: String,
        /// Its commit.
        seq: u64,
        /// Object key, or `inline`.
        object: String,
        /// What is wrong with it.
        detail: String,
    },
    /// A row or page does not decode or breaks an invariant.
    #[error("task {task}: {invariant} broken: {detail}")]
    Broken {
        /// The task.
        task: String,
        /// Invariant id, for example `INV-2`.
        invariant: &'static str,
        /// What was found.
        detail: String,
    },
    /// A record of a stream does not decode.
    #[error("task {task}: a record of stream {stream} does not decode: {detail}")]
    BadRecord {
        /// The task that read it.
        task: String,
        /// The stream.
        stream: String,
        /// What the decoder said.
        detail: String,
    },
    /// A message for a task that has said that no more will come.
    #[error("task {task}: the run has ended, it takes no more messages")]
    Ended {
        /// The task.
        task: String,
    },
    /// The configuration gives a stage other shards than it began with.
    #[error(
        "stage {stage} began with {stored} shards, and the configuration says {configured}: state is shared out among \
         them, so the configuration alone cannot change them; leave it at {stored} and use `payguard rescale {stage} \
         {configured}`"
    )]
    Shards {
        /// The stage.
        stage: String,
        /// What the configuration says.
        configured: u32,
        /// What the stage began with.
        stored: u32,
    },
    /// A task that the topology does not have.
    #[error("task {task} is not in the topology")]
    Unplanned {
        /// The task.
        task: String,
    },
    /// A task that is to be sealed has handed over to another layout already.
    #[error("{task} is being given another number of shards: finish that first, with the command it was begun with")]
    Sealed {
        /// The task.
        task: String,
    },
    /// A commit's fate stayed unknown for too long.
    #[error("task {task}: the fate of commit {seq} is unknown after {tries} tries: {detail}")]
    Unresolved {
        /// The task.
        task: String,
        /// The commit.
        seq: u64,
        /// Tries made.
        tries: u32,
        /// What the ledger said last.
        detail: String,
    },
}

impl EngineError {
    /// Whether a row or an object was not there.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, EngineError::Store(error) if error.kind == StoreErrorKind::Missing)
    }

    /// Whether a newer release has stored what was read.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        matches!(self, EngineError::Store(error) if error.kind == StoreErrorKind::Newer)
    }

    /// Whether a store could not be reached, so that the same may work later.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, EngineError::Store(error) if error.kind == StoreErrorKind::Unavailable)
    }

    /// A record or value of `stream` that `task` could not decode.
    #[must_use]
    pub fn bad_record(task: &TaskId, stream: &str, error: DecodeError) -> EngineError {
        EngineError::BadRecord { task: task.to_string(), stream: stream.to_owned(), detail: error.0 }
    }
}
