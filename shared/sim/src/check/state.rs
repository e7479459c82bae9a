//! INV-4: every page holds what the log gives at its version, and pages plus later deltas give the state at the head.

use std::collections::{BTreeMap, BTreeSet};

use payguard_engine::logic::StageDelta;
use payguard_engine::page::{Page, version};
use payguard_engine::{StageId, TaskId};
use payguard_model::{KEY_GROUPS, KeyGroup, ProcessingTime, key_group, key_group::shard_of};
use payguard_operators::dedup;
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use crate::world::{TaskLog, World};

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", optional, tag = "2")]
    state: Option<Vec<u8>>,
    #[prost(sint64, repeated, tag = "3")]
    event_timers: Vec<i64>,
    #[prost(sint64, repeated, tag = "4")]
    processing_timers: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Entries {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Written {
    #[prost(sint64, tag = "1")]
    at_ms: i64,
    #[prost(bytes = "vec", tag = "2")]
    uuids: Vec<u8>,
    #[prost(string, repeated, tag = "3")]
    texts: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct WrittenRuns {
    #[prost(message, repeated, tag = "1")]
    runs: Vec<Written>,
}

/// What is stored of one key: an entry, or the time an id was written at; `None` when it was forgotten.
type Value = Option<Entry>;
/// Values by key.
type State = BTreeMap<String, Value>;
/// By operator and key, every value with the seq it was given at.
type History = BTreeMap<String, BTreeMap<String, Vec<(u64, Value)>>>;

pub(super) fn check_state(world: &World) -> Result<(), String> {
    let shards = shards_of_stages(world);
    let empty = BTreeSet::new();
    let mut pages: BTreeMap<TaskId, Vec<&Page>> = BTreeMap::new();
    for page in world.pages.values() {
        let stage = &page.address.stage;
        let of_stage = shards.get(stage).unwrap_or(&empty).len();
        let shard = shard_of(KeyGroup(page.address.group), u32::try_from(of_stage.max(1)).unwrap_or(1), KEY_GROUPS);
        pages.entry(TaskId::shard(stage, shard)).or_default().push(page);
    }
    for task in pages.keys() {
        if !world.logs.contains_key(task) {
            return Err(format!("INV-4: {task} has pages and no log"));
        }
    }
    for (task, log) in &world.logs {
        let (Some(head), Some(_)) = (&log.head, task.shard_number()) else { continue };
        let history = history(world, log).map_err(|e| format!("INV-4: {task}: {e}"))?;
        let pages = pages.remove(task).unwrap_or_default();
        for page in &pages {
            let seq = page.version - version(head.generation, 0);
            if seq == 0 || seq > head.seq {
                return Err(format!("INV-4: page {} has version {seq}, the head is at {}", page.address, head.seq));
            }
            check_page(page, seq, &history)?;
        }
        for operator in history.keys() {
            let mine: Vec<&Page> = pages.iter().copied().filter(|p| p.address.operator == *operator).collect();
            check_recovery(operator, &mine, (head.flushed_seq, head.seq), &history, ProcessingTime(world.now_ms))
                .map_err(|e| format!("INV-4: {task} {operator}: {e}"))?;
        }
    }
    Ok(())
}

fn shards_of_stages(world: &World) -> BTreeMap<StageId, BTreeSet<u32>> {
    let mut shards: BTreeMap<StageId, BTreeSet<u32>> = BTreeMap::new();
    for task in world.registry.values().flatten().chain(world.logs.keys()) {
        if let Some(shard) = task.shard_number() {
            shards.entry(task.stage.clone()).or_default().insert(shard);
        }
    }
    shards
}

fn history(world: &World, log: &TaskLog) -> Result<History, String> {
    let mut history = History::new();
    for row in log.history.values() {
        let Some(delta) = &row.delta else { continue };
        let bytes = world.slice_bytes(row, delta)?;
        for part in StageDelta::decode(bytes).map_err(|e| e.to_string())?.operators {
            let keys = history.entry(part.operator.clone()).or_default();
            for (key, value) in decode(&part.operator, &part.changes)? {
                keys.entry(key).or_default().push((row.seq, value));
            }
        }
    }
    Ok(history)
}

/// Keys and values of a delta or a page.
fn decode(operator: &str, bytes: &[u8]) -> Result<Vec<(String, Value)>, String> {
    if operator != dedup::ID {
        let entries = Entries::decode(bytes).map_err(|e| e.to_string())?.entries;
        return Ok(entries.into_iter().map(|e| (e.key.clone(), e.state.is_some().then_some(e))).collect());
    }
    let mut ids = Vec::new();
    for run in WrittenRuns::decode(bytes).map_err(|e| e.to_string())?.runs {
        let uuids = run.uuids.chunks(16).map(uuid);
        for id in uuids.chain(run.texts) {
            ids.push((id.clone(), Some(Entry { key: id, event_timers: vec![run.at_ms], ..Entry::default() })));
        }
    }
    Ok(ids)
}

fn uuid(bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn value_at(values: &[(u64, Value)], seq: u64) -> Value {
    values.iter().rev().find(|(at, _)| *at <= seq).and_then(|(_, value)| value.clone())
}

/// Depth and prefix of a page of keyed state.
fn range_of(page: &Page) -> Result<(u32, u64), String> {
    let parts = page.address.page.split_once('-').and_then(|(d, p)| Some((d.parse().ok()?, p.parse().ok()?)));
    parts.ok_or_else(|| format!("INV-4: page {} has a strange name", page.address))
}

fn in_range(key: &str, group: u32, (depth, prefix): (u32, u64)) -> bool {
    let bits = if depth == 0 { 0 } else { xxh3_64(key.as_bytes()) >> (64 - depth) };
    key_group(key, KEY_GROUPS).0 == group && bits == prefix
}

fn check_page(page: &Page, seq: u64, history: &History) -> Result<(), String> {
    let (address, operator) = (&page.address, &page.address.operator);
    let nothing = BTreeMap::new();
    let keys = history.get(operator).unwrap_or(&nothing);
    let found: State = decode(operator, &page.body)?.into_iter().collect();
    if operator == dedup::ID {
        // A page of a set holds what was written once, never all of a key group.
        for (id, value) in &found {
            let written = keys.get(id).is_some_and(|v| v.iter().any(|(at, v)| *at <= seq && v == value));
            if !written || key_group(id, KEY_GROUPS).0 != address.group {
                return Err(format!("INV-4: page {address} holds {id}, which the log does not"));
            }
        }
        return Ok(());
    }
    let range = range_of(page)?;
    let expected: State = keys
        .iter()
        .filter(|(key, _)| in_range(key, address.group, range))
        .map(|(key, values)| (key.clone(), value_at(values, seq)))
        .filter(|(_, value)| value.is_some())
        .collect();
    if found == expected {
        return Ok(());
    }
    Err(format!("INV-4: page {address} at {seq} is not what the log gives:\n{found:?}\n{expected:?}"))
}

/// Pages overlaid by the deltas after `flushed` must give the state at `head`, but for ids that have expired.
fn check_recovery(
    operator: &str,
    pages: &[&Page],
    (flushed, head): (u64, u64),
    history: &History,
    now: ProcessingTime,
) -> Result<(), String> {
    let is_forgotten = |value: &Value| match value {
        Some(entry) if operator == dedup::ID => dedup::is_expired(ProcessingTime(entry.event_timers[0]), now),
        Some(_) => false,
        None => true,
    };
    let mut state = State::new();
    let mut pages = pages.to_vec();
    pages.sort_by_key(|p| p.version);
    // Pages count only once something is flushed.
    for page in pages.into_iter().filter(|_| flushed > 0) {
        if operator != dedup::ID {
            let range = range_of(page)?;
            state.retain(|key, _| !in_range(key, page.address.group, range));
        }
        state.extend(decode(operator, &page.body)?);
    }
    for (key, values) in &history[operator] {
        if values.iter().any(|(at, _)| *at > flushed && *at <= head) {
            state.insert(key.clone(), value_at(values, head));
        }
    }
    state.retain(|_, value| !is_forgotten(value));
    for (key, values) in &history[operator] {
        let expected = Some(value_at(values, head)).filter(|value| !is_forgotten(value)).flatten();
        let found = state.remove(key).flatten();
        if expected != found {
            return Err(format!("recovery gives {found:?} for {key} instead of {expected:?}"));
        }
    }
    match state.keys().next() {
        Some(key) => Err(format!("recovery gives {key}, which the log does not know")),
        None => Ok(()),
    }
}
