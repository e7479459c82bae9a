//! The cut: outputs before it and those of the restored pipeline are together what one undisturbed run publishes, in
//! identity and number, whatever the pipeline did while the savepoint was taken.

use std::time::Duration;

use payguard_savepoint::Manifest;
use payguard_sim::{FaultPlan, Rng, SimWorld};
use payguard_tests::data::{NOW_MS, confirmations};
use payguard_tests::setup::Redraw;
use payguard_tests::{Feed, Outputs, Pipeline, Setup, Shape, assert_same, records, seeds, undisturbed};
use payguard_topology::stage;

use crate::support::{
    NAME, assert_same_sets, begun, bring_back, busy, check_whole, finish, joined, outputs_before, restored, take,
    with_files_of,
};

/// Small commits; flushes never, after each, or now and then.
pub(crate) fn setup(seed: u64, shards: u32) -> Setup {
    Setup::full().with_shards(shards).with(|s| {
        s.records_per_commit = 5 + usize::try_from(seed % 13).expect("small");
        s.flush_every_ms = [i64::MAX, 0, 0][usize::try_from(seed % 3).expect("small")];
        s.flush_bytes = [usize::MAX, 1, 2_000][usize::try_from(seed % 3).expect("small")];
    })
}

/// Takes a savepoint at a random moment of a run; every store operation takes time, so both interleave at every await.
async fn cut_somewhere(seed: u64, setup: &Setup, feed: &Feed) -> (SimWorld, Manifest) {
    cut_beside(seed, setup, feed, |world| world.executor(1)).await
}

/// The same, through the world that `saver` makes of the run's.
pub(crate) async fn cut_beside(
    seed: u64,
    setup: &Setup,
    feed: &Feed,
    saver: impl FnOnce(&SimWorld) -> SimWorld,
) -> (SimWorld, Manifest) {
    let world = SimWorld::new(NOW_MS);
    world.plan(FaultPlan::default().with_latency(seed, 4));
    let started = tokio::time::Instant::now();
    Pipeline::new(&world, setup, feed.partitions()).drive(&mut feed.clone()).await.expect("nothing goes wrong");
    let length = u64::try_from(started.elapsed().as_millis()).expect("short");
    let world = SimWorld::new(NOW_MS);
    // The savepoint's operations are quick against the run's in some runs, slow in others.
    world.plan(FaultPlan::default().with_latency(seed, 4));
    let mut rng = Rng::new(seed ^ 0x005a_7e90);
    let begin = Duration::from_millis(rng.below(length));
    let (mut feed, mut pipeline) = (feed.clone(), Pipeline::new(&world, setup, feed.partitions()));
    let saver = saver(&world);
    let saving = async {
        tokio::time::sleep(begin).await;
        loop {
            match take(&saver, setup, NAME).await {
                Ok(manifest) => return manifest,
                Err(error)
                    if ["committed nothing", "payguard rescale"].iter().any(|e| error.to_string().contains(e)) =>
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("SIM_SEEDS={seed}: {error}"),
            }
        }
    };
    let (driven, manifest) = tokio::join!(pipeline.drive(&mut feed), saving);
    driven.expect("a savepoint disturbs nothing");
    world.plan(FaultPlan::default());
    (world, manifest)
}

/// How much of interest a cut had.
#[derive(Default, Debug)]
struct Seen {
    in_flight: u64,
    within: usize,
    keys: u64,
    early: usize,
    late: usize,
}

impl Seen {
    fn add(&mut self, manifest: &Manifest, before: &Outputs, whole: &Outputs) {
        self.in_flight += manifest.records_in_flight();
        self.within += manifest.tasks.iter().flat_map(|t| t.inputs.values()).filter(|input| input.within > 0).count();
        self.keys += manifest.sizes().values().map(|(keys, _)| keys).sum::<u64>();
        self.early += usize::from(before.publish.is_empty());
        self.late += usize::from(before.publish.len() == whole.publish.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_at_any_moment_loses_nothing_and_repeats_nothing() {
    let mut seen = Seen::default();
    for seed in seeds(120) {
        let feed = match seed % 2 {
            0 => Feed::drawn(seed, 60, Shape::DIRTY, 7),
            _ => Feed::drawn(seed, 60, Shape::COARSE, 23),
        };
        let setup = setup(seed, 1);
        let (_, expected) = undisturbed(&setup, &feed).await;
        let (world, manifest) = cut_somewhere(seed, &setup, &feed).await;
        let context = format!("SIM_SEEDS={seed}");
        assert_same(&Ok(Outputs::of(&world)), &expected, &context);
        check_whole(&world, &setup, NAME).await.unwrap_or_else(|e| panic!("{context}: {e}"));
        let before = outputs_before(&world, &manifest);
        seen.add(&manifest, &before, &expected);
        let after = finish(&restored(&world, &setup).await, &setup, &feed).await;
        assert_same(&Ok(joined(before, after)), &expected, &context);
    }
    assert!(seen.in_flight > 500 && seen.within > 20 && seen.keys > 1_000, "{seen:?}");
    assert!(seen.early + seen.late < 60, "most cuts are in the midst of the outputs: {seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_savepoint_may_be_restored_to_other_shards() {
    let mut seen = Seen::default();
    for seed in seeds(24) {
        let feed = busy(seed, 80, 9);
        let (_, expected) = undisturbed(&setup(seed, 1), &feed).await;
        for (from, to) in [(1, 2), (2, 4), (4, 2), (2, 3), (3, 3)] {
            let (before_setup, after_setup) = (setup(seed, from), setup(seed + 1, to));
            let (world, manifest) = cut_somewhere(seed, &before_setup, &feed).await;
            let context = format!("SIM_SEEDS={seed} {from} to {to} shards");
            let before = outputs_before(&world, &manifest);
            seen.add(&manifest, &before, &expected);
            let after = finish(&restored(&world, &after_setup).await, &after_setup, &feed).await;
            assert_same_sets(&joined(before, after), &expected, &context);
        }
    }
    assert!(seen.in_flight > 2_000 && seen.within > 50, "{seen:?}");
}

/// While shards are redrawn there is a consistent cut or a refusal; afterwards sealed tasks are part of the savepoint.
#[tokio::test(start_paused = true)]
async fn a_cut_while_shards_are_redrawn_loses_nothing_and_repeats_nothing() {
    let (mut sealed, mut taken) = (0, 0);
    for seed in seeds(40) {
        let feed = busy(seed, 80, 9);
        let (_, expected) = undisturbed(&setup(seed, 1), &feed).await;
        let mut setup = setup(seed, 2);
        let stages = [stage::RULES, stage::DEDUP, stage::WINDOW, stage::MATCH, stage::ENRICH];
        let mut rng = Rng::new(seed ^ 0x0e5c_a1e0);
        for (name, shards) in stages.into_iter().zip([3, 4, 1, 3, 4]) {
            setup.redraws.push(Redraw { after: rng.below(feed.len()), stage: name, shards });
        }
        let (world, manifest) = cut_somewhere(seed, &setup, &feed).await;
        let context = format!("SIM_SEEDS={seed}");
        assert_same_sets(&Outputs::of(&world), &expected, &context);
        check_whole(&world, &setup, NAME).await.unwrap_or_else(|e| panic!("{context}: {e}"));
        sealed += manifest.tasks.iter().filter(|task| task.sealed.is_some()).count();
        taken += manifest.tasks.iter().filter(|task| !task.taken.is_empty()).count();
        let before = outputs_before(&world, &manifest);
        // With the shards it had then, then redrawn as before; and with others.
        let again = with_files_of(&world);
        bring_back(&again, &setup, NAME).await.unwrap_or_else(|e| panic!("{context}: {e}"));
        let after = finish(&again, &setup, &feed).await;
        assert_same_sets(&joined(before.clone(), after), &expected, &context);
        let other = Setup { redraws: Vec::new(), ..setup.with_shards(1 + u32::try_from(seed % 4).expect("small")) };
        let after = finish(&restored(&world, &other).await, &other, &feed).await;
        assert_same_sets(&joined(before, after), &expected, &format!("{context}, other shards"));
    }
    assert!(sealed > 40 && taken > 5, "{sealed} sealed tasks, {taken} tasks with records taken before them");
}

#[tokio::test(start_paused = true)]
async fn salted_totals_survive_a_change_of_shards() {
    for seed in seeds(6) {
        let feed = busy(seed, 60, 9);
        let salted = |shards, salts| {
            let mut setup = setup(seed, shards);
            (setup.config.stats.salts, setup.config.stats.late_updates) = (salts, true);
            setup
        };
        let (_, expected) = undisturbed(&salted(1, 3), &feed).await;
        for (from, to) in [(2, 4), (2, 2), (3, 1)] {
            let (world, manifest) = cut_somewhere(seed, &salted(from, 3), &feed).await;
            let setup = salted(to, 3);
            let after = finish(&restored(&world, &setup).await, &setup, &feed).await;
            let joined = joined(outputs_before(&world, &manifest), after);
            let texts = |outputs: &Outputs| -> Vec<String> {
                outputs.final_totals().values().map(|json| String::from_utf8_lossy(json).into_owned()).collect()
            };
            assert_eq!(texts(&joined), texts(&expected), "SIM_SEEDS={seed} {from} to {to}");
        }
    }
}

/// Logs that old shards left behind are part of the next savepoint for as long as they are not read.
#[tokio::test(start_paused = true)]
async fn savepoints_of_restored_pipelines_may_be_restored_again() {
    let mut left_behind = 0;
    for seed in seeds(10) {
        let feed = busy(seed, 80, 9);
        let (_, expected) = undisturbed(&setup(seed, 1), &feed).await;
        let (first, manifest) = cut_somewhere(seed, &setup(seed, 2), &feed).await;
        let before = outputs_before(&first, &manifest);
        // Nothing of it is read, then a part, then the rest.
        let second = restored(&first, &setup(seed, 4)).await;
        second.lock().files.clear();
        let manifest = take(&second, &setup(seed, 4), NAME).await.expect("saved before it was started");
        left_behind += manifest.tasks.iter().filter(|task| task.sealed.is_some()).count();
        check_whole(&second, &setup(seed, 4), NAME).await.expect("whole");
        let third = restored(&second, &setup(seed, 3)).await;
        let mut pipeline = Pipeline::new(&third, &begun(&third, &setup(seed, 3)).await, 1);
        pipeline.run_consumers().await.expect("a part");
        third.lock().files.clear();
        let manifest = take(&third, &setup(seed, 3), NAME).await.expect("saved again");
        let between = outputs_before(&third, &manifest);
        let fourth = restored(&third, &setup(seed, 3)).await;
        let after = finish(&fourth, &setup(seed, 3), &feed).await;
        assert_same_sets(&joined(joined(before, between), after), &expected, &format!("SIM_SEEDS={seed}"));
    }
    assert!(left_behind > 10, "{left_behind}");
}

/// A sink that is one batch ahead of the ledger, because its process died in between, is believed.
#[tokio::test(start_paused = true)]
async fn a_batch_that_only_the_sink_knows_is_not_published_again() {
    let (setup, feed) = (setup(1, 1), Feed::drawn(3, 40, Shape::DIRTY, 7));
    let (calm, expected) = undisturbed(&setup, &feed).await;
    let writes: Vec<u64> = (0u64..)
        .zip(&calm.lock().trace)
        .filter(|(_, (_, kind))| *kind == payguard_sim::OpKind::SinkWrite)
        .map(|(k, _)| k)
        .collect();
    assert!(writes.len() > 3);
    for k in writes {
        let world = SimWorld::new(NOW_MS);
        world.plan(FaultPlan::at(k, payguard_sim::Fault::CrashAfter));
        let mut pipeline = Pipeline::new(&world, &setup, 1);
        let crashed = world.guard(pipeline.drive(&mut feed.clone())).await;
        assert!(crashed.is_err(), "it died after the sink's write");
        let manifest = take(&world, &setup, NAME).await.expect("saved as it lies there");
        let before = outputs_before(&world, &manifest);
        assert_eq!(before.publish.len() + before.totals.len(), {
            let outputs = Outputs::of(&world);
            outputs.publish.len() + outputs.totals.len()
        });
        let after = finish(&restored(&world, &setup).await, &setup, &feed).await;
        assert_same(&Ok(joined(before, after)), &expected, &format!("sink write {k}"));
    }
}

/// Time has come to its end in a drained pipeline; what is restored of it begins anew, with the state that is left.
#[tokio::test(start_paused = true)]
async fn a_drained_savepoint_begins_time_anew() {
    let (setup, feed) = (setup(1, 1), busy(5, 40, 7));
    let (world, outputs) = undisturbed(&setup, &feed).await;
    let manifest = take(&world, &setup, NAME).await.expect("saved at its end");
    assert!(manifest.is_drained());
    assert_eq!(outputs_before(&world, &manifest), outputs);
    for shards in [1, 2] {
        let setup = setup.clone().with_shards(shards);
        let again = restored(&world, &setup).await;
        assert!(again.lock().logs.values().filter_map(|log| log.head.as_ref()).all(|head| !head.ended()));
        // The same payments once more: every one is a repeat.
        let after = finish(&again, &setup, &feed).await;
        assert_eq!(after, Outputs::default(), "all had been read and published");
        // New ones continue the cards' profiles and raise windows of their own.
        let again = restored(&world, &setup).await;
        let more = busy(6, 60, 7).after(&feed);
        let after = finish(&again, &setup, &more).await;
        assert!(!after.totals.is_empty() && after.publish.iter().any(|r| r.topic == "card.profiles"));
    }
}

/// A stage that a drained savepoint does not know has its time before it as well.
#[tokio::test(start_paused = true)]
async fn a_drained_savepoint_begins_time_anew_for_new_stages() {
    let shape = Shape { late_permille: 0, cards: 9, ..Shape::TIDY };
    let (full, first) = (setup(1, 1), Feed::one(&records(5, 40, shape), 7));
    let mut without = full.clone();
    without.config.source.confirmations_topic.clear();
    let (world, _) = undisturbed(&without, &first).await;
    assert!(take(&world, &without, NAME).await.expect("saved at its end").is_drained());
    let later = records(6, 60, shape);
    let more = Feed::one(&later, 7).after(&first).confirmed(confirmations(6, &later));
    let after = finish(&restored(&world, &full).await, &full, &more).await;
    assert!(after.publish.iter().any(|record| record.topic == payguard_publish::CONFIRMED_TOPIC), "pairs are found");
}

#[tokio::test(start_paused = true)]
async fn repeating_a_restore_changes_nothing() {
    let (setup, feed) = (setup(2, 2), busy(7, 60, 7));
    let (world, _) = cut_somewhere(7, &setup, &feed).await;
    let once = restored(&world, &setup).await;
    let durable = |world: &SimWorld| {
        let world = world.lock();
        (world.lasting(), world.pages.clone(), world.objects.clone())
    };
    let lasting = durable(&once);
    assert!(bring_back(&once, &setup, NAME).await.expect("again").was_done);
    assert_eq!(durable(&once), lasting);
    let other = with_files_of(&world);
    bring_back(&other, &setup, NAME).await.expect("elsewhere");
    assert_eq!(durable(&other), lasting, "equal everywhere");
    finish(&once, &setup, &feed).await;
    let ended = once.lock().lasting();
    assert!(bring_back(&once, &setup, NAME).await.expect("after its run").was_done);
    assert_eq!(once.lock().lasting(), ended);
}
