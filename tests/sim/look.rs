//! Looking into the state of a pipeline, now and in the past: what is seen is the state of one commit, recounted from all
//! rows that ever were, or a refusal; never anything else.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use payguard_clock::collect::Limits;
use payguard_engine::export::Keys;
use payguard_engine::layout::{Layout, place};
use payguard_engine::logic::StageDelta;
use payguard_engine::page::{Page, PageAddress};
use payguard_engine::row::SegmentLocation;
use payguard_engine::store::{PutReply, StateTable};
use payguard_engine::task::Env;
use payguard_engine::{CommitRow, Head, StageId, StoreError, TaskId, segment};
use payguard_inspect::{Asked, At, GroupState, InspectError, Live};
use payguard_model::{KEY_GROUPS, KeyGroup, key_group};
use payguard_savepoint::{Create, Restore, create, restore};
use payguard_sim::world::World;
use payguard_sim::{FaultPlan, Rng, SimWorld};
use payguard_tests::collector::{collect_once, collecting, everything};
use payguard_tests::data::NOW_MS;
use payguard_tests::splitting::crowd;
use payguard_tests::{Feed, Outputs, Pipeline, Redraw, Setup, Shape, seeds, undisturbed};
use payguard_topology::keys::encoding;
use payguard_topology::{Stage, StageKind, Topology, stage};
use prost::Message;
use tokio::sync::Mutex;

/// Keys of one key group by state.
type States = BTreeMap<String, Keys>;

/// How often which stages are redrawn, when they are.
const REDRAWS: [(u64, &str, u32); 4] =
    [(12, stage::RULES, 3), (20, stage::DEDUP, 1), (30, stage::RULES, 2), (40, stage::WINDOW, 4)];

fn setup(seed: u64) -> Setup {
    let redraws = REDRAWS.iter().map(|(after, stage, shards)| Redraw { after: *after, stage, shards: *shards });
    let mut setup = Setup::full().with_shards(1 + u32::try_from(seed % 2).expect("small") + 1).with(|s| {
        s.records_per_commit = 4 + usize::try_from(seed % 9).expect("small");
        s.flush_every_ms = [i64::MAX, 0, i64::MAX][usize::try_from(seed % 3).expect("small")];
        s.flush_bytes = [usize::MAX, 1, 1_500][usize::try_from(seed % 3).expect("small")];
    });
    if seed % 4 > 1 {
        setup.redraws = redraws.collect();
    }
    setup
}

fn feed(seed: u64) -> Feed {
    Feed::drawn(seed, 60, Shape { cards: 9, ..Shape::TIDY }, 7)
}

/// The stages with keyed state.
fn with_state(topology: &Topology) -> Vec<Stage> {
    topology.stages.iter().filter(|stage| stage.kind == StageKind::Operators).cloned().collect()
}

/// A key group's state as of a commit, from all rows that ever were: those of the tasks that had the group before, then
/// the task's own. A restored pipeline begins with the pages that were restored.
fn recount(world: &World, stage: &Stage, task: &TaskId, seq: u64, group: u32) -> States {
    let first = Layout::first(stage.shards);
    let generation = |task: &TaskId| place(task, first).expect("a task of the stage").0.generation;
    let owns = |task: &TaskId| place(task, first).is_some_and(|(layout, shard)| layout.groups(shard).contains(&group));
    let mut states = States::new();
    for page in world.restored.get(&stage.id).into_iter().flatten().filter(|page| page.address.group == group) {
        let keys = encoding(&page.address.operator).read_pages(vec![page.clone()]).expect("a page");
        states.entry(page.address.operator.clone()).or_default().extend(keys);
    }
    let mut tasks: Vec<&TaskId> = world.logs.keys().filter(|t| t.stage == stage.id && owns(t)).collect();
    tasks.retain(|other| generation(other) < generation(task) || *other == task);
    tasks.sort_by_key(|task| generation(task));
    for other in tasks {
        let until = if other == task { seq } else { u64::MAX };
        for row in world.logs[other].history.range(..=until).map(|(_, row)| row) {
            apply(world, row, group, &mut states);
        }
    }
    states.retain(|_, keys| !keys.is_empty());
    states
}

fn apply(world: &World, row: &CommitRow, group: u32, states: &mut States) {
    let Some(delta) = &row.delta else { return };
    let bytes = match row.segment.as_ref().expect("a delta is in a segment") {
        SegmentLocation::Inline(bytes) => bytes,
        SegmentLocation::Object(key) => &world.stored[key],
    };
    let (from, len) = (usize::try_from(delta.offset).expect("small"), usize::try_from(delta.len).expect("small"));
    let bytes = segment::open(delta, &bytes.slice(from..from + len)).expect("a delta");
    for part in StageDelta::decode(bytes).expect("a delta").operators {
        for (key, value) in encoding(&part.operator).read_delta(&part.changes).expect("changes") {
            if key_group(&key, KEY_GROUPS).0 == group {
                let keys = states.entry(part.operator.clone()).or_default();
                match value {
                    Some(value) => keys.insert(key, value),
                    None => keys.remove(&key),
                };
            }
        }
    }
}

/// The key groups of a stage that ever had a key.
fn groups(world: &World, stage: &Stage) -> Vec<u32> {
    let mut groups = BTreeSet::new();
    for page in world.restored.get(&stage.id).into_iter().flatten() {
        groups.insert(page.address.group);
    }
    for (_, log) in world.logs.iter().filter(|(task, _)| task.stage == stage.id) {
        for row in log.history.values() {
            groups.extend((0..KEY_GROUPS).filter(|group| {
                let mut states = States::new();
                apply(world, row, *group, &mut states);
                !states.is_empty()
            }));
        }
    }
    groups.into_iter().collect()
}

fn asked(at: At, task: Option<&TaskId>, groups: std::ops::Range<u32>) -> Asked {
    Asked { at, task: task.cloned(), groups, state: None }
}

/// The heads of a stage's tasks.
fn heads(world: &SimWorld, stage: &Stage) -> BTreeMap<TaskId, Head> {
    let world = world.lock();
    let of_stage = world.logs.iter().filter(|(task, _)| task.stage == stage.id);
    of_stage.filter_map(|(task, log)| Some((task.clone(), log.head.clone()?))).collect()
}

/// What was seen between two moments is the state of a commit that was the newest of its key group in between.
#[track_caller]
fn assert_seen(
    world: &SimWorld,
    stage: &Stage,
    group: u32,
    seen: &GroupState,
    (before, after): (&BTreeMap<TaskId, Head>, &BTreeMap<TaskId, Head>),
    context: &str,
) {
    let first = Layout::first(stage.shards);
    let Some(as_of) = &seen.as_of else {
        assert!(seen.states.is_empty(), "{context}: something of nobody");
        let had = before.keys().any(|task| place(task, first).is_some_and(|(l, s)| l.groups(s).contains(&group)));
        assert!(!had, "{context}: the owner is not seen");
        return;
    };
    let task: TaskId = as_of.task.parse().expect("a task");
    let seq = |heads: &BTreeMap<TaskId, Head>| heads.get(&task).map_or(0, |head| head.seq);
    assert!(
        (seq(before)..=seq(after)).contains(&as_of.seq),
        "{context}: {as_of:?}, not {} to {}",
        seq(before),
        seq(after)
    );
    let followed = before.get(&task).and_then(|head| head.sealed).is_some_and(|next| {
        before.keys().any(|other| other.redrawn().is_some_and(|(l, s)| l == next && l.groups(s).contains(&group)))
    });
    assert!(!followed, "{context}: {task} had been taken over before");
    let expected = recount(&world.lock(), stage, &task, as_of.seq, group);
    assert_eq!(seen.states, expected, "{context}: {as_of:?}");
}

/// A table whose pages are listed one after the other: some before anybody else goes on, the others after it.
struct Torn {
    table: SimWorld,
    deep_first: bool,
}

#[async_trait]
impl StateTable for Torn {
    async fn load_pages(&self, stage: &StageId, group: KeyGroup) -> Result<Vec<Page>, StoreError> {
        let is_first = |page: &Page| page.address.page.starts_with("0-") != self.deep_first;
        let mut pages = self.table.load_pages(stage, group).await?;
        pages.retain(is_first);
        let rest = self.table.load_pages(stage, group).await?;
        pages.extend(rest.into_iter().filter(|page| !is_first(page)));
        Ok(pages)
    }

    async fn put_page(&self, page: &Page) -> Result<PutReply, StoreError> {
        self.table.put_page(page).await
    }

    async fn delete_page(&self, address: &PageAddress, version: u64) -> Result<(), StoreError> {
        self.table.delete_page(address, version).await
    }
}

/// The stores as the looker has them.
fn looker(world: &SimWorld, setup: &Setup, seed: u64) -> Env {
    let table = Torn { table: world.clone(), deep_first: seed.is_multiple_of(2) };
    Env { state: Arc::new(table), ..world.env(setup.settings.clone()) }
}

#[tokio::test(start_paused = true)]
async fn beside_a_running_pipeline_one_commit_is_seen_and_never_a_mixture() {
    let (mut looks, mut keys, mut moved) = (0, 0, 0);
    for seed in seeds(60) {
        let (setup, mut feed) = (setup(seed), feed(seed));
        let topology = setup.topology();
        let (calm, expected) = undisturbed(&Setup { redraws: Vec::new(), ..setup.clone() }, &feed).await;
        let stages = with_state(&topology).into_iter();
        let wanted: Vec<(Stage, Vec<u32>)> =
            stages.map(|stage| (stage.clone(), groups(&calm.lock(), &stage))).collect();
        let world = SimWorld::new(NOW_MS);
        world.plan(FaultPlan::default().with_latency(seed, 4));
        let run = if seed % 3 == 0 { collecting(&world, &setup, seed, 60) } else { world.clone() };
        let mut pipeline = Pipeline::new(&run, &setup, feed.partitions());
        let (is_over, env) = (AtomicBool::new(false), looker(&world.executor(1), &setup, seed));
        let driving = async {
            pipeline.drive(&mut feed).await.expect("nothing goes wrong");
            is_over.store(true, Ordering::Relaxed);
        };
        let looking = async {
            let mut rng = Rng::new(seed ^ 0x100c);
            while !is_over.load(Ordering::Relaxed) {
                let (stage, groups) = &wanted[usize::try_from(rng.below(wanted.len() as u64)).expect("small")];
                let first = usize::try_from(rng.below(groups.len() as u64)).expect("small");
                let mut live = Live::new(&env, &topology, 0, Asked::everything());
                // One after the other: what is kept of the log for the later ones must not harm.
                for group in &groups[first..groups.len().min(first + 3)] {
                    let before = heads(&world, stage);
                    let seen = live.group(&stage.id, *group).await.unwrap_or_else(|e| panic!("SIM_SEEDS={seed}: {e}"));
                    let after = heads(&world, stage);
                    moved += u64::from(before.iter().any(|(task, head)| after[task].seq > head.seq));
                    assert_seen(&world, stage, *group, &seen, (&before, &after), &format!("SIM_SEEDS={seed}"));
                    (looks, keys) = (looks + 1, keys + seen.states.values().map(Keys::len).sum::<usize>());
                }
                tokio::time::sleep(Duration::from_millis(rng.below(30))).await;
            }
        };
        tokio::join!(driving, looking);
        assert_eq!(Outputs::of(&world).sets(), expected.sets(), "SIM_SEEDS={seed}: looking disturbs nothing");
    }
    assert!(payguard_tests::are_chosen() || looks > 1_000 && keys > 1_000 && moved > 300, "{looks} {keys} {moved}");
}

/// A pipeline that goes on between the operations of somebody else.
struct Beside {
    pipeline: Pipeline,
    feed: Feed,
    rng: Rng,
    permille: u64,
    steps: u64,
}

impl Beside {
    async fn step(&mut self) {
        if !self.rng.chance(self.permille) {
            return;
        }
        self.steps += 1;
        self.pipeline.redraw(&self.feed).await.expect("redrawn");
        if self.feed.has_more() {
            self.pipeline.deliver_all(&mut self.feed).await.expect("delivered");
        }
        self.pipeline.run_consumers().await.expect("run");
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_between_two_operations_of_a_look_one_commit_is_seen() {
    let mut seen_keys = 0;
    for seed in seeds(80) {
        let is_crowd = seed % 4 == 0;
        let mut setup = match is_crowd {
            // Pages that are split while they are listed.
            true => payguard_tests::splitting::setup().with(|s| s.records_per_commit = 20),
            false => setup(seed),
        };
        // Whatever is flushed is recorded, and what it replaces is gone, before the look goes on.
        setup.commits = 1 + u32::try_from(seed % 5).expect("small");
        let few = Shape { cards: 3, merchants: 2, ..Shape::TIDY };
        let feed = if is_crowd { crowd().in_batches(20) } else { Feed::drawn(seed, 120, few, 3) };
        let topology = setup.topology();
        let world = SimWorld::new(NOW_MS);
        let mut pipeline = Pipeline::new(&world, &setup, feed.partitions());
        pipeline.begin(&feed).await.expect("begun");
        let permille = [100, 300, 700][usize::try_from(seed % 3).expect("small")];
        let beside = Beside { pipeline, feed, rng: Rng::new(seed), permille, steps: 0 };
        let beside = Arc::new(Mutex::new(beside));
        let stepping = {
            let beside = beside.clone();
            Arc::new(move || -> Pin<Box<dyn Future<Output = ()> + Send>> {
                let beside = beside.clone();
                Box::pin(async move { beside.lock().await.step().await })
            })
        };
        let env = looker(&world.executor(1).with_between(stepping), &setup, seed);
        let mut rng = Rng::new(seed ^ 0xbe51);
        let stages = with_state(&topology);
        while beside.lock().await.feed.has_more() {
            let stage = match is_crowd {
                true => stages.iter().find(|s| *s.id.0 == *stage::RULES).expect("a stage"),
                false => &stages[usize::try_from(rng.below(stages.len() as u64)).expect("small")],
            };
            let groups = if is_crowd { vec![7] } else { groups(&world.lock(), stage) };
            let group = groups.get(usize::try_from(rng.below(groups.len().max(1) as u64)).expect("small")).copied();
            let group = group.unwrap_or(5);
            let before = heads(&world, stage);
            let mut live = Live::new(&env, &topology, 0, asked(At::Newest, None, group..group + 1));
            let seen = live.group(&stage.id, group).await.unwrap_or_else(|e| panic!("SIM_SEEDS={seed}: {e}"));
            assert_seen(&world, stage, group, &seen, (&before, &heads(&world, stage)), &format!("SIM_SEEDS={seed}"));
            seen_keys += seen.states.values().map(Keys::len).sum::<usize>();
        }
        assert!(beside.lock().await.steps > 3, "SIM_SEEDS={seed}");
    }
    assert!(payguard_tests::are_chosen() || seen_keys > 1_000, "{seen_keys}");
}

/// A run to its end, a second of the clock between its steps; collected now and then.
async fn run_with_time(seed: u64, setup: &Setup, is_collected: bool) -> SimWorld {
    let (world, mut feed) = (SimWorld::new(NOW_MS), feed(seed));
    let mut pipeline = Pipeline::new(&world, setup, feed.partitions());
    pipeline.begin(&feed).await.expect("begun");
    while feed.has_more() {
        world.advance_ms(1_000);
        pipeline.redraw(&feed).await.expect("redrawn");
        pipeline.deliver_all(&mut feed).await.expect("delivered");
        pipeline.run_consumers().await.expect("run");
        if is_collected && feed.acknowledged() % 3 == 0 {
            collect_once(&world, setup, everything(setup)).await.expect("collected");
        }
    }
    world
}

/// What came of looks into the past.
#[derive(Default, Debug)]
struct Past {
    seen: u64,
    keys: u64,
    gone: u64,
    before_restore: u64,
    /// The commits that tasks were restored with: there is nothing to see before.
    restored: BTreeMap<TaskId, u64>,
}

impl Past {
    /// Looks at every commit of every task of the stages with state, group by group.
    async fn look_at_all(&mut self, world: &SimWorld, setup: &Setup, replay_bytes: usize, context: &str) {
        let (topology, env) = (setup.topology(), world.executor(1).env(setup.settings.clone()));
        for stage in with_state(&topology) {
            let with_keys = groups(&world.lock(), &stage);
            for (task, head) in heads(world, &stage) {
                let (layout, shard) = place(&task, Layout::first(stage.shards)).expect("a task of the stage");
                let groups: Vec<u32> = with_keys.iter().copied().filter(|g| layout.groups(shard).contains(g)).collect();
                for seq in 1..=head.seq {
                    let asked = asked(At::Seq(seq), Some(&task), 0..KEY_GROUPS);
                    let mut live = Live::new(&env, &topology, 7, asked).replaying_within(replay_bytes);
                    for group in &groups {
                        let seen = live.group(&stage.id, *group).await;
                        let expected = recount(&world.lock(), &stage, &task, seq, *group);
                        self.check(seen, &task, seq, expected, &format!("{context} {task} {seq} group {group}"));
                    }
                }
            }
        }
    }

    #[track_caller]
    fn check(
        &mut self,
        seen: Result<GroupState, InspectError>,
        task: &TaskId,
        seq: u64,
        expected: States,
        context: &str,
    ) {
        match seen {
            Ok(seen) => {
                assert!(self.restored.get(task).is_none_or(|first| seq >= *first), "{context}: before the restore");
                let as_of = seen.as_of.expect("a commit");
                assert_eq!((as_of.task, as_of.seq), (task.to_string(), seq), "{context}");
                assert_eq!(seen.states, expected, "{context}");
                (self.seen, self.keys) =
                    (self.seen + 1, self.keys + expected.values().map(Keys::len).sum::<usize>() as u64);
            }
            Err(InspectError::Gone(_)) => self.gone += 1,
            Err(InspectError::BeforeRestore { .. }) => self.before_restore += 1,
            Err(error) => panic!("{context}: {error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_commit_of_a_log_that_is_whole_can_be_seen() {
    let mut past = Past::default();
    for seed in seeds(8) {
        let setup = setup(seed);
        let world = run_with_time(seed, &setup, false).await;
        // Replays of few groups at a time, too.
        let replay_bytes = if seed % 2 == 0 { usize::MAX } else { 600 };
        past.look_at_all(&world, &setup, replay_bytes, &format!("SIM_SEEDS={seed}")).await;
    }
    assert_eq!((past.gone, past.before_restore), (0, 0));
    assert!(payguard_tests::are_chosen() || past.seen > 3_000 && past.keys > 5_000, "{past:?}");
}

#[tokio::test(start_paused = true)]
async fn of_a_log_that_is_collected_a_commit_is_seen_rightly_or_refused_with_where_the_past_begins() {
    let (mut past, mut named) = (Past::default(), 0);
    for seed in seeds(8) {
        let setup = setup(seed);
        let world = run_with_time(seed, &setup, true).await;
        past.look_at_all(&world, &setup, usize::MAX, &format!("SIM_SEEDS={seed}")).await;
        named += begins_where_it_says(&world, &setup, seed).await;
    }
    assert!(payguard_tests::are_chosen() || past.seen > 500 && past.gone > 500 && named > 20, "{past:?} {named}");
    assert_eq!(past.before_restore, 0);
}

/// What a refusal names can be seen; returns how often one named something.
async fn begins_where_it_says(world: &SimWorld, setup: &Setup, seed: u64) -> u64 {
    let mut named = 0;
    let (topology, env) = (setup.topology(), world.env(setup.settings.clone()));
    for stage in with_state(&topology) {
        for (task, head) in heads(world, &stage) {
            let (layout, shard) = place(&task, Layout::first(stage.shards)).expect("a task of the stage");
            let groups: Vec<u32> = layout.groups(shard).collect();
            // A key alone, and all of them: then what is named must do for each.
            for wanted in [vec![groups[groups.len() / 2]], groups] {
                let range = wanted[0]..wanted[wanted.len() - 1] + 1;
                let mut live = Live::new(&env, &topology, 7, asked(At::Seq(1), Some(&task), range.clone()));
                for group in &wanted {
                    let since = match live.group(&stage.id, *group).await {
                        Err(InspectError::Gone(gone)) => gone.since,
                        Err(InspectError::BeforeRestore { since, .. }) => since,
                        _ => continue,
                    };
                    let Some(since) = since else {
                        assert!(head.sealed.is_some(), "SIM_SEEDS={seed}: {task} is the newest that owns {group}");
                        continue;
                    };
                    named += 1;
                    let at = At::Seq(since.seq);
                    let mut live = Live::new(&env, &topology, 7, asked(at, Some(&task), range.clone()));
                    for group in &wanted {
                        let seen = live.group(&stage.id, *group).await;
                        // Of a task that was taken over later groups may have been changed by others.
                        let refused = match &seen {
                            Err(InspectError::Gone(gone)) => gone.since.is_none(),
                            Err(InspectError::BeforeRestore { since, .. }) => since.is_none(),
                            _ => false,
                        };
                        assert!(seen.is_ok() || refused, "SIM_SEEDS={seed} {task} {group}: {:?}", seen.err());
                    }
                }
            }
        }
    }
    named
}

#[tokio::test(start_paused = true)]
async fn ids_whose_pages_have_expired_since_are_not_missing_in_the_past() {
    let (mut past, setup) = (0, setup(1).with(|s| s.flush_every_ms = 0));
    let (world, mut feed) = (SimWorld::new(NOW_MS), feed(1));
    let mut pipeline = Pipeline::new(&world, &setup, feed.partitions());
    pipeline.begin(&feed).await.expect("begun");
    while feed.has_more() {
        // Ids expire after an hour, and their pages are collected a day after that.
        world.advance_ms(36 * 3_600_000);
        pipeline.deliver_all(&mut feed).await.expect("delivered");
        pipeline.run_consumers().await.expect("run");
    }
    world.advance_ms(36 * 3_600_000);
    let limits = Limits { retention_ms: i64::MAX, ..everything(&setup) };
    collect_once(&world, &setup, limits).await.expect("collected");
    assert!(world.lock().collected.pages > 10, "{:?}", world.lock().collected);
    let (topology, env) = (setup.topology(), world.env(setup.settings.clone()));
    let stage = topology.stage(&StageId::new(stage::DEDUP)).expect("a stage").clone();
    let with_keys = groups(&world.lock(), &stage);
    for (task, head) in heads(&world, &stage) {
        let (layout, shard) = place(&task, Layout::first(stage.shards)).expect("a task of the stage");
        for seq in 1..head.flushed_seq {
            let mut live = Live::new(&env, &topology, 0, asked(At::Seq(seq), Some(&task), 0..KEY_GROUPS));
            for group in with_keys.iter().filter(|group| layout.groups(shard).contains(group)) {
                let seen = live.group(&stage.id, *group).await.expect("the log is whole");
                assert_eq!(seen.states, recount(&world.lock(), &stage, &task, seq, *group), "{task} {seq} {group}");
                past += seen.states.len();
            }
        }
    }
    assert!(past > 50, "{past}");
}

#[tokio::test(start_paused = true)]
async fn a_time_means_the_newest_commit_of_each_task_by_then() {
    let (mut seen, mut owners) = (0, BTreeSet::new());
    for seed in seeds(8) {
        let setup = setup(seed);
        let world = run_with_time(seed, &setup, false).await;
        let (topology, env) = (setup.topology(), world.env(setup.settings.clone()));
        let length = (world.lock().logs.values().flat_map(|log| log.history.values()).map(|row| row.now_ms).max())
            .expect("a row")
            - NOW_MS;
        for ms in (-1_000..length + 2_000).step_by(1_500) {
            for stage in with_state(&topology) {
                let with_keys = groups(&world.lock(), &stage);
                let mut live = Live::new(&env, &topology, 0, asked(At::Time(NOW_MS + ms), None, 0..KEY_GROUPS));
                for group in with_keys {
                    let found = live.group(&stage.id, group).await.expect("nothing is collected");
                    let expected = newest_by(&world.lock(), &stage, group, NOW_MS + ms);
                    let as_of = found.as_of.map(|as_of| (as_of.task, as_of.seq));
                    assert_eq!(
                        as_of,
                        expected.as_ref().map(|(task, seq)| (task.to_string(), *seq)),
                        "SIM_SEEDS={seed} {ms}"
                    );
                    if let Some((task, seq)) = expected {
                        assert_eq!(found.states, recount(&world.lock(), &stage, &task, seq, group), "SIM_SEEDS={seed}");
                        owners.insert(task.to_string());
                    }
                    seen += 1;
                }
            }
        }
    }
    assert!(payguard_tests::are_chosen() || seen > 1_000, "{seen}");
    assert!(
        payguard_tests::are_chosen() || owners.contains("rules/g2.0of3") && owners.contains("rules/0"),
        "{owners:?}"
    );
}

/// The newest layout whose task had committed by then, and its newest commit.
fn newest_by(world: &World, stage: &Stage, group: u32, ms: i64) -> Option<(TaskId, u64)> {
    let first = Layout::first(stage.shards);
    let of_group = world.logs.iter().filter_map(|(task, log)| {
        let (layout, shard) = place(task, first).filter(|_| task.stage == stage.id)?;
        let seq = log.history.values().filter(|row| row.now_ms <= ms).map(|row| row.seq).max()?;
        layout.groups(shard).contains(&group).then(|| (layout.generation, task.clone(), seq))
    });
    of_group.max().map(|(_, task, seq)| (task, seq))
}

#[tokio::test(start_paused = true)]
async fn a_restored_pipeline_shows_what_it_has_done_itself_or_names_the_savepoint() {
    let (mut past, mut named) = (Past::default(), 0);
    for seed in seeds(8) {
        let setup = setup(seed);
        let (world, mut feed) = (SimWorld::new(NOW_MS), feed(seed));
        let mut pipeline = Pipeline::new(&world, &setup, feed.partitions());
        pipeline.begin(&feed).await.expect("begun");
        for _ in 0..4 {
            pipeline.redraw(&feed).await.expect("redrawn");
            pipeline.deliver_all(&mut feed).await.expect("delivered");
            pipeline.run_consumers().await.expect("run");
        }
        let restored = restored(&world, &setup).await;
        past.restored =
            restored.lock().logs.iter().filter_map(|(t, l)| Some((t.clone(), l.head.as_ref()?.seq))).collect();
        // No more redrawing: the restored pipeline has the shards that the other one had.
        let setup = Setup { redraws: Vec::new(), ..setup };
        let mut pipeline = Pipeline::new(&restored, &setup, feed.partitions());
        while feed.has_more() {
            pipeline.deliver_all(&mut feed).await.expect("delivered");
            pipeline.run_consumers().await.expect("run");
        }
        past.look_at_all(&restored, &setup, usize::MAX, &format!("SIM_SEEDS={seed}")).await;
        named += begins_where_it_says(&restored, &setup, seed).await;
    }
    assert!(payguard_tests::are_chosen() || past.seen > 200 && past.keys > 500, "{past:?}");
    assert!(payguard_tests::are_chosen() || past.before_restore > 200 && named > 20, "{past:?} {named}");
}

/// Another world with what a savepoint of this one holds.
async fn restored(world: &SimWorld, setup: &Setup) -> SimWorld {
    let (env, name) = (world.env(setup.settings.clone()), "half");
    let progress = |_: &payguard_savepoint::Progress| ();
    let request = Create { env: &env, files: world, config: &setup.config, name, sinks: None, progress: &progress };
    create(&request).await.expect("a savepoint");
    let fresh = SimWorld::new(NOW_MS);
    fresh.lock().files = world.lock().files.clone();
    let env = fresh.env(setup.settings.clone());
    let request = Restore { env: &env, files: &fresh, config: &setup.config, name, allow_dropped: false };
    restore(&request).await.expect("it is restored");
    fresh
}
