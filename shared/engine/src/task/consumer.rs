//! Tasks that read upstream logs: stages with operators, and sinks.

use std::collections::BTreeMap;
use std::sync::Arc;

use payguard_model::{EventTime, KEY_GROUPS, KeyGroup, ProcessingTime, key_group};

use super::batch::{self, Batch};
use super::committer::{Proposal, commit, wake_consumers};
use super::flush::{dirty_bytes, flush, remove, writes_through};
use super::handover;
use super::live::Live;
use super::passed::unless_passed;
use super::recover::{apply_rows, load_state};
use super::retry::patiently;
use super::{Budget, Env, IN, Report, TaskPlan};
use crate::commit::CommitOutcome;
use crate::error::EngineError;
use crate::ids::{Seq, TaskId};
use crate::logic::{DecodeError, LookupLogic, SinkLogic, StageLogic, take_stage_delta};
use crate::resume::{Lead, Resume, lead, resume};
use crate::row::{Broadcast, CommitRow, Head};
use crate::store::{LeaseReply, Sink, SinkBatch, SinkPosition, SinkReply};
use crate::teeth::{Mutant, bites};

/// A sink that got nothing to write still commits its positions this often, milliseconds.
const SINK_PROGRESS_MS: i64 = 1_000;

/// What a consumer stage does with its records.
pub enum Body {
    /// Operators with keyed state; outputs go to streams.
    Operators(Box<dyn StageLogic>),
    /// Others are asked about the records; answers go to streams.
    Lookup(Arc<dyn LookupLogic>),
    /// Records leave the pipeline.
    Sink(Box<dyn SinkLogic>, Arc<dyn Sink>),
}

impl Body {
    pub(super) fn key_group(&self, stream: usize, payload: &[u8]) -> Result<KeyGroup, DecodeError> {
        let key = match self {
            Body::Operators(logic) => logic.key(stream, payload)?,
            Body::Lookup(logic) => logic.key(stream, payload)?,
            Body::Sink(..) => return Err(DecodeError("the shards of a sink are never redrawn".to_owned())),
        };
        Ok(key_group(&key, KEY_GROUPS))
    }
}

/// Makes a fresh body, without state.
pub type MakeBody = Arc<dyn Fn() -> Body + Send + Sync>;

/// One task of a consumer stage.
pub struct ConsumerTask {
    pub(super) env: Env,
    pub(super) plan: TaskPlan,
    make: MakeBody,
    live: Option<Live>,
    woke_everyone_at: ProcessingTime,
    /// When the layouts of the consumers were last looked at.
    looked_at: Option<ProcessingTime>,
}

impl ConsumerTask {
    /// A task that has loaded nothing yet.
    #[must_use]
    pub fn new(env: Env, plan: TaskPlan, make: MakeBody) -> ConsumerTask {
        ConsumerTask { env, plan, make, live: None, woke_everyone_at: ProcessingTime(i64::MIN), looked_at: None }
    }

    /// The task.
    #[must_use]
    pub fn id(&self) -> &TaskId {
        &self.plan.task
    }

    /// What the task knows of the topology.
    #[must_use]
    pub fn plan(&self) -> &TaskPlan {
        &self.plan
    }

    /// Processes what input there is, until none is left or the budget is spent.
    ///
    /// # Errors
    /// When a store fails or holds something damaged. Nothing is lost: what was not committed is processed again by
    /// the next invocation, from the durable state.
    ///
    /// # Cancel safety
    /// Dropping the future is like a crash: the next call loads the durable state.
    pub async fn run(&mut self, budget: Budget) -> Result<Report, EngineError> {
        let mut report = Report::default();
        loop {
            if !self.take_lease().await? {
                report.busy = true;
                return Ok(report);
            }
            if self.live.is_none() && !handover::begin(&self.env, &self.plan).await? {
                self.release_lease().await?;
                return Ok(report);
            }
            let mut live = self.current().await?;
            let work = self.work(&mut live, budget, &mut report).await?;
            self.release_lease().await?;
            report.ended = live.head.ended();
            report.sealed = live.head.sealed;
            if let Some(next) = live.head.sealed {
                handover::wake_successors(&self.env, &self.plan, next).await;
                return Ok(report);
            }
            report.more = work == Work::Spent;
            // A wake-up that found our lease taken must not be lost: look once more after releasing it.
            let mut news = Some(false);
            if work == Work::Done && self.env.settings.lease_owner.is_some() {
                let looked = self.fetch(&mut live).await;
                news = unless_passed(&self.env, &self.plan, &live.head, looked).await?;
            }
            self.live = news.map(|_| live);
            if news == Some(false) {
                return Ok(report);
            }
        }
    }

    /// The state as of the newest commit: what is in memory, brought up to date, or loaded.
    async fn current(&mut self) -> Result<Live, EngineError> {
        let is_redrawn = handover::refresh_outputs(&self.env, &mut self.plan, &mut self.looked_at).await?;
        let mut live = match self.live.take() {
            Some(live) => self.catch_up(live).await?,
            None => self.load().await?,
        };
        if is_redrawn {
            live.builder = batch::builder(&self.plan);
        }
        Ok(live)
    }

    async fn work(&mut self, live: &mut Live, budget: Budget, report: &mut Report) -> Result<Work, EngineError> {
        self.find_inputs(live).await?;
        loop {
            if live.head.ended() || live.head.sealed.is_some() {
                return Ok(Work::Done);
            }
            if report.commits >= u64::from(budget.commits) || self.env.clock.now() >= budget.until {
                return Ok(Work::Spent);
            }
            let facts = futures_util::future::try_join(self.fetch(live), self.read_broadcast()).await;
            let Some((_, broadcast)) = unless_passed(&self.env, &self.plan, &live.head, facts).await? else {
                report.lost += 1;
                self.reload(live).await?;
                continue;
            };
            self.pin(live, broadcast)?;
            let began = self.env.clock.now();
            let Some((outcome, batch, row)) = self.step(live).await? else { return Ok(Work::Done) };
            if outcome.is_mine() {
                live.whole = true;
                live.load.told();
            }
            live.load.worked(began, self.env.clock.now());
            match outcome {
                CommitOutcome::Committed | CommitOutcome::AlreadyMine => {
                    report.commits += 1;
                    report.records += batch.records as u64;
                    self.after_commit(live, &row).await?;
                }
                CommitOutcome::Unknown if bites(Mutant::GoOnAfterUnknown) => {}
                CommitOutcome::Lost | CommitOutcome::Passed | CommitOutcome::Unknown => {
                    report.lost += 1;
                    self.reload(live).await?;
                }
            }
        }
    }

    async fn reload(&self, live: &mut Live) -> Result<(), EngineError> {
        if bites(Mutant::KeepAfterLost) {
            live.head = self.load().await?.head;
            return Ok(());
        }
        *live = self.load().await?;
        self.find_inputs(live).await
    }

    /// One batch and its commit; `None` when there is nothing to commit.
    async fn step(&mut self, live: &mut Live) -> Result<Option<(CommitOutcome, Batch, CommitRow)>, EngineError> {
        let now = self.env.clock.now();
        let before = live.head.watermark();
        let settings = &self.env.settings;
        let mut proposal =
            Proposal { flushed_seq: live.flushed_seq, pinned: live.pinned, ..Proposal::after(&live.head, now) };
        let (batch, rendered) = match &mut live.body {
            Body::Operators(logic) => {
                let builder = std::mem::take(&mut live.builder);
                let mut out = batch::collector(builder, &self.plan, &live.head, before, now);
                let done = batch::run_operators(&self.plan, settings, &mut live.merger, logic.as_mut(), &mut out)?;
                let (mut builder, counters) = out.finish();
                proposal.segment = builder.finish(&take_stage_delta(logic.as_mut()));
                live.builder = builder;
                proposal.counters = counters.counted();
                proposal.gauges = counters.gauges();
                proposal.next_timer_ms = logic.next_processing_timer().map(|t| t.0);
                (done, Vec::new())
            }
            Body::Lookup(logic) => {
                let builder = std::mem::take(&mut live.builder);
                let mut out = batch::collector(builder, &self.plan, &live.head, before, now);
                let done = batch::run_lookup(&self.plan, settings, &mut live.merger, &**logic, &mut out).await?;
                let (mut builder, counters) = out.finish();
                proposal.segment = builder.finish(&[]);
                live.builder = builder;
                proposal.counters = counters.counted();
                (done, Vec::new())
            }
            Body::Sink(logic, _) => batch::run_sink(&self.plan, settings, &mut live.merger, logic.as_ref(), before)?,
        };
        proposal.watermark_ms = batch.watermark.0;
        proposal.idle = batch.idle;
        proposal.took_input = batch.records > 0;
        proposal.inputs = live.merger.states().map(|(id, state)| (id.clone(), *state)).collect();
        proposal.taken.retain(|taken| taken.is_ahead_of(&proposal.inputs));
        for (stream, records) in &batch.by_stream {
            proposal.counters.insert(format!("{IN}{stream}"), *records);
        }
        proposal.counters.extend(live.load.counters());
        if !worth_committing(live, &proposal, &batch, now) {
            return Ok(None);
        }
        if let Body::Sink(_, sink) = &live.body {
            let seq = Seq(live.head.seq).next();
            let (inputs, counters) = (proposal.inputs.clone(), proposal.counters.clone());
            let write = SinkBatch { seq, inputs, counters, records: rendered };
            let reply = patiently(settings, || sink.write(&self.plan.task, &write)).await?;
            if let SinkReply::Elsewhere(position) = reply {
                tracing::info!(task = %self.plan.task, %seq, sink = %position.seq, "sink is elsewhere");
                return Ok(Some((CommitOutcome::Lost, batch, CommitRow::default())));
            }
        }
        if bites(Mutant::FlushUncommitted)
            && let Body::Operators(logic) = &mut live.body
        {
            let ahead = Head { seq: live.head.seq + 1, ..live.head.clone() };
            live.replaced = flush(&self.env, &self.plan, &ahead, logic.as_mut()).await?;
        }
        let (outcome, row) = commit(&self.env, &self.plan, &mut live.head, proposal).await?;
        Ok(Some((outcome, batch, row)))
    }

    async fn after_commit(&mut self, live: &mut Live, row: &CommitRow) -> Result<(), EngineError> {
        let now = self.env.clock.now();
        let everyone = live.head.ended() || now.since(self.woke_everyone_at) >= self.env.settings.watermark_wake_ms;
        if everyone {
            self.woke_everyone_at = now;
        }
        wake_consumers(&self.env, &self.plan, row, everyone).await;
        if let Body::Operators(logic) = &mut live.body {
            remove(&self.env, std::mem::take(&mut live.replaced)).await?;
            // Also when nothing is dirty: the rows since the last flush are then not needed any more.
            let due = now.since(live.flushed_at) >= self.env.settings.flush_every_ms || writes_through(logic.as_mut());
            if due || dirty_bytes(logic.as_mut()) >= self.env.settings.flush_bytes {
                live.replaced = flush(&self.env, &self.plan, &live.head, logic.as_mut()).await?;
                live.flushed_seq = live.head.seq;
                live.flushed_at = now;
                if bites(Mutant::RemoveAtOnce) {
                    remove(&self.env, std::mem::take(&mut live.replaced)).await?;
                }
            }
        }
        Ok(())
    }

    /// Reads head and state from the stores. A sealed task does nothing with a state.
    async fn load(&self) -> Result<Live, EngineError> {
        self.load_if(|head| head.sealed.is_none()).await
    }

    /// Reads the head and, if it is `wanted`, the state; anew when the task goes on meanwhile and its rows are collected.
    pub(super) async fn load_if(&self, wanted: impl Fn(&Head) -> bool) -> Result<Live, EngineError> {
        let (env, plan) = (&self.env, &self.plan);
        loop {
            let head = env.head(&plan.task).await?;
            if head.is_none() {
                patiently(&env.settings, || env.ledger.register(&plan.task)).await?;
            }
            let head = head.unwrap_or_else(|| Head { shards: plan.layout.shards, ..Head::empty() });
            if head.shards != plan.layout.shards {
                let (stage, stored) = (plan.task.stage.to_string(), head.shards);
                return Err(EngineError::Shards { stage, configured: plan.layout.shards, stored });
            }
            let mut live = Live::new(head, (self.make)(), plan, env.clock.now());
            match &mut live.body {
                Body::Operators(_) if !wanted(&live.head) => {}
                Body::Operators(logic) => {
                    let loaded = load_state(env, plan, &live.head, logic.as_mut()).await;
                    if unless_passed(env, plan, &live.head, loaded).await?.is_none() {
                        continue;
                    }
                }
                Body::Lookup(_) => {}
                Body::Sink(_, sink) => {
                    let sink = sink.clone();
                    self.follow_sink(&mut live.head, sink.as_ref()).await?;
                }
            }
            live.add_inputs();
            tracing::debug!(task = %plan.task, seq = live.head.seq, flushed = live.flushed_seq, "loaded");
            return Ok(live);
        }
    }

    /// A sink's own position is the truth: when it is one batch ahead, the ledger follows. Of a sink that may have
    /// forgotten its position the ledger has the last word, so it is read once more: another executor may have gone on
    /// until the sink was asked.
    async fn follow_sink(&self, head: &mut Head, sink: &dyn Sink) -> Result<(), EngineError> {
        let mut position = patiently(&self.env.settings, || sink.position(&self.plan.task)).await?;
        while sink.can_forget() || lead(head.seq(), position.seq) == Lead::More {
            let newer = self.env.head(&self.plan.task).await?;
            let Some(newer) = newer.filter(|newer| newer.seq > head.seq) else { break };
            *head = newer;
            position = patiently(&self.env.settings, || sink.position(&self.plan.task)).await?;
        }
        let is_new = position == SinkPosition::default() && is_just_restored(head);
        if is_new || position.seq < head.seq() && sink.can_forget() {
            if !is_new {
                let (task, sink, ledger) = (&self.plan.task, position.seq, head.seq);
                tracing::error!(%task, %sink, ledger, "the sink has forgotten its position, going on from the ledger's");
            }
            return self.begin_sink(head, sink).await;
        }
        match lead(head.seq(), position.seq) {
            Lead::None if position.inputs == head.inputs => return Ok(()),
            Lead::One => {}
            Lead::None | Lead::More | Lead::Behind => return Err(self.foreign_sink(&position, head)),
        }
        let proposal = Proposal {
            inputs: position.inputs,
            counters: position.counters,
            took_input: true,
            ..Proposal::after(head, self.env.clock.now())
        };
        let (outcome, _) = commit(&self.env, &self.plan, head, proposal).await?;
        if !outcome.is_mine() {
            *head = self.env.head(&self.plan.task).await?.unwrap_or_else(Head::empty);
        }
        Ok(())
    }

    /// Tells a sink where a task begins that was restored, or that it has forgotten: by a batch without records.
    async fn begin_sink(&self, head: &Head, sink: &dyn Sink) -> Result<(), EngineError> {
        let (inputs, counters) = (head.inputs.clone(), BTreeMap::new());
        let batch = SinkBatch { seq: head.seq(), inputs, counters, records: Vec::new() };
        match patiently(&self.env.settings, || sink.write(&self.plan.task, &batch)).await? {
            SinkReply::Written => Ok(()),
            SinkReply::Elsewhere(position) if position.seq == batch.seq && position.inputs == batch.inputs => Ok(()),
            SinkReply::Elsewhere(position) => Err(self.foreign_sink(&position, head)),
        }
    }

    fn foreign_sink(&self, position: &SinkPosition, head: &Head) -> EngineError {
        EngineError::Broken {
            task: self.plan.task.to_string(),
            invariant: "INV-6",
            detail: format!(
                "the sink holds batch {} and the ledger commit {}: the outputs do not belong to this state; use the \
                 output folder or database of the earlier run, or a new one together with a new state folder or a \
                 restored pipeline",
                position.seq, head.seq
            ),
        }
    }

    /// Makes warm state current: as it is, by the deltas it missed, or by loading anew.
    async fn catch_up(&self, mut live: Live) -> Result<Live, EngineError> {
        let stored = self.env.head(&self.plan.task).await?.unwrap_or_else(Head::empty);
        let (after, until) = match resume(&live.head, live.whole, &stored) {
            Resume::AsItIs => {
                live.whole = true;
                return Ok(live);
            }
            Resume::Deltas { after, until } => (after, until),
            Resume::Load => return self.load().await,
        };
        let Body::Operators(logic) = &mut live.body else { return self.load().await };
        let applied = apply_rows(&self.env, &self.plan, after, until, logic.as_mut()).await;
        if applied.as_ref().is_err_and(EngineError::is_missing) {
            return self.load().await;
        }
        applied?;
        live.go_on_from(stored, &self.plan);
        Ok(live)
    }

    /// The broadcast value in force, for stages that read one.
    async fn read_broadcast(&self) -> Result<Option<Broadcast>, EngineError> {
        let Some(task) = &self.plan.broadcast else { return Ok(None) };
        let head = self.env.head(task).await?;
        Ok(head.and_then(|head| head.broadcast))
    }

    /// Gives the body the value that the next batch is handled with.
    fn pin(&self, live: &mut Live, broadcast: Option<Broadcast>) -> Result<(), EngineError> {
        let (Some(broadcast), Body::Operators(logic)) = (broadcast, &mut live.body) else { return Ok(()) };
        if broadcast.version != live.pinned {
            let bad = |e| EngineError::bad_record(&self.plan.task, "broadcast", e);
            logic.on_broadcast(&broadcast).map_err(bad)?;
            live.pinned = broadcast.version;
        }
        Ok(())
    }

    async fn take_lease(&self) -> Result<bool, EngineError> {
        let Some(owner) = &self.env.settings.lease_owner else { return Ok(true) };
        let now = self.env.clock.now();
        let until = now.plus(self.env.settings.lease_ms);
        let reply =
            patiently(&self.env.settings, || self.env.ledger.acquire_lease(&self.plan.task, owner, now, until)).await?;
        Ok(reply == LeaseReply::Acquired)
    }

    async fn release_lease(&self) -> Result<(), EngineError> {
        let Some(owner) = &self.env.settings.lease_owner else { return Ok(()) };
        patiently(&self.env.settings, || self.env.ledger.release_lease(&self.plan.task, owner)).await?;
        Ok(())
    }
}

/// Whether a sink's task has done nothing since it was restored: its log is numbered anew, as its sink is empty.
fn is_just_restored(head: &Head) -> bool {
    !head.restored_from.is_empty() && head.seq == 1
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// No input is left.
    Done,
    /// The budget is spent.
    Spent,
}

/// Whether a batch changed anything that must be remembered now.
fn worth_committing(live: &Live, proposal: &Proposal, batch: &Batch, now: ProcessingTime) -> bool {
    if batch.records > 0 || !proposal.segment.bytes.is_empty() {
        return true;
    }
    let changed = proposal.inputs != live.head.inputs
        || proposal.watermark_ms != live.head.watermark_ms
        || proposal.idle != live.head.idle;
    match live.body {
        Body::Operators(_) | Body::Lookup(_) => changed,
        // A sink's progress without records is for `status` and collection only.
        Body::Sink(..) => {
            changed && (batch.watermark == EventTime::MAX || now.since(live.head.committed_at()) >= SINK_PROGRESS_MS)
        }
    }
}
