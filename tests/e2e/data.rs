//! What is delivered: payments, confirmations and changes of the rules.

use std::collections::BTreeMap;
use std::ops::Range;

use payguard_aws::event::{KafkaEvent, KafkaRecord};
use payguard_sim::Rng;
use payguard_sim::reference::RawRecord;
use payguard_tests::data::payment_json;
use payguard_tests::{Setup, Shape, records};

use crate::expected::first_copies;

/// Partitions of each topic with payments or confirmations.
pub(crate) const PARTITIONS: usize = 4;
/// Records of each partition with payments.
pub(crate) const RECORDS: usize = 160;
/// From this offset on the rules block [`BLOCKED`].
pub(crate) const BLOCKED_FROM: usize = 130;
/// The country that the rules block half-way.
pub(crate) const BLOCKED: &str = "KP";
/// Cards and merchants of closing payments begin so; their own windows stay open.
pub(crate) const CLOSING: &str = "closing-";
/// An hour behind the last payment comes one that closes all windows and sessions and ends every wait.
const CLOSING_MS: i64 = 3_600_000;
/// Payments of which the country is changed, before and after the rules block it.
const FROM_BLOCKED: [usize; 7] = [2, 3, 4, 133, 139, 145, 151];
/// Where three small payments and a large one of a card of their own are put.
const PROBES_AT: usize = 20;
const PROBES: [i64; 4] = [100, 300, 200, 40_000];
/// Changes of the rules: three are accepted, three are refused. No limit is changed, so that it does not matter which
/// payments see which version, except for the country.
const RULES: [&str; 6] = [
    r#"{"velocityMaxPayments": 2}"#,
    r#"{"blockedCountries": ["North Korea"]}"#,
    r#"{"blockedCountries": ["KP"]}"#,
    "block them all",
    r#"{"velocityMaxPayments": -1, "blockedCountries": []}"#,
    r#"{"blockedCountries": ["KP", "IR"]}"#,
];

/// A topic's records by partition, offsets from 0.
pub(crate) struct Topic {
    name: &'static str,
    pub(crate) partitions: Vec<Vec<RawRecord>>,
}

/// Everything that is delivered.
pub(crate) struct Topics {
    pub(crate) payments: Topic,
    pub(crate) confirmations: Topic,
    pub(crate) rules: Topic,
}

impl Topics {
    /// No card, merchant or payment is in two partitions, and nothing is late in its own, so that what must come out
    /// does not depend on how partitions and topics interleave.
    pub(crate) fn new(setup: &Setup) -> Topics {
        let mut payments: Vec<Vec<RawRecord>> = (0..PARTITIONS).map(partition).collect();
        let newest = payments.iter().flatten().filter_map(|r| r.timestamp).max().unwrap_or(0);
        let end = newest + CLOSING_MS;
        let confirmations = (0..PARTITIONS).map(|n| confirmations(setup, n, &payments[n], end)).collect();
        for (number, records) in payments.iter_mut().enumerate() {
            let id = format!("{CLOSING}{number}");
            records.push(raw(records.len(), end, &payment_json(&id, &id, &id, 1, end)));
        }
        let rules = RULES.iter().enumerate().map(|(offset, text)| raw(offset, end, text)).collect();
        Topics {
            payments: Topic { name: "payments.raw", partitions: payments },
            confirmations: Topic { name: "payments.confirmations", partitions: confirmations },
            rules: Topic { name: "rules.config", partitions: vec![rules] },
        }
    }

    /// Records that `parse` is given.
    pub(crate) fn parsed(&self) -> usize {
        self.payments.partitions.iter().chain(&self.confirmations.partitions).map(Vec::len).sum()
    }
}

impl Topic {
    /// The same share of every partition: records `from` to `to` of `of`.
    pub(crate) fn share(&self, range: Range<usize>, of: usize) -> KafkaEvent {
        let parts = self.partitions.iter().enumerate();
        let part = |(number, records): (usize, &Vec<RawRecord>)| {
            (number, range.start * records.len() / of..range.end * records.len() / of)
        };
        self.event(&parts.map(part).collect::<Vec<_>>())
    }

    /// A Kafka event with these offsets of these partitions, in no order within a partition.
    pub(crate) fn event(&self, parts: &[(usize, Range<usize>)]) -> KafkaEvent {
        let mut rng = Rng::new(parts.iter().map(|(p, r)| (p + r.start * 7 + r.end * 31) as u64).sum());
        let mut event = KafkaEvent {
            event_source: "aws:kafka".to_owned(),
            event_source_arn: Some("arn:aws:kafka:us-east-1:123456789012:cluster/payments/0-1".to_owned()),
            bootstrap_servers: Some("b-1:9098".to_owned()),
            records: BTreeMap::new(),
        };
        for (partition, range) in parts {
            let drawn = &self.partitions[*partition][range.clone()];
            let mut records: Vec<KafkaRecord> = drawn.iter().map(|raw| record(self.name, *partition, raw)).collect();
            for at in (1..records.len()).rev() {
                records.swap(at, rng.below(at as u64 + 1) as usize);
            }
            event.records.insert(format!("{}-{partition}", self.name), records);
        }
        event
    }
}

fn partition(number: usize) -> Vec<RawRecord> {
    let mut drawn = records(100 + number as u64, RECORDS - 1 - PROBES.len(), Shape::TIDY);
    for record in &mut drawn {
        let Some(value) = &mut record.value else { continue };
        let text = String::from_utf8_lossy(value);
        let own = text.replace("\"c-", &format!("\"c{number}-")).replace("\"m-", &format!("\"m{number}-"));
        *value = own.into_bytes();
    }
    let time = drawn[PROBES_AT - 1].timestamp.unwrap_or(0);
    for (nth, amount) in PROBES.into_iter().enumerate() {
        let (card, merchant) = (format!("c{number}-probed"), format!("m{number}-0000"));
        let probe = payment_json(&format!("probe-{number}-{nth}"), &card, &merchant, amount, time + nth as i64);
        drawn.insert(PROBES_AT + nth, raw(0, time + nth as i64, &probe));
    }
    for (offset, record) in drawn.iter_mut().enumerate() {
        record.offset = offset as i64;
        if let Some(value) = record.value.as_mut().filter(|_| FROM_BLOCKED.contains(&offset)) {
            let text = String::from_utf8_lossy(value);
            *value = text.replace("\"DE\"", &format!("\"{BLOCKED}\"")).into_bytes();
        }
    }
    drawn
}

/// Four payments of five are confirmed, in order of time; one of them twice. One record is no confirmation, one empty.
fn confirmations(setup: &Setup, number: usize, payments: &[RawRecord], end: i64) -> Vec<RawRecord> {
    let mut rng = Rng::new(200 + number as u64);
    let mut drawn: Vec<(i64, String)> = Vec::new();
    for (nth, (_, payment)) in first_copies(setup, payments).into_iter().enumerate() {
        if nth % 5 == 0 {
            continue;
        }
        for _ in 0..if nth % 5 == 1 { 2 } else { 1 } {
            let time = payment.event_time_ms + rng.between(1, 60_000);
            let id = &payment.payment_id;
            drawn.push((time, format!(r#"{{"paymentId":"{id}","status":"APPROVED","eventTimeMs":{time}}}"#)));
        }
    }
    drawn.sort();
    drawn.push((end, "no confirmation".to_owned()));
    drawn.push((end, format!(r#"{{"paymentId":"{CLOSING}nobody","eventTimeMs":{end}}}"#)));
    let mut records: Vec<RawRecord> =
        drawn.into_iter().enumerate().map(|(offset, (time, text))| raw(offset, time, &text)).collect();
    records.insert(0, RawRecord { offset: 0, timestamp: None, value: None });
    records.iter_mut().enumerate().for_each(|(offset, record)| record.offset = offset as i64);
    records
}

fn raw(offset: usize, time: i64, text: &str) -> RawRecord {
    RawRecord { offset: offset as i64, timestamp: Some(time), value: Some(text.as_bytes().to_vec()) }
}

fn record(topic: &str, partition: usize, raw: &RawRecord) -> KafkaRecord {
    KafkaRecord {
        topic: topic.to_owned(),
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
