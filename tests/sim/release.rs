//! Two releases work on the same tasks while one is rolled out: the older never goes on where the newer has been, so it
//! drops nothing that only the newer knows; and whatever the order, everything is published once.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::pin::pin;

use payguard_engine::task::{Budget, TaskPlan};
use payguard_engine::{CommitRow, EngineError, TaskId};
use payguard_model::ProcessingTime;
use payguard_sim::{Fault, FaultPlan, Rng, SimWorld};
use payguard_tests::data::NOW_MS;
use payguard_tests::{
    Feed, Outputs, Pipeline, Restart, Setup, Shape, account, assert_same, reads, run_to_end, seeds, undisturbed,
};

/// Small commits, a flush after each, and a release that stores this schema.
fn release(schema: u32) -> Setup {
    Setup::full().with(|s| {
        s.schema = schema;
        s.records_per_commit = 20;
        s.flush_every_ms = 0;
    })
}

/// The schema of every row, by the task as its readers name it.
fn schemas(world: &SimWorld) -> BTreeMap<String, BTreeMap<u64, CommitRow>> {
    let rows = |id: &TaskId, rows: &BTreeMap<u64, CommitRow>| (TaskPlan::input_id(id), rows.clone());
    world.lock().logs.iter().map(|(id, log)| rows(id, &log.rows)).collect()
}

/// Every row is at least as new as the row before it and as all that it was made of.
fn assert_never_older(world: &SimWorld, context: &str) {
    let logs = schemas(world);
    for (task, rows) in &logs {
        let mut before = 0;
        for row in rows.values() {
            assert!(row.schema >= before, "{context}: {task} row {} was committed by an older release", row.seq);
            before = row.schema;
            for (input, to) in row.to.iter().filter(|(input, _)| logs.contains_key(*input)) {
                let from = row.from.get(input).map_or(0, |from| from.at);
                let until = to.position.at + i64::from(to.position.within > 0);
                let read = logs[input].values().filter(|read| (from + 1..=until).contains(&(read.seq as i64)));
                for read in read {
                    assert!(row.schema >= read.schema, "{context}: {task} row {} of {input} row {}", row.seq, read.seq);
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_older_release_that_slept_at_any_operation_while_a_newer_finished_changes_nothing() {
    let feed = Feed::drawn(21, 60, Shape::DIRTY, 17);
    let (calm, expected) = undisturbed(&release(1), &feed).await;
    let mut stopped = 0;
    for k in 0..calm.ops() {
        let world = SimWorld::new(NOW_MS);
        world.plan(FaultPlan::of(1, k, Fault::Pause));
        let sleeper = world.executor(1);
        let setup = release(1);
        let mut older = pin!(run_to_end(&sleeper, &setup, &feed, Restart::Fresh));
        assert!(sleeper.until_paused(&mut older).await.is_none(), "operation {k} is reached");
        let outputs = run_to_end(&world.executor(2), &release(2), &feed, Restart::Fresh).await;
        assert_same(&outputs, &expected, &format!("with an older release asleep at operation {k}"));
        let before = world.lock().lasting();
        world.resume();
        match older.await {
            // It slept at its very last operations, and had nothing left to read.
            Ok(outputs) => assert_same(&Ok(outputs), &expected, &format!("operation {k}")),
            Err(error) => {
                assert!(error.contains("a newer release has worked on it"), "operation {k}: {error}");
                stopped += 1;
            }
        }
        assert_eq!(world.lock().lasting(), before, "the sleeper of operation {k} changed something");
        assert_never_older(&world, &format!("operation {k}"));
    }
    assert!(stopped * 10 > calm.ops() * 9, "{stopped} of {} were stopped", calm.ops());
}

/// What becomes of an invocation while both releases are there: it works, or it stops before what is newer.
fn goes_on_or_stops<T>(done: Result<T, EngineError>, schema: u32, context: &str) {
    if let Err(error) = done {
        assert!(error.is_newer() && schema == 1, "{context}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn releases_that_take_turns_publish_everything_once_and_the_older_never_follows_the_newer() {
    let mut refused = 0;
    for seed in seeds(100) {
        let mut rng = Rng::new(seed);
        let mut feed = Feed::drawn(seed, 80, Shape::COARSE, 3);
        let (_, expected) = undisturbed(&release(1), &feed).await;
        let context = format!("SIM_SEEDS={seed}");
        let world = SimWorld::new(NOW_MS);
        // The newer release appears in the middle, function by function.
        let mut older = Pipeline::new(&world, &release(1), 1);
        let mut newer = Pipeline::new(&world, &release(2), 1);
        older.begin(&feed).await.expect("no fault");
        let mut rolled_out = 0;
        while feed.has_more() {
            rolled_out = (rolled_out + rng.below(40)).min(900);
            let (process, schema) = if rng.chance(rolled_out) { (&mut newer, 2) } else { (&mut older, 1) };
            goes_on_or_stops(process.deliver_all(&mut feed).await, schema, &context);
            let tasks = process.consumers.len();
            for at in 0..tasks {
                if !rng.chance(600) {
                    continue;
                }
                let (process, schema) = if rng.chance(rolled_out) { (&mut newer, 2) } else { (&mut older, 1) };
                let commits = 1 + u32::try_from(rng.below(3)).expect("small");
                let done = process.consumers[at].run(Budget { until: ProcessingTime(i64::MAX), commits }).await;
                refused += u32::from(done.is_err());
                goes_on_or_stops(done, schema, &context);
            }
            assert_never_older(&world, &context);
        }
        newer.finish().await.expect("nothing stops the newer release");
        world.check(&reads(&release(2).topology())).unwrap_or_else(|e| panic!("{context}: {e}"));
        account(&world, feed.len()).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_same(&Ok(Outputs::of(&world)), &expected, &context);
    }
    assert!(refused > 0, "the older release is never stopped");
}
