//! Which task owned a key group at the moment that is looked at, and which of its commits was the newest then.

use std::ops::Range;

use payguard_engine::layout::{Layout, place};
use payguard_engine::store::RowLimits;
use payguard_engine::task::Env;
use payguard_engine::task::retry::patiently;
use payguard_engine::{CommitRow, Head, Seq, StageId, TaskId};
use payguard_model::key_group::shard_of;
use payguard_model::{KEY_GROUPS, KeyGroup};
use payguard_topology::Stage;

use crate::error::{Gone, InspectError, Since};
use crate::live::{Asked, At};

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
            let is_newest = newest.0 == task;
            let target = match self.asked.at {
                At::Newest if is_newest => Target::Newest,
                At::Newest => Target::Commit(head.seq),
                At::Seq(seq) => self.commit(&task, &head, seq)?,
                At::Time(ms) => match self.newest_at(&task, &head, ms).await? {
                    0 => continue,
                    seq => Target::Commit(seq),
                },
            };
            self.check_restored(&task, &head, target).await?;
            return Ok(Some(Owner { task, groups, generation: layout.generation, head, target, newest }));
        }
        match self.asked.at {
            At::Seq(_) => Err(InspectError::Nothing { stage: stage.id.to_string() }),
            At::Newest | At::Time(_) => Ok(None),
        }
    }

    fn commit(&self, task: &TaskId, head: &Head, seq: u64) -> Result<Target, InspectError> {
        match seq <= head.seq {
            true => Ok(Target::Commit(seq)),
            false => Err(InspectError::NotYet { task: task.to_string(), seq, newest: head.seq }),
        }
    }

    /// The newest commit that was made at `ms` or before; 0 when there was none. The times of a log ascend, but for the
    /// difference between the clocks of two machines.
    async fn newest_at(&self, task: &TaskId, head: &Head, ms: i64) -> Result<u64, InspectError> {
        if head.committed_at_ms <= ms {
            return Ok(head.seq);
        }
        // Below `after` everything is too old or collected; from `until` on everything is too young.
        let (mut after, mut until, mut is_collected) = (0, head.seq, false);
        while until - after > 1 {
            let middle = after + (until - after) / 2;
            match self.row(task, middle).await? {
                Some(row) if row.now_ms > ms => until = middle,
                found => (after, is_collected) = (middle, found.is_none()),
            }
        }
        match is_collected {
            true if !head.restored_from.is_empty() => Err(self.before_restore(task, head, None).await?),
            true => Err(self.gone(task, None).await?),
            false => Ok(after),
        }
    }

    /// Refuses a commit of a restored task from before the restore: its rows are those that were in flight, and have no
    /// state. They all bear the restore's attempt, and commits differ in theirs.
    async fn check_restored(&self, task: &TaskId, head: &Head, target: Target) -> Result<(), InspectError> {
        let Target::Commit(seq) = target else { return Ok(()) };
        if head.restored_from.is_empty() || seq == head.seq {
            return Ok(());
        }
        match (self.row(task, seq).await?, self.row(task, seq + 1).await?) {
            (Some(row), Some(next)) if row.attempt != next.attempt => Ok(()),
            (Some(_), Some(_)) => Err(self.before_restore(task, head, None).await?),
            _ => Err(self.gone(task, None).await?),
        }
    }

    /// The error for a past that is gone. Pages of these keys are of commit `pages`, as far as that is known and the
    /// task's own.
    pub(crate) async fn gone(&self, task: &TaskId, pages: Option<u64>) -> Result<InspectError, InspectError> {
        let log_from = self.first_row(task).await?;
        let since = match pages {
            None => log_from,
            Some(0) => None,
            Some(seq) => Some(self.since(task, seq).await?),
        };
        let (asked, task) = (self.asked.at.to_string(), task.to_string());
        Ok(InspectError::Gone(Gone { asked, task, log_from, since, retention_ms: self.retention_ms }))
    }

    pub(crate) async fn before_restore(
        &self,
        task: &TaskId,
        head: &Head,
        pages: Option<u64>,
    ) -> Result<InspectError, InspectError> {
        let since = match pages {
            Some(seq) if seq > 0 => Some(self.since(task, seq).await?),
            _ => None,
        };
        let (asked, from) = (self.asked.at.to_string(), head.restored_from.clone());
        Ok(InspectError::BeforeRestore { asked, task: task.to_string(), from, since })
    }

    async fn since(&self, task: &TaskId, seq: u64) -> Result<Since, InspectError> {
        let at_ms = self.row(task, seq).await?.map(|row| row.now_ms);
        Ok(Since { seq, at_ms })
    }

    async fn first_row(&self, task: &TaskId) -> Result<Option<Since>, InspectError> {
        let limits = RowLimits { rows: 1 };
        let rows = patiently(&self.env.settings, || self.env.ledger.remaining_rows(task, Seq(0), limits)).await?;
        Ok(rows.first().map(|row| Since { seq: row.seq, at_ms: Some(row.now_ms) }))
    }
}
