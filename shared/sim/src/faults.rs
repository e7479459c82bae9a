//! Which store operation goes wrong, and how.
//!
//! Every operation has two numbers: a global one, and one among the operations of its executor (a process; see
//! [`crate::SimWorld::executor`]). A plan names faults by either.

use std::collections::BTreeMap;

use crate::rng::Rng;

/// The operations of the stores.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OpKind {
    /// `Ledger::load_head`
    LoadHead,
    /// `Ledger::commit`
    Commit,
    /// `Ledger::install_row`
    InstallRow,
    /// `Ledger::install_heads`
    InstallHeads,
    /// `Ledger::load_row`
    LoadRow,
    /// `Ledger::load_rows`
    LoadRows,
    /// `Ledger::remaining_rows`
    RemainingRows,
    /// `Ledger::delete_rows`, once for each row
    DeleteRow,
    /// `Ledger::add_collected`
    AddCollected,
    /// `Ledger::collected`
    LoadCollected,
    /// `Ledger::register`
    Register,
    /// `Ledger::tasks`
    Tasks,
    /// `Ledger::acquire_lease`
    AcquireLease,
    /// `Ledger::release_lease`
    ReleaseLease,
    /// `StateTable::load_pages`
    LoadPages,
    /// `StateTable::put_page`
    PutPage,
    /// `StateTable::delete_page`
    DeletePage,
    /// `SegmentStore::put`
    PutObject,
    /// `SegmentStore::get`
    GetObject,
    /// `SegmentStore::list`
    ListObjects,
    /// `SegmentStore::delete`, once for each object
    DeleteObject,
    /// `Sink::position`
    SinkPosition,
    /// `Sink::write`
    SinkWrite,
    /// `FileStore::put_file`
    PutFile,
    /// `FileStore::get_file`
    GetFile,
    /// `FileStore::list_files`
    ListFiles,
    /// `FileStore::delete_file`
    DeleteFile,
}

/// What happens at one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing is done; the store says it is unavailable.
    FailBefore,
    /// It is done; the store says it is unavailable.
    FailAfter,
    /// A commit: nothing is done, and nobody says so.
    UnknownBefore,
    /// A commit: it is done, and nobody says so. Any other operation: as [`Fault::FailAfter`].
    UnknownAfter,
    /// A commit: nobody says what became of it, and it is done this many operations later, if it may be then.
    UnknownLater(u64),
    /// The process ends before it is done.
    CrashBefore,
    /// The process ends after it is done.
    CrashAfter,
    /// The operation waits until [`crate::SimWorld::resume`].
    Pause,
}

impl Fault {
    /// Its name, without numbers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fault::FailBefore => "FailBefore",
            Fault::FailAfter => "FailAfter",
            Fault::UnknownBefore => "UnknownBefore",
            Fault::UnknownAfter => "UnknownAfter",
            Fault::UnknownLater(_) => "UnknownLater",
            Fault::CrashBefore => "CrashBefore",
            Fault::CrashAfter => "CrashAfter",
            Fault::Pause => "Pause",
        }
    }
}

/// Faults drawn for every operation.
#[derive(Clone, Debug)]
pub struct RandomFaults {
    rng: Rng,
    /// Share of operations that go wrong, in a thousand.
    permille: u64,
    /// Whether processes may end.
    crashes: bool,
}

/// The faults of one run.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// By global number of the operation.
    pub at: BTreeMap<u64, Fault>,
    /// By executor and number among its operations.
    pub of_executor: BTreeMap<(usize, u64), Fault>,
    /// This many next operations of a kind fail without being done.
    pub outages: BTreeMap<OpKind, u32>,
    /// Drawn for every operation that no other fault is planned for.
    pub random: Option<RandomFaults>,
    /// Every operation takes up to so many milliseconds of the runtime's paused time, before and after it is done.
    pub latency: Option<(Rng, u64)>,
    /// A commit repeated with the same attempt is answered `Committed`, as DynamoDB does for ten minutes.
    pub remembers_tokens: bool,
}

impl FaultPlan {
    /// One fault at a global operation number.
    #[must_use]
    pub fn at(index: u64, fault: Fault) -> FaultPlan {
        FaultPlan { at: [(index, fault)].into(), ..FaultPlan::default() }
    }

    /// One fault at an operation of an executor.
    #[must_use]
    pub fn of(executor: usize, index: u64, fault: Fault) -> FaultPlan {
        FaultPlan { of_executor: [((executor, index), fault)].into(), ..FaultPlan::default() }
    }

    /// The next `tries` operations of a kind fail.
    #[must_use]
    pub fn outage(kind: OpKind, tries: u32) -> FaultPlan {
        FaultPlan { outages: [(kind, tries)].into(), ..FaultPlan::default() }
    }

    /// Faults at random, as many as `permille` of all operations.
    #[must_use]
    pub fn random(seed: u64, permille: u64, crashes: bool) -> FaultPlan {
        let rng = Rng::new(seed ^ 0x00fa_0175);
        let remembers_tokens = seed.is_multiple_of(2);
        FaultPlan { random: Some(RandomFaults { rng, permille, crashes }), remembers_tokens, ..FaultPlan::default() }
    }

    /// The same plan with operations that take time, so that concurrent executors interleave.
    #[must_use]
    pub fn with_latency(mut self, seed: u64, max_ms: u64) -> FaultPlan {
        self.latency = Some((Rng::new(seed ^ 0x01a7_e0c1), max_ms));
        self
    }

    pub(crate) fn decide(&mut self, global: u64, executor: usize, index: u64, kind: OpKind) -> Option<Fault> {
        if let Some(fault) = self.at.remove(&global).or_else(|| self.of_executor.remove(&(executor, index))) {
            return Some(fault);
        }
        if let Some(left) = self.outages.get_mut(&kind)
            && *left > 0
        {
            *left -= 1;
            return Some(Fault::FailBefore);
        }
        self.random.as_mut().and_then(RandomFaults::draw)
    }

    pub(crate) fn latency(&mut self) -> (u64, u64) {
        match &mut self.latency {
            Some((rng, max)) => (rng.below(*max + 1), rng.below(*max + 1)),
            None => (0, 0),
        }
    }
}

impl RandomFaults {
    fn draw(&mut self) -> Option<Fault> {
        if !self.rng.chance(self.permille) {
            return None;
        }
        let later = Fault::UnknownLater(self.rng.below(12));
        let kinds = [Fault::FailBefore, Fault::FailAfter, Fault::UnknownBefore, Fault::UnknownAfter, later, later];
        let crashes = [Fault::CrashBefore, Fault::CrashAfter];
        Some(if self.crashes && self.rng.chance(400) { *self.rng.pick(&crashes) } else { *self.rng.pick(&kinds) })
    }
}
