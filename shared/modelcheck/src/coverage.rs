//! What happened how often while a model was checked: a model in which nothing happens has no counterexample either.

use std::sync::atomic::{AtomicU64, Ordering};

use payguard_engine::commit::CommitOutcome;

use crate::durable::Task;

macro_rules! events {
    ($($event:ident = $text:literal,)*) => {
        /// Something that a check must have come across.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Event {
            $(#[doc = $text] $event,)*
        }

        impl Event {
            /// All of them.
            pub const ALL: &[Event] = &[$(Event::$event,)*];

            /// In words.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self {
                    $(Event::$event => $text,)*
                }
            }
        }
    };
}

events! {
    ProducerCommitted = "producer: Committed",
    ProducerAlreadyMine = "producer: AlreadyMine",
    ProducerLost = "producer: Lost",
    ProducerPassed = "producer: Passed",
    ProducerUnknown = "producer: Unknown, the same attempt again",
    ProducerGaveUp = "producer: Unknown, given up",
    ConsumerCommitted = "consumer: Committed",
    ConsumerAlreadyMine = "consumer: AlreadyMine",
    ConsumerLost = "consumer: Lost",
    ConsumerUnknown = "consumer: Unknown, the same attempt again",
    ConsumerGaveUp = "consumer: Unknown, given up",
    LateCommit = "a commit that was given up is made",
    Crash = "an executor crashes",
    TwoOwners = "a lease is taken while its last owner still works",
    Redelivered = "records are delivered again and skipped",
    NothingToDo = "a wake-up finds nothing",
    CaughtUp = "memory catches up by deltas",
    LoadedPages = "state is loaded from pages and deltas",
    MixedLoad = "state is loaded while younger pages are written",
    Dropped = "memory that may be of no commit is dropped",
    LateFlush = "a page of an old commit is written",
    StalePage = "a page of an old commit is refused",
    HalfFlush = "state is loaded while a flush is half done",
    PageRemoved = "a page that a split replaced is removed",
    WithinRow = "a position is within a row",
    Followed = "the ledger follows the sink",
    SinkElsewhere = "the sink is elsewhere",
    SinkAhead = "the sink is ahead of a head that was read before",
    RowCollected = "a row is collected",
    OrphanCollected = "an object of a lost attempt is collected",
    OwnRowMissing = "a sleeper finds rows of its own task collected",
    InputRowMissing = "a sleeper finds rows of its input collected",
    ObjectMissing = "a sleeper finds an object collected",
}

/// Counts of all events.
#[derive(Debug)]
pub(crate) struct Coverage(Vec<AtomicU64>);

impl Coverage {
    pub(crate) fn new() -> Coverage {
        Coverage(Event::ALL.iter().map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn saw(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Vec<(Event, u64)> {
        Event::ALL.iter().map(|event| (*event, self.0[*event as usize].load(Ordering::Relaxed))).collect()
    }

    pub(crate) fn saw_outcome(&self, task: Task, outcome: CommitOutcome) {
        self.saw(match (task, outcome) {
            (Task::Producer, CommitOutcome::Committed) => Event::ProducerCommitted,
            (Task::Producer, CommitOutcome::AlreadyMine) => Event::ProducerAlreadyMine,
            (Task::Producer, CommitOutcome::Lost) => Event::ProducerLost,
            (Task::Producer, CommitOutcome::Passed) => Event::ProducerPassed,
            (Task::Producer, CommitOutcome::Unknown) => Event::ProducerUnknown,
            (Task::Consumer, CommitOutcome::Committed) => Event::ConsumerCommitted,
            (Task::Consumer, CommitOutcome::AlreadyMine) => Event::ConsumerAlreadyMine,
            (Task::Consumer, CommitOutcome::Lost | CommitOutcome::Passed) => Event::ConsumerLost,
            (Task::Consumer, CommitOutcome::Unknown) => Event::ConsumerUnknown,
        });
    }
}
