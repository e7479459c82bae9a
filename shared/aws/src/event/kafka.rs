//! Lambda's Kafka event, of MSK and of self-managed clusters.
//!
//! Own types, because a batch must not fail for one odd record: tombstones, records without key, headers without value,
//! header bytes written signed or unsigned, and timestamps of -1 are all legal in Kafka. Timestamps are kept to the
//! millisecond.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};

use super::{EventError, from_json};

/// The timestamp of a record that has none.
pub const NO_TIMESTAMP: i64 = -1;

/// A batch of records of one topic list; several partitions may be in one event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KafkaEvent {
    /// `aws:kafka` for MSK, `SelfManagedKafka` otherwise.
    pub event_source: String,
    /// The MSK cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_source_arn: Option<String>,
    /// The cluster's brokers, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_servers: Option<String>,
    /// Records by `topic-partition`, in offset order within each.
    pub records: BTreeMap<String, Vec<KafkaRecord>>,
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KafkaRecord {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// Milliseconds since the Unix epoch, exact; [`NO_TIMESTAMP`] when the record has none.
    #[serde(default = "no_timestamp", deserialize_with = "timestamp_or_none")]
    pub timestamp: i64,
    /// `CREATE_TIME` or `LOG_APPEND_TIME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp_type: Option<String>,
    /// The key.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "base64_bytes")]
    pub key: Option<Vec<u8>>,
    /// The value; a tombstone has none.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "base64_bytes")]
    pub value: Option<Vec<u8>>,
    /// The headers in order; a name may occur more than once, a value may be absent.
    #[serde(default, with = "headers")]
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// What a function answers to a Kafka event when it is configured to report single failures.
///
/// Lambda reads an empty list as "all done". It repeats the listed records only, so every record that was not processed
/// has to be listed, not just the first of a partition.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchResponse {
    /// Records to deliver again.
    pub batch_item_failures: Vec<BatchItemFailure>,
}

/// A record to deliver again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "Failure", into = "Failure")]
pub struct BatchItemFailure {
    /// `topic-partition`, as in the event.
    pub partition: String,
    /// The offset.
    pub offset: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Failure {
    item_identifier: FailureId,
}

#[derive(Serialize, Deserialize)]
struct FailureId {
    partition: String,
    offset: i64,
}

impl From<Failure> for BatchItemFailure {
    fn from(failure: Failure) -> BatchItemFailure {
        let FailureId { partition, offset } = failure.item_identifier;
        BatchItemFailure { partition, offset }
    }
}

impl From<BatchItemFailure> for Failure {
    fn from(failure: BatchItemFailure) -> Failure {
        Failure { item_identifier: FailureId { partition: failure.partition, offset: failure.offset } }
    }
}

impl KafkaEvent {
    /// Reads an event from JSON.
    ///
    /// # Errors
    /// The place in the JSON and what is wrong there.
    pub fn from_json(json: &[u8]) -> Result<KafkaEvent, EventError> {
        from_json(json)
    }

    /// Number of records.
    #[must_use]
    pub fn record_count(&self) -> usize {
        self.records.values().map(Vec::len).sum()
    }
}

fn no_timestamp() -> i64 {
    NO_TIMESTAMP
}

fn timestamp_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    Ok(Option::<i64>::deserialize(deserializer)?.unwrap_or(NO_TIMESTAMP))
}

/// `Option<Vec<u8>>` as base64 text or null.
mod base64_bytes {
    use super::*;

    pub(super) fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.serialize_str(&STANDARD.encode(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
        deserializer.deserialize_option(Base64)
    }

    struct Base64;

    impl<'de> Visitor<'de> for Base64 {
        type Value = Option<Vec<u8>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("base64 text or null")
        }

        fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_str(self)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            STANDARD.decode(text).map(Some).map_err(|err| E::custom(format!("not base64: {err}")))
        }
    }
}

/// Headers: a list of objects, name to bytes as a list of numbers.
mod headers {
    use super::*;

    type Headers = Vec<(String, Option<Vec<u8>>)>;

    pub(super) fn serialize<S: Serializer>(headers: &Headers, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(headers.len()))?;
        for (name, value) in headers {
            list.serialize_element(&OneHeader { name, value: value.as_deref() })?;
        }
        list.end()
    }

    struct OneHeader<'a> {
        name: &'a str,
        value: Option<&'a [u8]>,
    }

    impl Serialize for OneHeader<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut object = serializer.serialize_map(Some(1))?;
            match self.value {
                // As Lambda writes them: bytes are signed, a null value is an empty object.
                Some(bytes) => {
                    let signed: Vec<i8> = bytes.iter().map(|byte| byte.cast_signed()).collect();
                    object.serialize_entry(self.name, &signed)?;
                }
                None => object.serialize_entry(self.name, &BTreeMap::<String, u8>::new())?,
            }
            object.end()
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Headers, D::Error> {
        let entries = Option::<Vec<Option<Entry>>>::deserialize(deserializer)?.unwrap_or_default();
        Ok(entries.into_iter().flatten().flat_map(|entry| entry.0).collect())
    }

    /// One object of the list: usually one header.
    struct Entry(Headers);

    impl<'de> Deserialize<'de> for Entry {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entry, D::Error> {
            deserializer.deserialize_map(EntryVisitor)
        }
    }

    struct EntryVisitor;

    impl<'de> Visitor<'de> for EntryVisitor {
        type Value = Entry;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a header as an object from name to bytes")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
            let mut headers = Vec::with_capacity(1);
            while let Some((name, value)) = map.next_entry::<String, HeaderValue>()? {
                headers.push((name, value.0));
            }
            Ok(Entry(headers))
        }
    }

    struct HeaderValue(Option<Vec<u8>>);

    impl<'de> Deserialize<'de> for HeaderValue {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HeaderValue, D::Error> {
            deserializer.deserialize_any(HeaderVisitor)
        }
    }

    struct HeaderVisitor;

    impl<'de> Visitor<'de> for HeaderVisitor {
        type Value = HeaderValue;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("header bytes as a list of numbers, null or {}")
        }

        fn visit_unit<E: Error>(self) -> Result<HeaderValue, E> {
            Ok(HeaderValue(None))
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderValue, A::Error> {
            match map.next_entry::<IgnoredAny, IgnoredAny>()? {
                None => Ok(HeaderValue(None)),
                Some(_) => Err(A::Error::custom("a header value that is an object must be empty (null)")),
            }
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<HeaderValue, A::Error> {
            let mut bytes = Vec::with_capacity(list.size_hint().unwrap_or(0).min(4096));
            while let Some(number) = list.next_element::<i64>()? {
                bytes
                    .push(header_byte(number).ok_or_else(|| {
                        A::Error::custom(format!("header byte {number} is not between -128 and 255"))
                    })?);
            }
            Ok(HeaderValue(Some(bytes)))
        }
    }

    /// A byte written signed or unsigned.
    fn header_byte(number: i64) -> Option<u8> {
        u8::try_from(number).ok().or_else(|| i8::try_from(number).ok().map(i8::cast_unsigned))
    }
}
