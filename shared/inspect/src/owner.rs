//! Which task owned a key group at the moment that is looked at, and which of its commits was the newest then.

use std::ops::Range;

use payguard_engine::export::Encoding;
use payguard_engine::layout::{Layout, place};
use payguard_engine::page::version;
use payguard_engine::store::RowLimits;
use payguard_engine::task::Env;
use payguard_engine::task::retry::patiently;
use payguard_engine::{CommitRow, Head, Seq, StageId, TaskId};
use payguard_model::key_group::shard_of;
use payguard_model::{KEY_GROUPS, KeyGroup};
use payguard_topology::Stage;
use payguard_topology::keys::encoding;

use crate::error::{Gone, InspectError, Since};
use crate::live::{Asked, At};

/// Log rows read at once.
const ROWS: u32 = 64;

/// The commit whose state is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// Whatever is the newest when a key group is read.
    Newest,
    /// This one.
    Commit(u64),
}

/// The task that owned a key group.
pub(crate) struct Owner {
    pub(crate) task: TaskId,
    /// Its key groups.
    pub(crate) groups: Range<u32>,
    pub(crate) generation: u32,
    pub(crate) head: Head,
    pub(crate) target: Target,
    /// The newest task that owns the group, with its head: nobody else writes pages.
    pub(crate) newest: (TaskId, Head),
    /// Whether what was asked for has pages that expire: then those that are left do not tell the past.
    pub(crate) keeps_ids: bool,
}

/// The layouts that a stage has had, the first one first.
pub(crate) fn layouts(stage: &Stage, registered: &[TaskId]) -> Vec<Layout> {
    let redrawn = registered.iter().filter_map(TaskId::redrawn).map(|(layout, _)| layout);
    let mut layouts: Vec<Layout> = redrawn.chain([Layout::first(stage.shards)]).collect();
    layouts.sort_by_key(|layout| layout.generation);
    layouts.dedup();
    layouts
}

pub(crate) fn task_of(layout: Layout, stage: &StageId, group: u32) -> (TaskId, Range<u32>) {
    let shard = shard_of(KeyGroup(group), layout.shards, KEY_GROUPS);
    (layout.task(stage, shard), layout.groups(shard))
}

/// Reads the ledger for the owner of a key group.
pub(crate) struct Owners<'a> {
    pub(crate) env: &'a Env,
    pub(crate) asked: &'a Asked,
    pub(crate) retention_ms: i64,
    pub(crate) replay_bytes: usize,
}

impl Owners<'_> {
    pub(crate) async fn head(&self, task: &TaskId) -> Result<Option<Head>, InspectError> {
        Ok(patiently(&self.env.settings, || self.env.ledger.load_head(task)).await?)
    }

    pub(crate) async fn row(&self, task: &TaskId, seq: u64) -> Result<Option<CommitRow>, InspectError> {
        Ok(patiently(&self.env.settings, || self.env.ledger.load_row(task, Seq(seq))).await?)
    }

    pub(crate) async fn layouts(&self, stage: &Stage) -> Result<Vec<Layout>, InspectError> {
        let registered = patiently(&self.env.settings, || self.env.ledger.tasks(&stage.id)).await?;
        Ok(layouts(stage, &registered))
    }

    /// The layout of the task that was asked for.
    pub(crate) fn layout_of(&self, stage: &Stage, layouts: &[Layout], task: &TaskId) -> Result<Layout, InspectError> {
        let found = place(task, Layout::first(stage.shards)).filter(|_| task.stage == stage.id);
        found.map(|(layout, _)| layout).filter(|layout| layouts.contains(layout)).ok_or_else(|| {
            let there_are = layouts.iter().flat_map(|layout| layout.tasks(&stage.id)).map(|task| task.to_string());
            InspectError::UnknownTask {
                task: task.clone(),
                stage: stage.id.to_string(),
                there_are: there_are.collect(),
            }
        })
    }

    /// The owner of a key group; `None` when nobody had committed anything for it.
    pub(crate) async fn find(&self, stage: &Stage, group: u32) -> Result<Option<Owner>, InspectError> {
        let mut layouts = self.layouts(stage).await?;
        let mut newest = None;
        if let Some(task) = &self.asked.task {
            let layout = self.layout_of(stage, &layouts, task)?;
            let (owner, _) = task_of(layout, &stage.id, group);
            if owner != *task {
                return Err(InspectError::OtherTask { task: task.clone(), group, owner });
            }
        }
        // A layout that was only just registered may have tasks that have not begun: the one before is in force then.
        while let Some(layout) = layouts.pop() {
            let (task, groups) = task_of(layout, &stage.id, group);
            let Some(head) = self.head(&task).await? else { continue };
            let newest = newest.get_or_insert_with(|| (task.clone(), head.clone())).clone();
            if self.asked.task.as_ref().is_some_and(|asked| *asked != task) {
                continue;
            }
            let (generation, target, keeps_ids) = (layout.generation, Target::Newest, self.keeps_ids(stage));
            let mut owner = Owner { task, groups, generation, head, target, newest, keeps_ids };
            owner.target = match self.asked.at {
                At::Newest if owner.newest.0 == owner.task => Target::Newest,
                At::Newest => Target::Commit(owner.head.seq),
                At::Seq(seq) => self.commit(&owner, seq)?,
                At::Time(ms) => match self.newest_at(&owner, ms).await? {
                    0 => continue,
                    seq => Target::Commit(seq),
                },
            };
            self.check_restored(&owner).await?;
            return Ok(Some(owner));
        }
        match self.asked.at {
            At::Seq(_) => Err(InspectError::Nothing { stage: stage.id.to_string() }),
            At::Newest | At::Time(_) => Ok(None),
        }
    }

    fn keeps_ids(&self, stage: &Stage) -> bool {
        let is_asked_for = |id: &str| self.asked.state.as_ref().is_none_or(|state| state == id);
        stage.states.iter().any(|id| is_asked_for(id) && encoding(id) == Encoding::Ids)
    }

    fn commit(&self, owner: &Owner, seq: u64) -> Result<Target, InspectError> {
        match seq <= owner.head.seq {
            true => Ok(Target::Commit(seq)),
            false => Err(InspectError::NotYet { task: owner.task.to_string(), seq, newest: owner.head.seq }),
        }
    }

    /// The newest commit that was made at `ms` or before; 0 when there was none. The times of a log ascend, but for the
    /// difference between the clocks of two machines.
    async fn newest_at(&self, owner: &Owner, ms: i64) -> Result<u64, InspectError> {
        if owner.head.committed_at_ms <= ms {
            return Ok(owner.head.seq);
        }
        // Below `after` everything is too old or collected; from `until` on everything is too young.
        let (mut after, mut until, mut is_collected) = (0, owner.head.seq, false);
        while until - after > 1 {
            let middle = after + (until - after) / 2;
            match self.row(&owner.task, middle).await? {
                Some(row) if row.now_ms > ms => until = middle,
                found => (after, is_collected) = (middle, found.is_none()),
            }
        }
        match is_collected {
            true => Err(self.refusal(owner, Log::Collected).await?),
            false => Ok(after),
        }
    }

    /// Refuses a commit of a restored task from before the restore: its rows are those that were in flight, and have no
    /// state. They all bear the restore's attempt, and commits differ in theirs.
    async fn check_restored(&self, owner: &Owner) -> Result<(), InspectError> {
        let Target::Commit(seq) = owner.target else { return Ok(()) };
        if owner.head.restored_from.is_empty() || seq == owner.head.seq {
            return Ok(());
        }
        match (self.row(&owner.task, seq).await?, self.row(&owner.task, seq + 1).await?) {
            (Some(row), Some(next)) if row.attempt != next.attempt => Ok(()),
            _ => Err(self.refusal(owner, Log::Restored(owner.head.restored_from.clone())).await?),
        }
    }

    /// The error for a past that cannot be seen, because the log does not tell it.
    pub(crate) async fn refusal(&self, owner: &Owner, why: Log) -> Result<InspectError, InspectError> {
        let (asked, task, since) = (self.asked.at.to_string(), owner.task.to_string(), self.since(owner).await?);
        Ok(match why {
            Log::Restored(from) => InspectError::BeforeRestore { asked, task, from, since },
            Log::Collected if !owner.head.restored_from.is_empty() => {
                InspectError::BeforeRestore { asked, task, from: owner.head.restored_from.clone(), since }
            }
            Log::Collected => {
                let rows = self.rows(&owner.task, 0, 1).await?;
                let log_from = rows.first().map(|row| Since { seq: row.seq, at_ms: Some(row.now_ms) });
                InspectError::Gone(Gone { asked, task, log_from, since, retention_ms: self.retention_ms })
            }
        })
    }

    /// From where on the past of what was asked for can be seen: no page may be younger. `None` when some are of another
    /// task, which has taken over.
    async fn since(&self, owner: &Owner) -> Result<Option<Since>, InspectError> {
        let Owner { task, generation, head, groups, .. } = owner;
        let asked = &self.asked.groups;
        let mut youngest = 0;
        for group in groups.start.max(asked.start)..groups.end.min(asked.end) {
            let load = || self.env.state.load_pages(&task.stage, KeyGroup(group));
            let pages = patiently(&self.env.settings, load).await?;
            youngest = pages.iter().map(|page| page.version).fold(youngest, u64::max);
        }
        if youngest >= version(generation + 1, 0) {
            return Ok(None);
        }
        let mut seq = youngest.saturating_sub(version(*generation, 0)).max(1);
        if owner.keeps_ids {
            seq = seq.max(head.flushed_seq);
        }
        // A time is found by its row, and that a commit is after a restore as well.
        if matches!(self.asked.at, At::Time(_)) || !head.restored_from.is_empty() {
            seq = seq.max(self.first_commit(task).await?);
        }
        let at_ms = self.row(task, seq).await?.map(|row| row.now_ms);
        Ok(Some(Since { seq, at_ms }))
    }

    /// The first row that is left of a log and has a state: rows that were in flight when it was restored have none.
    async fn first_commit(&self, task: &TaskId) -> Result<u64, InspectError> {
        let mut last: Option<CommitRow> = None;
        loop {
            let rows = self.rows(task, last.as_ref().map_or(0, |row| row.seq), ROWS).await?;
            let is_end = rows.is_empty();
            for row in rows {
                match last {
                    Some(last) if last.attempt != row.attempt => return Ok(last.seq),
                    _ => last = Some(row),
                }
            }
            if is_end {
                return Ok(last.map_or(0, |row| row.seq));
            }
        }
    }

    async fn rows(&self, task: &TaskId, after: u64, rows: u32) -> Result<Vec<CommitRow>, InspectError> {
        let read = || self.env.ledger.remaining_rows(task, Seq(after), RowLimits { rows });
        Ok(patiently(&self.env.settings, read).await?)
    }
}

/// Why a log does not tell the past.
pub(crate) enum Log {
    /// Its first rows are collected.
    Collected,
    /// What a task began with is in this savepoint.
    Restored(String),
}
