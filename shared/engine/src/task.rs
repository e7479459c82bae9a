//! A task's life in one invocation: read facts, let the pure parts decide, carry out.
//!
//! * [`consumer`] — a task that reads upstream logs, for stages with operators and for sinks; `fetch` — its inputs;
//! * [`source`] — a task that is given the records of one Kafka partition;
//! * [`broadcast`] — the one task that decides a value all others read;
//! * `recover` — head, pages and deltas become live state; `flush` — live state becomes pages;
//! * [`handover`] — from the tasks of one layout to those of the next;
//! * `committer` — one commit with its outcomes; `passed` — what was collected while an executor slept;
//! * `release` — what a newer release stored; `load` — how busy a task is; `retry` — patience with unreachable stores.
//!
//! Warm memory is never trusted after an error, a lost commit or a panic: live state is taken out of the task while it
//! runs and put back only when everything went well.

mod batch;
pub mod broadcast;
mod committer;
pub mod consumer;
mod fetch;
mod flush;
pub mod handover;
mod live;
mod load;
mod passed;
mod recover;
mod release;
pub mod retry;
pub mod source;

use std::ops::Range;
use std::sync::Arc;

use crate::ids::{InputId, StageId, TaskId};
use crate::layout::Layout;
use crate::merge::Alignment;
use crate::row::SCHEMA;
use crate::store::{AttemptIds, Clock, Ledger, SegmentStore, StateTable, Waker};

/// Counters of records read begin with this, the stream's name follows.
pub const IN: &str = "in.";
/// Counters of records emitted begin with this, the stream's name follows.
pub const OUT: &str = "out.";
/// A counter with this name and the stream's is 1 when the stream was added while its stage ran, by a restore.
pub const ADDED: &str = "added.";

/// Counter of the milliseconds a task spent on its batches, commits included.
pub const BUSY_MS: &str = "task.busy_ms";
/// Counter of the milliseconds it waited for input between them, while it was warm.
pub const WAITED_MS: &str = "task.waited_ms";

/// Tasks look this often whether the shards of their consumers were redrawn, milliseconds. Until they do, consumers pick
/// their records out of the slices of the layout before.
const LAYOUT_CHECK_MS: i64 = 10_000;

/// What tasks are run with.
#[derive(Clone)]
pub struct Env {
    /// The coordination table.
    pub ledger: Arc<dyn Ledger>,
    /// The state table.
    pub state: Arc<dyn StateTable>,
    /// The segment store.
    pub segments: Arc<dyn SegmentStore>,
    /// Hints to consumers.
    pub waker: Arc<dyn Waker>,
    /// The machine's clock.
    pub clock: Arc<dyn Clock>,
    /// Fresh attempt ids.
    pub attempts: Arc<dyn AttemptIds>,
    /// Numbers.
    pub settings: Settings,
}

/// Numbers that shape a task's work; none of them changes its result.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Records in one commit at most.
    pub records_per_commit: usize,
    /// Payload bytes in one commit at most (soft: the record that passes it is the last).
    pub bytes_per_commit: usize,
    /// Segments up to this size go into the log row.
    pub inline_bytes: usize,
    /// Upstream rows read ahead per input.
    pub rows_ahead: usize,
    /// Flush at the latest this long after the last flush, milliseconds.
    pub flush_every_ms: i64,
    /// Flush as soon as the deltas since the last flush, which a recovery reads, are this long.
    pub flush_bytes: usize,
    /// Wake consumers that got no data at most this often, milliseconds.
    pub watermark_wake_ms: i64,
    /// Who asks for leases; `None` when one process is known to run every task.
    pub lease_owner: Option<String>,
    /// How long a lease lasts, milliseconds.
    pub lease_ms: i64,
    /// Tries at a store that cannot be reached.
    pub store_tries: u32,
    /// Pause before the second try, milliseconds; doubles from try to try.
    pub store_backoff_ms: u64,
    /// Version of the code, recorded in commits.
    pub code: String,
    /// The schema that the code stores and knows, recorded in commits: what has a greater one is not read.
    pub schema: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            records_per_commit: 100_000,
            bytes_per_commit: 6 << 20,
            inline_bytes: 8 << 10,
            rows_ahead: 4,
            flush_every_ms: 15_000,
            flush_bytes: 128 << 20,
            watermark_wake_ms: 200,
            lease_owner: None,
            lease_ms: 10_000,
            store_tries: 6,
            store_backoff_ms: 50,
            code: env!("CARGO_PKG_VERSION").to_owned(),
            schema: SCHEMA,
        }
    }
}

/// An output stream of a stage and who reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputStream {
    /// Its name.
    pub stream: String,
    /// The stage that reads it.
    pub consumer: StageId,
    /// How that stage's key groups are shared out; the task looks from time to time whether that has changed.
    pub layout: Layout,
    /// Whether it may change.
    pub is_redrawn: bool,
}

/// What a task needs to know of the topology.
#[derive(Clone, Debug)]
pub struct TaskPlan {
    /// The task.
    pub task: TaskId,
    /// Its shard (0 for a source).
    pub shard: u32,
    /// The layout it belongs to (one shard for a source).
    pub layout: Layout,
    /// The layout its stage began with.
    pub first: Layout,
    /// The stages it reads, with their streams.
    pub upstreams: Vec<crate::input::Upstream>,
    /// Its output streams.
    pub outputs: Vec<OutputStream>,
    /// How its inputs are kept together.
    pub alignment: Alignment,
    /// The task whose broadcast value it reads, if it reads one.
    pub broadcast: Option<TaskId>,
}

/// Work and time left for one invocation.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Stop taking input at this time.
    pub until: payguard_model::ProcessingTime,
    /// Commits at most.
    pub commits: u32,
}

/// What one invocation did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Commits made.
    pub commits: u64,
    /// Input records in them.
    pub records: u64,
    /// Commits lost to another executor.
    pub lost: u64,
    /// Whether input may be left (the budget ran out).
    pub more: bool,
    /// Whether the task's input has ended.
    pub ended: bool,
    /// The layout that has taken over from this task's.
    pub sealed: Option<Layout>,
    /// Another executor holds the lease; nothing was done.
    pub busy: bool,
}

impl TaskPlan {
    /// The key groups of the task.
    #[must_use]
    pub fn groups(&self) -> Range<u32> {
        self.layout.groups(self.shard)
    }

    /// The id under which an upstream task is known as an input.
    #[must_use]
    pub fn input_id(upstream: &TaskId) -> InputId {
        upstream.to_string()
    }
}
