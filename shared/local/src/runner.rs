//! All stages in one process: every consumer task loops in a task of its own, woken by the tasks before it.
//!
//! The same handlers and adapters as in Lambda; only the wake-ups are in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use payguard_clock::collect::{Limits, Outcome, collect};
use payguard_dedup as dedup;
use payguard_directory::MerchantDirectory;
use payguard_engine::gc::Collected;
use payguard_engine::layout::Layout;
use payguard_engine::logic::StageLogic;
use payguard_engine::store::{Clock, Sink, Waker};
use payguard_engine::task::broadcast::BroadcastTask;
use payguard_engine::task::consumer::{Body, ConsumerTask, MakeBody};
use payguard_engine::task::source::SourceTask;
use payguard_engine::task::{Budget, Env};
use payguard_engine::{EngineError, Head, StageId, TaskId};
use payguard_publish as publish;
use payguard_topology::{Config, Topology, progress, stage};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};

/// A task looks for input this often even without a wake-up.
const SWEEP: Duration = Duration::from_secs(1);
/// One invocation ends after this long, milliseconds.
const INVOCATION_MS: i64 = 5_000;
/// And after this many commits.
const INVOCATION_COMMITS: u32 = 256;
/// Garbage is collected this often,
const COLLECT_EVERY: Duration = Duration::from_mins(1);
/// for so long at most, milliseconds.
const COLLECT_MS: i64 = 10_000;

/// Wake-ups within the process.
#[derive(Default)]
pub struct LocalWaker {
    tasks: Mutex<BTreeMap<TaskId, Arc<Notify>>>,
}

impl LocalWaker {
    /// The signal of a task.
    #[must_use]
    pub fn signal(&self, task: &TaskId) -> Arc<Notify> {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.entry(task.clone()).or_default().clone()
    }
}

#[async_trait]
impl Waker for LocalWaker {
    async fn wake(&self, task: &TaskId) {
        self.signal(task).notify_one();
    }
}

/// A pipeline in this process.
#[derive(Clone)]
pub struct LocalPipeline {
    /// Stages and streams.
    pub topology: Arc<Topology>,
    /// Its configuration.
    pub config: Arc<Config>,
    /// What its tasks are run with; its waker must be the one given here.
    pub env: Env,
    waker: Arc<LocalWaker>,
    sink: Arc<dyn Sink>,
    /// The sinks outside of this machine, by stage.
    remote: BTreeMap<StageId, Arc<dyn Sink>>,
    enrich: MakeBody,
}

/// The consumer tasks at work, and the collector beside them.
pub struct Running {
    pipeline: LocalPipeline,
    tasks: JoinSet<Result<Ended, EngineError>>,
    started: BTreeSet<TaskId>,
    stop: Arc<AtomicBool>,
    signals: Vec<Arc<Notify>>,
    /// Dropped with this, at whatever it does: every step of it may be the last.
    _collector: JoinSet<()>,
}

/// Why a task ended.
enum Ended {
    /// Its input has, or it was stopped.
    Input,
    /// Its stage has been given another number of shards.
    Sealed(StageId, Layout),
}

impl LocalPipeline {
    /// A pipeline over stores, a sink and a directory of merchants.
    #[must_use]
    pub fn new(
        config: Arc<Config>,
        env: Env,
        sink: Arc<dyn Sink>,
        directory: Arc<dyn MerchantDirectory>,
    ) -> LocalPipeline {
        let waker = Arc::new(LocalWaker::default());
        let topology = Arc::new(payguard_topology::payguard(&config));
        let mut env = Env { waker: waker.clone(), ..env };
        // A wake-up within the process costs nothing, so consumers hear of every step of the watermark.
        env.settings.watermark_wake_ms = 0;
        let enrich = payguard_enrich::make(&topology, directory);
        LocalPipeline { topology, config, env, waker, sink, remote: BTreeMap::new(), enrich }
    }

    /// The same with another sink for a stage, outside of this machine. While it cannot be reached the stage waits for it,
    /// as long as that takes, and the others go on.
    #[must_use]
    pub fn with_remote_sink(mut self, stage: &str, sink: Arc<dyn Sink>) -> LocalPipeline {
        self.remote.insert(StageId::new(stage), sink);
        self
    }

    /// The source task of a partition of the topic that drives the pipeline.
    #[must_use]
    pub fn input(&self, partition: i32) -> SourceTask {
        self.source(self.config.main_topic(), partition)
    }

    /// The source task of a partition with payments.
    #[must_use]
    pub fn payments(&self, partition: i32) -> SourceTask {
        self.source(&self.config.source.topic, partition)
    }

    /// The source task of a partition with confirmations.
    #[must_use]
    pub fn confirmations(&self, partition: i32) -> SourceTask {
        self.source(&self.config.source.confirmations_topic, partition)
    }

    fn source(&self, topic: &str, partition: i32) -> SourceTask {
        let id = TaskId::partition(&StageId::new(stage::PARSE), topic, partition);
        self.source_task(&id).expect("the topology has the stage parse")
    }

    /// The source task of this name; `None` when the topology has none.
    #[must_use]
    pub fn source_task(&self, id: &TaskId) -> Option<SourceTask> {
        let plan = self.topology.plan(id).filter(|_| &*id.stage.0 == stage::PARSE)?;
        Some(SourceTask::new(self.env.clone(), plan, &payguard_parse::make(&self.config, &self.topology)))
    }

    /// The task that decides the rules, if the pipeline has rules.
    #[must_use]
    pub fn control_if_any(&self) -> Option<BroadcastTask> {
        self.topology.stage(&StageId::new(stage::CONTROL)).map(|_| self.control())
    }

    /// The task that decides the rules.
    ///
    /// # Panics
    /// When the pipeline has none: see [`LocalPipeline::control_if_any`].
    #[must_use]
    pub fn control(&self) -> BroadcastTask {
        control(&self.config, &self.topology, self.env.clone())
    }

    /// A task of a stage that reads upstream logs.
    #[must_use]
    pub fn consumer(&self, id: &TaskId) -> Option<ConsumerTask> {
        let plan = self.topology.plan(id)?;
        Some(ConsumerTask::new(self.env.clone(), plan, self.body(&id.stage)?))
    }

    /// Starts all consumer tasks. Each ends when its input has ended, or when it is stopped.
    #[must_use]
    pub fn start(&self) -> Running {
        let mut collector = JoinSet::new();
        collector.spawn(collect_again_and_again(self.clone()));
        let mut running = Running {
            pipeline: self.clone(),
            tasks: JoinSet::new(),
            started: BTreeSet::new(),
            stop: Arc::default(),
            signals: Vec::new(),
            _collector: collector,
        };
        running.start(self.topology.consumer_tasks());
        running
    }

    /// Removes what no task needs any more, for a few seconds at most. What fails is logged and loses nothing.
    pub async fn collect(&self) -> Collected {
        let limits = Limits::per_minute(self.config.gc.retention_ms, self.env.clock.now().plus(COLLECT_MS));
        let outcome = match progress::heads(&*self.env.ledger, &self.topology).await {
            Ok(heads) => collect(&self.env, &self.topology, &heads, limits).await,
            Err(error) => Outcome { failed: vec![error], ..Outcome::default() },
        };
        for error in &outcome.failed {
            tracing::warn!(%error, "not everything was collected");
        }
        tracing::debug!(collected = ?outcome.collected);
        outcome.collected
    }

    /// The heads of all tasks, sources included, in the order of the topology.
    ///
    /// # Errors
    /// When the ledger fails.
    pub async fn heads(&self) -> Result<Vec<(TaskId, Head)>, EngineError> {
        Ok(progress::heads(&*self.env.ledger, &self.topology).await?)
    }

    fn body(&self, id: &StageId) -> Option<MakeBody> {
        let sink = self.remote.get(id).unwrap_or(&self.sink);
        match &*id.0 {
            stage::ENRICH => Some(self.enrich.clone()),
            stage::PUBLISH => Some(publish::make(&self.config, &self.topology, sink.clone())),
            stage::TOTALS => Some(payguard_totals::make(sink.clone())),
            _ => stage_body(&self.config, &self.topology, id),
        }
    }
}

/// What a stage with keyed state does.
pub(crate) fn stage_body(config: &Config, topology: &Topology, id: &StageId) -> Option<MakeBody> {
    match &*id.0 {
        stage::DEDUP => Some(dedup::make(config, topology)),
        stage::WINDOW => Some(payguard_window::make(config, topology)),
        stage::COMBINE => Some(payguard_combine::make(config, topology)),
        stage::MATCH => Some(payguard_match::make(config, topology)),
        stage::RULES => Some(payguard_rules::make(config, topology)),
        stage::REORDER_A => Some(payguard_reorder::make_a(config, topology)),
        stage::REORDER_B => Some(payguard_reorder::make_b(config, topology)),
        _ => None,
    }
}

impl Running {
    /// Starts tasks, but for those that were started before.
    fn start(&mut self, tasks: Vec<TaskId>) {
        for id in tasks {
            if let Some(task) = self.pipeline.consumer(&id)
                && self.started.insert(id.clone())
            {
                let (signal, clock) = (self.pipeline.waker.signal(&id), self.pipeline.env.clock.clone());
                let (stop, waits) = (self.stop.clone(), self.pipeline.remote.contains_key(&id.stage));
                self.signals.push(signal.clone());
                self.tasks.spawn(async move { run_to_the_end(task, &signal, &*clock, &stop, waits).await });
            }
        }
    }

    fn joined(&mut self, done: Result<Result<Ended, EngineError>, JoinError>) -> Result<(), EngineError> {
        match done {
            Ok(Ok(Ended::Input)) => Ok(()),
            Ok(Ok(Ended::Sealed(stage, layout))) => {
                self.start(layout.tasks(&stage));
                Ok(())
            }
            Ok(Err(error)) => Err(error),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Waits until every task's input has ended, or one fails.
    ///
    /// # Errors
    /// The first failure; the other tasks are stopped, as by a crash.
    pub async fn finished(&mut self) -> Result<(), EngineError> {
        while let Some(done) = self.tasks.join_next().await {
            self.joined(done)?;
        }
        Ok(())
    }

    /// Stops all tasks between two invocations and waits for them: nothing is half done, much may be in flight.
    ///
    /// # Errors
    /// The first failure.
    pub async fn stop(mut self) -> Result<(), EngineError> {
        self.stop.store(true, Ordering::Relaxed);
        self.signals.iter().for_each(|signal| signal.notify_one());
        self.finished().await
    }

    /// Tells a failure as soon as there is one, without waiting.
    ///
    /// # Errors
    /// The failure.
    pub fn check(&mut self) -> Result<(), EngineError> {
        match self.tasks.try_join_next() {
            Some(done) => self.joined(done),
            None => Ok(()),
        }
    }
}

/// The fresh operators of a stage with keyed state, for looking at stored state.
#[must_use]
pub fn fresh_operators(config: &Config, topology: &Topology, id: &StageId) -> Option<Box<dyn StageLogic>> {
    let make = topology.stage(id).and_then(|_| stage_body(config, topology, id))?;
    match make() {
        Body::Operators(logic) => Some(logic),
        Body::Lookup(_) | Body::Sink(..) => None,
    }
}

/// The task that decides the rules of a pipeline, over any stores.
#[must_use]
pub fn control(config: &Config, topology: &Topology, env: Env) -> BroadcastTask {
    let plan = topology.plan(&TaskId::shard(&StageId::new(stage::CONTROL), 0));
    let plan = plan.expect("the topology has the stage control");
    BroadcastTask::new(env, plan, payguard_control::make(config))
}

async fn collect_again_and_again(pipeline: LocalPipeline) {
    loop {
        tokio::time::sleep(COLLECT_EVERY).await;
        pipeline.collect().await;
    }
}

/// Runs a task; one that `waits` goes on from what is durable when a store could not be reached.
async fn run_to_the_end(
    mut task: ConsumerTask,
    signal: &Notify,
    clock: &dyn Clock,
    stop: &AtomicBool,
    waits: bool,
) -> Result<Ended, EngineError> {
    while !stop.load(Ordering::Relaxed) {
        let budget = Budget { until: clock.now().plus(INVOCATION_MS), commits: INVOCATION_COMMITS };
        let report = match task.run(budget).await {
            Err(error) if waits && error.is_unavailable() => {
                tracing::warn!(task = %task.id(), %error, "the stage waits");
                tokio::time::sleep(SWEEP).await;
                continue;
            }
            report => report?,
        };
        if report.ended {
            return Ok(Ended::Input);
        }
        if let Some(layout) = report.sealed {
            return Ok(Ended::Sealed(task.id().stage.clone(), layout));
        }
        if !report.more {
            let _ = tokio::time::timeout(SWEEP, signal.notified()).await;
        }
    }
    Ok(Ended::Input)
}
