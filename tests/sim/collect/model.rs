//! Logs, readers and flushes drawn at random, with a collector that takes one step now and then: after every step every
//! reader can read all that it has not read, and every state comes back whole.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use payguard_engine::gc::Collected;
use payguard_engine::input::{Reader, open_row, read_slice};
use payguard_engine::keyed::KeyedRunner;
use payguard_engine::layout::View;
use payguard_engine::logic::{Collector, DecodeError, OperatorDelta, OperatorState, Origin, StageDelta};
use payguard_engine::page::{Page, PageAddress, version};
use payguard_engine::row::SegmentLocation;
use payguard_engine::segment::{Arrival, SegmentBuilder, Stamp, object_key};
use payguard_engine::store::{CommitReply, Ledger, RowLimits, SegmentStore, StateTable};
use payguard_engine::task::{Settings, TaskPlan};
use payguard_engine::{Attempt, CommitRow, EngineError, Head, InputState, Position, Seq, TaskId};
use payguard_model::{EventTime, KEY_GROUPS, KeyGroup, ProcessingTime};
use payguard_operators::{Context, KeyedOperator, TimerDomain};
use payguard_sim::{Crashed, Fault, FaultPlan, SimWorld};
use payguard_tests::collector::{COLLECTOR, collect_once, everything, garbage};
use payguard_tests::data::NOW_MS;
use payguard_tests::{Setup, reads};
use payguard_topology::Topology;
use proptest::prelude::*;

/// Operations of the collector that are single steps; more than a case has.
const STEPS: u64 = 3_000;

/// Remembers text by key, and tells it when it is asked.
struct Notes;

#[derive(Clone, PartialEq, prost::Message)]
struct Note {
    #[prost(string, tag = "1")]
    text: String,
}

#[derive(Clone, Debug)]
enum Ask {
    Write(String),
    Forget,
    Tell,
}

impl KeyedOperator for Notes {
    type Event = Ask;
    type State = Note;
    type Output = (String, String);

    const ID: &'static str = "notes";

    fn on_event(&self, key: &str, event: &Ask, state: &mut Note, ctx: &mut dyn Context<(String, String)>) {
        match event {
            Ask::Write(text) => state.text.clone_from(text),
            Ask::Forget => state.text.clear(),
            Ask::Tell => ctx.emit(EventTime(0), (key.to_owned(), state.text.clone())),
        }
    }

    fn on_timer(&self, _: &str, _: TimerDomain, _: i64, _: &mut Note, _: &mut dyn Context<(String, String)>) {}
}

#[derive(Clone, Debug)]
enum Step {
    /// A task reads so many rows of each input, changes a key, and commits.
    Commit { task: usize, reads: u64, within: bool, key: usize, text: Option<usize>, inline: bool, orphan: bool },
    /// A task writes its pages, all or so many of them; the flush counts with its next commit.
    Flush { task: usize, pages: usize },
    /// The collector takes so many steps; it begins a run when there is none.
    Collect(usize),
    /// The collector dies.
    Crash,
    /// Time goes by, milliseconds.
    Pass(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let commit =
        (0..10usize, 0..4u64, any::<bool>(), 0..40usize, prop::option::of(0..3_000usize), any::<(bool, bool)>());
    let commit = commit.prop_map(|(task, reads, within, key, text, (inline, orphan))| Step::Commit {
        task,
        reads,
        within,
        key,
        text,
        inline,
        orphan,
    });
    let step = prop_oneof![
        20 => commit,
        3 => (0..10usize).prop_map(|task| Step::Flush { task, pages: usize::MAX }),
        1 => (0..10usize, 0..5usize).prop_map(|(task, pages)| Step::Flush { task, pages }),
        12 => (1..60usize).prop_map(Step::Collect),
        1 => Just(Step::Crash),
        1 => (0..40i64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..120)
}

type Running = Pin<Box<dyn Future<Output = Result<Collected, Crashed>>>>;

struct Bench {
    world: SimWorld,
    setup: Setup,
    topology: Topology,
    tasks: Vec<TaskId>,
    runners: BTreeMap<TaskId, KeyedRunner<Notes>>,
    flushed: BTreeMap<TaskId, u64>,
    /// Pages that the last flush replaced.
    replaced: BTreeMap<TaskId, Vec<(PageAddress, u64)>>,
    model: BTreeMap<(TaskId, String), String>,
    keys: Vec<String>,
    attempts: u64,
    collector: Option<Running>,
    /// Rows.
    collected: u64,
}

impl Bench {
    fn new() -> Bench {
        let world = SimWorld::new(NOW_MS);
        let pauses = (0..STEPS).map(|step| ((COLLECTOR, step), Fault::Pause)).collect();
        world.plan(FaultPlan { of_executor: pauses, ..FaultPlan::default() });
        let mut setup = Setup::default().with_shards(2).with(|s| *s = Settings { store_tries: 1, ..s.clone() });
        setup.config.operators = vec!["core".to_owned()];
        setup.config.shards.window = 1;
        let topology = setup.topology();
        let sources = ["parse/payments.raw-0"].map(|task| task.parse().expect("a task"));
        let tasks: Vec<TaskId> = sources.into_iter().chain(topology.consumer_tasks()).collect();
        // Of few key groups, so that pages are split, and of both shards.
        let of = |group| (0..).map(|i| format!("k{i}")).filter(move |key| group_of(key).0 == group).take(20);
        Bench {
            world,
            setup,
            tasks,
            runners: BTreeMap::new(),
            flushed: BTreeMap::new(),
            replaced: BTreeMap::new(),
            model: BTreeMap::new(),
            keys: of(1).chain(of(100)).collect(),
            attempts: 0,
            collector: None,
            collected: 0,
            topology,
        }
    }

    fn plan(&self, task: &TaskId) -> TaskPlan {
        self.topology.plan(task).expect("a plan")
    }

    fn has_state(&self, task: &TaskId) -> bool {
        reads(&self.topology).stateful.contains(&task.stage)
    }

    /// A key of the task's own key groups.
    fn key(&self, plan: &TaskPlan, number: usize) -> String {
        let mine = |key: &&String| plan.groups().contains(&group_of(key).0);
        let keys: Vec<_> = self.keys.iter().filter(mine).collect();
        keys[number % keys.len()].clone()
    }

    async fn head(&self, task: &TaskId) -> Head {
        self.world.load_head(task).await.expect("no fault").unwrap_or_else(Head::empty)
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Commit { task, .. } => {
                let task = self.tasks[task % self.tasks.len()].clone();
                self.commit(&task, step).await;
            }
            Step::Flush { task, pages } => {
                let task = self.tasks[task % self.tasks.len()].clone();
                self.flush(&task, *pages).await;
            }
            Step::Collect(steps) => self.collect(*steps).await,
            Step::Crash => self.collector = None,
            Step::Pass(ms) => self.world.advance_ms(*ms),
        }
    }

    async fn commit(&mut self, task: &TaskId, step: &Step) {
        let Step::Commit { reads, within, key, text, inline, orphan, .. } = step else { return };
        let (plan, head) = (self.plan(task), self.head(task).await);
        let seq = head.seq + 1;
        let mut row = CommitRow { seq, watermark_ms: i64::MIN, generation: 1, ..CommitRow::default() };
        row.now_ms = payguard_engine::store::Clock::now(&self.world).0;
        let mut inputs = head.inputs.clone();
        for producer in self.tasks.clone() {
            let Some(upstream) = plan.upstreams.iter().find(|upstream| upstream.has(&producer)) else { continue };
            let id = TaskPlan::input_id(&producer);
            let before = inputs.get(&id).map_or(Position::default(), |state| state.position);
            let newest = i64::try_from(self.head(&producer).await.seq).expect("small");
            let at = newest.min(before.at + i64::try_from(*reads).expect("small"));
            // A row that is begun must be read by others too: it stays.
            let begun = u32::from(*within && at < newest && at >= before.at && (at > before.at || before.within > 0));
            let position = Position { at, within: if at == before.at { begun.max(before.within) } else { begun } };
            if position != before {
                let state = InputState { position, watermark_ms: i64::MIN, idle: false };
                // Every row has one record of each stream for each shard.
                let taken = upstream.streams.len() as i64 * (position.at - before.at) + i64::from(position.within)
                    - i64::from(before.within);
                let counted = row.counters.entry("in.all".to_owned()).or_default();
                *counted += u64::try_from(taken).expect("forward");
                row.from.insert(id.clone(), before);
                row.to.insert(id.clone(), state);
                inputs.insert(id, state);
            }
        }
        let delta = if self.has_state(task) { self.change(task, &plan, *key, *text) } else { Vec::new() };
        self.lay_out(task, &plan, &mut row, &delta, *inline, *orphan).await;
        let mut counters = head.counters.clone();
        for (name, by) in &row.counters {
            *counters.entry(name.clone()).or_default() += by;
        }
        let flushed_seq = match self.has_state(task) {
            true => self.flushed.get(task).copied().unwrap_or(0),
            // As the engine has it: sources count as flushed, lookups and sinks as never.
            false if plan.upstreams.is_empty() => seq,
            false => 0,
        };
        let next = Head { seq, attempt: row.attempt.clone(), inputs, flushed_seq, counters, ..head };
        let reply = Ledger::commit(&self.world, task, &next, &row).await.expect("no fault");
        assert_eq!(reply, CommitReply::Committed);
        for (page, version) in self.replaced.remove(task).unwrap_or_default() {
            self.world.delete_page(&page, version).await.expect("no fault");
        }
    }

    /// Changes a key of a task's state; returns the delta.
    fn change(&mut self, task: &TaskId, plan: &TaskPlan, key: usize, text: Option<usize>) -> Vec<u8> {
        let key = self.key(plan, key);
        let text = text.map(|len| format!("{}-{}", self.attempts, "x".repeat(len)));
        let ask = text.clone().map_or(Ask::Forget, Ask::Write);
        let runner = self.runners.entry(task.clone()).or_insert_with(|| KeyedRunner::new(Notes));
        runner.process(&key, &ask, &mut collector(), &mut |_, _, _| {});
        match text {
            Some(text) => self.model.insert((task.clone(), key), text),
            None => self.model.remove(&(task.clone(), key)),
        };
        let changes = runner.take_delta();
        let operators = vec![OperatorDelta { operator: Notes::ID.to_owned(), changes }];
        prost::Message::encode_to_vec(&StageDelta { operators })
    }

    /// Makes the row's segment: a record for every shard of every stream, and the delta. An orphan beside it, if asked.
    async fn lay_out(
        &mut self,
        task: &TaskId,
        plan: &TaskPlan,
        row: &mut CommitRow,
        delta: &[u8],
        inline: bool,
        orphan: bool,
    ) {
        let mut builder = SegmentBuilder::new(plan.outputs.iter().map(|o| (o.stream.as_str(), o.layout.shards)));
        for (number, output) in plan.outputs.iter().enumerate() {
            for shard in 0..output.layout.shards {
                let stamp = Stamp { watermark: EventTime::MIN, arrival: Arrival { partition: 0, offset: 0 } };
                builder.push(number, shard, stamp, EventTime(0), 2, |bytes| bytes.extend_from_slice(b"ab"));
            }
        }
        let segment = builder.finish(delta);
        (row.slices, row.delta) = (segment.slices, segment.delta);
        self.attempts += 1;
        row.attempt = format!("attempt-{}", self.attempts);
        if orphan {
            let lost = object_key(task, row.seq, &Attempt(format!("lost-{}", self.attempts)));
            self.world.put(&lost, Bytes::from_static(b"lost")).await.expect("no fault");
        }
        if segment.bytes.is_empty() {
            return;
        }
        row.segment = Some(if inline {
            SegmentLocation::Inline(segment.bytes)
        } else {
            let key = object_key(task, row.seq, &Attempt(row.attempt.clone()));
            self.world.put(&key, segment.bytes).await.expect("no fault");
            SegmentLocation::Object(key)
        });
    }

    /// Writes pages as the engine does: those that are replaced go after the next commit; one that stops half-way gives
    /// its memory up.
    async fn flush(&mut self, task: &TaskId, pages: usize) {
        let head = self.head(task).await;
        let Some(runner) = self.runners.get_mut(task) else { return };
        let dirty = runner.take_dirty_pages(head.seq);
        let version = version(1, head.seq);
        let address = |group, page: &str| PageAddress {
            stage: task.stage.clone(),
            group,
            operator: Notes::ID.to_owned(),
            page: page.to_owned(),
        };
        for body in dirty.put.iter().take(pages) {
            let address = address(body.group, &body.page);
            let page = Page { address, version, body: body.body.clone().into(), expires_at_s: None };
            self.world.put_page(&page).await.expect("no fault");
        }
        if pages >= dirty.put.len() {
            let replaced = dirty.delete.iter().map(|(group, page)| (address(*group, page), version));
            self.replaced.insert(task.clone(), replaced.collect());
            self.flushed.insert(task.clone(), head.seq);
        } else {
            let recovered = self.recover(task).await.expect("it recovers");
            self.flushed.insert(task.clone(), head.flushed_seq);
            self.runners.insert(task.clone(), recovered);
            self.replaced.remove(task);
        }
    }

    async fn collect(&mut self, steps: usize) {
        for _ in 0..steps {
            let (world, setup) = (self.world.clone(), self.setup.clone());
            let run = async move { Ok(collect_once(&world, &setup, everything_but(&setup)).await?.collected) };
            let collector = self.collector.get_or_insert_with(|| Box::pin(run));
            if let Some(done) = self.world.until_paused(collector).await {
                let done = done.expect("no crash");
                self.collected += done.rows;
                self.collector = None;
                return;
            }
            self.world.resume();
        }
    }

    /// A task's state from pages and the rows after them.
    async fn recover(&self, task: &TaskId) -> Result<KeyedRunner<Notes>, EngineError> {
        let head = self.head(task).await;
        let mut runner = KeyedRunner::new(Notes);
        if head.flushed_seq > 0 {
            let mut pages = Vec::new();
            for group in [1, 100] {
                let plan = self.plan(task);
                if plan.groups().contains(&group) {
                    pages.extend(self.world.load_pages(&task.stage, KeyGroup(group)).await?);
                }
            }
            runner.load(pages).expect("pages load");
        }
        for row in self.rows_after(task, head.flushed_seq).await? {
            let Some(delta) = &row.delta else { continue };
            let bytes = read_slice(&self.world, task, &row, delta).await?;
            for part in <StageDelta as prost::Message>::decode(bytes).expect("a delta").operators {
                runner.apply_delta(&part.changes).expect("a delta");
            }
        }
        Ok(runner)
    }

    async fn rows_after(&self, task: &TaskId, mut after: u64) -> Result<Vec<CommitRow>, EngineError> {
        let mut all = Vec::new();
        loop {
            let rows = self.world.load_rows(task, Seq(after), RowLimits { rows: 7 }).await?;
            let Some(last) = rows.last() else { return Ok(all) };
            after = last.seq;
            all.extend(rows);
        }
    }

    async fn check(&self) -> Result<(), TestCaseError> {
        let broken = |what: String| TestCaseError::fail(what);
        for reader in &self.tasks {
            let (plan, head) = (self.plan(reader), self.head(reader).await);
            for producer in &self.tasks {
                let Some(upstream) = plan.upstreams.iter().find(|upstream| upstream.has(producer)) else { continue };
                let state = head.inputs.get(&TaskPlan::input_id(producer));
                let at = state.map_or(0, |state| u64::try_from(state.position.at).expect("not negative"));
                let rows = self.rows_after(producer, at).await.map_err(|e| broken(format!("{reader}: {e}")))?;
                let newest = self.head(producer).await.seq;
                prop_assert!(rows.iter().map(|row| row.seq).eq(at + 1..=newest), "{} reads {}", reader, producer);
                for row in &rows {
                    let key_group = |_: usize, _: &[u8]| Err(DecodeError("slices are whole".to_owned()));
                    let view = View { groups: &plan.groups(), taken: &[] };
                    let whose = Reader { upstream, view, key_group: &key_group };
                    let opened = open_row(&self.world, producer, row, whose).await;
                    let opened = opened.map_err(|e| broken(format!("{reader} opens {producer} {}: {e}", row.seq)))?;
                    prop_assert_eq!(opened.slices.len(), upstream.streams.len());
                }
            }
            if self.has_state(reader) {
                let mut recovered = self.recover(reader).await.map_err(|e| broken(format!("{reader}: {e}")))?;
                let mine = |(task, key): &(TaskId, String)| (task == reader).then(|| key.clone());
                let keys: BTreeSet<String> = self.model.keys().filter_map(mine).collect();
                prop_assert_eq!(recovered.keys(), keys.len(), "{} recovers", reader);
                let mut told = BTreeMap::new();
                for key in keys {
                    let mut emit = |_: &mut Collector, _, (key, text)| drop(told.insert(key, text));
                    recovered.process(&key, &Ask::Tell, &mut collector(), &mut emit);
                }
                let expected = self.model.iter().filter(|((task, _), _)| task == reader);
                prop_assert!(told.iter().eq(expected.map(|((_, key), text)| (key, text))), "{} recovers", reader);
            }
        }
        let violation = self.world.lock().violations.first().cloned();
        prop_assert_eq!(violation, None);
        Ok(())
    }
}

/// All that may go but what is younger than a few milliseconds; the key groups that have pages.
fn everything_but(setup: &Setup) -> payguard_clock::collect::Limits {
    payguard_clock::collect::Limits { retention_ms: 20, groups: 64, ..everything(setup) }
}

fn group_of(key: &str) -> KeyGroup {
    payguard_model::key_group(key, KEY_GROUPS)
}

fn collector() -> Collector {
    Collector::new(SegmentBuilder::new([]), EventTime::MIN, ProcessingTime(0), Origin::default())
}

/// How many rows were collected on the way.
async fn run(steps: Vec<Step>) -> Result<u64, TestCaseError> {
    let mut bench = Bench::new();
    for task in &bench.tasks {
        bench.world.register(task).await.expect("no fault");
    }
    for step in &steps {
        bench.step(step).await;
        bench.check().await?;
    }
    let reads = reads(&bench.topology);
    bench.world.check(&reads).map_err(TestCaseError::fail)?;
    // In peace, everything that nobody needs goes.
    bench.world.plan(FaultPlan::default());
    bench.collector = None;
    let outcome = collect_once(&bench.world, &bench.setup, everything(&bench.setup)).await.expect("no crash");
    prop_assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
    prop_assert_eq!(garbage(&bench.world, &reads), Vec::<String>::new());
    bench.check().await?;
    Ok(bench.collected)
}

#[test]
fn whatever_a_collector_does_between_the_steps_of_others_everybody_reads_on_and_recovers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(150));
    let sum = std::cell::Cell::new(0);
    let result = runner.run(&steps(), |steps| {
        sum.set(sum.get() + runtime.block_on(run(steps))?);
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    assert!(sum.get() > 100, "{} rows were collected while others worked", sum.get());
}
