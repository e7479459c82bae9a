//! What Kafka delivers, and how often: every record is taken once.
#![allow(missing_docs)]

use payguard_engine::segment::SliceReader;
use payguard_engine::task::source::{GAP, REDELIVERED, SourceTask};
use payguard_model::{ParsePolicy, Payment, ProcessingTime, parse_payment};
use payguard_sim::reference::RawRecord;
use payguard_sim::{FaultPlan, Rng, SimWorld};
use payguard_tests::data::NOW_MS;
use payguard_tests::feed::as_source;
use payguard_tests::pipeline::{source, source_id};
use payguard_tests::{Setup, Shape, are_chosen, reads, records, seeds};
use payguard_topology::stream;
use prost::Message;

/// Stamp and id of the payments of partition 0, in the order of its log.
fn emitted(world: &SimWorld, setup: &Setup) -> Vec<(i64, String)> {
    let world = world.lock();
    let mut emitted = Vec::new();
    for row in world.logs.get(&source_id(setup, 0)).into_iter().flat_map(|log| log.rows.values()) {
        for slice in row.slices.iter().filter(|s| s.stream == stream::PAYMENTS) {
            let stored = match row.segment.as_ref().expect("a row with slices has a segment") {
                payguard_engine::row::SegmentLocation::Inline(bytes) => bytes.clone(),
                payguard_engine::row::SegmentLocation::Object(key) => world.objects[key].clone(),
            };
            let from = usize::try_from(slice.offset).expect("small");
            let stored = stored.slice(from..from + usize::try_from(slice.len).expect("small"));
            let raw = payguard_engine::segment::open(slice, &stored).expect("whole");
            let mut reader = SliceReader::new(raw, slice.count).expect("records");
            while let Some(record) = reader.take().expect("a record") {
                let payment = Payment::decode(record.payload).expect("a payment");
                emitted.push((record.header.stamp.watermark.0, payment.payment_id));
            }
        }
    }
    emitted
}

/// The same, record by record.
fn expected(records: &[RawRecord]) -> Vec<(i64, String)> {
    let (mut watermark, mut expected) = (i64::MIN, Vec::new());
    for record in records {
        let Some(raw) = &record.value else { continue };
        let time = match parse_payment(raw, ProcessingTime(NOW_MS), &ParsePolicy::default()) {
            Ok(payment) => {
                expected.push((watermark, payment.payment_id));
                Some(payment.event_time_ms)
            }
            Err(_) => record.timestamp,
        };
        watermark = time.map_or(watermark, |t| watermark.max(t - 10_001));
    }
    expected
}

/// Records with holes in their offsets; also how many offsets are missing between them.
fn with_gaps(seed: u64, count: usize) -> (Vec<RawRecord>, u64) {
    let mut rng = Rng::new(seed);
    let mut data = records(seed, count, Shape::DIRTY);
    let (mut shift, mut missing) = (rng.between(0, 50), 0);
    for (i, record) in data.iter_mut().enumerate() {
        if i > 0 && rng.chance(100) {
            let hole = rng.between(1, 9);
            shift += hole;
            missing += u64::try_from(hole).expect("positive");
        }
        record.offset += shift;
    }
    (data, missing)
}

/// Delivers everything in batches that overlap, come again, come late, and are cut anew each time.
async fn deliver(world: &SimWorld, setup: &Setup, data: &[RawRecord], rng: &mut Rng) {
    let mut tasks: Vec<SourceTask> = (0..3).map(|_| source(world, setup, 0)).collect();
    let mut front = 0;
    let below = |rng: &mut Rng, bound: usize| usize::try_from(rng.below(bound as u64)).expect("small");
    while front < data.len() {
        let from = match rng.below(4) {
            0 => below(rng, front + 1),
            1 => front.saturating_sub(below(rng, 6)),
            _ => front,
        };
        let to = (from + 1 + below(rng, 12)).min(data.len());
        let batch: Vec<_> = data[from..to].iter().map(as_source).collect();
        let which = below(rng, 3);
        if rng.chance(150) {
            tasks[which] = source(world, setup, 0);
        }
        // Kafka goes on only after a success.
        match world.guard(tasks[which].ingest(&batch)).await {
            Ok(Ok(_)) => front = front.max(to),
            Ok(Err(_)) => {}
            Err(_) => tasks[which] = source(world, setup, 0),
        }
        let position = loop {
            if let Ok(Ok(position)) = world.guard(source(world, setup, 0).position()).await {
                break position;
            }
        };
        assert!(front == 0 || position >= data[front - 1].offset, "an acknowledged record is committed");
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_overlapping_late_and_re_cut_deliveries_are_taken_exactly_once() {
    let mut redelivered = 0;
    for seed in seeds(300) {
        let mut rng = Rng::new(seed);
        let (data, missing) = with_gaps(seed, 60);
        let setup = Setup::default().with(|s| s.records_per_commit = 1 + usize::try_from(seed % 9).expect("small"));
        let world = SimWorld::new(NOW_MS);
        if seed % 2 == 1 {
            world.plan(FaultPlan::random(seed, 60, true));
        }
        deliver(&world, &setup, &data, &mut rng).await;
        assert_eq!(emitted(&world, &setup), expected(&data), "SIM_SEEDS={seed}");
        world.check(&reads(&setup.topology())).unwrap_or_else(|e| panic!("SIM_SEEDS={seed}: {e}"));
        let head = world.lock().logs[&source_id(&setup, 0)].head.clone().expect("a head");
        let count = |name: &str| head.counters.get(name).copied().unwrap_or(0);
        assert_eq!(count("source.records_in"), data.len() as u64, "SIM_SEEDS={seed}");
        assert_eq!(count(GAP), missing, "SIM_SEEDS={seed}");
        redelivered += count(REDELIVERED);
    }
    assert!(are_chosen() || redelivered > 0);
}

#[tokio::test(start_paused = true)]
async fn deliveries_of_one_partition_to_several_processes_at_once_are_taken_exactly_once() {
    for seed in seeds(150) {
        let (data, _) = with_gaps(seed, 50);
        let setup = Setup::default().with(|s| s.records_per_commit = 5);
        let world = SimWorld::new(NOW_MS);
        let plan = if seed % 2 == 0 { FaultPlan::default() } else { FaultPlan::random(seed, 40, true) };
        world.plan(plan.with_latency(seed, 30));
        let worlds = [world.executor(1), world.executor(2), world.executor(3)];
        let mut rngs = [1, 2, 3].map(|n| Rng::new(seed * 7 + n));
        let [a, b, c] = &mut rngs;
        tokio::join!(
            deliver(&worlds[0], &setup, &data, a),
            deliver(&worlds[1], &setup, &data, b),
            deliver(&worlds[2], &setup, &data, c),
        );
        assert_eq!(emitted(&world, &setup), expected(&data), "SIM_SEEDS={seed}");
        world.check(&reads(&setup.topology())).unwrap_or_else(|e| panic!("SIM_SEEDS={seed}: {e}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_jump_in_offsets_is_counted_and_what_then_comes_from_behind_is_not_taken() {
    let data = records(1, 20, Shape::TIDY);
    let setup = Setup::default();
    let world = SimWorld::new(NOW_MS);
    let mut task = source(&world, &setup, 0);
    let batch = |range: std::ops::Range<usize>| data[range].iter().map(as_source).collect::<Vec<_>>();
    task.ingest(&batch(0..5)).await.expect("no fault");
    task.ingest(&batch(12..15)).await.expect("no fault");
    let report = task.ingest(&batch(5..12)).await.expect("no fault");
    assert_eq!((report.commits, report.records), (0, 0));
    assert_eq!(task.position().await.expect("no fault"), 14);
    let head = world.lock().logs[&source_id(&setup, 0)].head.clone().expect("a head");
    assert_eq!(head.counters[GAP], 7, "a loss shows in the count");
}
