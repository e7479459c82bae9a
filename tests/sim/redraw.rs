//! The shards of stages are redrawn while payments flow: every record comes out once, as if nothing had happened.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::pin::pin;

use payguard_engine::StageId;
use payguard_engine::layout::Layout;
use payguard_engine::task::Budget;
use payguard_model::{CardProfile, ProcessingTime};
use payguard_sim::{Fault, FaultPlan, Rng, SimWorld};
use payguard_tests::collector::collecting;
use payguard_tests::data::NOW_MS;
use payguard_tests::{
    Feed, Outputs, Pipeline, Redraw, Restart, Setup, Shape, interleaved, run_to_end, seeds, undisturbed,
};
use payguard_topology::config::AlignmentMode;
use payguard_topology::stage;

const STAGES: [&str; 5] = [stage::DEDUP, stage::WINDOW, stage::RULES, stage::MATCH, stage::ENRICH];

/// Small commits and a flush after each.
fn busy(setup: Setup) -> Setup {
    setup.with(|s| {
        s.records_per_commit = 5;
        s.flush_every_ms = 0;
    })
}

fn redrawn(setup: &Setup, redraws: &[(u64, &'static str, u32)]) -> Setup {
    let redraws = redraws.iter().map(|(after, stage, shards)| Redraw { after: *after, stage, shards: *shards });
    Setup { redraws: redraws.collect(), ..setup.clone() }
}

/// Cards and their profiles in the order they were published.
fn profiles(outputs: &Outputs) -> Vec<(String, CardProfile)> {
    let of_topic = outputs.publish.iter().filter(|r| r.topic == payguard_publish::PROFILES_TOPIC);
    of_topic.map(|r| (r.key.clone(), serde_json::from_slice(&r.value).expect("a profile"))).collect()
}

/// The same records, and the profiles of every card in the same order.
#[track_caller]
fn assert_equal(found: Result<Outputs, String>, expected: &Outputs, context: &str) {
    let found = found.unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(found.sets(), expected.sets(), "{context}");
    assert_eq!(found.final_totals(), expected.final_totals(), "{context}");
    let by_card = |outputs| {
        let mut profiles = profiles(outputs);
        profiles.sort_by(|a, b| a.0.cmp(&b.0));
        profiles
    };
    assert_eq!(by_card(&found), by_card(expected), "{context}");
}

#[tokio::test(start_paused = true)]
async fn whatever_is_redrawn_whenever_the_same_records_come_out() {
    for seed in seeds(40) {
        let mut rng = Rng::new(seed);
        let shape = [Shape::TIDY, Shape::DIRTY, Shape::COARSE][usize::try_from(rng.below(3)).expect("small")];
        let feed = Feed::drawn(seed, 150, shape, 1 + rng.below(30) as usize);
        let first = 1 + rng.below(3) as u32;
        let mut setup = Setup::full().with_shards(first).with(|s| s.records_per_commit = 1 + rng.below(40) as usize);
        setup.commits = if rng.below(2) == 0 { 2 } else { u32::MAX };
        if rng.below(3) == 0 {
            setup = busy(setup);
        }
        let (_, expected) = undisturbed(&setup, &feed).await;
        // Up to three changes a stage, at any time, several at once.
        let mut redraws = Vec::new();
        for stage in STAGES {
            let mut shards = first;
            for _ in 0..rng.below(4) {
                shards = (shards + rng.below(4) as u32) % 5 + 1;
                redraws.push((rng.below(feed.len()), stage, shards));
            }
        }
        redraws.sort_unstable();
        let redraws = without_repeats(first, redraws);
        let context = format!("SIM_SEEDS={seed} {first} shards, then {redraws:?}");
        let world = SimWorld::new(NOW_MS);
        let setup = redrawn(&setup, &redraws);
        let handle = if seed % 2 == 0 { collecting(&world, &setup, seed, 100) } else { world.clone() };
        assert_equal(run_to_end(&handle, &setup, &feed, Restart::Fresh).await, &expected, &context);
    }
}

/// Leaves out what would change nothing.
fn without_repeats(first: u32, redraws: Vec<(u64, &'static str, u32)>) -> Vec<(u64, &'static str, u32)> {
    let mut kept: Vec<(u64, &'static str, u32)> = Vec::new();
    for redraw in redraws {
        let before = kept.iter().rev().find(|r| r.1 == redraw.1).map_or(first, |r| r.2);
        if before != redraw.2 {
            kept.push(redraw);
        }
    }
    kept
}

#[tokio::test(start_paused = true)]
async fn a_fault_at_any_operation_of_a_run_with_redrawing_changes_nothing() {
    let feed = Feed::drawn(3, 30, Shape::DIRTY, 11);
    let setup = busy(Setup::full().with_shards(2));
    let (_, expected) = undisturbed(&setup, &feed).await;
    let setup = redrawn(&setup, &[(8, stage::RULES, 3), (20, stage::DEDUP, 1), (30, stage::RULES, 2)]);
    let (calm, found) = undisturbed(&setup, &feed).await;
    assert_equal(Ok(found), &expected, "without a fault");
    for k in 0..calm.ops() {
        for (fault, restart) in [
            (Fault::CrashBefore, Restart::Fresh),
            (Fault::CrashAfter, Restart::Warm),
            (Fault::FailAfter, Restart::Warm),
        ] {
            let world = SimWorld::new(NOW_MS);
            world.plan(FaultPlan::at(k, fault));
            let found = run_to_end(&world, &setup, &feed, restart).await;
            assert_equal(found, &expected, &format!("operation {k} {fault:?} {restart:?}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn random_faults_and_collection_during_redrawing_change_nothing() {
    for seed in seeds(60) {
        let feed = Feed::drawn(seed, 60, Shape::DIRTY, 13);
        let setup = busy(Setup::full().with_shards(2));
        let (_, expected) = undisturbed(&setup, &feed).await;
        let setup = redrawn(&setup, &[(10, stage::MATCH, 4), (20, stage::DEDUP, 3), (40, stage::WINDOW, 1)]);
        let world = SimWorld::new(NOW_MS);
        world.plan(FaultPlan::random(seed, 12, true));
        let restart = if seed % 2 == 0 { Restart::Fresh } else { Restart::Warm };
        let found = run_to_end(&collecting(&world, &setup, seed, 200), &setup, &feed, restart).await;
        assert_equal(found, &expected, &format!("SIM_SEEDS={seed}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_slept_at_any_operation_while_another_redrew_and_finished_changes_nothing() {
    let feed = Feed::drawn(11, 30, Shape::DIRTY, 17);
    let setup = busy(Setup::full().with_shards(2));
    let (_, expected) = undisturbed(&setup, &feed).await;
    let setup = redrawn(&setup, &[(15, stage::RULES, 3), (20, stage::DEDUP, 1)]);
    let (calm, _) = undisturbed(&setup, &feed).await;
    for k in 0..calm.ops() {
        let world = SimWorld::new(NOW_MS);
        world.plan(FaultPlan::of(1, k, Fault::Pause));
        let sleeper = world.executor(1);
        let mut zombie = pin!(run_to_end(&sleeper, &setup, &feed, Restart::Fresh));
        assert!(sleeper.until_paused(&mut zombie).await.is_none(), "operation {k} is reached");
        let outputs = run_to_end(&world.executor(2), &setup, &feed, Restart::Fresh).await;
        assert_equal(outputs, &expected, &format!("with a sleeper at operation {k}"));
        let before = world.lock().lasting();
        world.resume();
        assert_equal(zombie.await, &expected, &format!("the sleeper of operation {k}"));
        assert_eq!(world.lock().lasting(), before, "the sleeper of operation {k} changed something");
    }
}

#[tokio::test(start_paused = true)]
async fn processes_that_interleave_at_random_and_redraw_publish_everything_once() {
    for seed in seeds(60) {
        let feed = Feed::drawn(seed, 60, Shape::COARSE, 9);
        let setup = busy(Setup::full().with_shards(2));
        let (_, expected) = undisturbed(&setup, &feed).await;
        let setup = redrawn(&setup, &[(10, stage::WINDOW, 3), (25, stage::RULES, 1), (40, stage::RULES, 4)]);
        let world = SimWorld::new(NOW_MS);
        let plan = if seed % 4 < 2 { FaultPlan::default() } else { FaultPlan::random(seed, 15, true) };
        for result in interleaved(&world, &setup, &feed, (seed, plan)).await {
            assert_equal(result, &expected, &format!("SIM_SEEDS={seed}"));
        }
    }
}

/// The profiles of each card count its payments without a gap.
#[track_caller]
fn assert_profiles_in_order(outputs: &Outputs, context: &str) -> i64 {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for (card, profile) in profiles(outputs) {
        let count = counts.entry(card.clone()).or_default();
        *count += 1;
        assert_eq!(profile.payment_count, *count, "{context} {card}");
    }
    counts.values().sum()
}

/// What is aligned loosely may give other alerts; nothing is lost or doubled, and a card's profiles stay in order.
#[tokio::test(start_paused = true)]
async fn without_strict_alignment_nothing_is_lost_and_every_key_keeps_its_order() {
    for (seed, mode) in seeds(40).flat_map(|s| [(s, AlignmentMode::Drift), (s, AlignmentMode::Off)]) {
        let mut rng = Rng::new(seed);
        let feed = Feed::drawn(seed, 120, Shape::TIDY, 1 + usize::try_from(rng.below(20)).expect("small"));
        let mut setup = busy(Setup::full().with_shards(2));
        setup.config.engine.alignment = mode;
        setup.commits = 1 + u32::try_from(rng.below(4)).expect("small");
        let redraws = [(rng.below(60), stage::RULES, 3), (60 + rng.below(60), stage::RULES, 1), (90, stage::DEDUP, 4)];
        let setup = redrawn(&setup, &redraws);
        let world = SimWorld::new(NOW_MS);
        let found = run_to_end(&world, &setup, &feed, Restart::Fresh).await;
        let context = format!("SIM_SEEDS={seed} {mode:?} {redraws:?}");
        let found = found.unwrap_or_else(|error| panic!("{context}: {error}"));
        let payments = assert_profiles_in_order(&found, &context);
        let world = world.lock();
        let heads = world.logs.values().filter_map(|log| log.head.as_ref());
        let clean = heads.map(|head| head.counters.get("out.clean-by-card").copied().unwrap_or(0));
        assert_eq!(u64::try_from(payments), Ok(clean.sum::<u64>()), "{context}");
    }
}

/// Without alignment a reader takes what is there: it must not read the new tasks while it is behind with the old ones.
#[tokio::test(start_paused = true)]
async fn a_sink_that_is_behind_reads_the_old_tasks_to_their_end_first() {
    for seed in seeds(20) {
        let mut rng = Rng::new(seed);
        let mut feed = Feed::drawn(seed, 200, Shape { cards: 3, ..Shape::TIDY }, 10);
        let mut setup = Setup::full().with_shards(2).with(|s| s.records_per_commit = 3);
        setup.config.engine.alignment = AlignmentMode::Drift;
        let setup = redrawn(&setup, &[(60, stage::RULES, 3), (150, stage::RULES, 1)]);
        let world = SimWorld::new(NOW_MS);
        let mut pipeline = Pipeline::new(&world, &setup, 1);
        pipeline.begin(&feed).await.expect("no fault");
        let budget = Budget { until: ProcessingTime(i64::MAX), commits: u32::MAX };
        while feed.has_more() {
            pipeline.redraw(&feed).await.expect("no fault");
            pipeline.deliver_all(&mut feed).await.expect("no fault");
            // Some tasks only, so that those of a stage stand at different times when they are sealed.
            for task in pipeline.consumers.iter_mut().filter(|task| *task.id().stage.0 != *stage::PUBLISH) {
                if rng.chance(600) {
                    task.run(budget).await.expect("no fault");
                }
            }
        }
        pipeline.finish().await.expect("no fault");
        let published = assert_profiles_in_order(&Outputs::of(&world), &format!("SIM_SEEDS={seed}"));
        assert!(published > 150, "{published} profiles");
    }
}

/// A command that died has sealed some of the tasks: whoever takes over from those alone waits for the others, and the
/// command that is repeated goes on, also when the tasks have run meanwhile.
#[tokio::test(start_paused = true)]
async fn a_redrawing_that_died_between_two_tasks_is_taken_up_after_the_tasks_have_run() {
    let feed = Feed::drawn(5, 60, Shape::DIRTY, 11);
    for (first, shards) in [(2, 4), (4, 2), (2, 3), (3, 2)] {
        let setup = Setup::full().with_shards(first).with(|s| s.records_per_commit = 5);
        let (_, expected) = undisturbed(&setup, &feed).await;
        let setup = redrawn(&setup, &[(0, stage::RULES, shards)]);
        for sealed in 0..=first {
            let context = format!("{first} to {shards} shards, {sealed} sealed");
            let (world, mut feed) = (SimWorld::new(NOW_MS), feed.clone());
            let mut pipeline = Pipeline::new(&world, &setup, 1);
            pipeline.begin(&feed).await.expect("no fault");
            for _ in 0..3 {
                pipeline.deliver_all(&mut feed).await.expect("no fault");
                pipeline.run_consumers().await.expect("no fault");
            }
            let layout = Layout::first(first);
            for shard in 0..sealed {
                let mut task = pipeline.consumer(&layout.task(&StageId::new(stage::RULES), shard));
                task.seal(layout.next(shards)).await.expect("no fault");
            }
            for _ in 0..3 {
                pipeline.run_consumers().await.expect("no fault");
            }
            let found = run_to_end(&world, &setup, &feed, Restart::Fresh).await;
            assert_equal(found, &expected, &context);
        }
    }
}
