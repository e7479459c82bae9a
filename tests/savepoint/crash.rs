//! A crash or a failure at every operation of taking and of restoring: there is a whole savepoint or none, a pipeline
//! or none, and the next try succeeds.

use payguard_engine::{StageId, TaskId};
use payguard_savepoint::{delete, list, show};
use payguard_sim::{Fault, FaultPlan, SimWorld};
use payguard_tests::collector::{collect_once, everything};
use payguard_tests::{Feed, Outputs, Pipeline, Setup, reads, undisturbed};
use payguard_topology::begun::RESTORE;

use crate::support::{
    NAME, assert_same_sets, bring_back, busy, check_whole, copy, finish, give_shards, joined, outputs_before, stopped,
    take, with_files_of,
};

const FAULTS: [Fault; 5] =
    [Fault::CrashBefore, Fault::CrashAfter, Fault::FailBefore, Fault::FailAfter, Fault::UnknownLater(1)];

fn setup(shards: u32) -> Setup {
    Setup::full().with_shards(shards).with(|s| {
        s.records_per_commit = 12;
        s.flush_bytes = 1_500;
        s.flush_every_ms = 0;
        s.store_backoff_ms = 1;
    })
}

#[tokio::test(start_paused = true)]
async fn a_create_that_dies_leaves_nothing_that_can_be_seen() {
    let (setup, feed) = (setup(2), busy(1, 40, 9));
    let (_, expected) = undisturbed(&setup, &feed).await;
    let (clean, _) = stopped(&setup, &feed).await;
    // Once more where a try has died and left files.
    let littered = copy(&clean);
    littered.plan(FaultPlan::at(60, Fault::CrashBefore));
    assert!(littered.guard(take(&littered, &setup, NAME)).await.is_err() && !littered.lock().files.is_empty());
    let (mut unseen, mut seen) = (0, 0);
    for original in [&clean, &littered] {
        let (unseen_here, seen_here) = create_with_faults(&setup, original, &feed, &expected).await;
        (unseen, seen) = (unseen + unseen_here, seen + seen_here);
    }
    assert!(unseen > 400 && seen == 2, "{unseen} tries left nothing, {seen} died after the manifest");
}

/// Takes a savepoint with every fault at every operation; tells how many tries died and left none, and how many left one.
async fn create_with_faults(setup: &Setup, original: &SimWorld, feed: &Feed, expected: &Outputs) -> (u32, u32) {
    let calm = copy(original);
    take(&calm, setup, NAME).await.expect("nothing goes wrong");
    let (mut unseen, mut seen) = (0, 0);
    for k in 0..calm.ops() {
        for fault in FAULTS {
            let world = copy(original);
            world.plan(FaultPlan::at(k, fault));
            let taken = world.guard(take(&world, setup, NAME)).await;
            world.plan(FaultPlan::default());
            let context = format!("operation {k} {fault:?}");
            let settings = &setup.settings;
            let is_there = show(&world, settings, NAME).await.is_ok();
            match taken {
                Ok(taken) => assert!(taken.is_ok() && is_there, "{context}: {taken:?}"),
                Err(_) if is_there => seen += 1,
                Err(_) => {
                    unseen += 1;
                    assert!(list(&world, settings).await.expect("listed").is_empty(), "{context}");
                    take(&world, setup, NAME).await.unwrap_or_else(|e| panic!("{context}: {e}"));
                    let manifest = show(&world, settings, NAME).await.expect("there");
                    let files = world.lock().files.len();
                    assert_eq!(files, manifest.files().count() + 1, "{context}: what the first left is gone");
                }
            }
            check_whole(&world, setup, NAME).await.unwrap_or_else(|e| panic!("{context}: {e}"));
            if k % 7 == 0 {
                let manifest = show(&world, settings, NAME).await.expect("there");
                let again = with_files_of(&world);
                bring_back(&again, setup, NAME).await.unwrap_or_else(|e| panic!("{context}: {e}"));
                let after = finish(&again, setup, feed).await;
                assert_same_sets(&joined(outputs_before(&world, &manifest), after), expected, &context);
            }
        }
    }
    (unseen, seen)
}

/// Somebody deletes a savepoint and dies or sleeps: it is there and whole, or it is not there.
#[tokio::test(start_paused = true)]
async fn a_delete_that_dies_or_sleeps_leaves_a_savepoint_or_none() {
    let (setup, feed) = (setup(1), busy(5, 40, 9));
    let (original, _) = stopped(&setup, &feed).await;
    take(&original, &setup, NAME).await.expect("saved");
    let calm = copy(&original);
    delete(&calm, &setup.settings, NAME).await.expect("deleted");
    for k in 0..calm.ops() {
        for fault in FAULTS.into_iter().chain([Fault::Pause]) {
            let (world, context) = (copy(&original), format!("operation {k} {fault:?}"));
            world.plan(FaultPlan::at(k, fault));
            if fault == Fault::Pause {
                let mut deleting = Box::pin(delete(&world, &setup.settings, NAME));
                assert!(world.until_paused(&mut deleting).await.is_none(), "{context}");
                world.resume();
                deleting.await.unwrap_or_else(|e| panic!("{context}: {e}"));
            } else if world.guard(delete(&world, &setup.settings, NAME)).await.is_err() {
                world.plan(FaultPlan::default());
                if show(&world, &setup.settings, NAME).await.is_ok() {
                    check_whole(&world, &setup, NAME).await.unwrap_or_else(|e| panic!("{context}: {e}"));
                    delete(&world, &setup.settings, NAME).await.unwrap_or_else(|e| panic!("{context}: {e}"));
                }
            }
            world.plan(FaultPlan::default());
            assert!(list(&world, &setup.settings).await.expect("listed").is_empty(), "{context}");
            take(&world, &setup, NAME).await.unwrap_or_else(|e| panic!("{context}: the name is free: {e}"));
        }
    }
}

/// A restore sleeps at any operation while another one does the whole and the pipeline runs and is collected. When it
/// wakes it changes nothing that anybody reads.
#[tokio::test(start_paused = true)]
async fn a_restore_that_sleeps_disturbs_nobody() {
    let (setup, feed) = (setup(1), busy(6, 30, 9));
    let (_, expected) = undisturbed(&setup, &feed).await;
    let (original, _) = stopped(&setup, &feed).await;
    let manifest = take(&original, &setup, NAME).await.expect("saved");
    let before = outputs_before(&original, &manifest);
    let calm = with_files_of(&original);
    bring_back(&calm, &setup, NAME).await.expect("nothing goes wrong");
    for k in 0..calm.ops() {
        let (world, context) = (with_files_of(&original), format!("operation {k}"));
        world.plan(FaultPlan::of(1, k, Fault::Pause));
        let sleeper = world.executor(1);
        let mut sleeping = Box::pin(bring_back(&sleeper, &setup, NAME));
        assert!(world.until_paused(&mut sleeping).await.is_none(), "{context}");
        let awake = world.executor(2);
        bring_back(&awake, &setup, NAME).await.unwrap_or_else(|e| panic!("{context}: {e}"));
        let mut pipeline = Pipeline::new(&awake, &setup, 1);
        let mut rest = feed.clone();
        pipeline.begin(&rest).await.expect("it begins");
        for _ in 0..2 {
            pipeline.deliver_all(&mut rest).await.expect("delivered");
            pipeline.run_consumers().await.expect("run");
        }
        collect_once(&world, &setup, everything(&setup)).await.expect("no crash");
        world.resume();
        // It is told that all is done, or that somebody else has the name.
        let _ = sleeping.await;
        world.check(&reads(&setup.topology())).unwrap_or_else(|e| panic!("{context}: {e}"));
        let after = finish(&world.executor(3), &setup, &feed).await;
        assert_same_sets(&joined(before.clone(), after), &expected, &context);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restore_that_dies_is_repeated() {
    let (mut saved, mut setup, feed) = (setup(2), setup(3), busy(2, 40, 9));
    let more = setup.clone();
    for less in [&mut saved, &mut setup] {
        less.config.operators = payguard_topology::operator::ALL
            .iter()
            .filter(|o| **o != "rule-amount-spike")
            .map(|o| (*o).to_owned())
            .collect();
    }
    let (_, expected) = undisturbed(&setup, &feed).await;
    let (original, _) = stopped(&saved, &feed).await;
    let manifest = take(&original, &saved, NAME).await.expect("saved");
    assert!(manifest.records_in_flight() > 0);
    let before = outputs_before(&original, &manifest);
    let calm = with_files_of(&original);
    bring_back(&calm, &setup, NAME).await.expect("nothing goes wrong");
    let heads = |world: &SimWorld| {
        let world = world.lock();
        world.logs.iter().filter(|(task, log)| &*task.stage.0 != "restore" && log.head.is_some()).count()
    };
    let (mut died, mut refused) = (0, 0);
    for k in 0..calm.ops() {
        for fault in FAULTS.into_iter().chain([Fault::UnknownBefore, Fault::UnknownAfter, Fault::UnknownLater(1)]) {
            let world = with_files_of(&original);
            world.plan(FaultPlan::at(k, fault));
            let context = format!("operation {k} {fault:?}");
            let done = world.guard(bring_back(&world, &setup, NAME)).await;
            world.plan(FaultPlan::default());
            if done.is_err() {
                died += 1;
                let found = heads(&world);
                assert!(found == 0 || found == heads(&calm), "{context}: all heads or none, found {found}");
                // Nobody else takes the name meanwhile, nor the same savepoint with other operators.
                let restore = TaskId::shard(&StageId::new(RESTORE), 0);
                let log = world.lock().logs.get(&restore).cloned().unwrap_or_default();
                if log.head.is_some_and(|head| head.seq == 1) {
                    let other = bring_back(&world, &more, NAME).await.expect_err("refused");
                    assert!(other.to_string().contains("another restore"), "{context}: {other}");
                    refused += 1;
                }
            }
            let restored = bring_back(&world, &setup, NAME).await.unwrap_or_else(|e| panic!("{context}: {e}"));
            let (mine, theirs) = (world.lock().lasting(), calm.lock().lasting());
            assert_eq!(mine, theirs, "{context}: as if nothing had happened");
            assert_eq!(world.lock().pages, calm.lock().pages, "{context}");
            if k % 9 == 0 {
                give_shards(&world, &restored, &setup).await;
                let after = finish(&world, &setup, &feed).await;
                assert_same_sets(&joined(before.clone(), after), &expected, &context);
            }
        }
    }
    assert!(died > 200 && refused > 150, "{died} died, {refused} others were refused");
}

/// A restored sink begins by a batch without records; a crash there is like any other.
#[tokio::test(start_paused = true)]
async fn the_first_run_of_a_restored_pipeline_may_die_anywhere() {
    let (setup, feed) = (setup(2), busy(3, 30, 9));
    let (_, expected) = undisturbed(&setup, &feed).await;
    let (original, _) = stopped(&setup, &feed).await;
    let manifest = take(&original, &setup, NAME).await.expect("saved");
    let before = outputs_before(&original, &manifest);
    let calm = with_files_of(&original);
    bring_back(&calm, &setup, NAME).await.expect("restored");
    let begun = calm.ops();
    Pipeline::new(&calm, &setup, 1).drive(&mut feed.clone()).await.expect("it comes to its end");
    for k in begun..calm.ops() {
        for fault in [Fault::CrashBefore, Fault::CrashAfter] {
            let world = with_files_of(&original);
            bring_back(&world, &setup, NAME).await.expect("restored");
            world.plan(FaultPlan::at(k, fault));
            let crashed = world.guard(Pipeline::new(&world, &setup, 1).drive(&mut feed.clone())).await;
            assert!(crashed.is_err() || k + 1 == calm.ops(), "operation {k}");
            let after = finish(&world, &setup, &feed).await;
            assert_same_sets(&joined(before.clone(), after), &expected, &format!("operation {k} {fault:?}"));
        }
    }
    assert_ne!(before, Outputs::default());
}
