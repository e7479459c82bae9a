//! What can go wrong when somebody looks into a pipeline: every message says what to do.

use payguard_engine::logic::DecodeError;
use payguard_engine::{EngineError, StoreError, TaskId};
use payguard_savepoint::SavepointError;

use crate::time::utc;

/// Something could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// A store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The log is damaged.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A savepoint could not be read, or a row or segment of the log.
    #[error(transparent)]
    Savepoint(#[from] SavepointError),
    /// The pipeline's stores contradict themselves.
    #[error("{task}: {detail}")]
    Inconsistent {
        /// The task.
        task: String,
        /// What was found.
        detail: String,
    },
    /// No state has this id.
    #[error("there is no state {id}; there are: {}", .there_are.join(", "))]
    UnknownState {
        /// What was asked for.
        id: String,
        /// The ids.
        there_are: Vec<&'static str>,
    },
    /// The configuration of the pipeline does not have this state.
    #[error(
        "this pipeline keeps no state {id}: its operator is left out by the configuration (--operators, stats.salts); \
         there are: {}", .there_are.join(", ")
    )]
    NotKept {
        /// What was asked for.
        id: &'static str,
        /// The ids.
        there_are: Vec<&'static str>,
    },
    /// A state has no such number.
    #[error("state {state} has no number {field}; --by takes one of: {}", .there_are.join(", "))]
    UnknownField {
        /// The state.
        state: &'static str,
        /// What was asked for.
        field: String,
        /// The names.
        there_are: Vec<&'static str>,
    },
    /// The stage has no such task.
    #[error("stage {stage} has no task {task}; there are: {}", .there_are.join(", "))]
    UnknownTask {
        /// What was asked for.
        task: TaskId,
        /// The stage.
        stage: String,
        /// The tasks, those of earlier numbers of shards included.
        there_are: Vec<String>,
    },
    /// The key belongs to another task.
    #[error("key group {group} does not belong to {task}; of this number of shards it belongs to {owner}")]
    OtherTask {
        /// What was asked for.
        task: TaskId,
        /// The key group.
        group: u32,
        /// The task of the same layout that owns it.
        owner: TaskId,
    },
    /// A commit's number means nothing without its task.
    #[error("commits are numbered by task, and stage {stage} has several: say --task, one of: {}", .tasks.join(", "))]
    NeedsTask {
        /// The stage.
        stage: String,
        /// Its tasks.
        tasks: Vec<String>,
    },
    /// A commit that was not made yet.
    #[error("{task} has made {newest} commits, so there is no commit {seq} to look at")]
    NotYet {
        /// The task.
        task: String,
        /// What was asked for.
        seq: u64,
        /// Its newest commit.
        newest: u64,
    },
    /// Nobody has committed anything.
    #[error("no task of stage {stage} has committed anything in these stores (is it another pipeline?)")]
    Nothing {
        /// The stage.
        stage: String,
    },
    /// Too far back.
    #[error("{}", .0.in_words())]
    Gone(Gone),
    /// From before a restore, or the pages that were restored have been written over.
    #[error(
        "{asked} of {task} cannot be seen: the pipeline was restored from {from}{}; look into that savepoint \
         (--savepoint) for the state it began with", seen_from(*.since)
    )]
    BeforeRestore {
        /// What was asked for.
        asked: String,
        /// The task.
        task: String,
        /// The savepoint.
        from: String,
        /// From where on the past can be seen.
        since: Option<Since>,
    },
    /// The task goes on faster than its state can be read.
    #[error(
        "{task} wrote its state anew each of the {tries} times that it was read: try again, or look at a savepoint"
    )]
    Outrun {
        /// The task.
        task: String,
        /// How often it was tried.
        tries: u32,
    },
    /// A point in time that is none.
    #[error(
        "`{0}` is neither the number of a commit, such as 17, nor a time with date and offset, such as \
         2026-11-30T12:00:00Z"
    )]
    BadTime(String),
}

/// The first commit that can be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Since {
    /// Its number.
    pub seq: u64,
    /// When it was made, milliseconds since the epoch, where its row is still there.
    pub at_ms: Option<i64>,
}

/// A past that cannot be seen any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gone {
    /// What was asked for.
    pub asked: String,
    /// The task.
    pub task: String,
    /// The row its log begins with.
    pub log_from: Option<Since>,
    /// From where on the past of these keys can be seen; `None` when other tasks have changed them since.
    pub since: Option<Since>,
    /// How long rows are kept, milliseconds.
    pub retention_ms: i64,
}

impl Gone {
    fn in_words(&self) -> String {
        let Gone { asked, task, log_from, since: from, retention_ms } = self;
        let log = match log_from {
            Some(Since { seq, at_ms }) => format!("its log begins with row {seq}{}", committed(*at_ms)),
            None => "its log is collected".to_owned(),
        };
        let seen = match from {
            Some(_) => seen_from(*from),
            None => ", and other shards have changed its keys since: look at the tasks that have taken over".to_owned(),
        };
        format!(
            "{asked} of {task} cannot be seen any more: {log}, and its state has been written to pages since{seen}. How \
             long rows are kept decides gc.retention_ms, here {retention_ms}: set it higher to look further back, or take \
             savepoints"
        )
    }
}

fn seen_from(since: Option<Since>) -> String {
    match since {
        Some(Since { seq, at_ms }) => format!("; it can be seen from commit {seq} on{}", committed(at_ms)),
        None => String::new(),
    }
}

fn committed(at_ms: Option<i64>) -> String {
    at_ms.and_then(utc).map_or_else(String::new, |at| format!(" (committed {at})"))
}

/// The error for bytes that are not what was written.
pub(crate) fn undecodable(task: &TaskId, error: &DecodeError) -> InspectError {
    let detail = format!("INV-4: its state does not decode: {}", error.0);
    InspectError::Inconsistent { task: task.to_string(), detail }
}

/// Whether rows were collected while they were read.
pub(crate) fn is_collected(error: &InspectError) -> bool {
    matches!(error, InspectError::Savepoint(error) if error.is_collected())
}
