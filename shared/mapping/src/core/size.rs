//! How large records are in the JSON of an event.

use payguard_aws::event::KafkaRecord;

/// What an event has besides its records, at most: source, brokers.
pub const ENVELOPE_BYTES: usize = 4 * 1024;

/// Most bytes of a record in an event: keys and values are base64 there, a byte of a header up to five signs. Its
/// partition's name is counted with every record.
#[must_use]
pub fn record_bytes(record: &KafkaRecord) -> usize {
    // Names of fields, numbers at their longest, commas, and the partition's name with its number.
    const FIXED: usize = 220;
    let base64 = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, |bytes| bytes.len().div_ceil(3) * 4);
    let header =
        |(name, value): &(String, Option<Vec<u8>>)| 8 + name.len() * 6 + value.as_ref().map_or(0, |v| v.len() * 5);
    let headers: usize = record.headers.iter().map(header).sum();
    FIXED + record.topic.len() * 2 + base64(&record.key) + base64(&record.value) + headers
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_record_is_larger_than_it_is_taken_for(
            topic in "[a-zA-Z0-9._-]{1,60}", partition: i32, offset: i64, timestamp: i64,
            key in proptest::option::of(vec(any::<u8>(), 0..40)), value in proptest::option::of(vec(any::<u8>(), 0..4000)),
            headers in vec((any::<String>(), proptest::option::of(vec(any::<u8>(), 0..20))), 0..5),
        ) {
            let timestamp_type = Some("LOG_APPEND_TIME".to_owned());
            let name = format!("\"{topic}-{partition}\":[],");
            let record = KafkaRecord { topic, partition, offset, timestamp, timestamp_type, key, value, headers };
            let actual = serde_json::to_vec(&record).unwrap().len() + name.len();
            let taken = record_bytes(&record);
            prop_assert!(actual <= taken, "{} > {}", actual, taken);
            // Values decide; they are counted as they are.
            let plain = KafkaRecord { headers: Vec::new(), ..record };
            let actual = serde_json::to_vec(&plain).unwrap().len() + name.len();
            prop_assert!(record_bytes(&plain) - actual < 220);
        }
    }
}
