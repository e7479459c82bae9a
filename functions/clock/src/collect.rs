//! Garbage collection, a bounded piece of it at each tick: log rows and segments that every reader has passed, segments
//! that were never committed, pages that expired long ago.
//!
//! A segment goes before its row: while the row is there, the next run finds both again. Whatever lies under the keys of
//! a task up to the last row that goes, goes too: no attempt at a commit that exists can be committed any more, so what
//! is not a row's segment is an orphan. Since keys sort by seq and what is removed is gone, a run begins where the one
//! before it ended without having to remember where that was; only whose turn it is is remembered, in the counts: which
//! key group of the state table is looked through, and which task's keys are listed although none of its rows goes, so
//! that an orphan which a zombie stores late is found there too.
//!
//! Every step may be repeated, made by two collectors at once, or made long after it was decided.

use std::collections::BTreeSet;

use payguard_engine::gc::{Collected, collectable_objects, collectable_pages, collectable_rows};
use payguard_engine::row::SegmentLocation;
use payguard_engine::segment::object_prefix;
use payguard_engine::store::RowLimits;
use payguard_engine::task::Env;
use payguard_engine::{CommitRow, Head, Seq, StoreError, TaskId};
use payguard_model::{KEY_GROUPS, KeyGroup, ProcessingTime};
use payguard_topology::{Topology, collection};

/// Rows read and removed at once.
const ROWS_AT_ONCE: u32 = 100;
/// Keys listed and removed at once, the most that S3 takes.
const KEYS_AT_ONCE: usize = 1000;

/// What one run may do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rows stay this long after their commit, milliseconds.
    pub retention_ms: i64,
    /// No step begins after this time.
    pub until: ProcessingTime,
    /// Rows of each task at most.
    pub rows: u32,
    /// Tasks whose objects are listed although none of their rows goes.
    pub sweeps: usize,
    /// Key groups of the state table to look through.
    pub groups: u32,
}

impl Limits {
    /// Those of a run once a minute: faster than a busy task commits. In two hours every key group is looked through.
    #[must_use]
    pub fn per_minute(retention_ms: i64, until: ProcessingTime) -> Limits {
        Limits { retention_ms, until, rows: 3_000, sweeps: 1, groups: 1 }
    }
}

/// What a run did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What it removed; added to the counts in the ledger.
    pub collected: Collected,
    /// What failed. The rest was done all the same, and the next run tries again.
    pub failed: Vec<StoreError>,
}

/// Collects what the heads say that nobody needs. The heads may be old.
pub async fn collect(env: &Env, topology: &Topology, heads: &[(TaskId, Head)], limits: Limits) -> Outcome {
    let mut outcome = Outcome::default();
    // What a newer release still needs may be told by what only it knows.
    if let Some(error) = heads.iter().find_map(|(task, head)| env.check_schema(&task.to_string(), head.schema).err()) {
        return Outcome { failed: vec![error], ..outcome };
    }
    let before = match env.ledger.collected().await {
        Ok(before) => before,
        Err(error) => return Outcome { failed: vec![error], ..outcome },
    };
    let mut logs = collection::of(topology, heads);
    // Another one is the first every time, so that none has to wait for ever when time is short.
    let first = usize::try_from(before.groups).unwrap_or(0).checked_rem(logs.len()).unwrap_or(0);
    logs.rotate_left(first);
    for (number, (task, through)) in logs.iter().enumerate() {
        let sweep = number < limits.sweeps;
        let done = collect_log(env, task, *through, sweep, limits, &mut outcome.collected).await;
        outcome.failed.extend(done.err());
    }
    collect_pages(env, topology, before.groups, limits, &mut outcome).await;
    if outcome.collected != Collected::default() {
        outcome.failed.extend(env.ledger.add_collected(&outcome.collected).await.err());
    }
    outcome
}

/// Removes the rows of a task up to `through` that are old enough, and the objects up to them. With `sweep` also what
/// has appeared among the objects of rows that are gone.
async fn collect_log(
    env: &Env,
    task: &TaskId,
    through: Seq,
    sweep: bool,
    limits: Limits,
    collected: &mut Collected,
) -> Result<(), StoreError> {
    // Most often nothing is old enough: one row tells.
    let (mut left, mut at_once) = (limits.rows, 1);
    while left > 0 && through > Seq(0) && env.clock.now() < limits.until {
        let rows = at_once.min(left);
        let read = env.ledger.remaining_rows(task, Seq(0), RowLimits { rows }).await?;
        let old = collectable_rows(&read, through, env.clock.now(), limits.retention_ms);
        let Some(last) = old.last() else {
            if let Some(first) = read.first().filter(|_| sweep) {
                collect_objects(env, task, &[], Seq(first.seq - 1), limits, collected).await?;
            }
            break;
        };
        if !collect_objects(env, task, old, Seq(last.seq), limits, collected).await? {
            break;
        }
        let seqs: Vec<Seq> = old.iter().map(|row| Seq(row.seq)).collect();
        env.ledger.delete_rows(task, &seqs).await?;
        collected.rows += seqs.len() as u64;
        if old.len() < rows as usize {
            break;
        }
        left -= rows;
        at_once = ROWS_AT_ONCE;
    }
    Ok(())
}

/// Removes the objects of a task up to row `last`; `rows` are those that are left of it. False when time was too short.
async fn collect_objects(
    env: &Env,
    task: &TaskId,
    rows: &[CommitRow],
    last: Seq,
    limits: Limits,
    collected: &mut Collected,
) -> Result<bool, StoreError> {
    let named: BTreeSet<&str> = rows.iter().filter_map(object_of).collect();
    while env.clock.now() < limits.until {
        let keys = env.segments.list(&object_prefix(task), KEYS_AT_ONCE).await?;
        let garbage = collectable_objects(task, &keys, last);
        env.segments.delete(garbage).await?;
        let objects = garbage.iter().filter(|key| named.contains(key.as_str())).count();
        collected.objects += objects as u64;
        collected.orphans += (garbage.len() - objects) as u64;
        if garbage.len() < KEYS_AT_ONCE {
            return Ok(true);
        }
    }
    Ok(false)
}

fn object_of(row: &CommitRow) -> Option<&str> {
    match &row.segment {
        Some(SegmentLocation::Object(key)) => Some(key),
        Some(SegmentLocation::Inline(_)) | None => None,
    }
}

/// Looks through the next key groups that have pages which expire.
async fn collect_pages(env: &Env, topology: &Topology, next: u64, limits: Limits, outcome: &mut Outcome) {
    let stages = collection::stages_with_expiring_pages(topology);
    let places = stages.iter().flat_map(|stage| (0..KEY_GROUPS).map(move |group| (stage, KeyGroup(group))));
    let places: Vec<_> = places.collect();
    for number in (next..).take(limits.groups as usize) {
        let at = usize::try_from(number).unwrap_or(0).checked_rem(places.len());
        let Some((stage, group)) = at.map(|at| places[at]).filter(|_| env.clock.now() < limits.until) else { return };
        let done = async {
            let pages = env.state.load_pages(stage, group).await?;
            for page in collectable_pages(&pages, env.clock.now()) {
                env.state.delete_page(&page.address, page.version).await?;
                outcome.collected.pages += 1;
            }
            Ok(())
        };
        let done: Result<(), StoreError> = done.await;
        outcome.failed.extend(done.err());
        // Also after a failure: one damaged key group must not keep the others from their turn.
        outcome.collected.groups += 1;
    }
}
