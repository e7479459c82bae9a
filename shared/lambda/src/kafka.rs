//! What the functions that are given records of Kafka have in common: from an event to the records of each partition,
//! and from what was not committed to the answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use payguard_aws::event::{BatchItemFailure, BatchResponse, KafkaEvent, KafkaRecord, NO_TIMESTAMP};
use payguard_engine::EngineError;
use payguard_engine::logic::{REPLAYS_HEADER, SourceRecord};
use payguard_model::EventTime;

use crate::error::{Failure, HostError};
use crate::guard::within;

/// A failed partition's position is asked for this long at most.
const POSITION_TIME: Duration = Duration::from_secs(2);

/// The records of one partition, at least one.
pub(crate) struct Delivery<'a> {
    /// Its name in the event: topic and number.
    pub(crate) partition: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) number: i32,
    /// Ascending by offset, each once.
    pub(crate) records: Vec<SourceRecord<'a>>,
}

/// A partition whose records were not all committed.
pub(crate) struct Unprocessed {
    /// Why.
    failure: Failure,
    /// Every offset above the committed position.
    offsets: Vec<i64>,
}

/// The partitions of an event that have records.
///
/// # Errors
/// What is wrong with the event: nobody could handle it.
pub(crate) fn deliveries<'a>(event: &'a KafkaEvent, topics: &BTreeSet<&str>) -> Result<Vec<Delivery<'a>>, String> {
    let with_records = event.records.iter().filter(|(_, records)| !records.is_empty());
    with_records.map(|(partition, records)| delivery(partition, records, topics)).collect()
}

fn delivery<'a>(
    partition: &'a str,
    records: &'a [KafkaRecord],
    topics: &BTreeSet<&str>,
) -> Result<Delivery<'a>, String> {
    let (topic, number) = (records[0].topic.as_str(), records[0].partition);
    if format!("{topic}-{number}") != partition || records.iter().any(|r| (&*r.topic, r.partition) != (topic, number)) {
        return Err(format!("records under `{partition}` are of another partition"));
    }
    if !topics.contains(topic) {
        return Err(format!("records of the topic {topic}, which is none of its sources"));
    }
    let mut by_offset = BTreeMap::new();
    for record in records {
        if record.offset < 0 {
            return Err(format!("offset {} in {partition}", record.offset));
        }
        by_offset.entry(record.offset).or_insert(record);
    }
    Ok(Delivery { partition, topic, number, records: by_offset.into_values().map(as_source).collect() })
}

fn as_source(record: &KafkaRecord) -> SourceRecord<'_> {
    SourceRecord {
        offset: record.offset,
        timestamp: (record.timestamp != NO_TIMESTAMP).then_some(EventTime(record.timestamp)),
        value: record.value.as_deref(),
        watermark_bound: None,
        replays: replays(record),
    }
}

/// How often a record was sent back, as its newest header says; what is no number is somebody else's header.
fn replays(record: &KafkaRecord) -> u32 {
    let newest = record.headers.iter().rev().find(|(name, _)| name == REPLAYS_HEADER);
    let text = newest.and_then(|(_, value)| std::str::from_utf8(value.as_deref()?).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Delivery<'_> {
    /// What is not committed, given the position that the task ended at or the cause of its failure. After a failure
    /// the ledger is asked, with `committed`, where the partition stands.
    pub(crate) async fn unprocessed(
        &self,
        ended: Result<i64, String>,
        committed: impl Future<Output = Result<i64, EngineError>>,
    ) -> Option<Unprocessed> {
        let last = self.records.last()?.offset;
        let cause = match ended {
            Ok(position) if position >= last => return None,
            Ok(position) => format!("the task says that it is done but stands at offset {position}, not at {last}"),
            Err(cause) => cause,
        };
        let position = within(POSITION_TIME, committed).await.unwrap_or_else(|error| {
            tracing::warn!(partition = self.partition, error, "the position cannot be read");
            -1
        });
        let offsets = self.records.iter().map(|r| r.offset).filter(|offset| *offset > position).collect();
        Some(Unprocessed { failure: Failure { name: self.partition.to_owned(), cause }, offsets })
    }
}

/// The answer to an event: the records to repeat when `report` is set, otherwise a failure as a whole.
pub(crate) fn answer(unprocessed: Vec<Unprocessed>, report: bool) -> Result<BatchResponse, HostError> {
    if !report && !unprocessed.is_empty() {
        return Err(HostError::Partitions(unprocessed.into_iter().map(|u| u.failure).collect()));
    }
    let mut response = BatchResponse::default();
    for Unprocessed { failure: Failure { name: partition, cause }, offsets } in unprocessed {
        tracing::error!(partition, cause, records = offsets.len(), "records are to be repeated");
        let failures = offsets.into_iter().map(|offset| BatchItemFailure { partition: partition.clone(), offset });
        response.batch_item_failures.extend(failures);
    }
    Ok(response)
}
