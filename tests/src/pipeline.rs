//! The whole pipeline on a simulated world, driven as the platform would: batches of a partition are delivered in
//! order until they are acknowledged, consumers look for input again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use payguard_directory::{MerchantDirectory, SeededDirectory};
use payguard_engine::layout::Layout;
use payguard_engine::logic::SourceRecord;
use payguard_engine::store::SinkRecord;
use payguard_engine::task::broadcast::BroadcastTask;
use payguard_engine::task::consumer::{ConsumerTask, MakeBody};
use payguard_engine::task::handover;
use payguard_engine::task::source::SourceTask;
use payguard_engine::task::{Budget, Settings};
use payguard_engine::{EngineError, StageId, TaskId};
use payguard_model::{EventTime, ProcessingTime};
use payguard_sim::check::Reads;
use payguard_sim::reference::{Configured, Names, Published, RawRecord, Reference};
use payguard_sim::{FaultPlan, Rng, SimWorld};
use payguard_topology::config::{AlignmentMode, Shards};
use payguard_topology::{Config, StageKind, Topology, payguard, stage};

use crate::data::{Confirmation, NOW_MS, Shape};

/// How a pipeline is set up.
#[derive(Clone)]
pub struct Setup {
    /// Its configuration.
    pub config: Config,
    /// Numbers of the engine.
    pub settings: Settings,
    /// Commits of one invocation at most.
    pub commits: u32,
    /// Who knows the merchants' risks.
    pub directory: Arc<dyn MerchantDirectory>,
    /// Changes of the number of shards while payments flow, in order.
    pub redraws: Vec<Redraw>,
}

/// A change of the number of shards of a stage.
#[derive(Clone, Debug)]
pub struct Redraw {
    /// Once so many records are acknowledged.
    pub after: u64,
    /// The stage.
    pub stage: &'static str,
    /// Its shards from then on; another number than before.
    pub shards: u32,
}

impl Default for Setup {
    /// Strict alignment, limits that a few payments reach, small commits, segments in objects from 200 bytes on; no
    /// confirmations.
    fn default() -> Setup {
        let mut config = Config::default();
        config.rules.velocity_max_payments = 2;
        config.rules.amount_spike_limit_minor = 6_000;
        config.engine.alignment = AlignmentMode::Strict;
        config.source.confirmations_topic.clear();
        let settings = Settings {
            records_per_commit: 16,
            inline_bytes: 200,
            flush_every_ms: i64::MAX,
            store_tries: 3,
            ..Settings::default()
        };
        Setup { config, settings, commits: u32::MAX, directory: Arc::new(SeededDirectory), redraws: Vec::new() }
    }
}

impl Setup {
    /// The default with confirmations: every stage takes part.
    #[must_use]
    pub fn full() -> Setup {
        let mut setup = Setup::default();
        setup.config.source.confirmations_topic = Config::default().source.confirmations_topic;
        setup
    }

    /// The topology.
    #[must_use]
    pub fn topology(&self) -> Topology {
        payguard(&self.config)
    }

    /// The same for another number of shards of every stage with state.
    #[must_use]
    pub fn with_shards(mut self, shards: u32) -> Setup {
        self.config.shards = Shards::all(shards);
        self
    }

    /// The same with other settings.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Settings)) -> Setup {
        change(&mut self.settings);
        self
    }

    /// What the naive model publishes for one partition of payments.
    #[must_use]
    pub fn reference(&self, records: &[RawRecord]) -> Published {
        self.reference_of(&Feed::one(records, 1))
    }

    /// What the naive model publishes for a feed of one partition of payments.
    #[must_use]
    pub fn reference_of(&self, feed: &Feed) -> Published {
        let names = Names {
            alerts: payguard_publish::ALERTS_TOPIC,
            dlq: payguard_publish::DLQ_TOPIC,
            late: payguard_publish::LATE_TOPIC,
            sessions: payguard_publish::SESSIONS_TOPIC,
            totals: payguard_totals::TABLE,
            confirmed: payguard_publish::CONFIRMED_TOPIC,
            profiles: payguard_publish::PROFILES_TOPIC,
            rejected_rules: payguard_publish::REJECTED_RULES_TOPIC,
        };
        let mut reference = Reference::new(Configured {
            names,
            policy: self.config.parse_policy(),
            rules: self.config.default_rules(),
            amount_limit: self.config.rules.amount_spike_limit_minor,
            has_confirmations: self.config.has_confirmations(),
            language: self.config.language(),
            risk: seeded_risk,
        });
        let now = ProcessingTime(NOW_MS);
        feed.rules.iter().filter_map(|r| r.value.as_deref()).for_each(|raw| reference.message(raw, now));
        feed.partitions.iter().flatten().for_each(|r| reference.record(r, now));
        feed.confirmations.iter().for_each(|c| reference.confirmation(&c.record, c.bound));
        reference.finish()
    }
}

/// The risk of the merchants of the tests, by the formula of the demonstration.
fn seeded_risk(merchant: &str) -> &'static str {
    let number = merchant.strip_prefix("m-").and_then(|digits| digits.parse::<u32>().ok());
    match number {
        Some(0 | 10 | 20 | 30 | 40) => "HIGH",
        Some(n) if n < 50 && n % 3 == 0 => "MEDIUM",
        Some(n) if n < 50 => "LOW",
        _ => "UNKNOWN",
    }
}

/// Who reads what.
#[must_use]
pub fn reads(topology: &Topology) -> Reads {
    let names = |id: &StageId| topology.inputs(id).map(|s| s.name.to_owned()).collect();
    let of_kind = |is_meant: fn(&StageKind) -> bool| -> BTreeSet<StageId> {
        topology.stages.iter().filter(|s| is_meant(&s.kind)).map(|s| s.id.clone()).collect()
    };
    let tasks = topology.consumer_tasks().into_iter();
    Reads {
        streams: topology.stages.iter().map(|s| (s.id.clone(), names(&s.id))).collect(),
        readers: tasks.filter_map(|task| topology.plan(&task).map(|plan| (task, plan.upstreams))).collect(),
        stateful: of_kind(|kind| *kind == StageKind::Operators),
        kept: of_kind(|kind| matches!(kind, StageKind::Broadcast { .. })),
    }
}

/// How batches of several partitions follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// One batch of each in turn.
    InTurn,
    /// A whole partition, then the next.
    OneAfterTheOther,
}

/// Kafka partitions and how far their delivery is acknowledged.
#[derive(Clone, Debug)]
pub struct Feed {
    partitions: Vec<Vec<RawRecord>>,
    acknowledged: Vec<usize>,
    confirmations: Vec<Confirmation>,
    confirmed: usize,
    /// Messages of the rules' topic, all decided about before the first payment.
    rules: Vec<RawRecord>,
    batch: usize,
    order: Order,
}

impl Feed {
    /// One partition, delivered in batches of `batch`.
    #[must_use]
    pub fn one(records: &[RawRecord], batch: usize) -> Feed {
        Feed::many(vec![records.to_vec()], batch, Order::InTurn)
    }

    /// Several partitions.
    #[must_use]
    pub fn many(partitions: Vec<Vec<RawRecord>>, batch: usize, order: Order) -> Feed {
        let acknowledged = vec![0; partitions.len()];
        Feed { acknowledged, partitions, confirmations: Vec::new(), confirmed: 0, rules: Vec::new(), batch, order }
    }

    /// The same with confirmations, one partition.
    #[must_use]
    pub fn confirmed(self, confirmations: Vec<Confirmation>) -> Feed {
        Feed { confirmations, ..self }
    }

    /// The same with messages that change the rules before the first payment.
    #[must_use]
    pub fn ruled(self, messages: &[&str]) -> Feed {
        let record = |(offset, text): (i64, &&str)| {
            let value = Some(text.as_bytes().to_vec());
            RawRecord { offset, timestamp: None, value }
        };
        Feed { rules: (0..).zip(messages).map(record).collect(), ..self }
    }

    /// One partition, its confirmations, and messages of which one is refused: every stage has something to do.
    #[must_use]
    pub fn full(seed: u64, records: &[RawRecord], batch: usize) -> Feed {
        let messages =
            [r#"{"velocityMaxPayments":1,"blockedCountries":["XX"]}"#, "[]", r#"{"blockedCountries":["PL"]}"#];
        Feed::one(records, batch).confirmed(crate::data::confirmations(seed, records)).ruled(&messages)
    }

    /// [`Feed::full`] of `count` records drawn from the seed, with everything that raises an alert.
    #[must_use]
    pub fn drawn(seed: u64, count: usize, shape: Shape, batch: usize) -> Feed {
        Feed::full(seed, &crate::data::records(seed, count, shape.attacked()), batch)
    }

    /// The same feed from its beginning in batches of another size.
    #[must_use]
    pub fn in_batches(&self, batch: usize) -> Feed {
        Feed { batch, ..self.clone() }
    }

    /// Whether a partition has a record that is not acknowledged.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.ready().is_empty() || self.confirmed < self.confirmations.len()
    }

    /// Records that are acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        (self.acknowledged.iter().sum::<usize>() + self.confirmed) as u64
    }

    /// Records in all partitions, those of confirmations included.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.partitions.iter().map(|p| p.len() as u64).sum::<u64>() + self.confirmations.len() as u64
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The partitions that have a batch to deliver now.
    fn ready(&self) -> Vec<usize> {
        let open = (0..self.partitions.len()).filter(|p| self.acknowledged[*p] < self.partitions[*p].len());
        match self.order {
            Order::InTurn => open.collect(),
            Order::OneAfterTheOther => open.take(1).collect(),
        }
    }
}

/// A raw record as the engine takes it.
#[must_use]
pub fn as_source(record: &RawRecord) -> SourceRecord<'_> {
    SourceRecord {
        offset: record.offset,
        timestamp: record.timestamp.map(EventTime),
        value: record.value.as_deref(),
        watermark_bound: None,
    }
}

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
                let env = self.world.env(self.setup.settings.clone());
                let first = Layout::first(stage.shards);
                let done = handover::redraw(&env, &id, first, redraw.shards, &|id| Ok(self.consumer(id))).await;
                // One that has come to its end may be followed by the next, which has not.
                if !matches!(done, Err(EngineError::Sealed { .. }) if newest.generation == *number + 1) {
                    done?;
                }
            }
        }
        self.add_consumers();
        Ok(())
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
    /// Meant for [`AlignmentMode::Off`]: every stage then takes the records as they came.
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
        stage::PUBLISH => Some(payguard_publish::make(topology, Arc::new(world.clone()))),
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
            // What was collected is no fault of a store: nobody may stop for it.
            Ok(Err(error)) if error.is_missing() => return Err(error.to_string()),
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

/// The first record that differs, if one does.
#[must_use]
pub fn difference(found: &Outputs, expected: &Outputs) -> Option<String> {
    for (found, expected) in [(&found.publish, &expected.publish), (&found.totals, &expected.totals)] {
        let show = |r: Option<&SinkRecord>| r.map(|r| format!("{}: {}", r.topic, String::from_utf8_lossy(&r.value)));
        let at = (0..found.len().max(expected.len())).find(|i| found.get(*i) != expected.get(*i));
        if let Some(at) = at {
            let (got, wanted) = (show(found.get(at)), show(expected.get(at)));
            let (of, instead) = (found.len(), expected.len());
            return Some(format!("record {at} of {of} (expected {instead}):\n{got:?}\n{wanted:?}"));
        }
    }
    None
}

/// Fails a test with the first record that differs.
///
/// # Panics
/// When the run failed or published something else.
#[track_caller]
pub fn assert_same(found: &Result<Outputs, String>, expected: &Outputs, context: &str) {
    match found {
        Ok(found) => {
            if let Some(difference) = difference(found, expected) {
                panic!("{context}: {difference}");
            }
        }
        Err(error) => panic!("{context}: {error}"),
    }
}

/// What the sinks hold.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outputs {
    /// Records of all topics in the order they were published.
    pub publish: Vec<SinkRecord>,
    /// Records of the table of totals in order.
    pub totals: Vec<SinkRecord>,
}

impl Outputs {
    /// Reads the sinks of a world.
    #[must_use]
    pub fn of(world: &SimWorld) -> Outputs {
        let world = world.lock();
        let of = |stage: &str| -> Vec<SinkRecord> {
            world.sinks.iter().filter(|(t, _)| &*t.stage.0 == stage).flat_map(|(_, s)| s.records.clone()).collect()
        };
        Outputs { publish: of(stage::PUBLISH), totals: of(stage::TOTALS) }
    }

    /// By topic or table, each in order.
    #[must_use]
    pub fn by_topic(&self) -> Published {
        let mut published = Published::new();
        for record in self.publish.iter().chain(&self.totals) {
            published.entry(record.topic).or_default().push(record.clone());
        }
        published
    }

    /// By topic or table, each sorted.
    #[must_use]
    pub fn sets(&self) -> Published {
        let mut published = self.by_topic();
        published.values_mut().for_each(|r| r.sort_by(|a, b| (&a.key, &a.value).cmp(&(&b.key, &b.value))));
        published
    }

    /// The last emission of every window, by merchant and start.
    #[must_use]
    pub fn final_totals(&self) -> BTreeMap<String, Vec<u8>> {
        self.totals.iter().map(|r| (r.key.clone(), r.value.clone())).collect()
    }
}
