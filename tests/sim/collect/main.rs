//! Garbage collection between any two operations, beside sleepers, and stopped anywhere: what is published is the same,
//! nothing that somebody needs is ever removed, and in the end nothing is left that nobody needs.
#![allow(missing_docs)]

mod model;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use payguard_clock::collect::Limits;
use payguard_engine::gc::{Collected, EXPIRED_MARGIN_S};
use payguard_engine::task::Budget;
use payguard_engine::{EngineError, StoreErrorKind, TaskId};
use payguard_local::runner::LocalPipeline;
use payguard_model::ProcessingTime;
use payguard_sim::{Fault, FaultPlan, OpKind, Rng, SimWorld};
use payguard_tests::collector::{COLLECTOR, collect_all, collect_once, collecting, everything, garbage};
use payguard_tests::data::NOW_MS;
use payguard_tests::feed::as_source;
use payguard_tests::{
    Feed, Outputs, Pipeline, Restart, Setup, Shape, are_chosen, assert_same, reads, records, run_to_end, seeds,
    undisturbed,
};

const HOUR_MS: i64 = 3_600_000;

/// Small commits, a flush after each; every kind of segment.
fn busy() -> Setup {
    Setup::full().with(|s| {
        s.records_per_commit = 20;
        s.flush_every_ms = 0;
    })
}

fn task(id: &str) -> TaskId {
    id.parse().expect("a task")
}

#[tokio::test(start_paused = true)]
async fn a_collection_before_every_operation_changes_nothing() {
    for (number, setup) in [Setup::full(), busy(), busy().with_shards(2)].into_iter().enumerate() {
        let feed = Feed::drawn(1, 40, Shape::DIRTY, 9);
        let (_, expected) = undisturbed(&setup, &feed).await;
        let world = SimWorld::new(NOW_MS);
        let outputs = run_to_end(&collecting(&world, &setup, 0, 1000), &setup, &feed, Restart::Fresh).await;
        assert_same(&outputs, &expected, &format!("setup {number}"));
        collect_all(&world, &setup, &format!("setup {number}")).await;
        let world = world.lock();
        let left = |stage: &str| -> usize {
            world.logs.iter().filter(|(t, _)| &*t.stage.0 == stage).map(|(_, log)| log.rows.len()).sum()
        };
        assert_eq!((left("parse"), left("publish")), (2, 1), "the newest row of each");
        let control = &world.logs[&task("control/0")];
        assert!(control.rows == control.history && control.rows.len() > 3, "the history of the rules is kept");
        let (rows, objects) = (world.collected.rows, world.collected.objects);
        let gone: usize = world.logs.values().map(|log| log.history.len() - log.rows.len()).sum();
        assert_eq!(rows, gone as u64, "every removal is counted");
        assert_eq!(objects + world.collected.orphans, (world.stored.len() - world.objects.len()) as u64);
        assert!(objects > 10, "{objects} objects");
    }
}

#[tokio::test(start_paused = true)]
async fn who_slept_at_any_operation_while_others_finished_and_all_was_collected_changes_nothing() {
    let feed = Feed::drawn(11, 40, Shape::DIRTY, 17);
    for setup in [Setup::full(), busy()] {
        let (calm, expected) = undisturbed(&setup, &feed).await;
        for k in 0..calm.ops() {
            let context = format!("with a sleeper at operation {k}");
            let world = SimWorld::new(NOW_MS);
            world.plan(FaultPlan::of(1, k, Fault::Pause));
            let asleep = match k % 3 {
                0 => setup.clone(),
                // After its work, a task with a lease looks once more.
                _ => setup.clone().with(|s| s.lease_owner = Some("sleeper".to_owned())),
            };
            let sleeper = world.executor(1);
            // Once awake it goes on while the collector runs.
            let watched = collecting(&sleeper, &setup, k, if k % 2 == 0 { 0 } else { 100 }).executor(1);
            let mut zombie = pin!(run_to_end(&watched, &asleep, &feed, Restart::Fresh));
            if sleeper.until_paused(&mut zombie).await.is_some() {
                // A lease is one operation more for each task: the numbers of operations are others.
                continue;
            }
            let awake = collecting(&world, &setup, k, 20).executor(2);
            let outputs = run_to_end(&awake, &setup, &feed, Restart::Fresh).await;
            assert_same(&outputs, &expected, &context);
            collect_all(&world, &setup, &context).await;
            let before = world.lock().lasting();
            world.resume();
            assert_same(&zombie.await, &expected, &context);
            assert_eq!(world.lock().lasting(), before, "{context} changed something");
            collect_all(&world, &setup, &context).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_slept_in_the_middle_while_others_went_on_a_little_goes_on_with_them() {
    let mut woken = 0;
    for seed in seeds(300) {
        let mut rng = Rng::new(seed ^ 0x51ee);
        let setup = if seed % 3 == 0 { Setup::full() } else { busy() };
        let feed = Feed::drawn(seed, 60, Shape::COARSE, 9);
        let (calm, expected) = undisturbed(&setup, &feed).await;
        let world = SimWorld::new(NOW_MS);
        world.plan(FaultPlan::of(1, rng.below(calm.ops()), Fault::Pause));
        let sleeper = world.executor(1);
        let mut zombie = pin!(run_to_end(&sleeper, &setup, &feed, Restart::Warm));
        woken += u64::from(sleeper.until_paused(&mut zombie).await.is_none());
        // Somebody else carries a part of the feed through all stages, and everything that can go goes.
        let mut part = feed.clone();
        let mut other = Pipeline::new(&world.executor(2), &setup, 1);
        other.begin(&part).await.expect("no fault");
        for _ in 0..=rng.below(5) {
            other.deliver_all(&mut part).await.expect("no fault");
            other.run_consumers().await.expect("no fault");
        }
        collect_all(&world, &setup, &format!("SIM_SEEDS={seed}")).await;
        world.resume();
        assert_same(&zombie.await, &expected, &format!("SIM_SEEDS={seed}"));
        collect_all(&world, &setup, &format!("SIM_SEEDS={seed}")).await;
    }
    assert!(are_chosen() || woken > 0, "nobody slept");
}

#[tokio::test(start_paused = true)]
async fn processes_and_a_collector_that_interleave_at_random_publish_everything_once() {
    for seed in seeds(100) {
        let feed = Feed::drawn(seed, 60, Shape::COARSE, 9);
        let setup = if seed % 2 == 0 { Setup::full() } else { busy() };
        let (_, expected) = undisturbed(&setup, &feed).await;
        let world = SimWorld::new(NOW_MS);
        let plan = if seed % 4 < 2 { FaultPlan::default() } else { FaultPlan::random(seed, 10, true) };
        world.plan(plan.with_latency(seed, 40));
        let [a, b] = [world.executor(1), collecting(&world, &setup, seed, 30).executor(2)];
        let (first, second) = (feed.in_batches(7), feed.in_batches(11));
        let results = tokio::join!(
            run_to_end(&a, &setup, &first, Restart::Warm),
            run_to_end(&b, &setup, &second, Restart::Fresh),
        );
        for result in [results.0, results.1] {
            assert_same(&result, &expected, &format!("SIM_SEEDS={seed}"));
        }
        world.plan(FaultPlan::default());
        collect_all(&world, &setup, &format!("SIM_SEEDS={seed}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn warm_processes_that_take_turns_find_collected_what_they_missed_and_go_on() {
    for seed in seeds(60) {
        let context = format!("SIM_SEEDS={seed}");
        let mut rng = Rng::new(seed);
        let mut feed = Feed::drawn(seed, 80, Shape::COARSE, 3);
        let setup = busy();
        let (_, expected) = undisturbed(&setup, &feed).await;
        let world = SimWorld::new(NOW_MS);
        let mut processes: Vec<Pipeline> = (0..3).map(|_| Pipeline::new(&world, &setup, 1)).collect();
        processes[0].begin(&feed).await.expect("no fault");
        while feed.has_more() {
            let process = &mut processes[usize::try_from(rng.below(3)).expect("small")];
            process.deliver_all(&mut feed).await.expect(&context);
            // Some tasks only, so that the processes are behind in different places.
            for consumer in &mut process.consumers {
                if rng.chance(600) {
                    let commits = 1 + u32::try_from(rng.below(3)).expect("small");
                    let budget = Budget { until: ProcessingTime(i64::MAX), commits };
                    consumer.run(budget).await.expect(&context);
                }
            }
            if rng.chance(300) {
                collect_all(&world, &setup, &context).await;
            }
        }
        processes[0].finish().await.expect(&context);
        assert_same(&Ok(Outputs::of(&world)), &expected, &context);
        collect_all(&world, &setup, &context).await;
    }
}

/// A world in which rows, segments and orphans can be collected: the pipeline has crashed on its way, after it had stored
/// segments that it never committed, and has gone on.
async fn littered(setup: &Setup, feed: &Feed) -> SimWorld {
    let (calm, _) = undisturbed(setup, feed).await;
    let trace = calm.lock().trace.clone();
    let puts: Vec<u64> =
        (0u64..).zip(&trace).filter(|(_, (_, kind))| *kind == OpKind::PutObject).map(|(k, _)| k).collect();
    let world = SimWorld::new(NOW_MS);
    let mut half = feed.clone();
    for crash in [Some(puts[1]), Some(puts[puts.len() / 2]), None] {
        let at = crash.map(|put| ((0, put), Fault::CrashAfter));
        world.plan(FaultPlan { of_executor: at.into_iter().collect(), ..FaultPlan::default() });
        let mut pipeline = Pipeline::new(&world, setup, 1);
        let rounds = async {
            pipeline.begin(&half).await?;
            for _ in 0..2 {
                pipeline.deliver_all(&mut half).await?;
                pipeline.run_consumers().await?;
            }
            Ok::<(), EngineError>(())
        };
        let _ = world.guard(rounds).await;
    }
    world
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_stops_at_any_operation_takes_nothing_that_is_needed_and_the_next_one_takes_the_rest() {
    let (setup, feed) = (busy(), Feed::drawn(5, 50, Shape::DIRTY, 9));
    let (_, expected) = undisturbed(&setup, &feed).await;
    let limits = Limits { groups: 8, ..everything(&setup) };
    let calm = littered(&setup, &feed).await;
    let before = calm.lock().trace.len();
    let outcome = collect_once(&calm, &setup, limits).await.expect("no crash");
    assert!(outcome.collected.rows > 20 && outcome.collected.objects > 5, "{outcome:?}");
    assert!(outcome.collected.orphans > 0, "{outcome:?}");
    let kinds: Vec<OpKind> = calm.lock().trace[before..].iter().map(|(_, kind)| *kind).collect();
    for (k, kind) in (0u64..).zip(kinds) {
        for fault in [Fault::CrashBefore, Fault::CrashAfter, Fault::FailBefore, Fault::FailAfter] {
            let context = format!("operation {k} of the collector ({kind:?}) {fault:?}");
            let world = littered(&setup, &feed).await;
            world.plan(FaultPlan::of(COLLECTOR, k, fault));
            let stopped = collect_once(&world, &setup, limits).await;
            match (fault, &stopped) {
                (Fault::CrashBefore | Fault::CrashAfter, Err(_)) => {}
                (Fault::FailBefore | Fault::FailAfter, Ok(outcome)) => {
                    let kinds: Vec<_> = outcome.failed.iter().map(|error| error.kind).collect();
                    assert_eq!(kinds, [StoreErrorKind::Unavailable], "{context}");
                }
                _ => panic!("{context}: {stopped:?}"),
            }
            world.check(&reads(&setup.topology())).unwrap_or_else(|e| panic!("{context}: {e}"));
            if k % 2 == 0 {
                collect_all(&world, &setup, &context).await;
            }
            let outputs = run_to_end(&world, &setup, &feed, Restart::Fresh).await;
            assert_same(&outputs, &expected, &context);
            collect_all(&world, &setup, &context).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_decided_long_ago_harms_nothing_when_it_is_done_at_last() {
    let (setup, feed) = (busy(), Feed::drawn(6, 50, Shape::DIRTY, 9));
    let (_, expected) = undisturbed(&setup, &feed).await;
    let calm = littered(&setup, &feed).await;
    let before = calm.lock().trace.len();
    collect_once(&calm, &setup, everything(&setup)).await.expect("no crash");
    let kinds: Vec<OpKind> = calm.lock().trace[before..].iter().map(|(_, kind)| *kind).collect();
    let last = kinds.iter().rposition(|kind| *kind == OpKind::DeleteRow).expect("rows are removed");
    // At every second operation; of the many key groups only the first few differ.
    for k in (0..last as u64 + 30).step_by(2) {
        let world = littered(&setup, &feed).await;
        world.plan(FaultPlan::of(COLLECTOR, k, Fault::Pause));
        let limits = everything(&setup);
        let mut asleep = pin!(collect_once(&world, &setup, limits));
        assert!(world.until_paused(&mut asleep).await.is_none(), "operation {k} is reached");
        let outputs = run_to_end(&world.executor(2), &setup, &feed, Restart::Fresh).await;
        assert_same(&outputs, &expected, &format!("operation {k}"));
        world.resume();
        asleep.await.expect("no crash");
        collect_all(&world, &setup, &format!("operation {k}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn rows_and_segments_stay_for_the_retention() {
    let (setup, feed) = (busy(), Feed::drawn(7, 40, Shape::DIRTY, 10));
    let world = SimWorld::new(NOW_MS);
    let mut part = feed.clone();
    let mut pipeline = Pipeline::new(&world, &setup, 1);
    pipeline.begin(&part).await.expect("no fault");
    pipeline.deliver_all(&mut part).await.expect("no fault");
    pipeline.run_consumers().await.expect("no fault");
    let parse = task("parse/payments.raw-0");
    let young = world.lock().logs[&parse].rows.len();
    world.advance_ms(HOUR_MS);
    for _ in 0..2 {
        pipeline.deliver_all(&mut part).await.expect("no fault");
        pipeline.run_consumers().await.expect("no fault");
    }
    let keep = |retention_ms| Limits { retention_ms, ..everything(&setup) };
    let left = |world: &SimWorld| world.lock().logs[&parse].rows.keys().copied().collect::<Vec<u64>>();
    let all = left(&world);
    collect_once(&world, &setup, keep(HOUR_MS + 1)).await.expect("no crash");
    assert_eq!(left(&world), all, "nothing is old enough");
    collect_once(&world, &setup, keep(HOUR_MS)).await.expect("no crash");
    assert_eq!(left(&world), all[young..], "what was committed an hour ago is gone");
    collect_all(&world, &setup, "no retention").await;
    assert_eq!(left(&world), all[all.len() - 1..], "the newest row stays");
}

#[tokio::test(start_paused = true)]
async fn a_run_is_bounded_and_the_runs_together_take_everything() {
    let (setup, feed) = (busy(), Feed::drawn(8, 60, Shape::DIRTY, 10));
    let (world, _) = undisturbed(&setup, &feed).await;
    let few = Limits { rows: 2, groups: 1, ..everything(&setup) };
    let tasks = world.lock().logs.len() as u64;
    let mut runs = 0;
    while !garbage(&world, &reads(&setup.topology())).is_empty() {
        let outcome = collect_once(&world, &setup, few).await.expect("no crash");
        assert!(outcome.collected.rows <= 2 * tasks && outcome.collected.groups == 1, "{outcome:?}");
        runs += 1;
    }
    assert!(runs > 3, "{runs} runs");
    let none = Limits { until: world_time(&world), ..everything(&setup) };
    let before = world.ops();
    collect_once(&world, &setup, none).await.expect("no crash");
    let trace = world.lock().trace[usize::try_from(before).expect("small")..].to_vec();
    assert!(trace.iter().all(|(_, kind)| !matches!(kind, OpKind::RemainingRows | OpKind::LoadPages)), "{trace:?}");
}

fn world_time(world: &SimWorld) -> ProcessingTime {
    payguard_engine::store::Clock::now(world)
}

#[tokio::test(start_paused = true)]
async fn pages_of_ids_that_expired_long_ago_go_and_the_run_goes_on() {
    let (setup, feed) = (busy(), Feed::drawn(9, 60, Shape::DIRTY, 10));
    let mut with = Vec::new();
    for collects in [false, true] {
        let world = SimWorld::new(NOW_MS);
        let mut part = feed.clone();
        let mut pipeline = Pipeline::new(&world, &setup, 1);
        pipeline.begin(&part).await.expect("no fault");
        for _ in 0..3 {
            pipeline.deliver_all(&mut part).await.expect("no fault");
            pipeline.run_consumers().await.expect("no fault");
        }
        let expiring = |world: &SimWorld| world.lock().pages.values().filter(|p| p.expires_at_s.is_some()).count();
        let pages = world.lock().pages.len();
        let (all, others) = (expiring(&world), pages - expiring(&world));
        assert!(all > 5 && others > 5, "{all} and {others} pages");
        world.advance_ms(2 * HOUR_MS);
        if collects {
            collect_all(&world, &setup, "expired").await;
            assert_eq!(expiring(&world), all, "the table's own expiry comes first");
        }
        world.advance_ms(EXPIRED_MARGIN_S * 1000);
        if collects {
            collect_all(&world, &setup, "expired long ago").await;
            assert_eq!(expiring(&world), 0);
            assert_eq!(world.lock().pages.len(), others);
            assert_eq!(world.lock().collected.pages, all as u64);
        }
        let mut fresh = Pipeline::new(&world, &setup, 1);
        fresh.drive(&mut part).await.expect("no fault");
        world.check(&reads(&setup.topology())).expect("invariants");
        with.push(Outputs::of(&world));
    }
    assert_same(&Ok(with[1].clone()), &with[0], "with and without");
}

#[tokio::test(start_paused = true)]
async fn on_one_machine_the_collector_runs_once_a_minute_beside_the_stages() {
    let mut setup = busy();
    setup.config.gc.retention_ms = 0;
    let world = SimWorld::new(NOW_MS);
    let (env, sink) = (world.env(setup.settings.clone()), Arc::new(world.clone()));
    let pipeline = LocalPipeline::new(Arc::new(setup.config.clone()), env, sink, setup.directory.clone());
    let records = records(4, 60, Shape::DIRTY);
    let mut payments = pipeline.payments(0);
    payments.ingest(&records.iter().map(as_source).collect::<Vec<_>>()).await.expect("no fault");
    let running = pipeline.start();
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(world.lock().collected, Collected::default(), "not before a minute is over");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let first = world.lock().collected;
    assert!(first.rows > 0 && first.groups == 1, "{first:?}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.lock().collected.groups, 2);
    drop(running);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.lock().collected.groups, 2, "it ends with the stages");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_gone_although_it_is_needed_stops_its_reader_who_names_it() {
    let (setup, feed) = (Setup::full(), Feed::drawn(3, 40, Shape::DIRTY, 17));
    // What a task has not read, and what it has not flushed.
    for (gone, reader) in [("parse/payments.raw-0", "dedup/0"), ("dedup/0", "dedup/0")] {
        let world = SimWorld::new(NOW_MS);
        let mut part = feed.clone();
        let mut pipeline = Pipeline::new(&world, &setup, 1);
        pipeline.begin(&part).await.expect("no fault");
        pipeline.deliver_all(&mut part).await.expect("no fault");
        pipeline.run_consumers().await.expect("no fault");
        while part.has_more() {
            pipeline.deliver_all(&mut part).await.expect("no fault");
        }
        let read = world.lock().logs[&task(reader)].head.as_ref().and_then(|head| head.inputs.get(gone).copied());
        let seq = read.map_or(1, |state| u64::try_from(state.position.at + 1).expect("not negative"));
        assert!(world.lock().logs.get_mut(&task(gone)).expect("a log").rows.remove(&seq).is_some());
        let error = Pipeline::new(&world, &setup, 1).finish().await.expect_err("a row is gone");
        let EngineError::Broken { task, invariant, detail } = &error else { panic!("{error}") };
        assert_eq!((task.as_str(), *invariant), (reader, "INV-5"), "{detail}");
        assert!(detail.contains(gone) && detail.contains("missing"), "{detail}");
        let found = world.check(&reads(&setup.topology())).expect_err("a violation");
        assert!(found.contains("INV-5") && found.contains(gone), "{found}");
    }
}
