//! Rules of the engine that tests break on purpose, one at a time, to see that the checks notice.
//!
//! Only the feature `teeth` can break anything, and nothing but tests enables it: without it, [`bites`] is always false
//! and the compiler drops what depends on it. The mutants of what a store promises are in `shared/sim`.

/// A rule that is broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mutant {
    /// A store makes a commit wherever the head is, if only the row is free.
    NoHeadCondition,
    /// A store makes a commit whatever there is.
    OverwriteRows,
    /// A row that somebody else has committed is taken for one's own.
    TakeForMine,
    /// Memory that caught up with the commits of others reads on where it was itself.
    KeepPositions,
    /// Records that are delivered again are handled again.
    TakeAgain,
    /// A sink's watermark is that of its inputs, whatever it was before.
    WatermarkOfBatch,
    /// The watermark of a delivery is moved before its records are handled, not after each of them.
    WatermarkFirst,
    /// Pages are written before the commit whose state they hold.
    FlushUncommitted,
    /// A store writes pages of any version.
    NoVersionCheck,
    /// State is loaded from deltas overlaid by pages.
    PagesOverDeltas,
    /// Pages that a split replaced are removed with the flush, not after the next commit.
    RemoveAtOnce,
    /// Deltas are applied to memory that was loaded while others flushed.
    TrustLoaded,
    /// What is collected depends on what is flushed and not on who has read it.
    CollectUnread,
    /// What is collected depends on who has read it and not on what is flushed.
    CollectUnflushed,
    /// A delivery is acknowledged once its commit was sent, whatever became of it.
    AcknowledgeFirst,
    /// A commit that is lost does not drop memory.
    KeepAfterLost,
    /// After a commit without an answer, memory is kept and the next attempt is made.
    GoOnAfterUnknown,
    /// A sink writes its position after the records, not with them.
    PositionApart,
    /// Who goes on within a row passes one record too many.
    PassTooMany,
    /// A task of a redrawn layout reads what those before it have taken.
    TakeTwice,
    /// A task hands over without flushing its state.
    HandOverUnflushed,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 21] = [
        Mutant::NoHeadCondition,
        Mutant::OverwriteRows,
        Mutant::TakeForMine,
        Mutant::KeepPositions,
        Mutant::TakeAgain,
        Mutant::WatermarkOfBatch,
        Mutant::WatermarkFirst,
        Mutant::FlushUncommitted,
        Mutant::NoVersionCheck,
        Mutant::PagesOverDeltas,
        Mutant::RemoveAtOnce,
        Mutant::TrustLoaded,
        Mutant::CollectUnread,
        Mutant::CollectUnflushed,
        Mutant::AcknowledgeFirst,
        Mutant::KeepAfterLost,
        Mutant::GoOnAfterUnknown,
        Mutant::PositionApart,
        Mutant::PassTooMany,
        Mutant::TakeTwice,
        Mutant::HandOverUnflushed,
    ];
}

/// Whether this rule is broken now.
#[cfg(not(feature = "teeth"))]
#[inline]
#[must_use]
pub const fn bites(_: Mutant) -> bool {
    false
}

#[cfg(feature = "teeth")]
pub use broken::{Broken, bites};

#[cfg(feature = "teeth")]
mod broken {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static CURRENT: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Whether this rule is broken now, on this thread.
    #[must_use]
    pub fn bites(mutant: Mutant) -> bool {
        CURRENT.get() == Some(mutant)
    }

    /// While it lives, a rule is broken for everything that runs on this thread.
    #[must_use]
    pub struct Broken(());

    impl Broken {
        /// Breaks a rule in place of the one that was broken before.
        pub fn new(mutant: Mutant) -> Broken {
            CURRENT.set(Some(mutant));
            Broken(())
        }
    }

    impl Drop for Broken {
        fn drop(&mut self) {
            CURRENT.set(None);
        }
    }
}
