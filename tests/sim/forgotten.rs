//! A sink that is a broker may lose the positions it was given. Its tasks go on from the ledger: nothing is lost, and
//! what is written twice is at most the one batch that the ledger did not know of.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::pin::pin;

use payguard_engine::store::{SinkPosition, SinkRecord};
use payguard_engine::{Seq, TaskId};
use payguard_sim::{Fault, FaultPlan, OpKind, SimWorld};
use payguard_tests::data::NOW_MS;
use payguard_tests::{Feed, Outputs, Pipeline, Restart, Setup, Shape, assert_same, run_to_end, undisturbed};

fn setup() -> Setup {
    Setup::full().with(|s| s.records_per_commit = 12)
}

/// A world whose sinks may forget.
fn world() -> SimWorld {
    let world = SimWorld::new(NOW_MS);
    world.lock().forgetful = true;
    world
}

/// Takes every sink back to its position at batch `at` of those it is past; to none at all with 0.
fn forget(world: &SimWorld, at: u64) {
    for sink in world.lock().sinks.values_mut().filter(|sink| sink.position.seq.0 > at) {
        sink.position = SinkPosition { seq: Seq(at), ..SinkPosition::default() };
    }
}

/// How often each record is there.
fn counted<'a>(records: impl IntoIterator<Item = &'a SinkRecord>) -> BTreeMap<(&'static str, String, Vec<u8>), i64> {
    let mut counted = BTreeMap::new();
    for record in records {
        *counted.entry((record.topic, record.key.clone(), record.value.clone())).or_default() += 1;
    }
    counted
}

#[tokio::test(start_paused = true)]
async fn at_rest_nothing_is_lost_and_nothing_written_twice() {
    let feed = Feed::drawn(31, 80, Shape::DIRTY, 7);
    let (_, expected) = undisturbed(&setup(), &feed).await;
    for at in [0, 1, 2] {
        let world = world();
        let rest = some_way(&world, 4, &feed).await;
        assert!(world.lock().sinks.values().all(|sink| sink.position.seq.0 > 2), "all have written");
        forget(&world, at);
        let outputs = run_to_end(&world, &setup(), &rest, Restart::Fresh).await;
        assert_same(&outputs, &expected, &format!("sinks that are back at {at}"));
    }
}

/// The batch that a sink has written and the ledger does not know of, if there is one.
fn unknown_batch(world: &SimWorld) -> Vec<SinkRecord> {
    let world = world.lock();
    let known = |task: &TaskId| world.logs.get(task).and_then(|log| log.head.as_ref()).map_or(0, |head| head.seq);
    let ahead = world.sinks.iter().filter(|(task, sink)| sink.position.seq.0 > known(task));
    let records = ahead.flat_map(|(_, sink)| {
        let before = sink.ends.get(&(sink.position.seq.0 - 1)).copied().unwrap_or(0);
        sink.records[before..].to_vec()
    });
    records.collect()
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_only_the_batch_that_the_ledger_did_not_know_of_is_written_twice() {
    let feed = Feed::drawn(32, 60, Shape::DIRTY, 7);
    let (calm, expected) = undisturbed(&setup(), &feed).await;
    let expected = counted(expected.publish.iter().chain(&expected.totals));
    let trace = calm.lock().trace.clone();
    let mut twice = 0;
    for (k, _) in (0u64..).zip(trace).filter(|(_, (_, kind))| *kind == OpKind::SinkWrite) {
        for fault in [Fault::CrashBefore, Fault::CrashAfter] {
            let world = world();
            world.plan(FaultPlan::at(k, fault));
            let mut pipeline = Pipeline::new(&world, &setup(), 1);
            assert!(world.guard(pipeline.drive(&mut feed.clone())).await.is_err(), "it died at {k}");
            let unknown = counted(&unknown_batch(&world));
            world.plan(FaultPlan::default());
            forget(&world, 0);
            let mut rest = feed.clone();
            Pipeline::new(&world, &setup(), 1).drive(&mut rest).await.expect("it goes on");
            let outputs = Outputs::of(&world);
            for (record, count) in counted(outputs.publish.iter().chain(&outputs.totals)) {
                let (once, again) = (expected.get(&record).copied(), unknown.get(&record).copied().unwrap_or(0));
                let once = once.unwrap_or_else(|| panic!("{k} {fault:?}: {record:?} is not expected"));
                assert!((once..=once + again).contains(&count), "{k} {fault:?}: {record:?} is there {count} times");
                twice += count - once;
            }
            let found = counted(outputs.publish.iter().chain(&outputs.totals));
            assert!(expected.keys().all(|record| found.contains_key(record)), "{k} {fault:?}: something is lost");
        }
    }
    assert!(twice > 0, "no crash fell between a sink's write and the ledger's");
}

/// Takes the feed some way; what is left of it.
async fn some_way(world: &SimWorld, rounds: usize, feed: &Feed) -> Feed {
    let mut rest = feed.clone();
    let mut pipeline = Pipeline::new(world, &setup(), 1);
    pipeline.begin(&rest).await.expect("it begins");
    for _ in 0..rounds {
        pipeline.deliver_all(&mut rest).await.expect("delivered");
        pipeline.run_consumers().await.expect("run");
    }
    rest
}

#[tokio::test(start_paused = true)]
async fn who_slept_before_it_asked_a_sink_that_forgot_meanwhile_looks_at_the_ledger_again() {
    let (feed, setup) = (Feed::drawn(34, 80, Shape::DIRTY, 7), setup());
    let (_, expected) = undisturbed(&setup, &feed).await;
    let mut moments = 0;
    for (rounds, at) in [(0, 0), (1, 0), (3, 0), (3, 1), (5, 2)] {
        let calm = world();
        let rest = some_way(&calm, rounds, &feed).await;
        run_to_end(&calm.executor(1), &setup, &rest, Restart::Fresh).await.expect("it finishes");
        let of_first = calm.lock().trace.clone().into_iter().filter(|(executor, _)| *executor == 1);
        let asked = (0u64..).zip(of_first).filter(|(_, (_, kind))| *kind == OpKind::SinkPosition);
        for (k, _) in asked {
            let world = world();
            let rest = some_way(&world, rounds, &feed).await;
            world.plan(FaultPlan::of(1, k, Fault::Pause));
            let sleeper = world.executor(1);
            let mut zombie = pin!(run_to_end(&sleeper, &setup, &rest, Restart::Fresh));
            assert!(sleeper.until_paused(&mut zombie).await.is_none(), "operation {k} is reached");
            run_to_end(&world.executor(2), &setup, &rest, Restart::Fresh).await.expect("it finishes");
            forget(&world, at);
            world.resume();
            assert_same(&zombie.await, &expected, &format!("after {rounds} rounds the sleeper of operation {k}"));
            moments += 1;
        }
    }
    assert!(moments >= 10, "{moments} times a sink was asked");
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_cannot_forget_is_another_one() {
    let mut feed = Feed::drawn(33, 40, Shape::TIDY, 9);
    let world = SimWorld::new(NOW_MS);
    let mut pipeline = Pipeline::new(&world, &setup(), 1);
    pipeline.begin(&feed).await.expect("it begins");
    pipeline.deliver_all(&mut feed).await.expect("delivered");
    pipeline.run_consumers().await.expect("run");
    forget(&world, 0);
    let error = run_to_end(&world, &setup(), &feed, Restart::Fresh).await.expect_err("refused");
    assert!(error.contains("the outputs do not belong to this state"), "{error}");
}
