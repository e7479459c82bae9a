#![allow(clippy::unwrap_used)]

use futures_util::future::join;
use payguard_aws::event::{HeartbeatEvent, KafkaRecord, NO_TIMESTAMP, WakeEvent};
use payguard_engine::task::Settings;
use payguard_model::RuleConfig;
use payguard_sim::faults::OpKind;
use payguard_sim::{FaultPlan, SimWorld};
use payguard_topology::{Config, payguard};

use super::*;

const LEFT: Duration = Duration::from_secs(60);

fn world() -> SimWorld {
    SimWorld::new(1_800_000_000_000)
}

fn host(world: &SimWorld) -> BroadcastHost {
    let config = Config::default();
    let settings = Settings { store_tries: 2, store_backoff_ms: 0, ..Settings::default() };
    let logic = payguard_control::make(&config);
    BroadcastHost::new(Arc::new(payguard(&config)), world.env(settings), "control", logic)
}

/// Every fifth message is broken, the others set the limit to their offset.
fn record(topic: &str, partition: i32, offset: i64) -> KafkaRecord {
    let value = match offset % 5 {
        4 => "{\"velocityMaxPayments\": -1}".to_owned(),
        _ => format!("{{\"velocityMaxPayments\": {}}}", 1_000 * partition + i32::try_from(offset).unwrap()),
    };
    KafkaRecord {
        topic: topic.to_owned(),
        partition,
        offset,
        timestamp: NO_TIMESTAMP,
        timestamp_type: None,
        key: None,
        value: Some(value.into_bytes()),
        headers: Vec::new(),
    }
}

fn event_of(topic: &str, partitions: &[(i32, &[i64])]) -> StageEvent {
    let records = partitions.iter().map(|(partition, offsets)| {
        let records = offsets.iter().map(|offset| record(topic, *partition, *offset)).collect();
        (format!("{topic}-{partition}"), records)
    });
    StageEvent::Kafka(KafkaEvent {
        event_source: "aws:kafka".to_owned(),
        event_source_arn: None,
        bootstrap_servers: None,
        records: records.collect(),
    })
}

fn event(partitions: &[(i32, &[i64])]) -> StageEvent {
    event_of("rules.config", partitions)
}

/// The limits of all versions, in order.
fn versions(world: &SimWorld) -> Vec<i64> {
    let world = world.lock();
    let Some(log) = world.logs.get(&TaskId::shard(&StageId::new("control"), 0)) else { return Vec::new() };
    let decided: Vec<_> = log.rows.values().filter_map(|row| row.broadcast.clone()).collect();
    assert!(decided.iter().map(|b| b.version).eq(1..=decided.len() as u64), "versions without gaps");
    let limit = |value| <RuleConfig as prost::Message>::decode(value).unwrap().velocity_max_payments;
    decided.into_iter().map(|b| limit(b.value)).collect()
}

fn counted(world: &SimWorld, counter: &str) -> u64 {
    let world = world.lock();
    let log = world.logs.get(&TaskId::shard(&StageId::new("control"), 0));
    log.and_then(|log| log.head.as_ref()?.counters.get(counter).copied()).unwrap_or(0)
}

#[tokio::test]
async fn repeated_and_overlapping_messages_give_each_version_once() {
    let world = world();
    let host = host(&world);
    let shuffled = event(&[(0, &[2, 0, 1, 1]), (1, &[7]), (2, &[])]);
    for _ in 0..2 {
        assert_eq!(host.handle(shuffled.clone(), LEFT).await.unwrap(), BatchResponse::default());
    }
    assert_eq!(host.handle(event(&[(0, &[1, 2, 3, 4, 5])]), LEFT).await.unwrap(), BatchResponse::default());
    assert_eq!(versions(&world), [0, 1, 2, 1_007, 3, 5]);
    assert_eq!((counted(&world, "control.accepted"), counted(&world, "control.refused")), (6, 1));
}

#[tokio::test]
async fn concurrent_deliveries_give_each_version_once() {
    let world = world();
    let (one, other) = (host(&world), host(&world));
    let events = (event(&[(0, &[0, 1, 2, 3]), (1, &[0, 1])]), event(&[(0, &[1, 2, 3, 5]), (1, &[0, 1, 2])]));
    let (first, second) = join(one.handle(events.0, LEFT), other.handle(events.1, LEFT)).await;
    assert_eq!((first.unwrap(), second.unwrap()), (BatchResponse::default(), BatchResponse::default()));
    let mut found = versions(&world);
    assert!(found.iter().filter(|limit| **limit < 1_000).is_sorted(), "{found:?}");
    assert!(found.iter().filter(|limit| **limit >= 1_000).is_sorted(), "{found:?}");
    found.sort_unstable();
    assert_eq!(found, [0, 1, 2, 3, 5, 1_000, 1_001, 1_002]);
}

#[tokio::test]
async fn every_message_that_was_not_decided_about_is_reported() {
    let world = world();
    let host = host(&world).report_batch_item_failures(true);
    host.handle(event(&[(0, &[0, 1])]), LEFT).await.unwrap();
    // Both tries of the first read of the head fail; partition 1 is then decided about all the same.
    world.plan(FaultPlan::outage(OpKind::LoadHead, 2));
    let failed = host.handle(event(&[(0, &[1, 2, 3]), (1, &[1])]), LEFT).await.unwrap();
    let names: Vec<(String, i64)> = failed.batch_item_failures.into_iter().map(|f| (f.partition, f.offset)).collect();
    assert_eq!(names, [("rules.config-0".to_owned(), 2), ("rules.config-0".to_owned(), 3)]);
    assert_eq!(versions(&world), [0, 1, 1_001]);
    assert_eq!(host.handle(event(&[(0, &[2, 3])]), LEFT).await.unwrap(), BatchResponse::default());
    assert_eq!(versions(&world), [0, 1, 1_001, 2, 3]);
}

#[tokio::test]
async fn without_reports_the_invocation_fails_and_names_partition_and_cause() {
    let world = world();
    world.plan(FaultPlan::outage(OpKind::LoadHead, 2));
    let error = host(&world).handle(event(&[(3, &[0, 1])]), LEFT).await.unwrap_err();
    assert_eq!(error.kind(), "PartitionFailed");
    assert!(error.to_string().contains("partition rules.config-3: "), "{error}");
}

#[tokio::test]
async fn an_invocation_without_time_reports_exactly_what_it_did_not_decide_about() {
    let world = world();
    let host = host(&world).report_batch_item_failures(true);
    let messages = event(&[(0, &[0, 1]), (1, &[0])]);
    let failed = host.handle(messages.clone(), Duration::ZERO).await.unwrap();
    assert_eq!(failed.batch_item_failures.len() + versions(&world).len(), 3, "{failed:?}");
    assert_eq!(host.handle(messages, LEFT).await.unwrap(), BatchResponse::default());
    assert_eq!(versions(&world), [0, 1, 1_000]);
}

#[tokio::test]
async fn an_event_that_is_not_for_the_function_is_an_error() {
    let world = world();
    let host = host(&world).report_batch_item_failures(true);
    let events = [
        (event_of("payments.raw", &[(0, &[0])]), "the topic payments.raw, which is none of its sources"),
        (event(&[(0, &[-1])]), "offset -1"),
        (StageEvent::Wake(WakeEvent { wake: vec!["control/0".to_owned()] }), "a wake-up"),
        (StageEvent::Heartbeat(HeartbeatEvent { heartbeat: vec!["control/0".to_owned()] }), "a heartbeat"),
    ];
    for (event, reason) in events {
        let error = host.handle(event, LEFT).await.unwrap_err();
        assert_eq!(error.kind(), "WrongEvent", "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert!(world.lock().logs.is_empty());
}
