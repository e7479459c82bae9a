//! Events as Lambda sends them, from fixtures, and the odd ones Kafka allows.

use payguard_aws::event::{
    BatchItemFailure, BatchResponse, HeartbeatEvent, KafkaEvent, KafkaRecord, NO_TIMESTAMP, ScheduleEvent, StageEvent,
    WakeEvent,
};
use proptest::prelude::*;

const MSK: &[u8] = include_bytes!("fixtures/msk.json");
const ODD: &[u8] = include_bytes!("fixtures/odd.json");
const RULE: &[u8] = include_bytes!("fixtures/schedule_rule.json");
const SCHEDULER: &[u8] = include_bytes!("fixtures/schedule_scheduler.json");
const WAKE: &[u8] = include_bytes!("fixtures/wake.json");
const HEARTBEAT: &[u8] = include_bytes!("fixtures/heartbeat.json");

fn kafka(json: &[u8]) -> KafkaEvent {
    KafkaEvent::from_json(json).expect("a Kafka event")
}

fn header(name: &str, value: Option<&[u8]>) -> (String, Option<Vec<u8>>) {
    (name.to_owned(), value.map(<[u8]>::to_vec))
}

#[test]
fn an_msk_event_with_several_partitions_is_read_exactly() {
    let event = kafka(MSK);
    assert_eq!(event.event_source, "aws:kafka");
    assert!(event.event_source_arn.as_deref().is_some_and(|arn| arn.starts_with("arn:aws:kafka:")));
    assert_eq!(event.records.keys().collect::<Vec<_>>(), ["payments.raw-0", "payments.raw-3"]);
    assert_eq!(event.record_count(), 3);
    let first = &event.records["payments.raw-0"][0];
    let expected = KafkaRecord {
        topic: "payments.raw".to_owned(),
        partition: 0,
        offset: 15,
        timestamp: 1_545_084_650_987,
        timestamp_type: Some("CREATE_TIME".to_owned()),
        key: Some(b"card-1".to_vec()),
        value: Some(br#"{"a":1}"#.to_vec()),
        headers: vec![header("source", Some(b"pos")), header("source", Some("ü".as_bytes()))],
    };
    assert_eq!(*first, expected, "repeated header names and signed bytes included");
    let tombstone = &event.records["payments.raw-3"][0];
    assert_eq!((tombstone.offset, tombstone.value.as_deref()), (9_007_199_254_740_993, None));
    assert_eq!(tombstone.headers, [header("empty", Some(b"")), header("null", None)]);
    assert_eq!(event.records["payments.raw-0"][1].key, None);
}

#[test]
fn odd_but_legal_records_do_not_fail_the_batch() {
    let event = kafka(ODD);
    assert_eq!((event.event_source.as_str(), event.event_source_arn.as_deref()), ("SelfManagedKafka", None));
    let records = &event.records["t-0"];
    assert_eq!(records.iter().map(|record| record.timestamp).collect::<Vec<_>>(), [NO_TIMESTAMP; 3]);
    assert_eq!((records[0].key.as_deref(), records[0].value.as_deref()), (None, None));
    assert_eq!((records[2].key.as_deref(), records[2].value.as_deref()), (Some(&b""[..]), Some(&b""[..])));
    assert!(records[0].headers.is_empty() && records[1].headers.is_empty());
    let expected = [
        header("a", None),
        header("b", Some(&[200, 200, 0, 255, 128])),
        header("c", Some(&[1])),
        header("d", Some(&[2])),
    ];
    assert_eq!(records[2].headers, expected);
    assert!(event.records["t-1"].is_empty());
}

#[test]
fn kafka_events_survive_writing_and_reading() {
    for json in [MSK, ODD] {
        let event = kafka(json);
        let written = serde_json::to_vec(&event).expect("written");
        assert_eq!(kafka(&written), event);
    }
}

#[test]
fn garbage_is_named_with_its_place() {
    let record = |change: &str| {
        format!(
            r#"{{"eventSource":"aws:kafka","records":{{"t-0":[{{"topic":"t","partition":0,"offset":1,{change}}}]}}}}"#
        )
    };
    let cases = [
        (record(r#""value":"%%%""#), "records.t-0[0].value", "not base64"),
        (record(r#""value":17"#), "records.t-0[0].value", "base64 text or null"),
        (record(r#""timestamp":"noon""#), "records.t-0[0].timestamp", "i64"),
        (record(r#""headers":[{"h":[256]}]"#), "records.t-0[0].headers", "header byte 256"),
        (record(r#""headers":[{"h":[-129]}]"#), "records.t-0[0].headers", "header byte -129"),
        (record(r#""headers":[{"h":"text"}]"#), "records.t-0[0].headers", "header bytes as a list of numbers"),
        (record(r#""headers":[{"h":{"x":1}}]"#), "records.t-0[0].headers", "must be empty"),
        (record(r#""headers":{}"#), "records.t-0[0].headers", "sequence"),
        (
            r#"{"eventSource":"aws:kafka","records":{"t-0":[{"topic":"t","partition":0}]}}"#.to_owned(),
            "records.t-0[0]",
            "offset",
        ),
        (r#"{"eventSource":"aws:kafka"}"#.to_owned(), ".", "records"),
        ("[]".to_owned(), ".", "KafkaEvent"),
        (r#"{"eventSource":"aws:kafka","records":{}} x"#.to_owned(), ".", "trailing"),
    ];
    for (json, path, detail) in cases {
        let error = KafkaEvent::from_json(json.as_bytes()).expect_err(&json);
        assert!(error.path.starts_with(path), "{json}: path is {}", error.path);
        assert!(error.detail.contains(detail), "{json}: {}", error.detail);
    }
}

#[test]
fn every_kind_of_event_is_told_apart() {
    let schedule = |source: &str, time: &str| {
        StageEvent::Schedule(ScheduleEvent { source: source.to_owned(), time: Some(time.to_owned()) })
    };
    let cases = [
        (MSK, StageEvent::Kafka(kafka(MSK))),
        (ODD, StageEvent::Kafka(kafka(ODD))),
        (WAKE, StageEvent::Wake(WakeEvent { wake: vec!["dedup/0".to_owned(), "dedup/3".to_owned()] })),
        (HEARTBEAT, StageEvent::Heartbeat(HeartbeatEvent { heartbeat: vec!["parse/payments.raw-0".to_owned()] })),
        (RULE, schedule("aws.events", "2026-11-29T16:53:06Z")),
        (SCHEDULER, schedule("aws.scheduler", "2026-11-29T16:54:00Z")),
    ];
    for (json, expected) in cases {
        let event = StageEvent::from_json(json).expect("an event");
        assert_eq!(event, expected);
        let written = serde_json::to_vec(&event).expect("written");
        assert_eq!(StageEvent::from_json(&written).expect("read back"), expected);
    }
}

#[test]
fn an_event_of_no_known_kind_is_refused() {
    for (json, detail) in [
        ("{}", "exactly one of"),
        (r#"{"source":"aws.s3"}"#, "nothing is known of events from `aws.s3`"),
        (r#"{"wake":["a/0"],"heartbeat":["a/0"]}"#, "exactly one of"),
        (r#"{"eventSource":"aws:kafka"}"#, "without `records`"),
        (r#"{"records":{}}"#, "without `eventSource`"),
        (r#"{"Records":[{"eventSource":"aws:sqs"}]}"#, "exactly one of"),
    ] {
        let error = StageEvent::from_json(json.as_bytes()).expect_err(json);
        assert!(error.detail.contains(detail), "{json}: {}", error.detail);
    }
    let error = StageEvent::from_json(br#"{"eventSource":"k","records":{"t-0":[{"topic":1}]}}"#).expect_err("garbage");
    assert_eq!(error.path, "records.t-0[0].topic");
}

#[test]
fn a_batch_response_has_lambdas_form() {
    let failure = BatchItemFailure { partition: "topic-0".to_owned(), offset: 100 };
    let response = BatchResponse { batch_item_failures: vec![failure] };
    let json = r#"{"batchItemFailures":[{"itemIdentifier":{"partition":"topic-0","offset":100}}]}"#;
    assert_eq!(serde_json::to_string(&response).expect("written"), json);
    assert_eq!(serde_json::from_str::<BatchResponse>(json).expect("read"), response);
    assert_eq!(serde_json::to_string(&BatchResponse::default()).expect("written"), r#"{"batchItemFailures":[]}"#);
}

proptest! {
    #[test]
    fn header_bytes_survive_signed_and_unsigned(bytes in prop::collection::vec(any::<u8>(), 0..200), signed: bool) {
        let numbers: Vec<i64> =
            bytes.iter().map(|byte| if signed { i64::from(byte.cast_signed()) } else { i64::from(*byte) }).collect();
        let json = serde_json::json!({
            "eventSource": "aws:kafka",
            "records": { "t-0": [{ "topic": "t", "partition": 0, "offset": 1, "headers": [{ "h": numbers }] }] },
        });
        let event = kafka(json.to_string().as_bytes());
        prop_assert_eq!(&event.records["t-0"][0].headers, &vec![("h".to_owned(), Some(bytes))]);
    }

    #[test]
    fn records_survive_writing_and_reading(
        key in prop::option::of(prop::collection::vec(any::<u8>(), 0..50)),
        value in prop::option::of(prop::collection::vec(any::<u8>(), 0..300)),
        timestamp in prop_oneof![Just(NO_TIMESTAMP), 0..i64::MAX],
        offset in 0..i64::MAX,
        headers in prop::collection::vec((".{0,8}", prop::option::of(prop::collection::vec(any::<u8>(), 0..20))), 0..4),
    ) {
        let record = KafkaRecord {
            topic: "t".to_owned(), partition: 2, offset, timestamp, timestamp_type: None, key, value, headers,
        };
        let event = KafkaEvent {
            event_source: "aws:kafka".to_owned(),
            event_source_arn: None,
            bootstrap_servers: None,
            records: [("t-2".to_owned(), vec![record])].into(),
        };
        let written = serde_json::to_vec(&event).expect("written");
        prop_assert_eq!(&kafka(&written), &event);
        prop_assert_eq!(StageEvent::from_json(&written).expect("an event"), StageEvent::Kafka(event));
    }

    #[test]
    fn no_input_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = StageEvent::from_json(&bytes);
    }
}
