//! What can go wrong, and what is refused: every refusal names its cure.

use payguard_engine::{EngineError, StoreError};

/// A savepoint could not be made, read or restored.
#[derive(Debug, thiserror::Error)]
pub enum SavepointError {
    /// Asked for something that must not be done.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The pipeline's log or state is damaged.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A file of a savepoint is missing or is not what was written.
    #[error("{path} is damaged: {detail}; take another savepoint, this one cannot be trusted")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The pipeline's stores contradict themselves.
    #[error("{task}: {detail}")]
    Inconsistent {
        /// The task.
        task: String,
        /// What was found.
        detail: String,
    },
}

impl SavepointError {
    /// Whether the pipeline has got away from what was captured of it: another try may succeed.
    pub(crate) fn is_outrun(&self) -> bool {
        self.is_collected() || matches!(self, SavepointError::Refused(Refusal::Redrawn { .. }))
    }

    /// Whether rows were collected before they were read.
    #[must_use]
    pub fn is_collected(&self) -> bool {
        matches!(self, SavepointError::Refused(Refusal::Collected { .. }))
    }
}

/// What is not done, and what to do instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// A name that is no name of a folder.
    #[error("`{0}` cannot be a savepoint's name: use letters, digits, `-`, `_` and `.`, beginning with none of `.-`")]
    BadName(String),
    /// There is a savepoint of this name.
    #[error(
        "there is a savepoint {name} in {location} already: choose another name, or `payguard savepoint delete` it"
    )]
    Exists {
        /// The name.
        name: String,
        /// Where.
        location: String,
    },
    /// There is none of this name.
    #[error("there is no savepoint {name} in {location}; {}", listed(.there_are))]
    NotFound {
        /// The name.
        name: String,
        /// Where.
        location: String,
        /// The names of those there are.
        there_are: Vec<String>,
    },
    /// Nothing has been committed.
    #[error("pipeline {0} has committed nothing in these stores: there is nothing to save (is it another pipeline?)")]
    NothingToSave(String),
    /// The configuration is not the one the pipeline runs with.
    #[error(
        "stage {stage} began with {running} shards, and this configuration says {here}: use the configuration of the \
         running pipeline (--shards {running}, or --set shards.{stage}={running})"
    )]
    OtherShards {
        /// The stage.
        stage: String,
        /// Shards it began with.
        running: u32,
        /// Shards of the configuration.
        here: u32,
    },
    /// The configuration lacks a part of the running pipeline.
    #[error(
        "{task} reads {input}, which this configuration does not have: it would be missing in the savepoint; use the \
         configuration of the running pipeline (operators, topics, salts)"
    )]
    OtherTopology {
        /// The reader.
        task: String,
        /// Its input.
        input: String,
    },
    /// Rows that belong to the savepoint are gone.
    #[error(
        "row {seq} of {task} was collected while the savepoint was taken, each time it was tried: let rows be kept for \
         longer than a savepoint takes (gc.retention_ms), then take it again"
    )]
    Collected {
        /// The task.
        task: String,
        /// The row.
        seq: u64,
    },
    /// Another number of shards is being given to a stage.
    #[error(
        "stage {stage} is being given another number of shards: take the savepoint when `payguard rescale` has ended \
         (if it died, the same command again finishes it)"
    )]
    Redrawn {
        /// The stage.
        stage: String,
    },
    /// Somebody removed files of a savepoint that was being made.
    #[error("{path} was removed while the savepoint was made: does another process make one of the same name?")]
    Disturbed {
        /// The file.
        path: String,
    },
    /// Moved to a folder of another name, which its paths do not know.
    #[error("folder {name} holds savepoint {was}: its files are named by that, so call the folder {was} again")]
    Renamed {
        /// The folder.
        name: String,
        /// The savepoint's name.
        was: String,
    },
    /// Written by another program.
    #[error(
        "savepoint {name} has format {found}, and this program reads format {known}: restore it with the program \
             that made it"
    )]
    UnknownFormat {
        /// The savepoint.
        name: String,
        /// Its format.
        found: u64,
        /// What is read here.
        known: u32,
    },
    /// Lesson 13: "Max parallelism mismatch between checkpoint/savepoint state and new program".
    #[error(
        "the savepoint has {saved} key groups and this program {here}: keys would be looked for in other groups. The \
         number is fixed by the first run with state; restore with a program of {saved} key groups"
    )]
    OtherKeyGroups {
        /// Of the savepoint.
        saved: u32,
        /// Of this program.
        here: u32,
    },
    /// Lesson 13: "The maximum parallelism of the restored state is lower than the configured parallelism".
    #[error(
        "stage {stage} has {groups} key groups, so {shards} shards could not all get one: use at most {groups} shards"
    )]
    MoreShardsThanGroups {
        /// The stage.
        stage: String,
        /// Shards of the configuration.
        shards: u32,
        /// Key groups of the savepoint.
        groups: u32,
    },
    /// Of several streams between two stages one would be given up, and a reader has read a part of a row of all.
    #[error(
        "{task} stands within a row of {producer}, where the records of a stream that would be given up are counted with \
         those of others: take a savepoint of the stopped pipeline, when nothing is in flight, and restore that"
    )]
    WithinRow {
        /// The reader.
        task: String,
        /// The stage it reads.
        producer: String,
    },
    /// Lesson 13: "Cannot map checkpoint/savepoint state for operator".
    #[error(
        "the savepoint has what this pipeline would drop: {}. Bring the operator back under its id (is it left out by \
         --operators, or renamed?); if it is meant to go, --allow-dropped gives this up for good", .0.join("; ")
    )]
    Dropped(Vec<String>),
    /// Records would be shared out by other keys.
    #[error(
        "the records of {stream} were shared out by {saved}, and here they are by {here}: state is kept under the former \
         keys; restore with the configuration they were shared out with"
    )]
    OtherKeys {
        /// The stream.
        stream: String,
        /// The keys of the savepoint.
        saved: String,
        /// The keys of this configuration.
        here: String,
    },
    /// The pipeline's name is in use.
    #[error(
        "pipeline {pipeline} has run in these stores ({task} has commits): a savepoint is restored under a new name, \
         for example --to {pipeline}-2"
    )]
    NameTaken {
        /// The pipeline.
        pipeline: String,
        /// A task with a head.
        task: String,
    },
    /// Another restore has begun under this name.
    #[error(
        "another restore into pipeline {pipeline} has begun: {from}. Repeat that one with the same options to finish \
         it, or restore under another name, for example --to {pipeline}-2"
    )]
    OtherRestore {
        /// The pipeline.
        pipeline: String,
        /// What is restored there.
        from: String,
    },
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "there are none at all (--savepoints says where they are)".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    }
}
