//! The functions as they are deployed: processes that are started by their first event, run several at a time, are
//! killed, and wake each other over the Invoke API. Only the stores are embedded.
//!
//! Kafka's deliveries are repeated, overlapping, shuffled, concurrent and cut off; wake-ups are lost; at every tick the
//! clock collects whatever everybody has passed. The output files must hold what the naive model publishes, every record
//! once.

mod data;
mod expected;
mod http;
mod pipeline;
mod watch;

use std::collections::BTreeSet;
use std::ops::Range;

use data::{BLOCKED_FROM, PARTITIONS, RECORDS, Topics};
use expected::{expected, versions};
use http::AsyncInvoker;
use payguard_engine::{Head, TaskId};
use payguard_tests::Setup;
use pipeline::Pipeline;
use serde_json::json;
use watch::Watch;

/// A bound on event times that no clock of a test machine breaks.
const TEN_YEARS_MS: i64 = 315_360_000_000;

fn setup() -> Setup {
    let mut setup = Setup::full();
    setup.config.source.max_future_ms = TEN_YEARS_MS;
    setup.config.source.partitions = PARTITIONS as u32;
    setup
}

/// The same offsets of all partitions.
fn of_all(range: Range<usize>) -> Vec<(usize, Range<usize>)> {
    (0..PARTITIONS).map(|partition| (partition, range.clone())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_comes_out_once_whatever_happens_to_deliveries_and_processes() {
    watch::build();
    let setup = setup();
    let topics = Topics::new(&setup);
    let pipeline = Pipeline::start(&setup).await;
    let invoker = AsyncInvoker::start().await;
    let variables = pipeline.variables(&setup, invoker.url());

    let watch = Watch::start(&variables, 1, &pipeline.log()).await;
    invoker.pass_to(watch.port());
    repeated_and_overlapping(&watch, &topics).await;
    bad_events(&watch).await;
    watch.kill();

    killed_while_they_work(&pipeline, &invoker, &variables, &topics).await;

    let watch = Watch::start(&variables, 2, &pipeline.log()).await;
    invoker.pass_to(watch.port());
    concurrent(&watch, &topics).await;
    pipeline.settle(&watch).await;
    wake_ups_lost(&pipeline, &invoker, &watch, &topics).await;
    watch.kill();

    let watch = Watch::start(&variables, 2, &pipeline.log()).await;
    invoker.pass_to(watch.port());
    rules_change(&watch, &topics).await;
    to_the_end(&watch, &topics).await;
    let expected = expected(&setup, &topics);
    let lines = |topic: &str| expected.get(topic).map_or(0, Vec::len) as u64;
    let done = |heads: &[(TaskId, Head)]| {
        read(heads, "totals", "merchant-stats") >= lines("merchant_stats")
            && read(heads, "publish", "alerts") >= lines("fraud.alerts")
            && read(heads, "publish", "confirmed") >= lines("payments.confirmed")
    };
    pipeline.catch_up(&watch, done).await;
    assert!(invoker.taken() > 0, "tasks wake each other");
    assert_same(&pipeline, &expected);
    assert_eq!(values(&expected["fraud.alerts"], "ruleId").len(), 6, "every rule fires");
    assert_eq!(values(&expected["fraud.alerts"], "merchantRisk").len(), 3, "known and unknown merchants");
    assert_eq!(pipeline.versions().await, versions(&setup, &topics), "each version once, none is collected");
    let collected = pipeline.until_collected(&watch, "publish/0").await;
    assert!(collected.rows > commits(&pipeline.heads().await, "publish") && collected.objects > 10, "{collected:?}");
    pipeline.account(topics.parsed()).await;
    watch.kill();
    pipeline.stop().await;
}

async fn repeated_and_overlapping(watch: &Watch, topics: &Topics) {
    let payments = |parts: &[(usize, Range<usize>)]| topics.payments.event(parts);
    watch.deliver("parse", &payments(&of_all(0..30))).await;
    watch.deliver("parse", &payments(&of_all(0..30))).await;
    watch.deliver("control", &topics.rules.event(&[(0, 0..2)])).await;
    watch.deliver("control", &topics.rules.event(&[(0, 0..2)])).await;
    watch.deliver("parse", &topics.confirmations.share(0..30, RECORDS)).await;
    watch.deliver("parse", &payments(&[(2, 10..45), (0, 20..40)])).await;
    watch.deliver("parse", &topics.confirmations.share(10..45, RECORDS)).await;
    watch.deliver("parse", &payments(&[(1, 29..40), (3, 25..40)])).await;
    watch.deliver("parse", &payments(&[(0, 0..20), (2, 0..5)])).await;
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
        ("control", other_topic.to_string(), "orders"),
        ("control", json!({"wake": ["control/0"]}).to_string(), "a wake-up"),
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
    topics: &Topics,
) {
    for (stage, range) in [("parse", 40..60), ("dedup", 40..75), ("publish", 40..85)] {
        let watch = Watch::start(variables, 1, &pipeline.log()).await;
        invoker.pass_to(watch.port());
        let before = commits(&pipeline.heads().await, stage);
        let event = serde_json::to_vec(&topics.payments.event(&of_all(range))).expect("events serialize");
        // The answer does not matter: the event is delivered again later.
        let delivery = tokio::spawn(http::invoke(watch.port(), "parse", event.into()));
        pipeline.until(&watch, |heads| commits(heads, stage) > before).await;
        watch.kill();
        delivery.abort();
    }
}

/// Two processes are given the same records at the same time.
async fn concurrent(watch: &Watch, topics: &Topics) {
    let payments = |parts: &[(usize, Range<usize>)]| topics.payments.event(parts);
    let whole = payments(&of_all(40..85));
    let part = payments(&[(0, 30..90), (3, 40..80)]);
    let behind = payments(&[(0, 0..10)]);
    let confirmations = topics.confirmations.share(40..85, RECORDS);
    let deliver = |event| watch.deliver("parse", event);
    tokio::join!(
        deliver(&whole),
        deliver(&part),
        deliver(&whole),
        deliver(&behind),
        deliver(&confirmations),
        deliver(&confirmations)
    );
    let (first, second) = (payments(&of_all(80..100)), payments(&of_all(85..100)));
    let confirmations = topics.confirmations.share(80..100, RECORDS);
    tokio::join!(deliver(&first), deliver(&second), deliver(&confirmations));
}

/// Nobody is told of new rows: the clock finds them.
async fn wake_ups_lost(pipeline: &Pipeline, invoker: &AsyncInvoker, watch: &Watch, topics: &Topics) {
    let before = read(&pipeline.heads().await, "dedup", "payments");
    invoker.lose(true);
    watch.deliver("parse", &topics.payments.event(&of_all(100..BLOCKED_FROM))).await;
    watch.deliver("parse", &topics.confirmations.share(100..BLOCKED_FROM, RECORDS)).await;
    invoker.lose(false);
    assert_eq!(read(&pipeline.heads().await, "dedup", "payments"), before);
    pipeline.settle(watch).await;
    assert!(read(&pipeline.heads().await, "dedup", "payments") > before, "the clock sweeps lost wake-ups up");
}

/// The rules change while payments flow, by repeated and overlapping deliveries to two processes.
async fn rules_change(watch: &Watch, topics: &Topics) {
    let changes = |range: Range<usize>| topics.rules.event(&[(0, range)]);
    let (early, late, all) = (changes(0..4), changes(1..6), changes(0..6));
    let deliver = |event| watch.deliver("control", event);
    tokio::join!(deliver(&early), deliver(&late), deliver(&all), deliver(&late));
    deliver(&all).await;
}

/// The partitions are delivered one after the other, the last batches twice.
async fn to_the_end(watch: &Watch, topics: &Topics) {
    watch.deliver("parse", &topics.confirmations.share(BLOCKED_FROM..RECORDS, RECORDS)).await;
    for partition in [2, 0, 3, 1] {
        watch.deliver("parse", &topics.payments.event(&[(partition, BLOCKED_FROM..RECORDS)])).await;
    }
    watch.deliver("parse", &topics.payments.event(&of_all(120..RECORDS))).await;
    watch.deliver("parse", &topics.confirmations.share(120..RECORDS, RECORDS)).await;
}

/// The values of a field.
fn values(lines: &[String], field: &str) -> BTreeSet<String> {
    let records = lines.iter().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    records.map(|record| record[field].to_string()).collect()
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

/// The examples of the documentation are events as Lambda makes them: repeats, a broken record, a tombstone, odd headers.
#[test]
fn the_example_events_are_understood() {
    let event = payguard_aws::event::KafkaEvent::from_json(include_bytes!("event.json")).expect("a Kafka event");
    assert_eq!((event.records.len(), event.record_count()), (2, 5));
    assert!(event.records["payments.raw-1"][1].value.is_none());
    let event = payguard_aws::event::KafkaEvent::from_json(include_bytes!("rules.json")).expect("a Kafka event");
    let messages = event.records["rules.config-0"].iter().filter_map(|record| record.value.as_deref());
    let accepted = messages.map(|message| payguard_model::parse_rule_change(message).is_ok());
    assert_eq!(accepted.collect::<Vec<_>>(), [true, false, true]);
}
