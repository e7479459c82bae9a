//! Damaged segments stop the task that reads them; unreachable stores are waited for.
#![allow(missing_docs)]

use std::collections::BTreeSet;

use bytes::Bytes;
use payguard_engine::row::SegmentLocation;
use payguard_engine::task::consumer::ConsumerTask;
use payguard_engine::task::{Budget, Report};
use payguard_engine::{EngineError, TaskId};
use payguard_model::ProcessingTime;
use payguard_sim::{FaultPlan, OpKind, SimWorld};
use payguard_tests::data::NOW_MS;
use payguard_tests::{Feed, Outputs, Pipeline, Restart, Setup, Shape, assert_same, run_to_end, seeds, undisturbed};

const ALL: Budget = Budget { until: ProcessingTime(i64::MAX), commits: u32::MAX };

#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip,
    Truncate,
    Remove,
}

/// Where one slice of a committed row is: producer, seq, object, first byte, length, and who reads it.
struct Place {
    producer: TaskId,
    seq: u64,
    object: String,
    from: usize,
    len: usize,
    reader: TaskId,
}

/// Everything in objects.
fn setup() -> Setup {
    Setup::full().with(|s| {
        s.inline_bytes = 0;
        s.records_per_commit = 12;
    })
}

fn places(world: &SimWorld, setup: &Setup, producer: &TaskId) -> Vec<Place> {
    let topology = setup.topology();
    let world = world.lock();
    let mut places = Vec::new();
    for row in world.logs[producer].rows.values() {
        let Some(SegmentLocation::Object(object)) = &row.segment else { continue };
        for slice in row.slices.iter().chain(&row.delta) {
            let consumer = topology.streams.iter().find(|s| s.name == slice.stream).map(|s| &s.consumer);
            places.push(Place {
                producer: producer.clone(),
                seq: row.seq,
                object: object.clone(),
                from: usize::try_from(slice.offset).expect("small"),
                len: usize::try_from(slice.len).expect("small"),
                // A delta is read by the task itself.
                reader: consumer.map_or(producer.clone(), |stage| TaskId::shard(stage, 0)),
            });
        }
    }
    places
}

fn damage(world: &SimWorld, place: &Place, how: Damage) -> Bytes {
    let objects = &mut world.lock().objects;
    let whole = objects.remove(&place.object).expect("the object");
    let mut bytes = whole.to_vec();
    match how {
        Damage::Flip => bytes[place.from + place.len / 2] ^= 0x04,
        Damage::Truncate => bytes.truncate(place.from + place.len - 1),
        Damage::Remove => return whole,
    }
    objects.insert(place.object.clone(), bytes.into());
    whole
}

/// The error says which object of which row is not in order; an object that is gone although it is needed breaks INV-5.
fn assert_named(place: &Place, how: Damage, error: &EngineError, context: &str) {
    match (how, error) {
        (Damage::Flip | Damage::Truncate, EngineError::DamagedSegment { task, seq, object, .. }) => {
            let named = (task.as_str(), *seq, object.as_str());
            assert_eq!(named, (&*place.producer.to_string(), place.seq, &*place.object), "{context}");
        }
        (Damage::Remove, EngineError::Broken { task, invariant: "INV-5", detail }) => {
            assert_eq!(*task, place.reader.to_string(), "{context}");
            assert!(detail.contains(&place.object), "{context}: {detail}");
        }
        _ => panic!("{context}: {error}"),
    }
}

async fn run(pipeline: &mut Pipeline, task: &TaskId) -> Result<Report, EngineError> {
    let consumer: &mut ConsumerTask = pipeline.consumers.iter_mut().find(|c| c.id() == task).expect("the task");
    consumer.run(ALL).await
}

#[tokio::test(start_paused = true)]
async fn a_damaged_segment_stops_its_reader_who_names_it_and_goes_on_after_the_repair() {
    let whole_feed = Feed::drawn(4, 60, Shape::DIRTY, 20);
    let (calm, expected) = undisturbed(&setup(), &whole_feed).await;
    let tasks = |names: &[&str]| names.iter().map(|t| t.parse().expect("a task")).collect::<Vec<TaskId>>();
    let sources = ["parse/payments.raw-0", "parse/payments.confirmations-0", "control/0"];
    let operators = tasks(&["dedup/0", "window/0", "rules/0", "match/0", "enrich/0"]);
    let producers: Vec<TaskId> = tasks(&sources).into_iter().chain(operators.clone()).collect();
    let mut kinds = BTreeSet::new();
    for producer in &producers {
        let calm_places = places(&calm, &setup(), producer);
        for n in 0..calm_places.len() {
            for how in [Damage::Flip, Damage::Truncate, Damage::Remove] {
                // The producer has committed its rows; the reader has not read them.
                let world = SimWorld::new(NOW_MS);
                let mut feed = whole_feed.clone();
                let mut pipeline = Pipeline::new(&world, &setup(), 1);
                pipeline.begin(&feed).await.expect("no fault");
                while feed.has_more() {
                    pipeline.deliver_all(&mut feed).await.expect("no fault");
                }
                let Some(reader) = calm_places.get(n).map(|place| place.reader.clone()) else { continue };
                let before = match &*reader.stage.0 {
                    "dedup" if *producer != reader => tasks(&[]),
                    "window" | "rules" | "match" if *producer != reader => tasks(&["dedup/0"]),
                    "enrich" => tasks(&["dedup/0", "rules/0", "match/0"]),
                    // A sink is held back by inputs that are silent.
                    _ => operators.clone(),
                };
                for upstream in &before {
                    run(&mut pipeline, upstream).await.expect("no fault");
                }
                let now = places(&world, &setup(), producer).into_iter().nth(n).filter(|place| place.reader == reader);
                let Some(place) = now else { continue };
                kinds.insert((place.producer.stage.to_string(), place.reader.stage.to_string()));
                let whole = damage(&world, &place, how);
                let mut fresh = Pipeline::new(&world, &setup(), 1);
                let context = format!("{how:?} {} seq {} read by {}", place.producer, place.seq, place.reader);
                for again in 0..2 {
                    let error = run(&mut fresh, &place.reader).await.expect_err(&context);
                    assert_named(&place, how, &error, &format!("{context} {again}"));
                }
                let head = world.lock().logs.get(&place.reader).and_then(|log| log.head.clone());
                let read =
                    head.and_then(|h| h.inputs.get(&place.producer.to_string()).map(|s| s.position.at)).unwrap_or(0);
                assert!(read < i64::try_from(place.seq).expect("small"), "{context}: it was skipped");

                world.lock().objects.insert(place.object.clone(), whole);
                let outputs = run_to_end(&world, &setup(), &feed, Restart::Fresh).await;
                assert_same(&outputs, &expected, &context);
            }
        }
    }
    assert!(kinds.len() >= 16, "{kinds:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_for_a_while_is_waited_for() {
    let setup = Setup::full().with(|s| {
        s.flush_every_ms = 0;
        s.store_tries = 4;
    });
    let feed = Feed::drawn(6, 60, Shape::DIRTY, 17);
    let (calm, expected) = undisturbed(&setup, &feed).await;
    let kinds: BTreeSet<OpKind> = calm.lock().trace.iter().map(|(_, kind)| *kind).collect();
    assert!(kinds.contains(&OpKind::PutObject) && kinds.contains(&OpKind::PutPage), "{kinds:?}");
    for kind in kinds {
        for tries in 1..4 {
            let world = SimWorld::new(NOW_MS);
            world.plan(FaultPlan::outage(kind, tries));
            let before = tokio::time::Instant::now();
            let driven = Pipeline::new(&world, &setup, 1).drive(&mut feed.clone()).await;
            assert!(driven.is_ok(), "{kind:?} {tries} times: {driven:?}");
            assert!(before.elapsed().as_millis() >= 50, "{kind:?} {tries} times: without a pause");
            assert_same(&Ok(Outputs::of(&world)), &expected, &format!("{kind:?} {tries} times"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_for_long_is_an_error_and_a_later_invocation_completes() {
    let setup = Setup::full().with(|s| s.flush_every_ms = 0);
    let feed = Feed::drawn(6, 60, Shape::DIRTY, 17);
    let (calm, expected) = undisturbed(&setup, &feed).await;
    let kinds: BTreeSet<OpKind> = calm.lock().trace.iter().map(|(_, kind)| *kind).collect();
    for kind in kinds {
        let world = SimWorld::new(NOW_MS);
        world.plan(FaultPlan::outage(kind, 100));
        let mut attempt = feed.clone();
        let error = Pipeline::new(&world, &setup, 1).drive(&mut attempt).await.expect_err("an outage");
        let told = matches!(error, EngineError::Store(_) | EngineError::Unresolved { .. });
        assert!(told, "{kind:?}: {error}");
        let outputs = run_to_end(&world, &setup, &feed, Restart::Warm).await;
        assert_same(&outputs, &expected, &format!("{kind:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn reads_that_fail_at_random_while_state_is_recovered_change_nothing() {
    for seed in seeds(20) {
        let setup = Setup::full().with(|s| s.flush_every_ms = 0);
        let feed = Feed::drawn(seed, 60, Shape::DIRTY, 17);
        let (_, expected) = undisturbed(&setup, &feed).await;
        let world = SimWorld::new(NOW_MS);
        let mut half = feed.clone();
        let mut pipeline = Pipeline::new(&world, &setup, 1);
        pipeline.begin(&half).await.expect("no fault");
        pipeline.deliver_all(&mut half).await.expect("no fault");
        pipeline.deliver_all(&mut half).await.expect("no fault");
        pipeline.run_consumers().await.expect("no fault");
        world.plan(FaultPlan::random(seed, 100, false));
        let outputs = run_to_end(&world, &setup, &half, Restart::Fresh).await;
        assert_same(&outputs, &expected, &format!("SIM_SEEDS={seed}"));
    }
}
