//! Two processes run the same tasks: whatever they do to each other, what is published stays the same.
#![allow(missing_docs)]

use std::pin::pin;

use payguard_sim::{Fault, FaultPlan, OpKind, SimWorld};
use payguard_tests::data::NOW_MS;
use payguard_tests::{
    Feed, Outputs, Pipeline, Restart, Setup, Shape, account, assert_same, interleaved, reads, records, run_to_end,
    seeds, undisturbed,
};

/// Small commits, a flush after each.
fn busy() -> Setup {
    Setup::full().with(|s| {
        s.records_per_commit = 20;
        s.flush_every_ms = 0;
    })
}

#[tokio::test(start_paused = true)]
async fn a_process_that_slept_at_any_operation_while_another_finished_changes_nothing() {
    let feed = Feed::drawn(11, 60, Shape::DIRTY, 17);
    for setup in [Setup::full(), busy()] {
        let (calm, expected) = undisturbed(&setup, &feed).await;
        for k in 0..calm.ops() {
            let world = SimWorld::new(NOW_MS);
            world.plan(FaultPlan::of(1, k, Fault::Pause));
            let sleeper = world.executor(1);
            let mut zombie = pin!(run_to_end(&sleeper, &setup, &feed, Restart::Fresh));
            assert!(sleeper.until_paused(&mut zombie).await.is_none(), "operation {k} is reached");
            let outputs = run_to_end(&world.executor(2), &setup, &feed, Restart::Fresh).await;
            assert_same(&outputs, &expected, &format!("with a sleeper at operation {k}"));
            let before = world.lock().lasting();
            world.resume();
            let outputs = zombie.await;
            assert_same(&outputs, &expected, &format!("the sleeper of operation {k}"));
            assert_eq!(world.lock().lasting(), before, "the sleeper of operation {k} changed something");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_slept_while_it_looked_what_became_of_its_commit_changes_nothing() {
    let (feed, setup) = (Feed::drawn(12, 40, Shape::DIRTY, 17), Setup::full());
    let (calm, expected) = undisturbed(&setup, &feed).await;
    let trace = calm.lock().trace.clone();
    for (k, _) in (0u64..).zip(trace).filter(|(_, (_, kind))| *kind == OpKind::Commit) {
        for fault in [Fault::UnknownBefore, Fault::UnknownAfter, Fault::UnknownLater(9)] {
            let context = format!("commit {k} {fault:?}");
            let world = SimWorld::new(NOW_MS);
            // After the commit the head is read, and then the row.
            let of_executor = [((1, k), fault), ((1, k + 2), Fault::Pause)].into();
            world.plan(FaultPlan { of_executor, ..FaultPlan::default() });
            let sleeper = world.executor(1);
            let mut zombie = pin!(run_to_end(&sleeper, &setup, &feed, Restart::Warm));
            assert!(sleeper.until_paused(&mut zombie).await.is_none(), "{context}: the row is read");
            assert_eq!(world.lock().trace.last(), Some(&(1, OpKind::LoadRow)), "{context}");
            let outputs = run_to_end(&world.executor(2), &setup, &feed, Restart::Fresh).await;
            assert_same(&outputs, &expected, &context);
            let before = world.lock().lasting();
            world.resume();
            assert_same(&zombie.await, &expected, &context);
            assert_eq!(world.lock().lasting(), before, "{context}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn processes_that_interleave_at_random_publish_everything_once() {
    for seed in seeds(150) {
        let feed = Feed::drawn(seed, 60, Shape::COARSE, 9);
        let setup = if seed % 2 == 0 { Setup::full() } else { busy() };
        let (_, expected) = undisturbed(&setup, &feed).await;
        let world = SimWorld::new(NOW_MS);
        let plan = if seed % 4 < 2 { FaultPlan::default() } else { FaultPlan::random(seed, 15, true) };
        for result in interleaved(&world, &setup, &feed, (seed, plan)).await {
            assert_same(&result, &expected, &format!("SIM_SEEDS={seed}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn warm_processes_that_take_turns_catch_up_and_publish_everything_once() {
    for seed in seeds(100) {
        let mut rng = payguard_sim::Rng::new(seed);
        let mut feed = Feed::drawn(seed, 80, Shape::COARSE, 3);
        let setup = busy();
        let (_, expected) = undisturbed(&setup, &feed).await;
        let world = SimWorld::new(NOW_MS);
        let mut processes: Vec<Pipeline> = (0..3).map(|_| Pipeline::new(&world, &setup, 1)).collect();
        let reads = reads(&setup.topology());
        processes[0].begin(&feed).await.expect("no fault");
        while feed.has_more() {
            let at = usize::try_from(rng.below(3)).expect("small");
            let process = &mut processes[at];
            process.deliver_all(&mut feed).await.expect("no fault");
            // Some tasks only, so that the processes are behind in different places.
            for consumer in &mut process.consumers {
                if rng.chance(600) {
                    let budget = payguard_engine::task::Budget {
                        until: payguard_model::ProcessingTime(i64::MAX),
                        commits: 1 + u32::try_from(rng.below(3)).expect("small"),
                    };
                    consumer.run(budget).await.expect("no fault");
                }
            }
            world.check(&reads).unwrap_or_else(|e| panic!("SIM_SEEDS={seed}: {e}"));
        }
        processes[0].finish().await.expect("no fault");
        account(&world, feed.len()).unwrap_or_else(|e| panic!("SIM_SEEDS={seed}: {e}"));
        assert_same(&Ok(Outputs::of(&world)), &expected, &format!("SIM_SEEDS={seed}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_lease_is_held_does_nothing_until_it_is_free_and_then_misses_nothing() {
    let data = records(3, 40, Shape::TIDY);
    let world = SimWorld::new(NOW_MS);
    let of = |owner: &str| Setup::default().with(|s| s.lease_owner = Some(owner.to_owned()));
    let mut b = Pipeline::new(&world, &of("b"), 1);
    let mut feed = Feed::one(&data, 40);
    b.deliver(&mut feed, 0).await.expect("no fault");
    let budget = payguard_engine::task::Budget { until: payguard_model::ProcessingTime(i64::MAX), commits: 99 };

    // One sleeps inside its lease.
    let sleeper = world.executor(1);
    let mut asleep = Pipeline::new(&sleeper, &of("asleep"), 1);
    world.plan(FaultPlan::of(1, 3, Fault::Pause));
    let mut run = pin!(asleep.consumers[0].run(budget));
    assert!(sleeper.until_paused(&mut run).await.is_none());
    let report = b.consumers[0].run(budget).await.expect("no fault");
    assert!(report.busy && report.commits == 0, "{report:?}");

    // The lease runs out: another takes over, and the sleeper finds out when it commits.
    world.advance_ms(10_001);
    let report = b.consumers[0].run(budget).await.expect("no fault");
    assert!(!report.busy && report.records > 0, "{report:?}");
    let before = world.lock().lasting();
    world.resume();
    run.await.expect("no fault");
    assert_eq!(world.lock().lasting(), before);

    world.advance_ms(10_001);
    b.finish().await.expect("no fault");
    world.check(&reads(&Setup::default().topology())).expect("invariants");
    assert_eq!(Outputs::of(&world).by_topic(), Setup::default().reference(&data));
}
