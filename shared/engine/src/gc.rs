//! Garbage collection: what nobody needs any more. Decisions only; the stage `clock` carries them out.
//!
//! A log row is needed by the tasks that read it and, if its task has keyed state, for recovery until the state is
//! flushed beyond it; its object as long as itself. Positions, heads and flushed seqs only grow: what may go now may go
//! for ever, and a collector that slept does no harm with what it had decided.

use payguard_model::ProcessingTime;
use serde::Serialize;

use crate::ids::{Seq, TaskId};
use crate::page::Page;
use crate::row::{CommitRow, Head, Position};
use crate::segment::object_seq;
use crate::teeth::{Mutant, bites};

/// A page is removed this long after it has expired, seconds. DynamoDB removes expired items by itself and for nothing,
/// most often within hours; this is for those that it leaves.
pub const EXPIRED_MARGIN_S: i64 = 24 * 3600;

/// What has been collected. Counts are added after the deed: a crash in between leaves it uncounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Collected {
    /// Log rows.
    pub rows: u64,
    /// Objects of those rows.
    pub objects: u64,
    /// Objects of attempts that were never committed.
    pub orphans: u64,
    /// Pages of the state table, expired.
    pub pages: u64,
    /// Key groups that were looked through for such pages: also tells which one is next.
    pub groups: u64,
}

/// The last row of a task that nobody needs (0: none).
///
/// `positions` are those of every task that reads this one, [`Position::default`] for one that has not begun.
#[must_use]
pub fn collectable_through(head: &Head, has_state: bool, positions: impl IntoIterator<Item = Position>) -> Seq {
    // The newest row stays: it tells whose the newest commit is.
    let newest = head.seq.saturating_sub(1);
    let flushed = if has_state && !bites(Mutant::CollectUnflushed) { head.flushed_seq } else { newest };
    let read = positions.into_iter().map(|position| u64::try_from(position.at).unwrap_or(0));
    Seq(read.filter(|_| !bites(Mutant::CollectUnread)).fold(newest.min(flushed), u64::min))
}

/// The first of the rows (ascending) that may go now: those up to `through` that were committed `retention_ms` ago.
#[must_use]
pub fn collectable_rows(rows: &[CommitRow], through: Seq, now: ProcessingTime, retention_ms: i64) -> &[CommitRow] {
    let may_go = |row: &CommitRow| row.seq <= through.0 && now.0.saturating_sub(row.now_ms) >= retention_ms;
    &rows[..rows.iter().take_while(|row| may_go(row)).count()]
}

/// The first of a task's objects (keys ascending) that go with its rows up to `through`, whoever made them: no attempt
/// at a commit that exists can be committed any more.
#[must_use]
pub fn collectable_objects<'a>(task: &TaskId, keys: &'a [String], through: Seq) -> &'a [String] {
    let may_go = |key: &String| object_seq(task, key).is_some_and(|seq| seq <= through.0);
    &keys[..keys.iter().take_while(|key| may_go(key)).count()]
}

/// The pages of a key group that expired long ago. Those that a split replaced are not among them: the task removes them
/// itself, after the next commit (`keyed`), since only its own commits tell when nobody can miss them any more.
#[must_use]
pub fn collectable_pages(pages: &[Page], now: ProcessingTime) -> Vec<&Page> {
    let may_go =
        |page: &&Page| page.expires_at_s.is_some_and(|at_s| at_s.saturating_add(EXPIRED_MARGIN_S) <= now.0 / 1000);
    pages.iter().filter(may_go).collect()
}

impl Collected {
    /// Whether anything was removed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        Collected { groups: 0, ..*self } == Collected::default()
    }
}

#[cfg(test)]
mod tests;
