//! What is checked: how many of everything, and what is broken on purpose.

/// How keyed state is laid out in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One page for each of the two keys, written over and over.
    Fixed,
    /// One page for both keys, which is split into one for each as soon as the state is large.
    Split,
    /// Every flush adds pages; nothing is rewritten (deduplication).
    Added,
}

/// A rule of the protocol that is broken on purpose: the check must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// A commit is made wherever the head is, if only the row is free.
    NoHeadCondition,
    /// After a commit without an answer, memory is kept and the batch is run again as a new attempt.
    NewAttemptAfterUnknown,
    /// Records are acknowledged before they are committed.
    AcknowledgeFirst,
    /// Pages are written before the commit whose state they hold.
    FlushUncommitted,
    /// The table writes pages of any version.
    NoVersionCheck,
    /// Collection looks at what is flushed and not at consumers.
    CollectUnread,
    /// Collection looks at consumers and not at what is flushed.
    CollectUnflushed,
    /// The sink writes its position after the records, not with them.
    PositionApart,
    /// State is loaded from deltas overlaid by pages.
    PagesOverDeltas,
    /// Pages that a split replaced are removed with the flush, not after the next commit.
    RemoveAtOnce,
    /// Deltas are applied to memory that was loaded while others flushed.
    TrustLoaded,
    /// State is flushed by who has loaded it, not only by who has made the commit.
    FlushLoaded,
    /// A commit that is lost does not drop memory.
    KeepAfterLost,
    /// A commit that is lost is sent once more, after the newest head.
    RebaseAfterLost,
    /// The watermark is that of the batch, whatever it was before.
    WatermarkOfBatch,
    /// A row or object that is missing ends the task.
    MissingIsDamage,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 16] = [
        Mutant::NoHeadCondition,
        Mutant::NewAttemptAfterUnknown,
        Mutant::AcknowledgeFirst,
        Mutant::FlushUncommitted,
        Mutant::NoVersionCheck,
        Mutant::CollectUnread,
        Mutant::CollectUnflushed,
        Mutant::PositionApart,
        Mutant::PagesOverDeltas,
        Mutant::RemoveAtOnce,
        Mutant::TrustLoaded,
        Mutant::FlushLoaded,
        Mutant::KeepAfterLost,
        Mutant::RebaseAfterLost,
        Mutant::WatermarkOfBatch,
        Mutant::MissingIsDamage,
    ];

    /// The model that shows it.
    #[must_use]
    pub fn model(self) -> Config {
        let shown_by = match self {
            Mutant::PositionApart => Config::SINK,
            Mutant::RemoveAtOnce | Mutant::TrustLoaded => Config::SPLIT,
            Mutant::FlushLoaded => Config::ADDED,
            _ => Config::STATE,
        };
        Config { mutant: Some(self), ..shown_by }
    }
}

/// One model: its size is exhausted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// What it is about.
    pub name: &'static str,
    /// Records of the source, at most [`crate::MAX_RECORDS`].
    pub records: u8,
    /// Records of one commit at most.
    pub batch: u8,
    /// Executors of the producer, at most two. Without one it commits and flushes in one step.
    pub producers: u8,
    /// Executors of the consumer, at most two. Without one it takes a row in one step.
    pub consumers: u8,
    /// Pages of the producer's state.
    pub layout: Layout,
    /// Whether executors need a lease; it may run out at any time.
    pub leases: bool,
    /// Executors that crash.
    pub crashes: u8,
    /// Writes whose answer is lost, applied or not.
    pub lost: u8,
    /// Commits that arrive after everybody has given them up.
    pub late: u8,
    /// What is broken, if anything.
    pub mutant: Option<Mutant>,
}

impl Config {
    /// Two executors of a task with state: recovery, flush, collection. The consumer takes a row in one step.
    pub const STATE: Config = Config {
        name: "state",
        records: 3,
        batch: 2,
        producers: 2,
        consumers: 0,
        layout: Layout::Fixed,
        leases: false,
        crashes: 0,
        lost: 1,
        late: 0,
        mutant: None,
    };
    /// The same with pages that are split.
    pub const SPLIT: Config = Config { name: "split pages", layout: Layout::Split, lost: 0, ..Config::STATE };
    /// The same with pages that are added.
    pub const ADDED: Config = Config { name: "added pages", layout: Layout::Added, lost: 0, ..Config::STATE };
    /// The same with crashes and commits that arrive late, and fewer records.
    pub const FAULTS: Config =
        Config { name: "faults", records: 2, batch: 1, crashes: 1, lost: 0, late: 1, ..Config::STATE };
    /// Two executors of a sink. The producer commits in one step, as a source does.
    pub const SINK: Config = Config { name: "sink", producers: 0, consumers: 2, crashes: 1, ..Config::STATE };
    /// The same with commits that arrive late.
    pub const LATE_SINK: Config = Config { name: "sink, late", crashes: 0, late: 1, ..Config::SINK };
    /// One executor of each task, all faults.
    pub const CHAIN: Config =
        Config { name: "chain", records: 2, producers: 1, consumers: 1, crashes: 1, late: 1, ..Config::STATE };
    /// Two executors of the task with state and one of the sink.
    pub const TRIO: Config = Config { name: "trio", records: 2, consumers: 1, ..Config::STATE };
    /// Two executors of each task.
    pub const PAIRS: Config =
        Config { name: "pairs", records: 2, producers: 2, consumers: 2, lost: 0, ..Config::STATE };
    /// The same with faults and one record.
    pub const FAULTY_PAIRS: Config =
        Config { name: "faulty pairs", records: 1, batch: 1, crashes: 1, lost: 1, ..Config::PAIRS };
    /// The same with leases that run out.
    pub const LEASES: Config = Config { name: "leases", records: 1, batch: 1, leases: true, ..Config::PAIRS };

    /// What is checked with every change: about a minute.
    #[must_use]
    pub fn short() -> Vec<Config> {
        vec![
            Config::STATE,
            Config::SPLIT,
            Config::ADDED,
            Config::FAULTS,
            Config::SINK,
            Config::LATE_SINK,
            Config::CHAIN,
            Config::TRIO,
            Config::PAIRS,
            Config::FAULTY_PAIRS,
            Config::LEASES,
        ]
    }

    /// What is checked when there is time: more records, and more faults at once.
    #[must_use]
    pub fn long() -> Vec<Config> {
        vec![
            Config { crashes: 1, ..Config::STATE },
            Config { name: "state, four", records: 4, lost: 0, ..Config::STATE },
            Config { crashes: 1, ..Config::SPLIT },
            Config { name: "split, four", records: 4, ..Config::SPLIT },
            Config { crashes: 1, ..Config::ADDED },
            Config { lost: 1, ..Config::FAULTS },
            Config { late: 1, ..Config::SINK },
            Config { name: "sink, four", records: 4, late: 1, ..Config::SINK },
            Config { records: 3, lost: 0, ..Config::CHAIN },
            Config { crashes: 1, ..Config::TRIO },
            Config { late: 1, ..Config::FAULTY_PAIRS },
            Config { records: 2, ..Config::LEASES },
        ]
    }

    pub(crate) fn breaks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}
