//! The whole pipeline on a simulated world, driven as the platform would: batches of a partition are delivered in
//! order until they are acknowledged, consumers look for input again and again.

use std::collections::BTreeMap;
use std::sync::Arc;

use payguard_engine::logic::SourceRecord;
use payguard_engine::store::SinkRecord;
use payguard_engine::task::consumer::{ConsumerTask, MakeBody};
use payguard_engine::task::source::SourceTask;
use payguard_engine::task::{Budget, Settings};
use payguard_engine::{EngineError, StageId, TaskId};
use payguard_model::{EventTime, ProcessingTime};
use payguard_operators::amount_spike::AmountSpikeRule;
use payguard_operators::velocity::VelocityRule;
use payguard_sim::check::Reads;
use payguard_sim::reference::{Names, Published, RawRecord, Reference};
use payguard_sim::{FaultPlan, SimWorld};
use payguard_topology::config::AlignmentMode;
use payguard_topology::{Config, Topology, payguard, stage};

use crate::data::NOW_MS;

/// How a pipeline is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its configuration.
    pub config: Config,
    /// Numbers of the engine.
    pub settings: Settings,
    /// Commits of one invocation at most.
    pub commits: u32,
}

impl Default for Setup {
    /// Strict alignment, limits that a few payments reach, small commits, segments in objects from 200 bytes on.
    fn default() -> Setup {
        let mut config = Config::default();
        config.rules.velocity_max_payments = 2;
        config.rules.amount_spike_limit_minor = 6_000;
        config.engine.alignment = AlignmentMode::Strict;
        let settings = Settings {
            records_per_commit: 16,
            inline_bytes: 200,
            flush_every_ms: i64::MAX,
            store_tries: 3,
            ..Settings::default()
        };
        Setup { config, settings, commits: u32::MAX }
    }
}

impl Setup {
    /// The topology.
    #[must_use]
    pub fn topology(&self) -> Topology {
        payguard(&self.config)
    }

    /// The same for another number of shards of every stage with state.
    #[must_use]
    pub fn with_shards(mut self, shards: u32) -> Setup {
        let of = &mut self.config.shards;
        (of.dedup, of.window, of.rules) = (shards, shards, shards);
        self
    }

    /// The same with other settings.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Settings)) -> Setup {
        change(&mut self.settings);
        self
    }

    /// What the naive model publishes for one partition.
    #[must_use]
    pub fn reference(&self, records: &[RawRecord]) -> Published {
        let names = Names {
            alerts: payguard_publish::ALERTS_TOPIC,
            dlq: payguard_publish::DLQ_TOPIC,
            late: payguard_publish::LATE_TOPIC,
            sessions: payguard_publish::SESSIONS_TOPIC,
            totals: payguard_totals::TABLE,
        };
        let language = self.config.language();
        let velocity = VelocityRule { limit: self.config.rules.velocity_max_payments, language };
        let amount = AmountSpikeRule { limit: self.config.rules.amount_spike_limit_minor, language };
        let mut reference = Reference::new(names, self.config.parse_policy(), velocity, amount);
        records.iter().for_each(|r| reference.record(r, ProcessingTime(NOW_MS)));
        reference.finish()
    }
}

/// The streams that each stage reads.
#[must_use]
pub fn reads(topology: &Topology) -> Reads {
    let names = |id: &StageId| topology.inputs(id).map(|s| s.name.to_owned()).collect();
    topology.stages.iter().map(|s| (s.id.clone(), names(&s.id))).collect()
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
        Feed { acknowledged: vec![0; partitions.len()], partitions, batch, order }
    }

    /// Records in all partitions.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.partitions.iter().map(|p| p.len() as u64).sum()
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
    /// One per partition.
    pub sources: Vec<SourceTask>,
    /// In order of flow.
    pub consumers: Vec<ConsumerTask>,
    commits: u32,
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
        let consumer = |id: TaskId| {
            let plan = topology.plan(&id).expect("a plan for every task");
            ConsumerTask::new(world.env(setup.settings.clone()), plan, body(world, setup, &topology, &id.stage))
        };
        let consumers = topology.consumer_tasks().into_iter().map(consumer).collect();
        Pipeline { sources, consumers, commits: setup.commits }
    }

    /// Delivers everything that is not acknowledged, ends the partitions, and runs until every task has ended.
    ///
    /// # Errors
    /// The first error of an invocation.
    ///
    /// # Panics
    /// When tasks run without getting nearer to the end.
    pub async fn drive(&mut self, feed: &mut Feed) -> Result<(), EngineError> {
        loop {
            let ready = feed.ready();
            if ready.is_empty() {
                break;
            }
            for p in ready {
                self.deliver(feed, p).await?;
            }
            self.run_consumers().await?;
        }
        self.finish().await
    }

    /// Ends the partitions and runs until every task has ended.
    ///
    /// # Errors
    /// The first error of an invocation.
    ///
    /// # Panics
    /// When tasks run without getting nearer to the end.
    pub async fn finish(&mut self) -> Result<(), EngineError> {
        for source in &mut self.sources {
            source.end().await?;
        }
        for _ in 0..10_000 {
            if self.run_consumers().await? {
                return Ok(());
            }
        }
        panic!("the pipeline does not come to its end");
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

    /// Runs every consumer once; true when all have ended.
    ///
    /// # Errors
    /// The first error of an invocation.
    pub async fn run_consumers(&mut self) -> Result<bool, EngineError> {
        let budget = Budget { until: ProcessingTime(i64::MAX), commits: self.commits };
        let mut ended = true;
        for consumer in &mut self.consumers {
            ended &= consumer.run(budget).await?.ended;
        }
        Ok(ended)
    }
}

/// The source task of a partition.
///
/// # Panics
/// When the topology has no plan for it.
#[must_use]
pub fn source(world: &SimWorld, setup: &Setup, partition: usize) -> SourceTask {
    let topology = setup.topology();
    let id = source_id(setup, partition);
    let plan = topology.plan(&id).expect("a plan for every source");
    SourceTask::new(world.env(setup.settings.clone()), plan, &payguard_parse::make(&setup.config, &topology))
}

/// The id of a partition's source task.
#[must_use]
pub fn source_id(setup: &Setup, partition: usize) -> TaskId {
    TaskId::partition(&StageId::new(stage::PARSE), &setup.config.source.topic, i32::try_from(partition).unwrap_or(0))
}

fn body(world: &SimWorld, setup: &Setup, topology: &Topology, id: &StageId) -> MakeBody {
    match &*id.0 {
        stage::DEDUP => payguard_dedup::make(topology),
        stage::WINDOW => payguard_window::make(topology),
        stage::RULES => payguard_rules::make(&setup.config, topology),
        stage::PUBLISH => payguard_publish::make(topology, Arc::new(world.clone())),
        _ => payguard_totals::make(Arc::new(world.clone())),
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

/// Fails a test with the first record that differs.
///
/// # Panics
/// When the run failed or published something else.
#[track_caller]
pub fn assert_same(found: &Result<Outputs, String>, expected: &Outputs, context: &str) {
    let found = match found {
        Ok(found) => found,
        Err(error) => panic!("{context}: {error}"),
    };
    for (found, expected) in [(&found.publish, &expected.publish), (&found.totals, &expected.totals)] {
        let show = |r: Option<&SinkRecord>| r.map(|r| format!("{}: {}", r.topic, String::from_utf8_lossy(&r.value)));
        let at = (0..found.len().max(expected.len())).find(|i| found.get(*i) != expected.get(*i));
        if let Some(at) = at {
            let (got, wanted) = (show(found.get(at)), show(expected.get(at)));
            panic!("{context}: record {at} of {} (expected {}):\n{got:?}\n{wanted:?}", found.len(), expected.len());
        }
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
