//! What is refused, with the sentence that names the cure (lesson 13).

use payguard_clock::collect::{Limits, collect};
use payguard_engine::gc::Collected;
use payguard_engine::task::Budget;
use payguard_model::ProcessingTime;
use payguard_savepoint::format::SavedTask;
use payguard_savepoint::{Manifest, Refusal, SavepointError, delete, list, show};
use payguard_sim::{Fault, FaultPlan, SimWorld};
use payguard_tests::data::NOW_MS;
use payguard_tests::{Pipeline, Setup, undisturbed};
use payguard_topology::begun::as_begun;
use payguard_topology::stage;

use crate::support::{NAME, bring_back, busy, check_whole, finish, stopped, take, with_files_of};

/// A savepoint with state and records in flight.
async fn saved(setup: &Setup) -> (SimWorld, Manifest) {
    let (world, mut feed) = (SimWorld::new(NOW_MS), busy(1, 80, 9));
    let mut pipeline = Pipeline::new(&world, setup, 1);
    pipeline.begin(&feed).await.expect("it begins");
    for _ in 0..5 {
        pipeline.deliver_all(&mut feed).await.expect("delivered");
        pipeline.run_consumers().await.expect("run");
    }
    pipeline.deliver_all(&mut feed).await.expect("delivered");
    let manifest = take(&world, setup, NAME).await.expect("saved");
    assert!(manifest.records_in_flight() > 0);
    (world, manifest)
}

/// The savepoint with another manifest.
fn with_manifest(world: &SimWorld, manifest: &Manifest, change: impl FnOnce(&mut Manifest)) -> SimWorld {
    let (other, mut manifest) = (with_files_of(world), manifest.clone());
    change(&mut manifest);
    let document = manifest.write().expect("written");
    other.lock().files.insert(format!("{NAME}/manifest.json"), document);
    other
}

fn refusal(result: Result<impl std::fmt::Debug, SavepointError>) -> (Refusal, String) {
    match result.expect_err("it is refused") {
        SavepointError::Refused(refusal) => (refusal.clone(), refusal.to_string()),
        other => panic!("not a refusal: {other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn lesson_13_what_does_not_fit_is_refused_and_nothing_is_written() {
    let setup = Setup::full();
    let (world, manifest) = saved(&setup).await;
    let operators = |list: &str| {
        let mut setup = setup.clone();
        setup.config.operators = list.split(',').map(str::to_owned).collect();
        setup
    };
    let all = payguard_topology::operator::ALL;
    let without = |id: &str| operators(&all.iter().copied().filter(|o| *o != id).collect::<Vec<_>>().join(","));
    let mut other_topic = setup.clone();
    other_topic.config.source.topic = "payments.v2".to_owned();
    let mut no_confirmations = setup.clone();
    no_confirmations.config.source.confirmations_topic.clear();
    let mut salted = setup.clone();
    salted.config.stats.salts = 4;
    let same = |_: &mut Manifest| ();
    type Change = Box<dyn FnOnce(&mut Manifest)>;
    // What differs, the lesson's message, and what the sentence has to say, its cure included.
    let cases: Vec<(&str, Setup, Change, &[&str])> = vec![
        (
            "Cannot map checkpoint/savepoint state for operator",
            without("rule-amount-spike"),
            Box::new(same),
            &["operator rule-amount-spike of stage rules", "keys", "--allow-dropped", "back under its id"],
        ),
        (
            "the same for a stage that is gone",
            no_confirmations,
            Box::new(same),
            &["operator payment-matching of stage match", "partition payments.confirmations-0", "--allow-dropped"],
        ),
        ("the position of a source", other_topic, Box::new(same), &["payments.raw-0", "--allow-dropped"]),
        (
            "Max parallelism mismatch",
            setup.clone(),
            Box::new(|m: &mut Manifest| m.key_groups = 1_024),
            &["1024 key groups", "this program 128", "restore with a program of 1024"],
        ),
        (
            "The maximum parallelism of the restored state is lower: 4 groups, p = 6",
            setup.clone().with_shards(6),
            Box::new(|m: &mut Manifest| m.key_groups = 4),
            &["4 key groups", "6 shards", "use at most 4"],
        ),
        (
            "other keys",
            salted,
            Box::new(same),
            &["clean-by-merchant", "shared out by", "of 4", "restore with the configuration"],
        ),
        (
            "another format",
            setup.clone(),
            Box::new(|m: &mut Manifest| m.format = 2),
            &["format 2", "reads format 1", "with the program that made it"],
        ),
    ];
    for (name, setup, change, parts) in cases {
        let world = with_manifest(&world, &manifest, change);
        let (_, sentence) = refusal(bring_back(&world, &setup, NAME).await);
        for part in parts {
            assert!(sentence.contains(part), "{name}: `{part}` is not in: {sentence}");
        }
        assert!(world.lock().logs.is_empty() && world.lock().pages.is_empty(), "{name}: nothing is written");
    }
}

#[tokio::test(start_paused = true)]
async fn lesson_13_state_of_an_operator_that_is_gone_is_dropped_only_when_told() {
    let setup = Setup::full();
    let (world, _) = saved(&setup).await;
    let mut without = setup.clone();
    without.config.operators = payguard_topology::operator::ALL
        .iter()
        .filter(|o| **o != "rule-amount-spike")
        .map(|o| (*o).to_owned())
        .collect();
    let again = with_files_of(&world);
    let env = again.env(without.settings.clone());
    let restore = payguard_savepoint::Restore {
        env: &env,
        files: &again,
        config: &without.config,
        name: NAME,
        allow_dropped: true,
    };
    let restored = payguard_savepoint::restore(&restore).await.expect("it was told");
    assert_eq!(restored.dropped.len(), 1);
    assert!(restored.dropped[0].contains("rule-amount-spike"), "{:?}", restored.dropped);
    assert!(again.lock().pages.keys().all(|address| address.operator != "rule-amount-spike"));
    finish(&again, &without, &busy(1, 80, 9)).await;
    // The other way round nothing is asked: an operator that the savepoint does not know starts empty.
    again.lock().files.clear();
    take(&again, &without, NAME).await.expect("saved without it");
    let with = with_files_of(&again);
    bring_back(&with, &setup, NAME).await.expect("a new operator starts empty");
    finish(&with, &setup, &busy(1, 80, 9)).await;
    // A pipeline that is whole is not asked once more what it was made with.
    assert!(bring_back(&with, &without, NAME).await.expect("it is there").was_done);
}

fn without(setup: &Setup, operator: &str) -> Setup {
    let mut setup = setup.clone();
    let left = payguard_topology::operator::ALL.iter().filter(|o| **o != operator);
    setup.config.operators = left.map(|o| (*o).to_owned()).collect();
    setup
}

/// One of the streams that a stage reads of another is given up: a reader that stands within a row has counted records of
/// it, so nothing tells which of the others it has read.
#[tokio::test(start_paused = true)]
async fn a_stream_is_not_given_up_in_the_midst_of_a_row() {
    let setup = Setup::full().with(|s| s.records_per_commit = 5);
    let (less, feed) = (without(&setup, "card-sessions"), busy(1, 60, 9));
    let (world, _) = stopped(&setup, &feed).await;
    let mut pipeline = Pipeline::new(&world, &setup, 1);
    for (stage, commits) in [(stage::DEDUP, u32::MAX), (stage::WINDOW, 1)] {
        for task in pipeline.consumers.iter_mut().filter(|task| &*task.id().stage.0 == stage) {
            task.run(Budget { until: ProcessingTime(i64::MAX), commits }).await.expect("run");
        }
    }
    let give_up = async |name: &str| {
        take(&world, &setup, name).await.expect("saved");
        let again = with_files_of(&world);
        let env = again.env(less.settings.clone());
        let (files, config) = (&again, &less.config);
        let restore = payguard_savepoint::Restore { env: &env, files, config, name, allow_dropped: true };
        payguard_savepoint::restore(&restore).await.map(|_| again)
    };
    let (kind, sentence) = refusal(give_up("within").await.map(|_| ()));
    assert!(matches!(kind, Refusal::WithinRow { .. }) && sentence.contains("stopped pipeline"), "{sentence}");
    pipeline.run_consumers().await.expect("all is read");
    let again = give_up("at-rest").await.expect("nobody stands within a row");
    finish(&again, &less, &feed).await;
}

#[tokio::test(start_paused = true)]
async fn a_configuration_without_a_part_of_the_pipeline_saves_nothing() {
    let (world, _) = saved(&Setup::full()).await;
    let mut setup = Setup::full();
    setup.config.source.confirmations_topic.clear();
    let (_, sentence) = refusal(take(&world, &setup, "other").await);
    assert!(sentence.contains("match/0") && sentence.contains("configuration of the running pipeline"), "{sentence}");
}

#[tokio::test(start_paused = true)]
async fn an_older_release_neither_saves_nor_restores_nor_collects_what_a_newer_stored() {
    let older = Setup::full();
    let newer = older.clone().with(|s| s.schema += 1);
    let (world, manifest) = saved(&newer).await;
    assert_eq!(manifest.schema, newer.settings.schema);
    let before = world.lock().lasting();
    let other = with_files_of(&world);
    let (stored, known) = (newer.settings.schema, older.settings.schema);
    let expected = format!("a newer release has worked on it (it stores schema {stored}, this one knows {known})");
    for error in [take(&world, &older, "other").await.map(drop), bring_back(&other, &older, NAME).await.map(drop)] {
        let error = error.expect_err("refused").to_string();
        assert!(error.contains(&expected), "{error}");
    }
    assert!(other.lock().logs.is_empty(), "nothing is begun");
    let (env, topology) = (world.env(older.settings.clone()), older.topology());
    let heads = payguard_topology::progress::heads(&world, &topology).await.expect("the heads");
    let limits = Limits::per_minute(0, ProcessingTime(i64::MAX));
    let outcome = collect(&env, &topology, &heads, limits).await;
    assert_eq!((outcome.collected, outcome.failed.len()), (Collected::default(), 1));
    assert_eq!(world.lock().lasting(), before);
    bring_back(&other, &newer, NAME).await.expect("the newer restores it");
}

#[tokio::test(start_paused = true)]
async fn a_pipeline_that_is_not_whole_is_not_worked_on() {
    let (setup, feed) = (Setup::full(), busy(1, 80, 9));
    let (original, _) = saved(&setup).await;
    let calm = with_files_of(&original);
    bring_back(&calm, &setup, NAME).await.expect("nothing goes wrong");
    let world = with_files_of(&original);
    world.plan(FaultPlan::at(calm.ops() / 2, Fault::CrashAfter));
    assert!(world.guard(bring_back(&world, &setup, NAME)).await.is_err());
    world.plan(FaultPlan::default());
    let env = world.env(setup.settings.clone());
    let error = as_begun(&env, setup.config.clone()).await.expect_err("refused").to_string();
    assert!(error.contains("is being restored") && error.contains("run that restore again"), "{error}");
    bring_back(&world, &setup, NAME).await.expect("finished");
    finish(&world, &setup, &feed).await;
}

#[tokio::test(start_paused = true)]
async fn names_that_are_taken_unknown_or_unusable() {
    let setup = Setup::full();
    let (world, _) = saved(&setup).await;
    let (kind, sentence) = refusal(take(&world, &setup, NAME).await);
    assert!(matches!(kind, Refusal::Exists { .. }) && sentence.contains("savepoint delete"), "{sentence}");
    let (_, sentence) = refusal(bring_back(&world, &setup, NAME).await);
    assert!(sentence.contains("pipeline payguard has run") && sentence.contains("--to payguard-2"), "{sentence}");
    let (kind, sentence) = refusal(show(&world, &setup.settings, "other").await);
    assert!(
        matches!(kind, Refusal::NotFound { .. }) && sentence.contains("there are: before-the-change"),
        "{sentence}"
    );
    let moved = SimWorld::new(NOW_MS);
    let files = world.lock().files.clone().into_iter().map(|(path, bytes)| (path.replace(NAME, "moved"), bytes));
    moved.lock().files.extend(files);
    for result in
        [show(&moved, &setup.settings, "moved").await.map(drop), bring_back(&moved, &setup, "moved").await.map(drop)]
    {
        let (_, sentence) = refusal(result);
        assert!(sentence.contains("folder moved holds savepoint before-the-change"), "{sentence}");
    }
    assert!(list(&moved, &setup.settings).await.expect("listed")[0].manifest.is_err());
    delete(&moved, &setup.settings, "moved").await.expect("what cannot be read can be deleted");
    let (_, sentence) = refusal(delete(&world, &setup.settings, "other").await);
    assert!(sentence.contains("there is no savepoint other"), "{sentence}");
    for name in ["", "a/b", "..", ".hidden", "-x", "ü", &"x".repeat(101)] {
        let (kind, _) = refusal(take(&world, &setup, name).await);
        assert!(matches!(kind, Refusal::BadName(_)), "{name}");
    }
    let (_, sentence) = refusal(take(&SimWorld::new(NOW_MS), &setup, NAME).await);
    assert!(sentence.contains("nothing to save"), "{sentence}");
    delete(&world, &setup.settings, NAME).await.expect("deleted");
    assert!(world.lock().files.is_empty() && list(&world, &setup.settings).await.expect("listed").is_empty());
    let (_, sentence) = refusal(show(&world, &setup.settings, NAME).await);
    assert!(sentence.contains("none at all"), "{sentence}");
}

#[tokio::test(start_paused = true)]
async fn the_configuration_must_be_that_of_the_pipeline() {
    let feed = busy(2, 40, 9);
    let (world, _) = undisturbed(&Setup::full().with_shards(4), &feed).await;
    let (_, sentence) = refusal(take(&world, &Setup::full().with_shards(2), NAME).await);
    assert!(sentence.contains("began with 4 shards") && sentence.contains("--shards 4"), "{sentence}");
}

#[tokio::test(start_paused = true)]
async fn rows_that_were_collected_meanwhile_are_missed() {
    let setup = Setup::full();
    let (world, mut feed) = (SimWorld::new(NOW_MS), busy(1, 80, 9));
    let mut pipeline = Pipeline::new(&world, &setup, 1);
    pipeline.begin(&feed).await.expect("it begins");
    for _ in 0..6 {
        pipeline.deliver_all(&mut feed).await.expect("delivered");
        pipeline.run_consumers().await.expect("run");
    }
    pipeline.deliver_all(&mut feed).await.expect("delivered");
    let parse = payguard_tests::pipeline::source_id(&setup, 0);
    let newest = world.lock().logs[&parse].rows.keys().next_back().copied().expect("rows");
    world.lock().logs.get_mut(&parse).expect("a log").rows.remove(&newest);
    let (kind, sentence) = refusal(take(&world, &setup, NAME).await);
    assert_eq!(kind, Refusal::Collected { task: parse.to_string(), seq: newest });
    assert!(sentence.contains("gc.retention_ms") && sentence.contains("take it again"), "{sentence}");
}

/// Every file of a savepoint, cut short, altered or removed, and every count of the manifest: verify notices.
#[tokio::test(start_paused = true)]
async fn whatever_is_damaged_is_noticed() {
    let setup = Setup::full();
    let (world, manifest) = saved(&setup).await;
    let found = check_whole(&world, &setup, NAME).await.expect("whole");
    assert_eq!(found.files, manifest.files().count() as u64);
    assert_eq!(found.records, manifest.records_in_flight());
    let paths: Vec<String> = world.lock().files.keys().cloned().collect();
    for path in &paths {
        for damage in 0..3 {
            let other = with_files_of(&world);
            let mut bytes = other.lock().files[path].to_vec();
            match damage {
                0 => bytes.truncate(bytes.len() / 2),
                1 => {
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 1;
                }
                _ => {}
            }
            match damage {
                2 => drop(other.lock().files.remove(path)),
                _ => drop(other.lock().files.insert(path.clone(), bytes.into())),
            }
            let error = check_whole(&other, &setup, NAME).await.expect_err("damaged").to_string();
            assert!(error.contains("damaged") || error.contains("there is no savepoint"), "{path}: {error}");
            if *path != format!("{NAME}/manifest.json") || damage < 2 {
                bring_back(&other, &setup, NAME).await.expect_err("and it is not restored");
                let heads =
                    other.lock().logs.iter().filter(|(t, l)| &*t.stage.0 != "restore" && l.head.is_some()).count();
                assert_eq!(heads, 0, "{path}: no task was installed");
            }
        }
    }
    fn task<'a>(m: &'a mut Manifest, id: &str) -> &'a mut SavedTask {
        m.tasks.iter_mut().find(|task| task.task == id).expect("the task")
    }
    type Edit = fn(&mut Manifest);
    let edits: [(&str, Edit); 5] = [
        ("a reader ahead of its producer", |m| {
            task(m, "rules/0").inputs.get_mut("dedup/0").expect("an input").at += 1_000;
        }),
        ("a reader behind the rows", |m| task(m, "parse/payments.raw-0").rows.after += 1),
        ("a record too many", |m| {
            *task(m, "parse/payments.raw-0").rows.records.values_mut().next().expect("some") += 1
        }),
        ("an entry too many", |m| m.state[0].file.entries += 1),
        ("a key in another group", |m| m.state[0].group += 1),
    ];
    for (what, edit) in edits {
        let other = with_manifest(&world, &manifest, edit);
        let error = check_whole(&other, &setup, NAME).await.expect_err(what).to_string();
        assert!(error.contains("damaged"), "{what}: {error}");
    }
}
