//! How far every task is, and whether one is stuck: derived from the heads alone.

use payguard_engine::input::partitions;
use payguard_engine::store::Ledger;
use payguard_engine::task::{IN, TaskPlan};
use payguard_engine::{Head, StoreError, TaskId};
use payguard_model::{EventTime, ProcessingTime};

use crate::{StageKind, Topology};

/// A task that has rows to read and has not committed for this long is stuck, milliseconds.
pub const STUCK_AFTER_MS: i64 = 30_000;

/// One task's progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The task.
    pub task: TaskId,
    /// Its newest commit (0: none).
    pub seq: u64,
    /// Records read since the beginning.
    pub records: u64,
    /// Its watermark.
    pub watermark: EventTime,
    /// How far its watermark is behind the newest watermark of the pipeline's sources, milliseconds of event time.
    pub behind_ms: Option<i64>,
    /// Whether all its inputs are idle.
    pub idle: bool,
    /// Whether its input has ended.
    pub ended: bool,
    /// Whether the tasks of another number of shards have taken over from it.
    pub sealed: bool,
    /// When it last committed, milliseconds since the epoch.
    pub committed_at_ms: i64,
    /// Committed rows of its inputs that it has not read.
    pub rows_waiting: u64,
}

/// The heads of all tasks, sources included, in the order of the topology.
///
/// # Errors
/// When the ledger fails.
pub async fn heads(ledger: &dyn Ledger, topology: &Topology) -> Result<Vec<(TaskId, Head)>, StoreError> {
    let mut heads = Vec::new();
    for stage in &topology.stages {
        let tasks = match &stage.kind {
            StageKind::Source { topics } => {
                let topics: Vec<_> = topics.iter().map(|t| t.partitions.clone()).collect();
                partitions(&stage.id, &topics, ledger.tasks(&stage.id).await?)
            }
            StageKind::Broadcast { .. } => ledger.tasks(&stage.id).await?,
            StageKind::Operators | StageKind::Lookup | StageKind::Sink => {
                topology.tasks_of(stage, &ledger.tasks(&stage.id).await?)
            }
            StageKind::Schedule => Vec::new(),
        };
        for task in tasks {
            let head = ledger.load_head(&task).await?.unwrap_or_else(Head::empty);
            heads.push((task, head));
        }
    }
    Ok(heads)
}

/// The progress of all tasks whose heads are given.
#[must_use]
pub fn of(topology: &Topology, heads: &[(TaskId, Head)]) -> Vec<Progress> {
    let is_source =
        |task: &TaskId| topology.stage(&task.stage).is_some_and(|s| matches!(s.kind, StageKind::Source { .. }));
    let sources = heads.iter().filter(|(task, _)| is_source(task)).map(|(_, head)| head.watermark());
    let newest = sources.filter(|w| *w != EventTime::MAX).max();
    heads
        .iter()
        .map(|(task, head)| Progress {
            task: task.clone(),
            seq: head.seq,
            records: records(head),
            watermark: head.watermark(),
            behind_ms: newest.and_then(|newest| behind(head.watermark(), newest)),
            idle: head.idle,
            ended: head.ended(),
            sealed: head.sealed.is_some(),
            committed_at_ms: head.committed_at_ms,
            rows_waiting: rows_waiting(topology, heads, task, head),
        })
        .collect()
}

/// The task that holds the pipeline up, if one does: it has rows to read and has long not committed.
#[must_use]
pub fn stuck(rows: &[Progress], now: ProcessingTime) -> Option<String> {
    let late = |row: &&Progress| row.rows_waiting > 0 && now.0 - row.committed_at_ms > STUCK_AFTER_MS;
    let row = rows.iter().find(late)?;
    Some(match row.seq {
        0 => format!("{} has never committed, with {} rows to read", row.task, row.rows_waiting),
        seq => format!(
            "{} has {} rows to read and has not committed for {} s (last commit {seq})",
            row.task,
            row.rows_waiting,
            (now.0 - row.committed_at_ms) / 1000
        ),
    })
}

fn records(head: &Head) -> u64 {
    let read = head.counters.iter().filter(|(name, _)| name.starts_with(IN) || *name == "source.records_in");
    read.map(|(_, count)| count).sum()
}

fn behind(watermark: EventTime, newest: EventTime) -> Option<i64> {
    match watermark {
        EventTime::MIN => None,
        EventTime::MAX => Some(0),
        EventTime(ms) => Some((newest.0 - ms).max(0)),
    }
}

/// Committed rows of a task's inputs that it has not read.
#[must_use]
pub fn rows_waiting(topology: &Topology, heads: &[(TaskId, Head)], task: &TaskId, head: &Head) -> u64 {
    let Some(plan) = topology.plan(task).filter(|_| head.sealed.is_none()) else { return 0 };
    heads
        .iter()
        .filter(|(other, _)| plan.upstreams.iter().any(|upstream| upstream.has(other)))
        .map(|(other, produced)| {
            let input = head.inputs.get(&TaskPlan::input_id(other));
            // What has ended has no records left; a sealed task's last rows are not even read.
            if input.is_some_and(|input| input.watermark() == EventTime::MAX) {
                return 0;
            }
            produced.seq.saturating_sub(u64::try_from(input.map_or(0, |i| i.position.at)).unwrap_or(0))
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use payguard_engine::{InputState, Position, StageId};

    use super::*;
    use crate::{Config, payguard};

    fn head(seq: u64, watermark: i64, read: &[(&str, i64)]) -> Head {
        let inputs = read.iter().map(|(id, at)| {
            let position = Position { at: *at, within: 0 };
            ((*id).to_owned(), InputState { position, watermark_ms: watermark, idle: false })
        });
        Head { seq, watermark_ms: watermark, inputs: inputs.collect(), committed_at_ms: 1_000, ..Head::empty() }
    }

    #[test]
    fn a_task_that_leaves_rows_unread_is_named() {
        let topology = payguard(&Config::default());
        let parse = TaskId::partition(&StageId::new("parse"), "payments.raw", 0);
        let dedup = TaskId::shard(&StageId::new("dedup"), 0);
        let heads = vec![(parse, head(7, 50_000, &[])), (dedup, head(4, 20_000, &[("parse/payments.raw-0", 5)]))];
        let rows = of(&topology, &heads);
        assert_eq!(rows[1].rows_waiting, 2);
        assert_eq!(rows[1].behind_ms, Some(30_000));
        assert_eq!(stuck(&rows, ProcessingTime(1_000 + STUCK_AFTER_MS)), None);
        let reason = stuck(&rows, ProcessingTime(1_001 + STUCK_AFTER_MS)).unwrap_or_default();
        assert!(reason.contains("dedup/0 has 2 rows to read"), "{reason}");
    }
}
