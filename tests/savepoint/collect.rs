//! Garbage collection beside savepoints: what it removes while one is taken, what it must leave while one is restored,
//! and that nothing is left of what a restored pipeline has passed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use payguard_engine::task::Budget;
use payguard_model::ProcessingTime;
use payguard_sim::world::TaskLog;
use payguard_sim::{Fault, FaultPlan, SimWorld};
use payguard_tests::collector::{collect_all, collect_once, collecting, everything};
use payguard_tests::{Feed, Outputs, Pipeline, Setup, assert_same, seeds, undisturbed};
use payguard_topology::stage;

use crate::cut::{cut_beside, setup as drawn_setup};
use crate::support::{
    NAME, assert_same_sets, begun, bring_back, busy, check_whole, copy, finish, joined, outputs_before, restored,
    stopped, take, take_anew, with_files_of,
};

/// Small commits, a flush after each.
fn setup(shards: u32) -> Setup {
    Setup::full().with_shards(shards).with(|s| {
        s.records_per_commit = 12;
        s.flush_every_ms = 0;
        s.store_backoff_ms = 1;
    })
}

/// The world for a process before whose operation `k` the pipeline goes on by some rounds and all is collected.
fn going_on_at(world: &SimWorld, setup: &Setup, feed: &Feed, k: u64, rounds: u64) -> SimWorld {
    let operation = Arc::new(AtomicU64::new(0));
    let (world, setup, feed) = (world.clone(), setup.clone(), feed.clone());
    world.clone().with_between(Arc::new(move || {
        let is_now = operation.fetch_add(1, Ordering::Relaxed) == k;
        let (world, setup, mut feed) = (world.executor(2), setup.clone(), feed.clone());
        Box::pin(async move {
            if is_now {
                let mut pipeline = Pipeline::new(&world, &setup, 1);
                for _ in 0..rounds {
                    pipeline.run_consumers().await.expect("run");
                    pipeline.deliver_all(&mut feed).await.expect("delivered");
                }
                collect_all(&world, &setup, &format!("operation {k}")).await;
            }
        })
    }))
}

/// At every operation of taking a savepoint the pipeline goes on and what it has passed is removed. What the savepoint
/// misses then is captured anew, and it is as good as any other.
#[tokio::test(start_paused = true)]
async fn what_is_collected_while_a_savepoint_is_taken_is_captured_anew() {
    let (mut calm, mut anew) = (0, 0);
    for shards in [1, 2] {
        let (setup, feed) = (setup(shards), busy(1, 60, 9));
        let (_, expected) = undisturbed(&setup, &feed).await;
        let (original, rest) = stopped(&setup, &feed).await;
        let counted = copy(&original);
        take(&counted, &setup, NAME).await.expect("nothing goes wrong");
        for k in 0..counted.ops() {
            let context = format!("{shards} shards, operation {k}");
            let world = copy(&original);
            let saver = going_on_at(&world, &setup, &rest, k, 1 + k % 3).executor(1);
            let taken = take_anew(&saver, &setup, NAME).await;
            let (manifest, begun_anew) = taken.unwrap_or_else(|e| panic!("{context}: {e}"));
            calm += u32::from(begun_anew == 0);
            anew += begun_anew;
            check_whole(&world, &setup, NAME).await.unwrap_or_else(|e| panic!("{context}: {e}"));
            let files = world.lock().files.len();
            assert_eq!(files, manifest.files().count() + 1, "{context}: nothing is left of what was begun anew");
            if begun_anew > 0 && k % 4 == 0 {
                let before = outputs_before(&world, &manifest);
                let after = finish(&restored(&world, &setup).await, &setup, &feed).await;
                assert_same_sets(&joined(before, after), &expected, &context);
            }
        }
    }
    assert!(calm > 20 && anew > 200, "{calm} were not disturbed, {anew} times something was begun anew");
}

/// All the time, at any moment of a run, with flushes never, always, or now and then.
#[tokio::test(start_paused = true)]
async fn a_cut_beside_a_collector_loses_nothing_and_repeats_nothing() {
    for seed in seeds(40) {
        let (feed, shards) = (busy(seed, 60, 7), 1 + u32::try_from(seed % 2).expect("small"));
        let setup = drawn_setup(seed, shards);
        let (_, expected) = undisturbed(&setup, &feed).await;
        let saver = |world: &SimWorld| collecting(&world.executor(1), &setup, seed, 300);
        let (world, manifest) = cut_beside(seed, &setup, &feed, saver).await;
        let context = format!("SIM_SEEDS={seed}");
        assert_same_sets(&Outputs::of(&world), &expected, &context);
        check_whole(&world, &setup, NAME).await.unwrap_or_else(|e| panic!("{context}: {e}"));
        let before = outputs_before(&world, &manifest);
        let after = finish(&restored(&world, &setup).await, &setup, &feed).await;
        assert_same_sets(&joined(before, after), &expected, &context);
        collect_all(&world, &setup, &context).await;
    }
}

/// A pipeline that has no head yet, or only rows, has nothing that may go.
#[tokio::test(start_paused = true)]
async fn a_collector_takes_nothing_of_what_is_being_restored() {
    let (setup, feed) = (setup(2), busy(2, 60, 9));
    let (_, expected) = undisturbed(&setup, &feed).await;
    let (original, _) = stopped(&setup, &feed).await;
    let manifest = take(&original, &setup, NAME).await.expect("saved");
    let before = outputs_before(&original, &manifest);
    let calm = with_files_of(&original);
    bring_back(&calm, &setup, NAME).await.expect("nothing goes wrong");
    let beside = with_files_of(&original);
    bring_back(&collecting(&beside, &setup, 0, 100), &setup, NAME).await.expect("a collector does not disturb it");
    let durable = |world: &SimWorld| {
        let world = world.lock();
        (world.logs.clone(), world.pages.clone(), world.objects.clone())
    };
    assert_eq!(durable(&beside), durable(&calm));
    for k in 0..calm.ops() {
        let world = with_files_of(&original);
        world.plan(FaultPlan::at(k, Fault::CrashAfter));
        let died = world.guard(bring_back(&world, &setup, NAME)).await;
        assert!(died.is_err(), "operation {k}");
        world.plan(FaultPlan::default());
        collect_once(&world, &setup, everything(&setup)).await.expect("no crash");
        bring_back(&world.executor(1), &setup, NAME).await.unwrap_or_else(|e| panic!("operation {k}: {e}"));
        assert_eq!(durable(&world), durable(&calm), "operation {k}");
        let collected = world.lock().collected;
        assert_eq!(collected.rows + collected.objects, 0, "operation {k}");
    }
    let after = finish(&collecting(&calm, &setup, 0, 1000), &setup, &feed).await;
    assert_same_sets(&joined(before, after), &expected, "restored");
}

/// A restore that died after everything but saying so is repeated when the pipeline has run and was collected: nothing
/// of what has gone comes back.
#[tokio::test(start_paused = true)]
async fn a_restore_that_is_repeated_brings_nothing_back() {
    let (setup, feed) = (setup(2), busy(3, 60, 9));
    let (original, _) = stopped(&setup, &feed).await;
    take(&original, &setup, NAME).await.expect("saved");
    let calm = with_files_of(&original);
    bring_back(&calm, &setup, NAME).await.expect("nothing goes wrong");
    let world = with_files_of(&original);
    world.plan(FaultPlan::at(calm.ops() - 1, Fault::CrashBefore));
    assert!(world.guard(bring_back(&world, &setup, NAME)).await.is_err(), "it died");
    world.plan(FaultPlan::default());
    let running = world.executor(1);
    // Who had started before it died does not see that it is not said to be done.
    Pipeline::new(&running, &setup, 1).drive(&mut feed.clone()).await.expect("it comes to its end");
    collect_all(&world, &setup, "after its run").await;
    let durable = |world: &SimWorld| {
        let world = world.lock();
        let logs = world.logs.iter().filter(|(task, _)| &*task.stage.0 != "restore");
        (logs.map(|(task, log)| (task.clone(), log.clone())).collect::<Vec<_>>(), world.objects.clone())
    };
    let before = durable(&world);
    let repeated = bring_back(&world.executor(2), &setup, NAME).await.expect("repeated");
    assert!(!repeated.was_done, "it was not known to be done");
    assert_eq!(durable(&world), before);
    collect_all(&world, &setup, "at the end").await;
}

/// What a restored pipeline has passed goes like that of any other, logs that were left behind included.
#[tokio::test(start_paused = true)]
async fn logs_that_were_left_behind_are_collected_when_all_have_read_them() {
    let mut left_behind = 0;
    for seed in seeds(12) {
        let feed = busy(seed, 60, 9);
        let (_, expected) = undisturbed(&setup(1), &feed).await;
        let (from, to) = [(1, 2), (2, 4), (4, 2), (2, 3)][usize::try_from(seed % 4).expect("small")];
        let (original, _) = stopped(&setup(from), &feed).await;
        // Some stages have read what came last, their readers have not.
        let mut ahead = Pipeline::new(&original, &setup(from), 1);
        for task in ahead.consumers.iter_mut().filter(|task| &*task.id().stage.0 == stage::DEDUP) {
            task.run(Budget { until: ProcessingTime(i64::MAX), commits: u32::MAX }).await.expect("run");
        }
        let manifest = take(&original, &setup(from), NAME).await.expect("saved");
        let (setup, context) = (setup(to), format!("SIM_SEEDS={seed} {from} to {to} shards"));
        let world = restored(&original, &setup).await;
        let setup = begun(&world, &setup).await;
        let after = finish(&collecting(&world, &setup, seed, 1000), &setup, &feed).await;
        assert_same_sets(&joined(outputs_before(&original, &manifest), after), &expected, &context);
        collect_all(&world, &setup, &context).await;
        let world = world.lock();
        let is_sealed = |log: &TaskLog| log.head.as_ref().is_some_and(|head| head.sealed.is_some());
        for (task, log) in world.logs.iter().filter(|(_, log)| is_sealed(log)) {
            left_behind += log.history.len();
            assert_eq!(log.rows.len(), 1, "{context}: the newest row of {task}");
        }
    }
    assert!(left_behind > 40, "{left_behind} rows were left behind");
}

/// A savepoint of a pipeline whose logs do not begin at row 1 any more is like any other.
#[tokio::test(start_paused = true)]
async fn what_was_collected_is_not_missed_by_a_savepoint() {
    let (setup, feed) = (setup(2), busy(5, 60, 9));
    let (_, expected) = undisturbed(&setup, &feed).await;
    let (original, _) = stopped(&setup, &feed).await;
    collect_all(&original, &setup, "before it is saved").await;
    assert!(original.lock().collected.rows > 20, "{:?}", original.lock().collected);
    let (manifest, anew) = take_anew(&original, &setup, NAME).await.expect("saved");
    assert_eq!(anew, 0);
    let before = outputs_before(&original, &manifest);
    let after = finish(&restored(&original, &setup).await, &setup, &feed).await;
    assert_same(&Ok(joined(before, after)), &expected, "of a collected pipeline");
}
