//! Where a task goes on from: pure decisions over what it holds in memory, the stored head, and a sink's position.

use crate::ids::Seq;
use crate::layout;
use crate::row::Head;
use crate::teeth::{Mutant, bites};

/// A warm task that is this many commits behind applies their deltas; further behind, it loads its state anew.
const CATCH_UP_ROWS: u64 = 32;

/// How what a task holds in memory becomes the state as of the stored head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resume {
    /// It is that state.
    AsItIs,
    /// By the deltas of the rows `after + 1 ..= until`, in order.
    Deltas {
        /// The commit the memory is as of.
        after: Seq,
        /// The newest commit.
        until: Seq,
    },
    /// Not at all: it is dropped, and the state is loaded.
    Load,
}

/// What to do with memory that is as of `held`, when the ledger has `stored`.
///
/// `whole` says that the memory is known to be the state as of `held`. While a state is loaded, others may go on and
/// flush: then what was read belongs to no commit. That does no harm while the head tells it apart, because a commit
/// after `held` is lost; but deltas must not be applied on top. The memory is whole once the head was found unmoved.
#[must_use]
pub fn resume(held: &Head, whole: bool, stored: &Head) -> Resume {
    if is_same(held, stored) {
        return Resume::AsItIs;
    }
    match stored.seq.checked_sub(held.seq) {
        Some(1..=CATCH_UP_ROWS) if whole || bites(Mutant::TrustLoaded) => {
            Resume::Deltas { after: held.seq(), until: stored.seq() }
        }
        _ => Resume::Load,
    }
}

fn is_same(held: &Head, stored: &Head) -> bool {
    stored.seq == held.seq && stored.attempt == held.attempt
}

/// What it means that a row or an object that a task was to read is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// Another executor of the task has gone on meanwhile, and what it had passed was collected. The batch is lost, as a
    /// commit may be.
    Passed,
    /// Nobody has passed it: something that is needed was collected or lost (INV-5).
    Needed,
}

/// What to make of a gap in what was read for a batch after `held`, when `newest` is the head that was read since.
#[must_use]
pub fn missing(held: &Head, newest: &Head) -> Missing {
    if is_same(held, newest) { Missing::Needed } else { Missing::Passed }
}

/// What makes up the state as of a head: pages, overlaid by deltas. In this order: a page may be older than a delta.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovery {
    /// Whether pages count. Before the first flush was recorded they do not: the deltas are everything. A task that
    /// has taken over from others begins with the pages that those have flushed.
    pub pages: bool,
    /// Deltas of the rows after this one,
    pub after: Seq,
    /// up to this one, in order.
    pub until: Seq,
}

/// What to load for the state as of `head`.
#[must_use]
pub fn recovery(head: &Head) -> Recovery {
    Recovery {
        pages: head.flushed_seq > 0 || head.generation > layout::FIRST,
        after: Seq(head.flushed_seq),
        until: head.seq(),
    }
}

/// Where a sink stands beside the ledger of its task. The sink's position is the truth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lead {
    /// Both are at the same batch.
    None,
    /// The sink has the next batch already: the ledger follows.
    One,
    /// The sink is never two batches ahead: somebody else has gone on since the head was read, so it is read again.
    /// When it has not moved, the outputs do not belong to this ledger.
    More,
    /// The sink is behind, which it never is: the outputs do not belong to this ledger.
    Behind,
}

/// Compares a sink with the ledger; the sink's position must be read after the head.
#[must_use]
pub fn lead(ledger: Seq, sink: Seq) -> Lead {
    match sink.0.checked_sub(ledger.0) {
        Some(0) => Lead::None,
        Some(1) => Lead::One,
        Some(_) => Lead::More,
        None => Lead::Behind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(seq: u64, attempt: &str, flushed_seq: u64) -> Head {
        Head { seq, attempt: attempt.to_owned(), flushed_seq, ..Head::empty() }
    }

    #[test]
    fn memory_is_kept_caught_up_or_dropped() {
        let deltas = |after, until| Resume::Deltas { after: Seq(after), until: Seq(until) };
        let cases = [
            ((5, "a"), true, (5, "a"), Resume::AsItIs),
            ((0, ""), false, (0, ""), Resume::AsItIs),
            // Loaded while the head stood still: that it is the state is known now.
            ((5, "a"), false, (5, "a"), Resume::AsItIs),
            ((5, "a"), true, (6, "b"), deltas(5, 6)),
            ((5, "a"), true, (37, "b"), deltas(5, 37)),
            ((5, "a"), true, (38, "b"), Resume::Load),
            // Loaded while others went on: what was read may belong to no commit.
            ((5, "a"), false, (6, "b"), Resume::Load),
            // Another ledger than the one the memory is of.
            ((5, "a"), true, (5, "b"), Resume::Load),
            ((5, "a"), true, (4, "b"), Resume::Load),
        ];
        for ((held, by), whole, (stored, stored_by), expected) in cases {
            let resumed = resume(&head(held, by, 0), whole, &head(stored, stored_by, 0));
            assert_eq!(resumed, expected, "{held} {by} {whole} {stored} {stored_by}");
        }
    }

    #[test]
    fn what_is_missing_is_needed_while_the_head_stands_still() {
        let cases = [
            ((5, "a"), (5, "a"), Missing::Needed),
            ((0, ""), (0, ""), Missing::Needed),
            ((5, "a"), (6, "b"), Missing::Passed),
            ((5, "a"), (99, "a"), Missing::Passed),
            ((0, ""), (1, "b"), Missing::Passed),
        ];
        for ((held, by), (newest, newest_by), expected) in cases {
            assert_eq!(missing(&head(held, by, 0), &head(newest, newest_by, 0)), expected, "{held} {newest}");
        }
    }

    #[test]
    fn a_state_is_pages_and_the_deltas_after_them() {
        let of = |pages, after, until| Recovery { pages, after: Seq(after), until: Seq(until) };
        assert_eq!(recovery(&head(7, "a", 0)), of(false, 0, 7));
        assert_eq!(recovery(&head(7, "a", 4)), of(true, 4, 7));
        assert_eq!(recovery(&head(7, "a", 7)), of(true, 7, 7));
    }

    #[test]
    fn a_sink_is_compared_with_its_ledger() {
        for (ledger, sink, expected) in
            [(3, 3, Lead::None), (3, 4, Lead::One), (3, 5, Lead::More), (3, 2, Lead::Behind), (0, 0, Lead::None)]
        {
            assert_eq!(lead(Seq(ledger), Seq(sink)), expected, "{ledger} {sink}");
        }
    }
}
