//! From the tasks of one layout to those of the next: a stage's shards are redrawn while records flow.
//!
//! The old tasks are sealed one by one ([`super::consumer::ConsumerTask::seal`]); when all are, the new ones begin
//! ([`begin`]). Nobody else has to be told at once: a producer that still shares its records out for the old tasks is
//! understood by the new ones, and a consumer finds the new tasks in the last rows of the old ones.

use std::ops::Range;

use payguard_model::ProcessingTime;

use super::committer::{Proposal, commit, wake_consumers};
use super::consumer::{Body, ConsumerTask};
use super::flush::{flush, remove};
use super::retry::patiently;
use super::{Env, LAYOUT_CHECK_MS, TaskPlan};
use crate::error::EngineError;
use crate::ids::{StageId, TaskId};
use crate::layout::{FIRST, Layout, inherit, place};
use crate::row::Head;
use crate::teeth::{Mutant, bites};

/// Redraws the shards of a stage: seals the tasks it has, then has the new ones begin. Returns the layout it has then.
///
/// `task` makes a task by its id, to be used here alone. What was begun and did not come to its end is taken up by the
/// next call with the same number of shards; meanwhile the key groups of tasks that are sealed wait, and nothing is lost.
///
/// # Errors
/// When a store fails, or a redrawing to another number of shards has not come to its end.
pub async fn redraw(
    env: &Env,
    stage: &StageId,
    first: Layout,
    shards: u32,
    task: &(dyn Fn(&TaskId) -> Result<ConsumerTask, EngineError> + Sync),
) -> Result<Layout, EngineError> {
    let registered = patiently(&env.settings, || env.ledger.tasks(stage)).await?;
    let current = Layout::newest(first, &registered);
    let sealed = sealed_for(env, &current.tasks(stage)).await?;
    if sealed.is_some_and(|next| next.shards != shards) {
        return Err(EngineError::Sealed { task: stage.to_string() });
    }
    let next = match sealed {
        Some(next) => next,
        None if current.shards == shards => current,
        None => current.next(shards),
    };
    if next != current {
        let seals = current.tasks(stage).into_iter().map(async |id| task(&id)?.seal(next).await);
        futures_util::future::try_join_all(seals).await?;
    }
    let begins = next.tasks(stage).into_iter().map(async |id| {
        begun(env, task(&id)?.plan()).await?;
        env.waker.wake(&id).await;
        Ok::<(), EngineError>(())
    });
    futures_util::future::try_join_all(begins).await?;
    Ok(next)
}

impl ConsumerTask {
    /// Ends the task for good, for the layout `next`: an empty commit stops whoever works on it, then its state is
    /// flushed, and a last commit says so. The tasks of `next` begin when all tasks of this layout have come so far.
    /// What was done before is not done again.
    ///
    /// # Errors
    /// When a store fails, or the task was sealed for another layout. To be called again until it succeeds.
    ///
    /// # Cancel safety
    /// As [`ConsumerTask::run`].
    pub async fn seal(&mut self, next: Layout) -> Result<(), EngineError> {
        begun(&self.env, &self.plan).await?;
        loop {
            let stored = self.env.head(self.id()).await?;
            let mut head = stored.unwrap_or_else(|| Head { shards: self.plan.layout.shards, ..Head::empty() });
            if head.sealed.is_some_and(|sealed| sealed != next) {
                return Err(EngineError::Sealed { task: self.id().to_string() });
            }
            if head.is_handed_over() {
                return Ok(());
            }
            if head.sealed.is_none() {
                patiently(&self.env.settings, || self.env.ledger.register(self.id())).await?;
                let flushed_seq = head.flushed_seq;
                self.commit_sealed(&mut head, flushed_seq, next).await?;
                continue;
            }
            // Only who has made a commit may flush it.
            let mut live = self.load_if(|head| !head.is_handed_over()).await?;
            if live.head.is_handed_over() {
                return Ok(());
            }
            let flushed_seq = live.head.flushed_seq;
            if !self.commit_sealed(&mut live.head, flushed_seq, next).await? {
                continue;
            }
            if let Body::Operators(logic) = &mut live.body
                && !bites(Mutant::HandOverUnflushed)
            {
                live.replaced = flush(&self.env, &self.plan, &live.head, logic.as_mut()).await?;
            }
            let flushed_seq = live.head.seq;
            if self.commit_sealed(&mut live.head, flushed_seq, next).await? {
                return remove(&self.env, live.replaced).await;
            }
        }
    }

    /// An empty commit of a sealed task; true when it is ours.
    async fn commit_sealed(&self, head: &mut Head, flushed_seq: u64, next: Layout) -> Result<bool, EngineError> {
        let proposal = Proposal { flushed_seq, sealed: Some(next), ..Proposal::after(head, self.env.clock.now()) };
        let (outcome, row) = commit(&self.env, &self.plan, head, proposal).await?;
        if outcome.is_mine() {
            wake_consumers(&self.env, &self.plan, &row, true).await;
        }
        Ok(outcome.is_mine())
    }
}

/// Has a task begin whose predecessors have all handed over.
async fn begun(env: &Env, plan: &TaskPlan) -> Result<(), EngineError> {
    if begin(env, plan).await? {
        return Ok(());
    }
    let detail = "a task is known although the layout before has not handed over".to_owned();
    Err(EngineError::Broken { task: plan.task.to_string(), invariant: "INV-1", detail })
}

/// The layout that one of these tasks is sealed for.
async fn sealed_for(env: &Env, tasks: &[TaskId]) -> Result<Option<Layout>, EngineError> {
    let heads = tasks.iter().map(|task| env.head(task));
    let heads = futures_util::future::try_join_all(heads).await?;
    Ok(heads.into_iter().flatten().find_map(|head| head.sealed))
}

/// Makes the first commit of a task of a redrawn layout, unless it has been made; false when it has to wait.
///
/// It waits for *all* tasks of the layout before, those of other key groups too: as long as one of them has not handed
/// over, nobody but a redrawing may know the new layout, or what was begun could not be told from what is complete.
///
/// # Errors
/// When a store fails, or a task of the layout before was sealed for another layout than this.
pub async fn begin(env: &Env, plan: &TaskPlan) -> Result<bool, EngineError> {
    if plan.layout.generation == FIRST {
        return Ok(true);
    }
    loop {
        if env.head(&plan.task).await?.is_some() {
            return Ok(true);
        }
        let Some(sealed) = predecessors(env, plan).await? else { return Ok(false) };
        patiently(&env.settings, || env.ledger.register(&plan.task)).await?;
        let mut head = inherit(plan.layout, &sealed);
        let proposal = Proposal::after(&head, env.clock.now());
        let (outcome, row) = commit(env, plan, &mut head, proposal).await?;
        if outcome.is_mine() {
            tracing::info!(task = %plan.task, watermark = head.watermark_ms, "begins");
            wake_consumers(env, plan, &row, true).await;
        }
    }
}

/// The tasks of the layout before that own key groups of this one: their key groups and heads; `None` as long as one of
/// that layout has not handed over.
async fn predecessors(env: &Env, plan: &TaskPlan) -> Result<Option<Vec<(Range<u32>, Head)>>, EngineError> {
    let stage = &plan.task.stage;
    let mut registered = patiently(&env.settings, || env.ledger.tasks(stage)).await?;
    registered.retain(|task| place(task, plan.first).is_some_and(|(l, _)| l.generation < plan.layout.generation));
    let before = Layout::newest(plan.first, &registered);
    let mine = plan.groups();
    let mut overlapping = Vec::new();
    for (shard, task) in (0..).zip(before.tasks(stage)) {
        let head = env.head(&task).await?;
        let Some(head) = head.filter(Head::is_handed_over) else { return Ok(None) };
        if head.sealed != Some(plan.layout) {
            let detail = format!("{task} was sealed for {:?}, not for {:?}", head.sealed, plan.layout);
            return Err(EngineError::Broken { task: plan.task.to_string(), invariant: "INV-1", detail });
        }
        let groups = before.groups(shard);
        if groups.start < mine.end && mine.start < groups.end {
            overlapping.push((groups, head));
        }
    }
    Ok(Some(overlapping))
}

/// Looks, from time to time, whether the shards of the consumers were redrawn; true when they were.
///
/// # Errors
/// When the ledger fails.
pub(super) async fn refresh_outputs(
    env: &Env,
    plan: &mut TaskPlan,
    looked_at: &mut Option<ProcessingTime>,
) -> Result<bool, EngineError> {
    let now = env.clock.now();
    if looked_at.is_some_and(|at| now.since(at) < LAYOUT_CHECK_MS) {
        return Ok(false);
    }
    *looked_at = Some(now);
    let mut is_redrawn = false;
    let mut consumers: Vec<_> = plan.outputs.iter().filter(|o| o.is_redrawn).map(|o| o.consumer.clone()).collect();
    consumers.sort();
    consumers.dedup();
    for consumer in consumers {
        let registered = patiently(&env.settings, || env.ledger.tasks(&consumer)).await?;
        for output in plan.outputs.iter_mut().filter(|output| output.consumer == consumer) {
            let newest = Layout::newest(output.layout, &registered);
            if newest.generation > output.layout.generation {
                tracing::info!(task = %plan.task, stream = output.stream, shards = newest.shards, "shares out anew");
                output.layout = newest;
                is_redrawn = true;
            }
        }
    }
    Ok(is_redrawn)
}

/// Tells the tasks of the next layout of what the task was told: they may have input.
pub(super) async fn wake_successors(env: &Env, plan: &TaskPlan, next: Layout) {
    for task in next.tasks(&plan.task.stage) {
        env.waker.wake(&task).await;
    }
}
