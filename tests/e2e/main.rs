//! The functions as they are deployed: processes that are started by their first event, run several at a time, are
//! killed, and wake each other over the Invoke API. Only the stores are embedded.
//!
//! Kafka's deliveries are repeated, overlapping, shuffled, concurrent and cut off; wake-ups are lost. The output files
//! must hold what the naive model publishes, every record once.

mod data;
mod http;
mod pipeline;
mod watch;

use std::ops::Range;

use data::{PARTITIONS, RECORDS, event, expected, partitions};
use http::AsyncInvoker;
use payguard_engine::{Head, TaskId};
use payguard_sim::reference::RawRecord;
use payguard_tests::Setup;
use pipeline::Pipeline;
use serde_json::json;
use watch::Watch;

/// A bound on event times that no clock of a test machine breaks.
const TEN_YEARS_MS: i64 = 315_360_000_000;

fn setup() -> Setup {
    let mut setup = Setup::default();
    setup.config.source.max_future_ms = TEN_YEARS_MS;
    setup
}

/// The same offsets of all partitions.
fn of_all(range: Range<usize>) -> Vec<(usize, Range<usize>)> {
    (0..PARTITIONS).map(|partition| (partition, range.clone())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_comes_out_once_whatever_happens_to_deliveries_and_processes() {
    watch::build();
    let (setup, partitions) = (setup(), partitions());
    let pipeline = Pipeline::start(&setup).await;
    let invoker = AsyncInvoker::start().await;
    let variables = pipeline.variables(&setup, invoker.url());

    let watch = Watch::start(&variables, 1, &pipeline.log()).await;
    invoker.pass_to(watch.port());
    repeated_and_overlapping(&watch, &partitions).await;
    bad_events(&watch).await;
    watch.kill();

    killed_while_they_work(&pipeline, &invoker, &variables, &partitions).await;

    let watch = Watch::start(&variables, 2, &pipeline.log()).await;
    invoker.pass_to(watch.port());
    concurrent(&watch, &partitions).await;
    pipeline.settle(&watch).await;
    wake_ups_lost(&pipeline, &invoker, &watch, &partitions).await;
    watch.kill();

    let watch = Watch::start(&variables, 2, &pipeline.log()).await;
    invoker.pass_to(watch.port());
    to_the_end(&watch, &partitions).await;
    let expected = expected(&setup, &partitions);
    let closed = expected.get("merchant_stats").map_or(0, Vec::len);
    pipeline.catch_up(&watch, |heads| read(heads, "totals", "merchant-stats") >= closed as u64).await;
    assert!(invoker.taken() > 0, "tasks wake each other");
    assert_same(&pipeline, &expected);
    pipeline.account(PARTITIONS * RECORDS).await;
    watch.kill();
    pipeline.stop().await;
}

async fn repeated_and_overlapping(watch: &Watch, partitions: &[Vec<RawRecord>]) {
    watch.deliver(&event(partitions, &of_all(0..30))).await;
    watch.deliver(&event(partitions, &of_all(0..30))).await;
    watch.deliver(&event(partitions, &[(2, 10..45), (0, 20..40)])).await;
    watch.deliver(&event(partitions, &[(1, 29..40), (3, 25..40)])).await;
    watch.deliver(&event(partitions, &[(0, 0..20), (2, 0..5)])).await;
}

/// Every error is an answer with a type and a reason, not silence.
async fn bad_events(watch: &Watch) {
    let bad_value = json!({"eventSource": "aws:kafka", "records": {"payments.raw-0": [
        {"topic": "payments.raw", "partition": 0, "offset": 90, "timestamp": 1, "value": "%%%"}
    ]}});
    let other_topic = json!({"eventSource": "aws:kafka", "records": {"orders-0": [
        {"topic": "orders", "partition": 0, "offset": 0, "timestamp": 1, "value": "e30="}
    ]}});
    let cases = [
        ("parse", bad_value.to_string(), "records.payments.raw-0[0].value"),
        ("parse", "{\"eventSource\": \"aws:kafka\"".to_owned(), "EOF"),
        ("parse", "{}".to_owned(), "expected exactly one of"),
        ("parse", other_topic.to_string(), "orders"),
        ("parse", json!({"wake": ["parse/payments.raw-0"]}).to_string(), "a wake-up"),
        ("dedup", json!({"wake": ["rules/0"]}).to_string(), "rules/0"),
        ("clock", json!({"source": "aws.s3"}).to_string(), "aws.s3"),
    ];
    for (function, event, reason) in cases {
        let answer = watch.invoke_raw(function, event.clone().into_bytes()).await;
        let text = |field: &str| answer.body.get(field).and_then(|v| v.as_str()).unwrap_or_default();
        assert_eq!(answer.status, 500, "{event}: {:?}", answer.body);
        assert!(!text("errorType").is_empty(), "{event}: {:?}", answer.body);
        assert!(text("errorMessage").contains(reason), "{event}: {:?}", answer.body);
    }
}

/// All processes end as soon as a stage has committed something of a delivery: some of it is committed, some is not,
/// leases are held, wake-ups are on their way.
async fn killed_while_they_work(
    pipeline: &Pipeline,
    invoker: &AsyncInvoker,
    variables: &[(String, String)],
    partitions: &[Vec<RawRecord>],
) {
    for (stage, range) in [("parse", 40..60), ("dedup", 40..75), ("publish", 40..85)] {
        let watch = Watch::start(variables, 1, &pipeline.log()).await;
        invoker.pass_to(watch.port());
        let before = commits(&pipeline.heads().await, stage);
        let event = serde_json::to_vec(&event(partitions, &of_all(range))).expect("events serialize");
        // The answer does not matter: the event is delivered again later.
        let delivery = tokio::spawn(http::invoke(watch.port(), "parse", event.into()));
        pipeline.until(&watch, |heads| commits(heads, stage) > before).await;
        watch.kill();
        delivery.abort();
    }
}

/// Two processes are given the same records at the same time.
async fn concurrent(watch: &Watch, partitions: &[Vec<RawRecord>]) {
    let whole = event(partitions, &of_all(40..85));
    let part = event(partitions, &[(0, 30..90), (3, 40..80)]);
    let behind = event(partitions, &[(0, 0..10)]);
    tokio::join!(watch.deliver(&whole), watch.deliver(&part), watch.deliver(&whole), watch.deliver(&behind));
    let (first, second) = (event(partitions, &of_all(80..100)), event(partitions, &of_all(85..100)));
    tokio::join!(watch.deliver(&first), watch.deliver(&second));
}

/// Nobody is told of new rows: the clock finds them.
async fn wake_ups_lost(pipeline: &Pipeline, invoker: &AsyncInvoker, watch: &Watch, partitions: &[Vec<RawRecord>]) {
    let before = read(&pipeline.heads().await, "dedup", "payments");
    invoker.lose(true);
    watch.deliver(&event(partitions, &of_all(100..130))).await;
    invoker.lose(false);
    assert_eq!(read(&pipeline.heads().await, "dedup", "payments"), before);
    pipeline.settle(watch).await;
    assert!(read(&pipeline.heads().await, "dedup", "payments") > before, "the clock sweeps lost wake-ups up");
}

/// The partitions are delivered one after the other, the last batches twice.
async fn to_the_end(watch: &Watch, partitions: &[Vec<RawRecord>]) {
    for partition in [2, 0, 3, 1] {
        watch.deliver(&event(partitions, &[(partition, 130..RECORDS)])).await;
    }
    watch.deliver(&event(partitions, &of_all(120..RECORDS))).await;
}

/// Commits of a stage.
fn commits(heads: &[(TaskId, Head)], stage: &str) -> u64 {
    heads.iter().filter(|(task, _)| &*task.stage.0 == stage).map(|(_, head)| head.seq).sum()
}

/// Records of a stream that a stage has read.
fn read(heads: &[(TaskId, Head)], stage: &str, stream: &str) -> u64 {
    let head = heads.iter().find(|(task, _)| &*task.stage.0 == stage).map(|(_, head)| head);
    head.and_then(|head| head.counters.get(&format!("in.{stream}"))).copied().unwrap_or(0)
}

fn assert_same(pipeline: &Pipeline, expected: &std::collections::BTreeMap<String, Vec<String>>) {
    let found = pipeline.outputs();
    for (topic, lines) in expected {
        let found = found.get(topic).cloned().unwrap_or_default();
        let missing: Vec<_> = lines.iter().filter(|line| !found.contains(line)).collect();
        let added: Vec<_> = found.iter().filter(|line| !lines.contains(line)).collect();
        assert!(missing.is_empty() && added.is_empty(), "{topic}: missing {missing:#?}\nnot expected {added:#?}");
        assert_eq!(found, *lines, "{topic}: a record is there more or less often than expected");
        assert!(!lines.is_empty(), "{topic} proves nothing");
    }
    for (topic, lines) in found {
        assert!(expected.contains_key(&topic) || lines.is_empty(), "{topic} is not expected: {lines:#?}");
    }
}

/// The example of the documentation is an event as Lambda makes it: repeats, a broken record, a tombstone, odd headers.
#[test]
fn the_example_event_is_understood() {
    let event = payguard_aws::event::KafkaEvent::from_json(include_bytes!("event.json")).expect("a Kafka event");
    assert_eq!((event.records.len(), event.record_count()), (2, 5));
    assert!(event.records["payments.raw-1"][1].value.is_none());
}
