//! Heads and rows of the ledger as JSON.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use payguard_engine::row::{SegmentLocation, Slice};
use payguard_engine::segment::SliceReader;
use payguard_engine::task::Env;
use payguard_engine::{Broadcast, CommitRow, Head, InputState, Position, TaskId};
use payguard_model::{EventTime, RuleConfig};
use payguard_savepoint::slice_of;
use prost::Message;
use serde_json::{Map, Value, json};

use crate::error::InspectError;
use crate::streams::record;
use crate::time::with_utc;

/// A task's head. A watermark that is none or at the end of time is `null`; `ended` tells which.
#[must_use]
pub fn head(head: &Head) -> Value {
    let taken = head.taken.iter().map(|taken| {
        let inputs: Map<_, _> = taken.inputs.iter().map(|(id, at)| (id.clone(), position(at))).collect();
        json!({
            "generation": taken.generation, "fromGroup": taken.from_group, "toGroup": taken.to_group, "inputs": inputs,
        })
    });
    let inputs = head.inputs.iter().map(|(id, state)| (id.clone(), input(state)));
    with_utc(json!({
        "seq": head.seq, "attempt": head.attempt, "committedAtMs": head.committed_at_ms,
        "lastInputAtMs": Some(head.last_input_at_ms).filter(|ms| *ms > 0),
        "watermarkMs": watermark(head.watermark()), "ended": head.ended(), "idle": head.idle,
        "flushedSeq": head.flushed_seq, "nextTimerMs": head.next_timer_ms, "code": head.code,
        "generation": head.generation, "shards": head.shards,
        "sealedFor": head.sealed.map(|layout| json!({ "generation": layout.generation, "shards": layout.shards })),
        "taken": taken.collect::<Vec<_>>(),
        "inputs": inputs.collect::<Map<_, _>>(), "counters": head.counters, "gauges": head.gauges,
        "broadcast": head.broadcast.as_ref().map(broadcast), "pinned": head.pinned,
        "restoredFrom": Some(&head.restored_from).filter(|from| !from.is_empty()),
    }))
}

/// A row of a log, without its records.
#[must_use]
pub fn row(row: &CommitRow) -> Value {
    let inputs = row.to.iter().map(|(id, to)| {
        let from = row.from.get(id).copied().unwrap_or_default();
        let mut moved = input(to);
        moved["from"] = position(&from);
        (id.clone(), moved)
    });
    with_utc(json!({
        "seq": row.seq, "attempt": row.attempt, "committedAtMs": row.now_ms,
        "watermarkMs": watermark(row.watermark()), "ended": row.watermark() == EventTime::MAX, "idle": row.idle,
        "inputs": inputs.collect::<Map<_, _>>(), "records": records_by_stream(row), "segment": segment(row),
        "delta": row.delta.as_ref().map(|delta| json!({ "bytes": delta.raw_len, "stored": delta.len })),
        "slices": row.slices.iter().map(slice).collect::<Vec<_>>(), "counters": row.counters, "code": row.code,
        "generation": row.generation, "broadcast": row.broadcast.as_ref().map(broadcast), "pinned": row.pinned,
        "sealedFor": row.sealed.map(|layout| json!({ "generation": layout.generation, "shards": layout.shards })),
    }))
}

/// Records of a row by stream.
#[must_use]
pub fn records_by_stream(row: &CommitRow) -> Map<String, Value> {
    let mut counts: Map<String, Value> = Map::new();
    for slice in &row.slices {
        let before = counts.get(&slice.stream).and_then(Value::as_u64).unwrap_or_default();
        counts.insert(slice.stream.clone(), Value::from(before + u64::from(slice.count)));
    }
    counts
}

/// Bytes of a row's segment as they are stored.
#[must_use]
pub fn segment_bytes(row: &CommitRow) -> u64 {
    row.slices.iter().chain(&row.delta).map(|slice| slice.len).sum()
}

fn segment(row: &CommitRow) -> Value {
    let bytes = segment_bytes(row);
    match &row.segment {
        None => Value::Null,
        Some(SegmentLocation::Inline(_)) => json!({ "bytes": bytes, "place": "row" }),
        Some(SegmentLocation::Object(key)) => json!({ "bytes": bytes, "place": "object", "key": key }),
    }
}

fn slice(slice: &Slice) -> Value {
    json!({
        "stream": slice.stream, "shard": slice.shard, "of": slice.shards, "records": slice.count,
        "bytes": slice.raw_len, "stored": slice.len, "minEventTimeMs": slice.min_event_time_ms,
        "maxEventTimeMs": slice.max_event_time_ms,
    })
}

fn input(state: &InputState) -> Value {
    json!({
        "to": position(&state.position), "watermarkMs": watermark(state.watermark()),
        "ended": state.watermark() == EventTime::MAX, "idle": state.idle,
    })
}

fn position(position: &Position) -> Value {
    json!({ "at": position.at, "within": position.within })
}

fn watermark(time: EventTime) -> Option<i64> {
    Some(time.0).filter(|ms| ![EventTime::MIN.0, EventTime::MAX.0].contains(ms))
}

/// The rules in force where they can be read, otherwise bytes in base64.
fn broadcast(broadcast: &Broadcast) -> Value {
    match RuleConfig::decode(broadcast.value.clone()) {
        Ok(rules) => json!({ "version": broadcast.version, "rules": rules }),
        Err(_) => json!({ "version": broadcast.version, "bytes": BASE64_STANDARD.encode(&broadcast.value) }),
    }
}

/// The records of a row in the order they were emitted, each with its stream, the reader's shard and where it comes of.
///
/// # Errors
/// When the segment was collected, is damaged, or the store fails.
pub async fn records(env: &Env, task: &TaskId, row: &CommitRow) -> Result<Vec<Value>, InspectError> {
    let mut found: Vec<(u64, Value)> = Vec::new();
    for slice in &row.slices {
        let bytes = slice_of(env, task, row, slice).await?;
        let damaged = |detail: String| InspectError::Inconsistent {
            task: task.to_string(),
            detail: format!("row {}, stream {}: {detail}", row.seq, slice.stream),
        };
        let mut reader = SliceReader::new(bytes, slice.count).map_err(|e| damaged(e.to_string()))?;
        while let Some(next) = reader.take().map_err(|e| damaged(e.to_string()))? {
            let value = match record(&slice.stream, next.payload) {
                Some(read) => read.map_err(|e| damaged(e.0))?,
                None => json!({ "bytes": BASE64_STANDARD.encode(next.payload) }),
            };
            let (stamp, order) = (next.header.stamp, next.header.order);
            found.push((
                order,
                with_utc(json!({
                    "stream": slice.stream, "shard": slice.shard, "of": slice.shards, "order": order,
                    "stampMs": watermark(stamp.watermark), "partition": stamp.arrival.partition,
                    "offset": stamp.arrival.offset, "record": value,
                })),
            ));
        }
    }
    found.sort_by_key(|(order, _)| *order);
    Ok(found.into_iter().map(|(_, record)| record).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_row_tells_what_it_did() {
        let slice = |stream: &str, count| Slice {
            stream: stream.to_owned(),
            count,
            len: 10,
            raw_len: 20,
            shards: 2,
            ..Slice::default()
        };
        let to = InputState { position: Position { at: 5, within: 3 }, watermark_ms: i64::MAX, idle: false };
        let written = CommitRow {
            seq: 7,
            now_ms: 1_000,
            watermark_ms: i64::MIN,
            from: BTreeMap::from([("dedup/0".to_owned(), Position { at: 3, within: 0 })]),
            to: BTreeMap::from([("dedup/0".to_owned(), to)]),
            segment: Some(SegmentLocation::Object("rules/0/7".to_owned())),
            slices: vec![slice("card-alerts", 2), slice("card-alerts", 3), slice("card-profiles", 4)],
            delta: Some(Slice { len: 5, raw_len: 9, ..Slice::default() }),
            broadcast: Some(Broadcast { version: 1, value: vec![0xff].into() }),
            ..CommitRow::default()
        };
        let told = row(&written);
        assert_eq!(told["records"], json!({ "card-alerts": 5, "card-profiles": 4 }));
        assert_eq!(told["segment"], json!({ "bytes": 35, "place": "object", "key": "rules/0/7" }));
        assert_eq!(told["delta"], json!({ "bytes": 9, "stored": 5 }));
        let input = &told["inputs"]["dedup/0"];
        assert_eq!(
            (&input["from"]["at"], &input["to"]["at"], &input["to"]["within"]),
            (&json!(3), &json!(5), &json!(3))
        );
        assert_eq!(
            (&input["ended"], &told["watermarkMs"], &told["ended"]),
            (&json!(true), &Value::Null, &json!(false))
        );
        assert_eq!(told["committedAtUtc"], "1970-01-01T00:00:01Z");
        assert_eq!(told["broadcast"], json!({ "version": 1, "bytes": "/w==" }));
        let inline = CommitRow { segment: Some(SegmentLocation::Inline(vec![0].into())), ..CommitRow::default() };
        assert_eq!(row(&inline)["segment"], json!({ "bytes": 0, "place": "row" }));
        assert_eq!(row(&CommitRow::default())["segment"], Value::Null);
    }

    #[test]
    fn a_head_says_where_it_comes_from_and_who_takes_over() {
        let sealed = payguard_engine::layout::Layout { generation: 2, shards: 4 };
        let told = head(&Head { restored_from: "s3://b/x".into(), sealed: Some(sealed), ..Head::empty() });
        assert_eq!((&told["restoredFrom"], &told["sealedFor"]["shards"]), (&json!("s3://b/x"), &json!(4)));
        let told = head(&Head::empty());
        assert_eq!((&told["restoredFrom"], &told["sealedFor"], &told["seq"]), (&Value::Null, &Value::Null, &json!(0)));
    }
}
