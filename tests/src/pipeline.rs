//! The whole pipeline on a simulated world, driven as the platform would: batches of a partition are delivered in
//! order until they are acknowledged, consumers look for input again and again.

use std::collections::BTreeMap;
use std::sync::Arc;

use payguard_engine::layout::Layout;
use payguard_engine::logic::SourceRecord;
use payguard_engine::task::Budget;
use payguard_engine::task::broadcast::BroadcastTask;
use payguard_engine::task::consumer::{ConsumerTask, MakeBody};
use payguard_engine::task::handover;
use payguard_engine::task::source::SourceTask;
use payguard_engine::{EngineError, StageId, TaskId};
use payguard_model::{EventTime, ProcessingTime};
use payguard_sim::{FaultPlan, Rng, SimWorld};
use payguard_topology::{Stage, Topology, stage};

use crate::data::{Confirmation, NOW_MS};

use crate::feed::{Feed, as_source};
use crate::outputs::Outputs;
use crate::setup::{Redraw, Setup, reads};

/// All tasks of a pipeline in one process, with fresh memory.
pub struct Pipeline {
    /// One per partition of payments.
    pub sources: Vec<SourceTask>,
    /// Of the partition with confirmations, if there are any.
    pub confirmations: Option<SourceTask>,
    /// Decides the rules.
    pub control: BroadcastTask,
    /// In order of flow.
    pub consumers: Vec<ConsumerTask>,
    commits: u32,
    world: SimWorld,
    rules_partition: String,
    setup: Setup,
    enrich: MakeBody,
}

impl Pipeline {
    /// A pipeline for `partitions` Kafka partitions that has loaded nothing yet.
    ///
    /// # Panics
    /// When the topology has no plan for its own task.
    #[must_use]
    pub fn new(world: &SimWorld, setup: &Setup, partitions: usize) -> Pipeline {
        let topology = setup.topology();
        let sources = (0..partitions).map(|p| source(world, setup, p)).collect();
        let topic = &setup.config.source.confirmations_topic;
        let confirmations = setup.config.has_confirmations().then(|| source_of(world, setup, topic, 0));
        // All tasks of a process share one cache.
        let enrich = payguard_enrich::make(&topology, setup.directory.clone());
        let (control, world) = (control(world, setup), world.clone());
        let rules_partition = format!("{}-0", setup.config.source.rules_topic);
        let (consumers, commits, setup) = (Vec::new(), setup.commits, setup.clone());
        let mut pipeline =
            Pipeline { sources, confirmations, control, consumers, commits, world, rules_partition, setup, enrich };
        pipeline.add_consumers();
        pipeline
    }

    /// A task that reads logs, with fresh memory.
    ///
    /// # Panics
    /// When the topology has no plan for it.
    #[must_use]
    pub fn consumer(&self, id: &TaskId) -> ConsumerTask {
        let topology = self.setup.topology();
        let plan = topology.plan(id).expect("a plan for every task");
        let body = body(&self.world, &self.setup, &topology, &id.stage).unwrap_or_else(|| self.enrich.clone());
        ConsumerTask::new(self.world.env(self.setup.settings.clone()), plan, body)
    }

    /// Makes the tasks that are known and not there yet, in order of flow.
    fn add_consumers(&mut self) {
        let topology = self.setup.topology();
        let mut all = Vec::new();
        for stage in topology.stages.iter().filter(|s| s.kind.reads_logs()) {
            let registered: Vec<TaskId> =
                self.world.lock().registry.get(&stage.id).into_iter().flatten().cloned().collect();
            for id in topology.tasks_of(stage, &registered) {
                let known = self.consumers.iter().position(|task| *task.id() == id);
                all.push(match known {
                    Some(at) => self.consumers.swap_remove(at),
                    None => self.consumer(&id),
                });
            }
        }
        self.consumers = all;
    }

    /// Changes the numbers of shards that are due: those that have not been changed, and the last that has been, in
    /// case it did not come to its end.
    ///
    /// # Errors
    /// The first error of a task.
    ///
    /// # Panics
    /// When the topology has no such stage.
    pub async fn redraw(&mut self, feed: &Feed) -> Result<(), EngineError> {
        let due: Vec<Redraw> = self.setup.redraws.iter().filter(|r| r.after <= feed.acknowledged()).cloned().collect();
        let topology = self.setup.topology();
        let mut met: BTreeMap<&str, u32> = BTreeMap::new();
        for redraw in &due {
            let number = met.entry(redraw.stage).or_default();
            *number += 1;
            let id = StageId::new(redraw.stage);
            let stage = topology.stage(&id).expect("a stage of the topology");
            let newest = topology.layout(stage, self.world.lock().registry.get(&id).into_iter().flatten());
            if newest.generation <= *number + 1 {
                let done = self.give(stage, redraw.shards).await;
                // One that has come to its end may be followed by the next, which has not.
                if !matches!(done, Err(EngineError::Sealed { .. }) if newest.generation == *number + 1) {
                    done?;
                }
            }
        }
        self.add_consumers();
        Ok(())
    }

    /// Gives every stage the shards that another setup has.
    ///
    /// # Errors
    /// The first error of a task.
    pub async fn give_all(&mut self, wanted: &Setup) -> Result<(), EngineError> {
        for stage in wanted.topology().stages.iter().filter(|stage| stage.kind.can_be_redrawn()) {
            if let Some(own) = self.setup.topology().stage(&stage.id) {
                self.give(own, stage.shards).await?;
            }
        }
        self.add_consumers();
        Ok(())
    }

    async fn give(&self, stage: &Stage, shards: u32) -> Result<Layout, EngineError> {
        let env = self.world.env(self.setup.settings.clone());
        let first = Layout::first(stage.shards);
        handover::redraw(&env, &stage.id, first, shards, &|id| Ok(self.consumer(id))).await
    }

    /// Delivers everything that is not acknowledged, ends the partitions, and runs until every task has ended.
    ///
    /// # Errors
    /// The first error of an invocation.
    ///
    /// # Panics
    /// When tasks run without getting nearer to the end.
    pub async fn drive(&mut self, feed: &mut Feed) -> Result<(), EngineError> {
        self.begin(feed).await?;
        loop {
            self.redraw(feed).await?;
            if !feed.has_more() {
                return self.finish().await;
            }
            self.deliver_all(feed).await?;
            self.run_consumers().await?;
        }
    }

    /// Makes known who will have something to say, and puts the rules in force.
    ///
    /// # Errors
    /// The first error of an invocation.
    pub async fn begin(&mut self, feed: &Feed) -> Result<(), EngineError> {
        self.control.begin().await?;
        let messages: Vec<_> = feed.rules.iter().map(as_source).collect();
        self.control.ingest(&self.rules_partition, &messages).await?;
        if let Some(source) = &self.confirmations {
            let ledger: &dyn payguard_engine::store::Ledger = &self.world;
            ledger.register(source.id()).await?;
        }
        Ok(())
    }

    /// Ends the partitions and runs until every task has ended.
    ///
    /// # Errors
    /// The first error of an invocation.
    ///
    /// # Panics
    /// When tasks run without getting nearer to the end.
    pub async fn finish(&mut self) -> Result<(), EngineError> {
        self.control.end().await?;
        for source in self.sources.iter_mut().chain(&mut self.confirmations) {
            source.end().await?;
        }
        for _ in 0..10_000 {
            // Another process may have redrawn shards.
            self.add_consumers();
            if self.run_consumers().await? {
                return Ok(());
            }
        }
        panic!("the pipeline does not come to its end");
    }

    /// Delivers the next batch of every partition that has one.
    ///
    /// # Errors
    /// The first error of an invocation.
    pub async fn deliver_all(&mut self, feed: &mut Feed) -> Result<(), EngineError> {
        for p in feed.ready() {
            self.deliver(feed, p).await?;
        }
        if feed.confirmed < feed.confirmations.len() {
            self.confirm(feed).await?;
        }
        Ok(())
    }

    /// Delivers one record after the other in the order of their arrival, each through all stages, as it is live.
    ///
    /// Meant for a pipeline without alignment: every stage then takes the records as they came.
    ///
    /// # Errors
    /// The first error of an invocation.
    pub async fn drive_as_it_came(&mut self, feed: &Feed) -> Result<(), EngineError> {
        let mut feed = feed.in_batches(1);
        // How far the payments were is seen live and need not be told.
        feed.confirmations.iter_mut().for_each(|c| c.bound = EventTime::MAX);
        self.begin(&feed).await?;
        while feed.has_more() {
            let is_next = |c: &Confirmation| c.after <= feed.acknowledged[0];
            if feed.confirmations.get(feed.confirmed).is_some_and(is_next) {
                self.confirm(&mut feed).await?;
            } else {
                self.deliver(&mut feed, 0).await?;
            }
            self.run_consumers().await?;
        }
        self.finish().await
    }

    /// Delivers the next batch of partition `p`.
    ///
    /// # Errors
    /// When the invocation fails.
    pub async fn deliver(&mut self, feed: &mut Feed, p: usize) -> Result<(), EngineError> {
        let rest = &feed.partitions[p][feed.acknowledged[p]..];
        let batch: Vec<_> = rest.iter().take(feed.batch).map(as_source).collect();
        self.sources[p].ingest(&batch).await?;
        feed.acknowledged[p] += batch.len();
        Ok(())
    }

    /// Delivers the next batch of confirmations.
    ///
    /// # Errors
    /// When the invocation fails.
    ///
    /// # Panics
    /// When the pipeline takes none.
    pub async fn confirm(&mut self, feed: &mut Feed) -> Result<(), EngineError> {
        let rest = feed.confirmations[feed.confirmed..].iter().take(feed.batch);
        let batch: Vec<_> =
            rest.map(|c| SourceRecord { watermark_bound: Some(c.bound), ..as_source(&c.record) }).collect();
        let source = self.confirmations.as_mut().expect("a setup with confirmations");
        source.ingest(&batch).await?;
        feed.confirmed += batch.len();
        Ok(())
    }

    /// Runs every consumer once; true when all have ended.
    ///
    /// # Errors
    /// The first error of an invocation.
    pub async fn run_consumers(&mut self) -> Result<bool, EngineError> {
        let budget = Budget { until: ProcessingTime(i64::MAX), commits: self.commits };
        let (mut ended, mut following) = (true, Vec::new());
        for consumer in &mut self.consumers {
            let report = consumer.run(budget).await?;
            ended &= report.ended || report.sealed.is_some();
            following.extend(report.sealed.into_iter().flat_map(|layout| layout.tasks(&consumer.id().stage)));
        }
        // Who takes over is started as soon as one task says who, and may find that others have not handed over yet.
        for id in following {
            if !self.consumers.iter().any(|task| *task.id() == id) {
                let task = self.consumer(&id);
                self.consumers.push(task);
                ended = false;
            }
        }
        Ok(ended)
    }

    /// Runs some consumers for a few commits, drawn at random: processes that take turns fall behind in different
    /// places.
    ///
    /// # Errors
    /// The first error of an invocation.
    pub async fn run_some(&mut self, rng: &mut Rng) -> Result<(), EngineError> {
        for consumer in &mut self.consumers {
            if rng.chance(600) {
                let commits = 1 + u32::try_from(rng.below(3)).unwrap_or(0);
                consumer.run(Budget { until: ProcessingTime(i64::MAX), commits }).await?;
            }
        }
        Ok(())
    }
}

/// The source task of a partition of payments.
///
/// # Panics
/// When the topology has no plan for it.
#[must_use]
pub fn source(world: &SimWorld, setup: &Setup, partition: usize) -> SourceTask {
    source_of(world, setup, &setup.config.source.topic, partition)
}

fn source_of(world: &SimWorld, setup: &Setup, topic: &str, partition: usize) -> SourceTask {
    let topology = setup.topology();
    let plan = topology.plan(&partition_id(topic, partition)).expect("a plan for every source");
    SourceTask::new(world.env(setup.settings.clone()), plan, &payguard_parse::make(&setup.config, &topology))
}

/// The task that decides the rules.
///
/// # Panics
/// When the topology has no plan for it.
#[must_use]
pub fn control(world: &SimWorld, setup: &Setup) -> BroadcastTask {
    let plan = setup.topology().plan(&TaskId::shard(&StageId::new(stage::CONTROL), 0)).expect("a plan for control");
    BroadcastTask::new(world.env(setup.settings.clone()), plan, payguard_control::make(&setup.config))
}

/// The id of a partition's source task.
#[must_use]
pub fn source_id(setup: &Setup, partition: usize) -> TaskId {
    partition_id(&setup.config.source.topic, partition)
}

fn partition_id(topic: &str, partition: usize) -> TaskId {
    TaskId::partition(&StageId::new(stage::PARSE), topic, i32::try_from(partition).unwrap_or(0))
}

/// What a consumer stage does; `enrich` is made once per process.
fn body(world: &SimWorld, setup: &Setup, topology: &Topology, id: &StageId) -> Option<MakeBody> {
    let config = &setup.config;
    match &*id.0 {
        stage::DEDUP => Some(payguard_dedup::make(config, topology)),
        stage::WINDOW => Some(payguard_window::make(config, topology)),
        stage::COMBINE => Some(payguard_combine::make(config, topology)),
        stage::RULES => Some(payguard_rules::make(config, topology)),
        stage::MATCH => Some(payguard_match::make(config, topology)),
        stage::PUBLISH => Some(payguard_publish::make(config, topology, Arc::new(world.clone()))),
        stage::TOTALS => Some(payguard_totals::make(Arc::new(world.clone()))),
        _ => None,
    }
}

/// What the next process starts with after one was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restart {
    /// Fresh memory.
    Fresh,
    /// The memory of the dropped invocation, as in a sandbox that is used again.
    Warm,
}

/// Drives a feed to the end through crashes and errors, and checks every invariant after each and at the end.
///
/// # Errors
/// What is broken.
pub async fn run_to_end(world: &SimWorld, setup: &Setup, feed: &Feed, restart: Restart) -> Result<Outputs, String> {
    let reads = reads(&setup.topology());
    let mut feed = feed.clone();
    let partitions = feed.partitions.len();
    let mut pipeline = Pipeline::new(world, setup, partitions);
    let mut last = String::new();
    for _ in 0..500 {
        match world.guard(pipeline.drive(&mut feed)).await {
            Ok(Ok(())) => {
                world.check(&reads)?;
                crate::account(world, feed.len())?;
                return Ok(Outputs::of(world));
            }
            Ok(Err(error @ (EngineError::Broken { .. } | EngineError::BadRecord { .. }))) => {
                return Err(error.to_string());
            }
            // What was collected is no fault of a store: nobody may stop for it. What a newer release did, is for ever.
            Ok(Err(error)) if error.is_missing() || error.is_newer() => return Err(error.to_string()),
            Ok(Err(error)) => last = error.to_string(),
            Err(_) if restart == Restart::Fresh => pipeline = Pipeline::new(world, setup, partitions),
            Err(_) => {}
        }
        world.check(&reads)?;
    }
    Err(format!("the pipeline does not come to its end: {last}"))
}

/// A run without faults.
///
/// # Panics
/// When it fails.
pub async fn undisturbed(setup: &Setup, feed: &Feed) -> (SimWorld, Outputs) {
    let world = SimWorld::new(NOW_MS);
    world.plan(FaultPlan::default());
    let outputs = run_to_end(&world, setup, feed, Restart::Fresh).await.expect("nothing goes wrong");
    (world, outputs)
}

/// Three processes with batches of different sizes that interleave at random, by the latencies and faults of `plan`.
pub async fn interleaved(
    world: &SimWorld,
    setup: &Setup,
    feed: &Feed,
    (seed, plan): (u64, FaultPlan),
) -> [Result<Outputs, String>; 3] {
    world.plan(plan.with_latency(seed, 40));
    let worlds = [world.executor(1), world.executor(2), world.executor(3)];
    let [a, b, c] = [7, 11, 30].map(|batch| feed.in_batches(batch));
    let results = tokio::join!(
        run_to_end(&worlds[0], setup, &a, Restart::Warm),
        run_to_end(&worlds[1], setup, &b, Restart::Fresh),
        run_to_end(&worlds[2], setup, &c, Restart::Warm),
    );
    results.into()
}
