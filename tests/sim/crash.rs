//! A crash, a lost answer or a failure at every operation of every store, then the run goes on: what is published is
//! the same in identity, number and order.
#![allow(missing_docs)]

use payguard_sim::{Fault, FaultPlan, OpKind, SimWorld};
use payguard_tests::data::{NOW_MS, confirmations};
use payguard_tests::{Feed, Restart, Setup, Shape, are_chosen, assert_same, records, run_to_end, seeds, undisturbed};

const WAYS: [(Fault, Restart); 6] = [
    (Fault::CrashBefore, Restart::Fresh),
    (Fault::CrashAfter, Restart::Fresh),
    (Fault::CrashBefore, Restart::Warm),
    (Fault::CrashAfter, Restart::Warm),
    (Fault::FailBefore, Restart::Warm),
    (Fault::FailAfter, Restart::Warm),
];

/// Small commits, a flush after each, so that every kind of operation occurs; totals in two phases.
fn busy() -> Setup {
    let mut setup = Setup::full();
    (setup.config.stats.salts, setup.config.stats.late_updates) = (3, true);
    setup.with(|s| {
        s.records_per_commit = 20;
        s.flush_every_ms = 0;
    })
}

#[tokio::test(start_paused = true)]
async fn a_fault_at_any_operation_changes_nothing() {
    let feed = Feed::drawn(1, 40, Shape::DIRTY, 17);
    for setup in [Setup::full(), busy()] {
        let (calm, expected) = undisturbed(&setup, &feed).await;
        for k in 0..calm.ops() {
            for (fault, restart) in WAYS {
                let world = SimWorld::new(NOW_MS);
                world.plan(FaultPlan::at(k, fault));
                let outputs = run_to_end(&world, &setup, &feed, restart).await;
                let kind = calm.lock().trace[usize::try_from(k).expect("small")].1;
                assert_same(&outputs, &expected, &format!("operation {k} ({kind:?}) {fault:?} {restart:?}"));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_at_any_operation_with_two_partitions_and_shards_changes_nothing() {
    let partitions = vec![records(2, 20, Shape::DIRTY.attacked()), records(3, 20, Shape::TIDY.attacked())];
    let confirmations = confirmations(2, &partitions[0]);
    let feed = Feed::many(partitions, 8, payguard_tests::Order::InTurn).confirmed(confirmations);
    let setup = Setup::full().with_shards(2).with(|s| s.records_per_commit = 12);
    // Every task is a member from the start, otherwise a partition that joins late is late by right.
    let (calm, expected) = undisturbed(&setup, &feed).await;
    for k in 0..calm.ops() {
        for (fault, restart) in [WAYS[0], WAYS[1], WAYS[5]] {
            let world = SimWorld::new(NOW_MS);
            world.plan(FaultPlan::at(k, fault));
            let outputs = run_to_end(&world, &setup, &feed, restart).await;
            assert_same(&outputs, &expected, &format!("operation {k} {fault:?} {restart:?}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_faults_at_any_two_operations_change_nothing() {
    let setup = Setup::full().with(|s| s.records_per_commit = 50);
    let feed = Feed::drawn(5, 24, Shape::DIRTY, 12);
    let (calm, expected) = undisturbed(&setup, &feed).await;
    let ways = [WAYS[0], WAYS[1], WAYS[5]];
    let (mut pairs, reach) = (0, calm.ops() + 40);
    for first in 0..calm.ops() {
        for second in (first + 1 + first % 3..reach).step_by(3) {
            let (fault, restart) = ways[usize::try_from((first + second) % 3).expect("small")];
            let (other, _) = ways[usize::try_from((first / 3 + second) % 3).expect("small")];
            let world = SimWorld::new(NOW_MS);
            let mut plan = FaultPlan::at(first, fault);
            plan.at.insert(second, other);
            world.plan(plan);
            let outputs = run_to_end(&world, &setup, &feed, restart).await;
            assert_same(&outputs, &expected, &format!("operations {first} {fault:?}, {second} {other:?} {restart:?}"));
            pairs += 1;
        }
    }
    assert!(pairs > 1000, "{pairs}");
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_answer_is_lost_is_neither_repeated_nor_forgotten() {
    let feed = Feed::drawn(7, 60, Shape::DIRTY, 17);
    let setup = Setup::full();
    let (calm, expected) = undisturbed(&setup, &feed).await;
    let commits: Vec<u64> =
        (0u64..).zip(&calm.lock().trace).filter(|(_, (_, kind))| *kind == OpKind::Commit).map(|(k, _)| k).collect();
    assert!(commits.len() > 20, "{}", commits.len());
    let ways = [
        Fault::UnknownAfter,
        Fault::UnknownBefore,
        Fault::FailAfter,
        Fault::FailBefore,
        // Done while the engine looks what became of it, and after it has looked.
        Fault::UnknownLater(0),
        Fault::UnknownLater(1),
        Fault::UnknownLater(2),
        Fault::UnknownLater(3),
        Fault::UnknownLater(9),
    ];
    for k in commits {
        for fault in ways {
            for remembers_tokens in [false, true] {
                let world = SimWorld::new(NOW_MS);
                world.plan(FaultPlan { remembers_tokens, ..FaultPlan::at(k, fault) });
                let outputs = run_to_end(&world, &setup, &feed, Restart::Warm).await;
                assert_same(&outputs, &expected, &format!("commit at {k} {fault:?} tokens {remembers_tokens}"));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn faults_at_random_change_nothing() {
    let mut hit = 0;
    for seed in seeds(400) {
        let feed = Feed::drawn(seed, 60, Shape::COARSE, 5 + usize::try_from(seed % 20).expect("small"));
        let setup = if seed % 3 == 0 { Setup::full() } else { busy() };
        let owner = (seed % 4 == 0).then(|| "owner".to_owned());
        let setup = setup.with(|s| s.lease_owner = owner);
        let (calm, expected) = undisturbed(&setup, &feed).await;
        let world = SimWorld::new(NOW_MS);
        // More, and a process would seldom live long enough to load the state of every stage.
        world.plan(FaultPlan::random(seed, 8, true));
        let restart = if seed % 5 < 3 { Restart::Fresh } else { Restart::Warm };
        let outputs = run_to_end(&world, &setup, &feed, restart).await;
        assert_same(&outputs, &expected, &format!("SIM_SEEDS={seed}"));
        hit += u64::from(world.ops() != calm.ops());
    }
    assert!(are_chosen() || hit > 0, "no fault was drawn");
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_run_operation_by_operation() {
    for seed in seeds(3) {
        let mut traces = Vec::new();
        for _ in 0..2 {
            let world = SimWorld::new(NOW_MS);
            world.plan(FaultPlan::random(seed, 8, true).with_latency(seed, 20));
            let feed = Feed::drawn(seed, 40, Shape::DIRTY, 7);
            run_to_end(&world, &busy(), &feed, Restart::Fresh).await.expect("an end");
            traces.push(world.lock().trace.clone());
        }
        assert_eq!(traces[0], traces[1], "SIM_SEEDS={seed}");
    }
}
