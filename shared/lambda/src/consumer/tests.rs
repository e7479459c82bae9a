#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};

use payguard_aws::event::WakeEvent;
use payguard_engine::logic::{Collector, DecodeError, SourceRecord, StageLogic};
use payguard_engine::task::Settings;
use payguard_engine::task::consumer::Body;
use payguard_engine::task::source::SourceTask;
use payguard_sim::faults::OpKind;
use payguard_sim::{FaultPlan, SimWorld};
use payguard_topology::{Config, payguard};

use super::*;

const LEFT: Duration = Duration::from_secs(60);

fn world() -> SimWorld {
    SimWorld::new(1_800_000_000_000)
}

fn settings(owner: &str) -> Settings {
    Settings { lease_owner: Some(owner.to_owned()), store_tries: 2, store_backoff_ms: 0, ..Settings::default() }
}

fn host(world: &SimWorld, make: Option<MakeBody>) -> ConsumerHost {
    let config = Config::default();
    let topology = Arc::new(payguard(&config));
    let make = make.unwrap_or_else(|| payguard_dedup::make(&config, &topology));
    ConsumerHost::new(topology, world.env(settings("here")), "dedup", make)
}

fn dedup() -> TaskId {
    TaskId::shard(&StageId::new("dedup"), 0)
}

fn wake(tasks: &[&str]) -> StageEvent {
    StageEvent::Wake(WakeEvent { wake: tasks.iter().map(|task| (*task).to_owned()).collect() })
}

/// Lets `parse` commit payments for `dedup` to read.
async fn parse(world: &SimWorld, offsets: std::ops::Range<i64>) {
    let config = Config::default();
    let topology = payguard(&config);
    let id = TaskId::partition(&StageId::new("parse"), "payments.raw", 0);
    let make = payguard_parse::make(&config, &topology);
    let mut task = SourceTask::new(world.env(settings("source")), topology.plan(&id).unwrap(), &make);
    let text = |offset: i64| {
        format!(
            r#"{{"paymentId":"p-{offset}","cardId":"c","merchantId":"m","amountMinor":5,"currency":"EUR","country":"DE","eventTimeMs":{}}}"#,
            1_700_000_000_000 + offset
        )
    };
    let texts: Vec<(i64, String)> = offsets.map(|offset| (offset, text(offset))).collect();
    let records: Vec<SourceRecord<'_>> = texts
        .iter()
        .map(|(offset, text)| SourceRecord {
            offset: *offset,
            timestamp: None,
            value: Some(text.as_bytes()),
            watermark_bound: None,
            replays: 0,
        })
        .collect();
    task.ingest(&records).await.unwrap();
    world.lock().woken.clear();
}

#[tokio::test]
async fn a_wake_up_is_answered_with_what_was_done() {
    let world = world();
    let host = host(&world, None);
    parse(&world, 0..10).await;
    let done = host.handle(wake(&["dedup/0", "dedup/0"]), LEFT).await.unwrap();
    let (first, rest) = done.tasks.split_first().unwrap();
    assert!(rest.is_empty(), "a task named twice runs once");
    assert_eq!((first.records, first.more, first.busy), (10, false, false));
    parse(&world, 10..15).await;
    assert_eq!(host.handle(wake(&["dedup/0"]), LEFT).await.unwrap().tasks[0].records, 5);
    assert_eq!(host.handle(wake(&["dedup/0"]), LEFT).await.unwrap().tasks[0].records, 0);
    assert_eq!(world.lock().logs[&dedup()].lease, None);
}

#[tokio::test]
async fn a_task_that_somebody_else_works_on_is_left_alone() {
    let world = world();
    let host = host(&world, None);
    parse(&world, 0..10).await;
    let env = world.env(settings("other"));
    let now = env.clock.now();
    env.ledger.acquire_lease(&dedup(), "other", now, now.plus(10_000)).await.unwrap();
    let done = host.handle(wake(&["dedup/0"]), LEFT).await.unwrap();
    assert!(done.tasks[0].busy);
    assert_eq!(done.tasks[0].records, 0);
}

#[tokio::test]
async fn without_time_nothing_is_begun_and_the_task_is_woken_again() {
    let world = world();
    let host = host(&world, None);
    parse(&world, 0..10).await;
    let done = host.handle(wake(&["dedup/0"]), Duration::ZERO).await.unwrap();
    assert!(done.tasks[0].more);
    assert_eq!(world.lock().woken, [dedup()]);
}

#[tokio::test]
async fn after_an_error_the_lease_is_given_back_and_the_next_wake_up_works() {
    let world = world();
    let host = host(&world, None);
    parse(&world, 0..10).await;
    world.plan(FaultPlan::outage(OpKind::LoadRows, 2));
    let error = host.handle(wake(&["dedup/0"]), LEFT).await.unwrap_err();
    assert_eq!(error.kind(), "TaskFailed");
    assert!(error.to_string().contains("task dedup/0: "), "{error}");
    assert_eq!(world.lock().logs[&dedup()].lease, None);
    assert_eq!(host.handle(wake(&["dedup/0"]), LEFT).await.unwrap().tasks[0].records, 10);
}

/// Panics at the first record it ever sees.
struct Explosive(Arc<AtomicBool>);

impl StageLogic for Explosive {
    fn on_record(&mut self, _stream: usize, _payload: &[u8], _out: &mut Collector) -> Result<(), DecodeError> {
        assert!(self.0.swap(true, Ordering::SeqCst), "bang");
        Ok(())
    }

    fn key(&self, _stream: usize, _payload: &[u8]) -> Result<String, DecodeError> {
        Ok(String::new())
    }
}

#[tokio::test]
async fn after_a_panic_the_task_is_made_anew() {
    let world = world();
    let exploded = Arc::new(AtomicBool::new(false));
    let make: MakeBody = Arc::new(move || Body::Operators(Box::new(Explosive(exploded.clone()))));
    let host = host(&world, Some(make));
    parse(&world, 0..10).await;
    let error = host.handle(wake(&["dedup/0"]), LEFT).await.unwrap_err().to_string();
    assert!(error.contains("dedup/0: panicked: bang"), "{error}");
    assert_eq!(host.handle(wake(&["dedup/0"]), LEFT).await.unwrap().tasks[0].records, 10);
}

#[tokio::test]
async fn a_task_that_is_not_of_the_stage_is_an_error() {
    let host = host(&world(), None);
    for name in ["rules/0", "dedup/1", "dedup", "parse/payments.raw-0", ""] {
        let error = host.handle(wake(&[name]), LEFT).await.unwrap_err();
        assert_eq!(error.kind(), "WrongEvent", "{error}");
    }
}
