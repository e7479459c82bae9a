//! Taking and restoring savepoints on simulated worlds.

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use payguard_engine::store::{Sink, SinkPosition};
use payguard_engine::{StageId, StoreError, TaskId};
use payguard_savepoint::{Create, Manifest, Restore, Restored, SavepointError, SinkPositions, Verified, create};
use payguard_savepoint::{restore, verify};
use payguard_sim::SimWorld;
use payguard_sim::reference::Published;
use payguard_tests::data::NOW_MS;
use payguard_tests::{Feed, Outputs, Pipeline, Setup, Shape, reads};
use payguard_topology::begun::{BegunError, as_begun};
use payguard_topology::stage;

pub(crate) const NAME: &str = "before-the-change";

/// The sinks of a world, as somebody else sees them.
struct Sinks(SimWorld);

#[async_trait]
impl SinkPositions for Sinks {
    async fn position(&self, task: &TaskId) -> Result<SinkPosition, StoreError> {
        Sink::position(&self.0, task).await
    }
}

/// Takes a savepoint with the operations of `executor`.
pub(crate) async fn take(executor: &SimWorld, setup: &Setup, name: &str) -> Result<Manifest, SavepointError> {
    take_anew(executor, setup, name).await.map(|(manifest, _)| manifest)
}

/// The same, and how often something was begun anew because what it was to read had been collected.
pub(crate) async fn take_anew(
    executor: &SimWorld,
    setup: &Setup,
    name: &str,
) -> Result<(Manifest, u32), SavepointError> {
    let told = Mutex::new(payguard_savepoint::Progress::default());
    let progress = |progress: &payguard_savepoint::Progress| {
        let mut told = told.lock().expect("nobody panics with it");
        // What is told goes back only when something is begun anew.
        assert!(progress.anew > told.anew || told.groups.0 <= progress.groups.0);
        assert!(progress.groups.0 <= progress.groups.1 && progress.anew >= told.anew);
        told.clone_from(progress);
    };
    let (env, sinks) = (executor.env(setup.settings.clone()), Sinks(executor.clone()));
    let begun = match as_begun(&env, setup.config.clone()).await {
        Ok(config) => config,
        Err(BegunError::Store(error)) => return Err(error.into()),
        Err(error) => panic!("{error}"),
    };
    let config = &begun;
    let request = Create { env: &env, files: executor, config, name, sinks: Some(&sinks), progress: &progress };
    let manifest = create(&request).await?;
    let anew = told.lock().expect("nobody panics with it").anew;
    Ok((manifest, anew))
}

pub(crate) async fn check_whole(world: &SimWorld, setup: &Setup, name: &str) -> Result<Verified, SavepointError> {
    let topology = setup.topology();
    let load = |stage: &StageId| payguard_local::runner::fresh_operators(&setup.config, &topology, stage);
    verify(world, &setup.settings, name, &load).await
}

/// Restores into the stores of `executor`, which have the files.
pub(crate) async fn bring_back(executor: &SimWorld, setup: &Setup, name: &str) -> Result<Restored, SavepointError> {
    let env = executor.env(setup.settings.clone());
    restore(&Restore { env: &env, files: executor, config: &setup.config, name, allow_dropped: false }).await
}

/// A world that has nothing but the files of another.
pub(crate) fn with_files_of(world: &SimWorld) -> SimWorld {
    let fresh = SimWorld::new(NOW_MS);
    fresh.lock().files = world.lock().files.clone();
    fresh
}

/// Restores into a fresh world, with the shards of `setup`.
pub(crate) async fn restored(from: &SimWorld, setup: &Setup) -> SimWorld {
    let world = with_files_of(from);
    let restored = bring_back(&world, setup, NAME).await.expect("it is restored");
    assert!(!restored.was_done && restored.dropped.is_empty());
    give_shards(&world, &restored, setup).await;
    world
}

/// Gives the stages of a restored pipeline the shards of `setup`.
pub(crate) async fn give_shards(world: &SimWorld, restored: &Restored, setup: &Setup) {
    let begun = Setup { config: restored.config.clone(), ..setup.clone() };
    Pipeline::new(world, &begun, 1).give_all(setup).await.expect("other shards");
}

/// The setup with the shards that the pipeline of a world began with.
pub(crate) async fn begun(world: &SimWorld, setup: &Setup) -> Setup {
    let config = as_begun(&world.env(setup.settings.clone()), setup.config.clone()).await.expect("the heads are read");
    Setup { config, ..setup.clone() }
}

/// What the sinks had written as of the cut.
pub(crate) fn outputs_before(world: &SimWorld, manifest: &Manifest) -> Outputs {
    let world = world.lock();
    let of = |stage: &str| {
        let task = TaskId::shard(&StageId::new(stage), 0);
        let seq = manifest.tasks.iter().find(|saved| saved.task == task.to_string()).map_or(0, |saved| saved.seq);
        let Some(sink) = world.sinks.get(&task) else { return Vec::new() };
        let end = sink.ends.range(..=seq).next_back().map_or(0, |(_, end)| *end);
        sink.records[..end].to_vec()
    };
    Outputs { publish: of(stage::PUBLISH), totals: of(stage::TOTALS) }
}

/// Both outputs, one after the other.
pub(crate) fn joined(before: Outputs, after: Outputs) -> Outputs {
    let mut joined = before;
    joined.publish.extend(after.publish);
    joined.totals.extend(after.totals);
    joined
}

/// Runs a restored pipeline to its end and checks every invariant. The whole feed is delivered again: what was read
/// before is skipped.
pub(crate) async fn finish(world: &SimWorld, setup: &Setup, feed: &Feed) -> Outputs {
    let (mut feed, setup) = (feed.clone(), begun(world, setup).await);
    let mut pipeline = Pipeline::new(world, &setup, feed.partitions());
    pipeline.drive(&mut feed).await.expect("it comes to its end");
    world.check(&reads(&setup.topology())).expect("invariants hold");
    Outputs::of(world)
}

/// A pipeline that was stopped in the midst of it, some tasks have not had their turn, and what it has not read.
pub(crate) async fn stopped(setup: &Setup, feed: &Feed) -> (SimWorld, Feed) {
    let world = SimWorld::new(NOW_MS);
    let (mut feed, mut pipeline) = (feed.clone(), Pipeline::new(&world, setup, 1));
    pipeline.begin(&feed).await.expect("it begins");
    for _ in 0..3 {
        pipeline.deliver_all(&mut feed).await.expect("delivered");
        pipeline.run_consumers().await.expect("run");
    }
    pipeline.deliver_all(&mut feed).await.expect("delivered");
    (world, feed)
}

/// The same durable content in another world.
pub(crate) fn copy(world: &SimWorld) -> SimWorld {
    let (copy, original) = (SimWorld::new(NOW_MS), world.lock());
    let mut world = copy.lock();
    (world.logs, world.registry, world.pages) =
        (original.logs.clone(), original.registry.clone(), original.pages.clone());
    (world.objects, world.stored) = (original.objects.clone(), original.stored.clone());
    (world.sinks, world.files) = (original.sinks.clone(), original.files.clone());
    world.restored = original.restored.clone();
    drop(world);
    copy
}

/// One partition of payments of few cards, none late, with confirmations and rules.
pub(crate) fn busy(seed: u64, count: usize, batch: usize) -> Feed {
    Feed::drawn(seed, count, Shape { late_permille: 0, cards: 9, ..Shape::TIDY }, batch)
}

/// By topic, sorted; what the order within a topic is depends on the shards.
#[track_caller]
pub(crate) fn assert_same_sets(found: &Outputs, expected: &Outputs, context: &str) {
    let (found, expected): (Published, Published) = (found.sets(), expected.sets());
    let count = |p: &Published| p.iter().map(|(topic, r)| (*topic, r.len())).collect::<BTreeMap<_, _>>();
    assert_eq!(count(&found), count(&expected), "{context}");
    for (topic, records) in &expected {
        let differs = records.iter().zip(&found[topic]).find(|(a, b)| a != b);
        let text = |r: &payguard_engine::store::SinkRecord| String::from_utf8_lossy(&r.value).into_owned();
        assert!(differs.is_none(), "{context} {topic}: {:?}", differs.map(|(a, b)| (text(a), text(b))));
    }
}
