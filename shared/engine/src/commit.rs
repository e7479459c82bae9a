//! What became of a commit: pure decisions over what the ledger says.
//!
//! `Committed`, `AlreadyMine`, `Lost`, `Passed` and `Unknown` are outcomes, not errors. After `Lost` and `Passed`
//! everything in memory is dropped. `Unknown` never leads to another attempt with the same in-memory state: the *same*
//! attempt is repeated until it is known, because the ledger applies it at most once.

use std::collections::BTreeMap;

use crate::ids::{Attempt, InputId, Seq};
use crate::row::{CommitRow, Head, InputState, Position};
use crate::store::CommitReply;
use crate::teeth::{Mutant, bites};

/// What became of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitOutcome {
    /// The ledger made it now.
    Committed,
    /// The ledger had made it already: an earlier try of ours had won unseen.
    AlreadyMine,
    /// Somebody else made this seq.
    Lost,
    /// The log has gone on and the row is collected: whose it was, nobody can say any more.
    Passed,
    /// Nobody can say yet.
    Unknown,
}

impl CommitOutcome {
    /// Whether the in-memory state is now the committed one.
    #[must_use]
    pub fn is_mine(self) -> bool {
        matches!(self, CommitOutcome::Committed | CommitOutcome::AlreadyMine)
    }
}

/// What to do after a reply of the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterReply {
    /// The outcome is known.
    Done(CommitOutcome),
    /// Read head and row, then [`resolve`].
    Look,
}

/// The first decision, from the ledger's reply alone.
#[must_use]
pub fn after_reply(reply: &CommitReply) -> AfterReply {
    match reply {
        CommitReply::Committed => AfterReply::Done(CommitOutcome::Committed),
        CommitReply::Refused | CommitReply::Unknown(_) => AfterReply::Look,
    }
}

/// What head and row say about a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// The outcome is known.
    Known(CommitOutcome),
    /// It has not been applied (yet): repeat the same attempt.
    NotApplied,
    /// The log contradicts the head.
    Broken(String),
}

/// The second decision: whose is row `seq`, given what the ledger holds?
///
/// The row must be read *after* the head, so that a commit between the two reads cannot look like a gap.
#[must_use]
pub fn resolve(head: Option<&Head>, row: Option<&CommitRow>, attempt: &Attempt, seq: Seq) -> Resolution {
    let head_seq = head.map_or(0, |h| h.seq);
    match row {
        Some(row) if row.attempt == attempt.0 => Resolution::Known(CommitOutcome::AlreadyMine),
        Some(_) if bites(Mutant::TakeForMine) => Resolution::Known(CommitOutcome::AlreadyMine),
        Some(_) => Resolution::Known(CommitOutcome::Lost),
        None if head_seq + 1 == seq.0 => Resolution::NotApplied,
        // Row and head are written together, so the row has been collected since; the head still names its attempt.
        None if head_seq == seq.0 && head.is_some_and(|h| h.attempt == attempt.0) => {
            Resolution::Known(CommitOutcome::AlreadyMine)
        }
        None if head_seq == seq.0 => Resolution::Known(CommitOutcome::Lost),
        None if head_seq > seq.0 => Resolution::Known(CommitOutcome::Passed),
        None => Resolution::Broken(format!("INV-1: the head is at {head_seq}, behind the predecessor of {seq}")),
    }
}

/// Checks INV-2 and INV-3 between a head and the row that follows it.
///
/// # Errors
/// With a description of what does not fit.
pub fn check_succession(head: &Head, row: &CommitRow) -> Result<(), String> {
    if row.seq != head.seq + 1 {
        return Err(format!("INV-1: row {} follows head {}", row.seq, head.seq));
    }
    if row.watermark_ms < head.watermark_ms {
        return Err(format!("INV-3: watermark {} follows {}", row.watermark_ms, head.watermark_ms));
    }
    for (input, from) in &row.from {
        let before = head.inputs.get(input).map(|s| s.position);
        if before.is_some_and(|b| b != *from) {
            return Err(format!("INV-2: {input} continues at {from:?} after {before:?}"));
        }
        if row.to.get(input).is_none_or(|to| to.position < *from) {
            return Err(format!("INV-2: {input} goes back from {from:?}"));
        }
    }
    Ok(())
}

/// The inputs that moved, as a row's `from` and `to`.
#[must_use]
pub fn moved(
    before: &BTreeMap<InputId, InputState>,
    after: &BTreeMap<InputId, InputState>,
    untouched: Position,
) -> (BTreeMap<InputId, Position>, BTreeMap<InputId, InputState>) {
    let (mut from, mut to) = (BTreeMap::new(), BTreeMap::new());
    for (input, state) in after {
        let old = before.get(input);
        if old != Some(state) {
            from.insert(input.clone(), old.map_or(untouched, |s| s.position));
            to.insert(input.clone(), *state);
        }
    }
    (from, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(seq: u64) -> Head {
        Head { seq, ..Head::empty() }
    }

    fn row(seq: u64, attempt: &str) -> CommitRow {
        CommitRow { seq, attempt: attempt.to_owned(), ..CommitRow::default() }
    }

    #[test]
    fn every_reply_leads_to_a_decision() {
        assert_eq!(after_reply(&CommitReply::Committed), AfterReply::Done(CommitOutcome::Committed));
        assert_eq!(after_reply(&CommitReply::Refused), AfterReply::Look);
        assert_eq!(after_reply(&CommitReply::Unknown("timeout".into())), AfterReply::Look);
    }

    #[test]
    fn every_state_of_head_and_row_is_resolved() {
        use CommitOutcome::{AlreadyMine, Lost, Passed};
        let mine = Attempt("mine".into());
        let cases: [(Option<u64>, Option<&str>, Option<CommitOutcome>); 7] = [
            (Some(5), Some("mine"), Some(AlreadyMine)),
            (Some(7), Some("mine"), Some(AlreadyMine)),
            (Some(5), Some("other"), Some(Lost)),
            (Some(9), Some("other"), Some(Lost)),
            (Some(9), None, Some(Passed)),
            (Some(4), None, None),
            // A row that became visible after the head was read.
            (Some(4), Some("mine"), Some(AlreadyMine)),
        ];
        for (head_seq, attempt, expected) in cases {
            let head = head_seq.map(head);
            let row = attempt.map(|a| row(5, a));
            let resolution = resolve(head.as_ref(), row.as_ref(), &mine, Seq(5));
            match expected {
                Some(outcome) => assert_eq!(resolution, Resolution::Known(outcome), "{head_seq:?} {attempt:?}"),
                None => assert_eq!(resolution, Resolution::NotApplied, "{head_seq:?} {attempt:?}"),
            }
        }
        for (by, expected) in [("mine", AlreadyMine), ("other", Lost)] {
            let head = Head { attempt: by.to_owned(), ..head(5) };
            assert_eq!(resolve(Some(&head), None, &mine, Seq(5)), Resolution::Known(expected), "collected, by {by}");
        }
        assert_eq!(resolve(None, None, &mine, Seq(1)), Resolution::NotApplied);
        assert!(matches!(resolve(Some(&head(2)), None, &mine, Seq(5)), Resolution::Broken(_)));
    }

    #[test]
    fn a_row_that_skips_or_repeats_input_is_refused() {
        let at = |at| Position { at, within: 0 };
        let state = |p: i64| InputState { position: at(p), watermark_ms: 0, idle: false };
        let mut before = head(3);
        before.inputs.insert("a".into(), state(10));
        let follows = |from: i64, to: i64| CommitRow {
            from: [("a".to_owned(), at(from))].into(),
            to: [("a".to_owned(), state(to))].into(),
            ..row(4, "x")
        };
        let mut before_zero = before.clone();
        before_zero.watermark_ms = 0;
        assert!(check_succession(&before_zero, &follows(10, 12)).is_ok());
        assert!(check_succession(&before_zero, &follows(11, 12)).is_err(), "gap");
        assert!(check_succession(&before_zero, &follows(9, 12)).is_err(), "overlap");
        assert!(check_succession(&before_zero, &follows(10, 9)).is_err(), "backwards");
        assert!(check_succession(&before_zero, &row(6, "x")).is_err(), "seq gap");
        before_zero.watermark_ms = 1;
        assert!(check_succession(&before_zero, &follows(10, 12)).is_err(), "watermark goes back");
    }
}
