//! Idle partitions, partitions that return, and catching up.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use payguard_engine::task::source::Backlog;
use payguard_engine::{EngineError, TaskId};
use payguard_model::FraudAlert;
use payguard_sim::SimWorld;
use payguard_sim::reference::RawRecord;
use payguard_tests::data::{NOW_MS, START_MS, payment_json};
use payguard_tests::feed::as_source;
use payguard_tests::pipeline::source_id;
use payguard_tests::{Feed, Order, Outputs, Pipeline, Setup, Shape, account, are_chosen, reads, records, seeds};
use payguard_topology::config::AlignmentMode;

const MINUTE: i64 = 60_000;

fn record(offset: i64, id: &str, time: i64) -> RawRecord {
    let json = payment_json(id, "c-0001", "m-0001", 5, time);
    RawRecord { offset, timestamp: Some(time), value: Some(json.into_bytes()) }
}

fn watermark(world: &SimWorld, task: &str) -> i64 {
    let task: TaskId = task.parse().expect("a task");
    world.lock().logs[&task].head.as_ref().expect("a head").watermark_ms
}

fn late(world: &SimWorld) -> Vec<String> {
    let outputs = Outputs::of(world);
    outputs.publish.iter().filter(|r| r.topic == payguard_publish::LATE_TOPIC).map(|r| r.key.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_idle_partition_holds_windows_back_until_a_heartbeat_and_its_old_events_are_late_when_it_returns() {
    for mode in [AlignmentMode::Strict, AlignmentMode::Drift] {
        an_idle_partition(mode).await.expect("no fault");
    }
}

async fn an_idle_partition(mode: AlignmentMode) -> Result<(), EngineError> {
    let mut setup = Setup::default();
    setup.config.engine.alignment = mode;
    let world = SimWorld::new(NOW_MS);
    let mut pipeline = Pipeline::new(&world, &setup, 2);
    let windows = |world: &SimWorld| Outputs::of(world).totals.len();

    pipeline.sources[0].ingest(&[as_source(&record(0, "a0", START_MS))]).await?;
    pipeline.sources[1].ingest(&[as_source(&record(0, "b0", START_MS))]).await?;
    for minute in 1..=10 {
        let next = record(minute, &format!("a{minute}"), START_MS + minute * MINUTE);
        pipeline.sources[0].ingest(&[as_source(&next)]).await?;
        pipeline.run_consumers().await?;
    }
    assert_eq!(windows(&world), 0, "{mode:?}: the silent partition holds time back");
    assert_eq!(watermark(&world, "dedup/0"), START_MS - 10_001, "{mode:?}");

    // Too early, then with a backlog: not idle.
    world.advance_ms(MINUTE - 1);
    assert!(!pipeline.sources[1].heartbeat(Backlog::None).await?, "{mode:?}");
    world.advance_ms(1);
    assert!(!pipeline.sources[1].heartbeat(Backlog::Some).await?, "{mode:?}");
    pipeline.run_consumers().await?;
    assert_eq!(windows(&world), 0, "{mode:?}");

    assert!(pipeline.sources[1].heartbeat(Backlog::None).await?, "{mode:?}");
    let rows = world.lock().logs[&source_id(&setup, 1)].rows.len();
    assert!(pipeline.sources[1].heartbeat(Backlog::None).await?, "{mode:?}: it stays idle");
    assert_eq!(world.lock().logs[&source_id(&setup, 1)].rows.len(), rows, "{mode:?}: and says so once");
    pipeline.run_consumers().await?;
    let newest = START_MS + 10 * MINUTE - 10_001;
    assert_eq!(watermark(&world, "dedup/0"), newest, "{mode:?}");
    assert_eq!(windows(&world), 9, "{mode:?}: windows close");

    // It returns where it was: behind everybody else.
    let back = [record(1, "b1", START_MS + 1_000), record(2, "b2", START_MS + 2_000)];
    pipeline.sources[1].ingest(&[as_source(&back[0]), as_source(&back[1])]).await?;
    pipeline.run_consumers().await?;
    let window = "window/0".parse::<TaskId>().expect("a task");
    let too_late =
        world.lock().logs[&window].head.as_ref().expect("a head").counters.get("merchant-stats-1m.too_late").copied();
    assert_eq!(too_late, Some(2), "{mode:?}");
    assert_eq!(watermark(&world, "dedup/0"), newest, "{mode:?}: time does not go back");
    assert!(watermark(&world, "parse/payments.raw-1") < newest, "{mode:?}");

    // It counts again: the other may not close windows alone.
    let ahead = record(11, "a11", START_MS + 20 * MINUTE);
    pipeline.sources[0].ingest(&[as_source(&ahead)]).await?;
    pipeline.run_consumers().await?;
    assert_eq!(watermark(&world, "dedup/0"), newest, "{mode:?}");

    pipeline.finish().await?;
    assert_eq!(late(&world), ["b1", "b2"], "{mode:?}");
    world.check(&reads(&setup.topology())).expect("invariants");
    account(&world, 15).expect("every record is accounted for");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_known_partition_without_a_record_holds_windows_back_until_it_is_idle() {
    for mode in [AlignmentMode::Strict, AlignmentMode::Drift] {
        let mut setup = Setup::default();
        setup.config.engine.alignment = mode;
        setup.config.source.partitions = 2;
        let world = SimWorld::new(NOW_MS);
        let mut pipeline = Pipeline::new(&world, &setup, 2);
        for (minute, id) in (0..).zip(["a0", "a1", "a2", "a3"]) {
            let next = record(minute, id, START_MS + minute * MINUTE);
            pipeline.sources[0].ingest(&[as_source(&next)]).await.expect("no fault");
        }
        pipeline.run_consumers().await.expect("no fault");
        assert_eq!(Outputs::of(&world).totals.len(), 0, "{mode:?}: the other partition may have older records");
        // The first heartbeat begins the silence, the next one a minute later ends the waiting.
        assert!(!pipeline.sources[1].heartbeat(Backlog::None).await.expect("no fault"), "{mode:?}");
        world.advance_ms(MINUTE - 1);
        assert!(!pipeline.sources[1].heartbeat(Backlog::None).await.expect("no fault"), "{mode:?}");
        pipeline.run_consumers().await.expect("no fault");
        assert_eq!(Outputs::of(&world).totals.len(), 0, "{mode:?}: not yet");
        world.advance_ms(1);
        assert!(pipeline.sources[1].heartbeat(Backlog::None).await.expect("no fault"), "{mode:?}");
        pipeline.run_consumers().await.expect("no fault");
        assert_eq!(Outputs::of(&world).totals.len(), 2, "{mode:?}");
        // Its first record is taken from the beginning all the same.
        pipeline.sources[1].ingest(&[as_source(&record(0, "b0", START_MS + 4 * MINUTE))]).await.expect("no fault");
        pipeline.finish().await.expect("no fault");
        world.check(&reads(&setup.topology())).expect("invariants");
        account(&world, 5).expect("every record is accounted for");
    }
}

#[tokio::test(start_paused = true)]
async fn when_every_partition_is_idle_the_furthest_one_gives_the_time() {
    let setup = Setup::default();
    let world = SimWorld::new(NOW_MS);
    let mut pipeline = Pipeline::new(&world, &setup, 2);
    pipeline.sources[0].ingest(&[as_source(&record(0, "a0", START_MS))]).await.expect("no fault");
    pipeline.sources[1].ingest(&[as_source(&record(0, "b0", START_MS + 5 * MINUTE))]).await.expect("no fault");
    world.advance_ms(MINUTE);
    for source in &mut pipeline.sources {
        assert!(source.heartbeat(Backlog::None).await.expect("no fault"));
    }
    pipeline.run_consumers().await.expect("no fault");
    let furthest = START_MS + 5 * MINUTE - 10_001;
    for task in ["dedup/0", "window/0", "rules/0"] {
        assert_eq!(watermark(&world, task), furthest, "{task}");
        assert!(world.lock().logs[&task.parse().expect("a task")].head.as_ref().expect("a head").idle, "{task}");
    }
    assert_eq!(Outputs::of(&world).totals.len(), 1, "the window of a0 is over");
}

/// Four partitions over the same stretch of time.
fn four(seed: u64) -> Vec<Vec<RawRecord>> {
    let shape = Shape { repeats: 0, cards: 6, step_ms: 4_000, ..Shape::TIDY };
    (0..4).map(|p| records(seed * 4 + p, 150, shape)).collect()
}

/// Runs four partitions that are known to exist from the start, on an empty ledger.
async fn four_partitions(seed: u64, mode: AlignmentMode, order: Order) -> Outputs {
    let mut setup = Setup::default();
    setup.config.engine.alignment = mode;
    setup.config.source.partitions = 4;
    let world = SimWorld::new(NOW_MS);
    let mut feed = Feed::many(four(seed), 10, order);
    Pipeline::new(&world, &setup, 4).drive(&mut feed).await.expect("no fault");
    world.check(&reads(&setup.topology())).unwrap_or_else(|e| panic!("SIM_SEEDS={seed} {mode:?} {order:?}: {e}"));
    account(&world, feed.len()).unwrap_or_else(|e| panic!("SIM_SEEDS={seed} {mode:?} {order:?}: {e}"));
    Outputs::of(&world)
}

/// Alerts by rule, card and minute.
fn alerts(outputs: &Outputs) -> BTreeMap<(String, String, i64), usize> {
    let mut alerts = BTreeMap::new();
    for record in outputs.publish.iter().filter(|r| r.topic == payguard_publish::ALERTS_TOPIC) {
        let alert: FraudAlert = serde_json::from_slice(&record.value).expect("an alert");
        *alerts.entry((alert.rule_id, alert.card_id, alert.event_time_ms / MINUTE)).or_default() += 1;
    }
    alerts
}

#[tokio::test(start_paused = true)]
async fn catching_up_partition_by_partition_gives_what_the_live_run_gave() {
    for seed in seeds(12) {
        let live = four_partitions(seed, AlignmentMode::Strict, Order::InTurn).await;
        let replay = four_partitions(seed, AlignmentMode::Strict, Order::OneAfterTheOther).await;
        assert!(!alerts(&live).is_empty() && live.totals.len() > 5, "SIM_SEEDS={seed}");
        // Strictly aligned, not even the order differs.
        payguard_tests::assert_same(&Ok(replay), &live, &format!("SIM_SEEDS={seed}"));
    }
}

#[tokio::test(start_paused = true)]
async fn catching_up_with_a_bounded_drift_gives_the_same_windows_and_sessions() {
    for seed in seeds(12) {
        let live = four_partitions(seed, AlignmentMode::Strict, Order::InTurn).await;
        for order in [Order::InTurn, Order::OneAfterTheOther] {
            let drift = four_partitions(seed, AlignmentMode::Drift, order).await;
            assert_eq!(drift.final_totals(), live.final_totals(), "SIM_SEEDS={seed} {order:?}");
            for topic in ["card.sessions", "payments.dlq", "payments.late"] {
                assert_eq!(drift.sets().get(topic), live.sets().get(topic), "SIM_SEEDS={seed} {order:?} {topic}");
            }
            // Rules depend on the order, which may differ by the drift: by a few alerts, not by half of them.
            let (of_drift, of_live) = (alerts(&drift), alerts(&live));
            let differ = of_live.iter().filter(|(k, n)| of_drift.get(*k) != Some(*n)).count();
            assert!(differ * 4 <= of_live.len(), "SIM_SEEDS={seed} {order:?}: {differ} of {}", of_live.len());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_alignment_a_partition_that_runs_ahead_changes_what_the_rules_see() {
    let mut differ = 0;
    for seed in seeds(12) {
        let live = four_partitions(seed, AlignmentMode::Strict, Order::InTurn).await;
        let replay = four_partitions(seed, AlignmentMode::Off, Order::OneAfterTheOther).await;
        differ += usize::from(alerts(&replay) != alerts(&live));
    }
    assert!(are_chosen() || differ > 6, "alignment makes no difference: {differ} of 12");
}
