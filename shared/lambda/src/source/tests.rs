#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};

use payguard_aws::event::{KafkaRecord, NO_TIMESTAMP};
use payguard_engine::logic::{Collector, SourceLogic};
use payguard_engine::task::Settings;
use payguard_model::EventTime;
use payguard_sim::faults::OpKind;
use payguard_sim::{FaultPlan, SimWorld};
use payguard_topology::{Config, payguard};

use super::*;

const LEFT: Duration = Duration::from_secs(60);

fn world() -> SimWorld {
    SimWorld::new(1_800_000_000_000)
}

fn host(world: &SimWorld) -> SourceHost {
    let config = Config::default();
    let topology = Arc::new(payguard(&config));
    let make = payguard_parse::make(&config, &topology);
    let settings = Settings { store_tries: 2, store_backoff_ms: 0, ..Settings::default() };
    SourceHost::new(topology, world.env(settings), "parse", make)
}

fn record(partition: i32, offset: i64) -> KafkaRecord {
    KafkaRecord {
        topic: "payments.raw".to_owned(),
        partition,
        offset,
        timestamp: NO_TIMESTAMP,
        timestamp_type: None,
        key: None,
        value: (offset % 5 != 0).then(|| format!("record {offset}").into_bytes()),
        headers: Vec::new(),
    }
}

fn event(partitions: &[(i32, &[i64])]) -> StageEvent {
    let records = partitions.iter().map(|(partition, offsets)| {
        let records = offsets.iter().map(|offset| record(*partition, *offset)).collect();
        (format!("payments.raw-{partition}"), records)
    });
    StageEvent::Kafka(KafkaEvent {
        event_source: "aws:kafka".to_owned(),
        event_source_arn: None,
        bootstrap_servers: None,
        records: records.collect(),
    })
}

fn counted(world: &SimWorld, partition: i32) -> (i64, u64) {
    let id = TaskId::partition(&StageId::new("parse"), "payments.raw", partition);
    let world = world.lock();
    let Some(head) = world.logs.get(&id).and_then(|log| log.head.as_ref()) else { return (-1, 0) };
    (head.inputs[&*id.instance].position.at, head.counters["source.records_in"])
}

#[tokio::test]
async fn every_partition_commits_in_the_order_of_its_offsets_and_once() {
    let world = world();
    let host = host(&world);
    let shuffled = event(&[(0, &[2, 0, 1, 1, 3]), (1, &[7, 6]), (2, &[])]);
    assert_eq!(host.handle(shuffled.clone(), LEFT).await.unwrap(), BatchResponse::default());
    assert_eq!(host.handle(shuffled, LEFT).await.unwrap(), BatchResponse::default());
    let overlapping = event(&[(0, &[2, 3, 4, 5])]);
    assert_eq!(host.handle(overlapping, LEFT).await.unwrap(), BatchResponse::default());
    assert_eq!(counted(&world, 0), (5, 6));
    assert_eq!(counted(&world, 1), (7, 2));
    assert_eq!(world.lock().registry[&StageId::new("parse")].len(), 2);
}

#[tokio::test]
async fn of_a_partition_that_fails_every_unprocessed_offset_is_reported() {
    let world = world();
    let host = host(&world).report_batch_item_failures(true);
    host.handle(event(&[(0, &[0, 1]), (1, &[0])]), LEFT).await.unwrap();
    // Each partition tries twice: the first tries of both fail and the second of one of them; the other commits.
    world.plan(FaultPlan::outage(OpKind::LoadHead, 3));
    let failed = host.handle(event(&[(0, &[1, 2, 3]), (1, &[1, 2])]), LEFT).await.unwrap();
    let names: Vec<(String, i64)> = failed.batch_item_failures.into_iter().map(|f| (f.partition, f.offset)).collect();
    let failing = names.first().unwrap().0.clone();
    let offsets = if failing == "payments.raw-0" { vec![2, 3] } else { vec![1, 2] };
    assert_eq!(names, offsets.iter().map(|offset| (failing.clone(), *offset)).collect::<Vec<_>>());
    assert_eq!(counted(&world, 0).0 + counted(&world, 1).0, 3);
    assert_eq!(host.handle(event(&[(0, &[2, 3]), (1, &[1, 2])]), LEFT).await.unwrap(), BatchResponse::default());
    assert_eq!((counted(&world, 0), counted(&world, 1)), ((3, 4), (2, 3)));
}

#[tokio::test]
async fn without_reports_the_invocation_fails_and_names_partition_and_cause() {
    let world = world();
    let host = host(&world);
    world.plan(FaultPlan::outage(OpKind::LoadHead, 2));
    let error = host.handle(event(&[(3, &[0, 1])]), LEFT).await.unwrap_err();
    assert_eq!(error.kind(), "PartitionFailed");
    assert!(error.to_string().contains("partition payments.raw-3: "), "{error}");
    assert!(error.to_string().contains("failed before"), "{error}");
}

/// Panics at a record once.
struct Explosive(Arc<AtomicBool>);

impl SourceLogic for Explosive {
    fn on_record(&mut self, record: &SourceRecord<'_>, _out: &mut Collector) -> Option<EventTime> {
        assert!(record.offset != 2 || self.0.swap(true, Ordering::SeqCst), "bang");
        None
    }
}

#[tokio::test]
async fn after_a_panic_the_task_is_made_anew() {
    let world = world();
    let (config, exploded) = (Config::default(), Arc::new(AtomicBool::new(false)));
    let make: MakeSource = Arc::new(move |_: &TaskId| Box::new(Explosive(exploded.clone())));
    let host = SourceHost::new(Arc::new(payguard(&config)), world.env(Settings::default()), "parse", make);
    let error = host.handle(event(&[(0, &[0, 1, 2])]), LEFT).await.unwrap_err().to_string();
    assert!(error.contains("payments.raw-0: panicked: bang"), "{error}");
    assert!(!host.warm.has(&TaskId::partition(&StageId::new("parse"), "payments.raw", 0)));
    host.handle(event(&[(0, &[0, 1, 2])]), LEFT).await.unwrap();
    assert_eq!(counted(&world, 0), (2, 3));
}

#[tokio::test]
async fn an_event_that_is_not_for_the_function_is_an_error() {
    let world = world();
    let host = host(&world).report_batch_item_failures(true);
    let kafka = |key: &str, record: KafkaRecord| {
        let StageEvent::Kafka(mut event) = event(&[]) else { unreachable!() };
        event.records.insert(key.to_owned(), vec![record]);
        StageEvent::Kafka(event)
    };
    let other_topic = KafkaRecord { topic: "rules.config".to_owned(), ..record(0, 1) };
    let events = [
        kafka("payments.raw-1", record(0, 1)),
        kafka("rules.config-0", other_topic),
        kafka("payments.raw-0", record(0, -1)),
        StageEvent::Wake(payguard_aws::event::WakeEvent { wake: vec!["parse/payments.raw-0".to_owned()] }),
        StageEvent::Heartbeat(HeartbeatEvent { heartbeat: vec!["dedup/0".to_owned()] }),
    ];
    for event in events {
        let error = host.handle(event, LEFT).await.unwrap_err();
        assert_eq!(error.kind(), "WrongEvent", "{error}");
    }
    assert!(world.lock().logs.is_empty());
}

#[tokio::test]
async fn a_silent_partition_becomes_idle_by_a_heartbeat() {
    let world = world();
    let host = host(&world);
    host.handle(event(&[(0, &[0])]), LEFT).await.unwrap();
    let id = TaskId::partition(&StageId::new("parse"), "payments.raw", 0);
    let heartbeat = || StageEvent::Heartbeat(HeartbeatEvent { heartbeat: vec![id.to_string()] });
    let idle = || world.lock().logs[&id].head.as_ref().is_some_and(|head| head.idle);
    host.handle(heartbeat(), LEFT).await.unwrap();
    assert!(!idle());
    world.advance_ms(60_000);
    host.handle(heartbeat(), LEFT).await.unwrap();
    assert!(idle());
}
