//! INV-4: every page holds what the log gives at its version, and pages plus later deltas give the state at the head.

use std::collections::BTreeMap;

use payguard_engine::layout::{FIRST, Layout, place};
use payguard_engine::logic::StageDelta;
use payguard_engine::page::{Page, version};
use payguard_engine::{StageId, TaskId};
use payguard_model::{KEY_GROUPS, ProcessingTime, key_group};
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
/// By operator and key, every value with the version it was given at. A key belongs to one task of a generation, so the
/// versions of a stage put its values into one order.
type History = BTreeMap<String, BTreeMap<String, Vec<(u64, Value)>>>;

pub(super) fn check_state(world: &World) -> Result<(), String> {
    let mut stages: BTreeMap<&StageId, Vec<(&TaskId, &TaskLog)>> = BTreeMap::new();
    for (task, log) in &world.logs {
        if task.shard_number().is_some() || task.redrawn().is_some() {
            stages.entry(&task.stage).or_default().push((task, log));
        }
    }
    for page in world.pages.values() {
        if !stages.contains_key(&page.address.stage) {
            return Err(format!("INV-4: page {} belongs to no log", page.address));
        }
    }
    stages.into_iter().try_for_each(|(stage, tasks)| check_stage(world, stage, &tasks))
}

fn check_stage(world: &World, stage: &StageId, tasks: &[(&TaskId, &TaskLog)]) -> Result<(), String> {
    let registered = world.registry.get(stage).into_iter().flatten();
    let firsts = tasks.iter().map(|(task, _)| *task).chain(registered).filter_map(TaskId::shard_number);
    let first = Layout::first(firsts.max().map_or(1, |shard| shard + 1));
    let mut history = History::new();
    for (task, log) in tasks {
        add_history(world, log, &mut history).map_err(|e| format!("INV-4: {task}: {e}"))?;
    }
    add_restored(world, stage, &mut history).map_err(|e| format!("INV-4: restored {stage}: {e}"))?;
    history.values_mut().flat_map(BTreeMap::values_mut).for_each(|values| values.sort_by_key(|(at, _)| *at));
    let pages: Vec<&Page> = world.pages.values().filter(|page| page.address.stage == *stage).collect();
    for page in &pages {
        let owner = tasks.iter().find_map(|(task, log)| {
            let (layout, shard) = place(task, first)?;
            let head = log.head.as_ref()?;
            let owns =
                page.version > version(layout.generation, 0) && page.version <= version(layout.generation, head.seq);
            (owns && layout.groups(shard).contains(&page.address.group)).then_some(())
        });
        if owner.is_none() {
            return Err(format!("INV-4: page {} has version {:#x}, which no head has", page.address, page.version));
        }
        check_page(page, &history)?;
    }
    for (task, log) in tasks {
        let (Some(head), Some((layout, shard))) = (&log.head, place(task, first)) else { continue };
        // The state of a sealed task is that of its successors from now on.
        if head.sealed.is_some() {
            continue;
        }
        let groups = layout.groups(shard);
        let from = if head.flushed_seq > 0 || layout.generation > FIRST {
            version(layout.generation, head.flushed_seq)
        } else {
            0
        };
        let until = version(layout.generation, head.seq);
        for (operator, keys) in &history {
            let mine = |key: &String| groups.contains(&key_group(key, KEY_GROUPS).0);
            let keys = keys.iter().filter(|(key, _)| mine(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
            let pages = pages.iter().copied();
            let pages = pages.filter(|p| p.address.operator == *operator && groups.contains(&p.address.group));
            check_recovery(operator, pages.collect(), (from, until), &keys, ProcessingTime(world.now_ms))
                .map_err(|e| format!("INV-4: {task} {operator}: {e}"))?;
        }
    }
    Ok(())
}

fn add_history(world: &World, log: &TaskLog, history: &mut History) -> Result<(), String> {
    for row in log.history.values() {
        let Some(delta) = &row.delta else { continue };
        let bytes = world.slice_bytes(row, delta)?;
        for part in StageDelta::decode(bytes).map_err(|e| e.to_string())?.operators {
            let keys = history.entry(part.operator.clone()).or_default();
            for (key, value) in decode(&part.operator, &part.changes)? {
                keys.entry(key).or_default().push((version(row.generation, row.seq), value));
            }
        }
    }
    Ok(())
}

/// Adds what restored tasks began with to what their logs tell.
fn add_restored(world: &World, stage: &StageId, history: &mut History) -> Result<(), String> {
    for page in world.restored.get(stage).into_iter().flatten() {
        let keys = history.entry(page.address.operator.clone()).or_default();
        for (key, value) in decode(&page.address.operator, &page.body)? {
            keys.entry(key).or_default().push((page.version, value));
        }
    }
    Ok(())
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

fn value_at(values: &[(u64, Value)], version: u64) -> Value {
    values.iter().rev().find(|(at, _)| *at <= version).and_then(|(_, value)| value.clone())
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

fn check_page(page: &Page, history: &History) -> Result<(), String> {
    let (address, operator, version) = (&page.address, &page.address.operator, page.version);
    let nothing = BTreeMap::new();
    let keys = history.get(operator).unwrap_or(&nothing);
    let found: State = decode(operator, &page.body)?.into_iter().collect();
    if operator == dedup::ID {
        // A page of a set holds what was written once, never all of a key group.
        for (id, value) in &found {
            let written = keys.get(id).is_some_and(|v| v.iter().any(|(at, v)| *at <= version && v == value));
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
        .map(|(key, values)| (key.clone(), value_at(values, version)))
        .filter(|(_, value)| value.is_some())
        .collect();
    if found == expected {
        return Ok(());
    }
    Err(format!("INV-4: page {address} at {version:#x} is not what the log gives:\n{found:?}\n{expected:?}"))
}

/// Pages overlaid by the deltas after `flushed` must give the state at `head`, but for ids that have expired.
fn check_recovery(
    operator: &str,
    mut pages: Vec<&Page>,
    (flushed, head): (u64, u64),
    keys: &BTreeMap<String, Vec<(u64, Value)>>,
    now: ProcessingTime,
) -> Result<(), String> {
    let is_forgotten = |value: &Value| match value {
        Some(entry) if operator == dedup::ID => dedup::is_expired(ProcessingTime(entry.event_timers[0]), now),
        Some(_) => false,
        None => true,
    };
    let mut state = State::new();
    pages.sort_by_key(|p| p.version);
    // Pages count only once something is flushed.
    for page in pages.into_iter().filter(|_| flushed > 0) {
        if operator != dedup::ID {
            let range = range_of(page)?;
            state.retain(|key, _| !in_range(key, page.address.group, range));
        }
        state.extend(decode(operator, &page.body)?);
    }
    for (key, values) in keys {
        if values.iter().any(|(at, _)| *at > flushed && *at <= head) {
            state.insert(key.clone(), value_at(values, head));
        }
    }
    state.retain(|_, value| !is_forgotten(value));
    for (key, values) in keys {
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
