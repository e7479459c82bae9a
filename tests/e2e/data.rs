//! What is delivered, and what must come out of it.

use std::collections::BTreeMap;
use std::ops::Range;

use payguard_aws::event::{KafkaEvent, KafkaRecord};
use payguard_sim::Rng;
use payguard_sim::reference::RawRecord;
use payguard_tests::{Setup, Shape, records};
use serde_json::Value;

/// Partitions of the topic.
pub(crate) const PARTITIONS: usize = 4;
/// Records of each.
pub(crate) const RECORDS: usize = 160;
/// An hour behind the last payment comes one that closes all windows and sessions.
const CLOSING_MS: i64 = 3_600_000;
/// Cards and merchants of closing payments begin so; their own windows stay open.
const CLOSING: &str = "closing-";

/// The partitions' records, offsets from 0. No card and no merchant is in two partitions, so that what must come out
/// does not depend on how partitions interleave.
pub(crate) fn partitions() -> Vec<Vec<RawRecord>> {
    let mut partitions: Vec<Vec<RawRecord>> = (0..PARTITIONS).map(partition).collect();
    let newest = partitions.iter().flatten().filter_map(|r| r.timestamp).max().unwrap_or(0);
    for (number, records) in partitions.iter_mut().enumerate() {
        records.push(closing(number, newest + CLOSING_MS));
    }
    partitions
}

fn partition(number: usize) -> Vec<RawRecord> {
    let mut drawn = records(100 + number as u64, RECORDS - 1, Shape::TIDY);
    for record in &mut drawn {
        let Some(value) = &mut record.value else { continue };
        let text = String::from_utf8_lossy(value);
        let own = text.replace("\"c-", &format!("\"c{number}-")).replace("\"m-", &format!("\"m{number}-"));
        *value = own.into_bytes();
    }
    drawn
}

fn closing(number: usize, time: i64) -> RawRecord {
    let value = format!(
        r#"{{"paymentId":"{CLOSING}{number}","cardId":"{CLOSING}{number}","merchantId":"{CLOSING}{number}","amountMinor":1,"currency":"EUR","country":"DE","eventTimeMs":{time}}}"#
    );
    RawRecord { offset: RECORDS as i64 - 1, timestamp: Some(time), value: Some(value.into_bytes()) }
}

/// A Kafka event with these offsets of these partitions, in no order within a partition.
pub(crate) fn event(partitions: &[Vec<RawRecord>], parts: &[(usize, Range<usize>)]) -> KafkaEvent {
    let mut rng = Rng::new(parts.iter().map(|(p, r)| (p + r.start * 7 + r.end * 31) as u64).sum());
    let mut event = KafkaEvent {
        event_source: "aws:kafka".to_owned(),
        event_source_arn: Some("arn:aws:kafka:us-east-1:123456789012:cluster/payments/0-1".to_owned()),
        bootstrap_servers: Some("b-1:9098".to_owned()),
        records: BTreeMap::new(),
    };
    for (partition, range) in parts {
        let mut records: Vec<KafkaRecord> =
            partitions[*partition][range.clone()].iter().map(|raw| record(*partition, raw)).collect();
        for at in (1..records.len()).rev() {
            records.swap(at, rng.below(at as u64 + 1) as usize);
        }
        event.records.insert(format!("payments.raw-{partition}"), records);
    }
    event
}

fn record(partition: usize, raw: &RawRecord) -> KafkaRecord {
    KafkaRecord {
        topic: "payments.raw".to_owned(),
        partition: i32::try_from(partition).expect("few partitions"),
        offset: raw.offset,
        timestamp: raw.timestamp.unwrap_or(-1),
        timestamp_type: Some("CREATE_TIME".to_owned()),
        key: (raw.offset % 3 == 0).then(|| b"k".to_vec()),
        value: raw.value.clone(),
        headers: match raw.offset % 4 {
            0 => vec![("trace".to_owned(), Some(vec![0, 127, 128, 255])), ("empty".to_owned(), None)],
            _ => Vec::new(),
        },
    }
}

/// What the naive model publishes: the records of every topic and table, sorted.
pub(crate) fn expected(setup: &Setup, partitions: &[Vec<RawRecord>]) -> BTreeMap<String, Vec<String>> {
    let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for records in partitions {
        for (topic, published) in setup.reference(records) {
            let own = published.iter().filter(|record| !record.key.starts_with(CLOSING));
            let lines = own.map(|record| comparable(&String::from_utf8_lossy(&record.value)));
            expected.entry(topic.to_owned()).or_default().extend(lines);
        }
    }
    expected.values_mut().for_each(|lines| lines.sort());
    expected
}

/// A line without what depends on the time of day.
pub(crate) fn comparable(line: &str) -> String {
    let mut value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("not a record ({e}): {line}"));
    if let Some(fields) = value.as_object_mut() {
        fields.remove("rejectedAtMs");
    }
    value.to_string()
}
