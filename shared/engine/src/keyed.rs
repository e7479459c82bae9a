//! Keyed state and timers of one operator in one task.
//!
//! All keys of the task's key groups are in memory, so a key that is not there does not exist. What is stored of a key
//! is its *entry*: the state's protobuf bytes and its timers. Deltas carry whole entries, so applying one twice, or an
//! older one before a younger one, ends in the same state.
//!
//! **Pages.** The keys of a key group are spread over `2^depth` pages by the first bits of a hash; a page that grows
//! beyond [`SPLIT_BYTES`] makes its key group go one level deeper. A page says "at this version, the keys with this
//! prefix are exactly these". Loading applies pages by ascending version, each replacing its range: so a flush that
//! stopped half-way, with some pages of the new depth and some of the old, loads correctly (INV-4).

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::{HashMap, HashSet};
use payguard_model::{EventTime, KEY_GROUPS, ProcessingTime, key_group};
use payguard_operators::{Context, KeyedOperator, TimerDomain, Timers};
use prost::Message;
use smol_str::SmolStr;
use xxhash_rust::xxh3::xxh3_64;

mod entry;

use self::entry::{Entries, Entry};
use crate::logic::{Collector, DecodeError, DirtyPages, OperatorState, PageBody};
use crate::page::Page;
use crate::timer_queue::TimerQueue;

/// A page larger than this and its largest entry is split; far below the 400 KB an item may have.
pub const SPLIT_BYTES: usize = 16 * 1024;
/// No key group is split deeper than this.
const MAX_DEPTH: u8 = 16;

#[derive(Debug)]
struct Slot<S> {
    state: S,
    timers: Timers,
    /// Whether the key is in `changed` already.
    changed: bool,
    /// Whether a delta or a page has the key.
    stored: bool,
}

impl<S: Default + PartialEq> Slot<S> {
    fn new() -> Slot<S> {
        Slot { state: S::default(), timers: Timers::default(), changed: false, stored: false }
    }

    /// Whether there is nothing to remember.
    fn is_forgotten(&self) -> bool {
        self.timers.is_empty() && self.state == S::default()
    }
}

/// A key that changed, and whether a delta or a page has it: one that came and went in between leaves no trace.
type Changed = (SmolStr, bool);

/// Prefixes of pages by key group.
type PagesByGroup = BTreeMap<u32, BTreeSet<u32>>;

/// The timers of all keys. May hold timers that were deleted since; a timer counts only if the key's set has it.
#[derive(Default)]
struct Queues {
    event: TimerQueue,
    processing: TimerQueue,
}

impl Queues {
    fn of(&self, domain: TimerDomain) -> &TimerQueue {
        match domain {
            TimerDomain::EventTime => &self.event,
            TimerDomain::ProcessingTime => &self.processing,
        }
    }

    fn of_mut(&mut self, domain: TimerDomain) -> &mut TimerQueue {
        match domain {
            TimerDomain::EventTime => &mut self.event,
            TimerDomain::ProcessingTime => &mut self.processing,
        }
    }
}

/// One operator with the state of all its keys.
pub struct KeyedRunner<O: KeyedOperator> {
    operator: O,
    slots: HashMap<SmolStr, Slot<O::State>>,
    queues: Queues,
    /// Keys changed since the last delta.
    changed: Vec<Changed>,
    /// Key groups and prefixes changed since the last flush.
    dirty: HashSet<(u32, u32)>,
    dirty_bytes: usize,
    depth: BTreeMap<u32, u8>,
}

/// What a stage does with an output of an operator, usually `Collector::emit`.
pub type Emit<'a, Out> = dyn FnMut(&mut Collector, EventTime, Out) + 'a;

/// The view of one key that its operator gets.
struct KeyContext<'a, 'e, Out> {
    key: &'a SmolStr,
    timers: &'a mut Timers,
    queues: &'a mut Queues,
    operator: &'static str,
    out: &'a mut Collector,
    emit: &'a mut Emit<'e, Out>,
}

impl<Out> Context<Out> for KeyContext<'_, '_, Out> {
    fn watermark(&self) -> EventTime {
        self.out.watermark()
    }

    fn now(&self) -> ProcessingTime {
        self.out.now()
    }

    fn register_timer(&mut self, domain: TimerDomain, time: i64) {
        if self.timers.insert(domain, time) {
            self.queues.of_mut(domain).push(time, self.key.clone());
        }
    }

    fn delete_timer(&mut self, domain: TimerDomain, time: i64) {
        self.timers.remove(domain, time);
    }

    fn emit(&mut self, event_time: EventTime, output: Out) {
        (self.emit)(self.out, event_time, output);
    }

    fn count(&mut self, counter: &'static str, by: u64) {
        self.out.count(self.operator, counter, by);
    }
}

impl<O: KeyedOperator> KeyedRunner<O> {
    /// An operator without any state.
    #[must_use]
    pub fn new(operator: O) -> KeyedRunner<O> {
        KeyedRunner {
            operator,
            slots: HashMap::new(),
            queues: Queues::default(),
            changed: Vec::new(),
            dirty: HashSet::new(),
            dirty_bytes: 0,
            depth: BTreeMap::new(),
        }
    }

    /// The operator, to change its settings between batches.
    pub fn operator_mut(&mut self) -> &mut O {
        &mut self.operator
    }

    /// Handles one event of `key` at the collector's watermark.
    pub fn process(&mut self, key: &str, event: &O::Event, out: &mut Collector, emit: &mut Emit<'_, O::Output>) {
        if let Some((held_key, slot)) = self.slots.get_key_value_mut(key) {
            handle_event(&self.operator, held_key, event, slot, &mut self.queues, out, emit);
            mark(slot, held_key, &mut self.changed);
            if slot.is_forgotten() {
                self.slots.remove(key);
            }
            return;
        }
        // Most new keys are kept, but what is forgotten at once never gets a place.
        let (key, mut slot) = (SmolStr::new(key), Slot::new());
        handle_event(&self.operator, &key, event, &mut slot, &mut self.queues, out, emit);
        if !slot.is_forgotten() {
            mark(&mut slot, &key, &mut self.changed);
            self.slots.insert(key, slot);
        }
    }

    /// Earliest timer of a domain.
    #[must_use]
    pub fn next_timer(&self, domain: TimerDomain) -> Option<i64> {
        // A deleted timer may still be queued: it only makes the caller look once in vain.
        self.queues.of(domain).next_time()
    }

    /// Fires the timers of a domain that are due at the collector's times, by (time, key).
    pub fn fire(&mut self, domain: TimerDomain, out: &mut Collector, emit: &mut Emit<'_, O::Output>) {
        let due = match domain {
            TimerDomain::EventTime => out.watermark().0,
            TimerDomain::ProcessingTime => out.now().0,
        };
        while let Some((time, key)) = self.queues.of_mut(domain).pop_due(due) {
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            if !slot.timers.remove(domain, time) {
                continue;
            }
            let (timers, queues) = (&mut slot.timers, &mut self.queues);
            let mut context = KeyContext { key: &key, timers, queues, operator: O::ID, out, emit };
            self.operator.on_timer(&key, domain, time, &mut slot.state, &mut context);
            mark(slot, &key, &mut self.changed);
            if slot.is_forgotten() {
                self.slots.remove(&key);
            }
        }
    }

    /// Takes an entry over, replacing what there is of its key.
    fn put(&mut self, entry: Entry) -> Result<(), DecodeError> {
        let key = SmolStr::from(&entry.key);
        let Some(state) = entry.state else {
            self.slots.remove(&key);
            return Ok(());
        };
        let timers = entry::timers(&entry.event_timers, &entry.processing_timers);
        for time in &timers.event {
            self.queues.event.push(*time, key.clone());
        }
        for time in &timers.processing {
            self.queues.processing.push(*time, key.clone());
        }
        let state = O::State::decode(&state[..])?;
        self.slots.insert(key, Slot { state, timers, changed: false, stored: true });
        Ok(())
    }

    fn depth_of(&self, group: u32) -> u8 {
        self.depth.get(&group).copied().unwrap_or(0)
    }

    fn touch(&mut self, key: &str, bytes: usize) {
        let group = key_group(key, KEY_GROUPS).0;
        let prefix = prefix(key, self.depth_of(group));
        self.dirty.insert((group, prefix));
        self.dirty_bytes += bytes;
    }

    /// Entries of every page of the dirty groups that `wanted` asks for.
    fn pages(&self, wanted: &PagesByGroup) -> BTreeMap<(u32, u32), Entries> {
        let mut pages: BTreeMap<(u32, u32), Entries> = BTreeMap::new();
        for (group, prefixes) in wanted {
            for prefix in prefixes {
                pages.insert((*group, *prefix), Entries::default());
            }
        }
        for (key, slot) in &self.slots {
            let group = key_group(key, KEY_GROUPS).0;
            if !wanted.contains_key(&group) {
                continue;
            }
            if let Some(page) = pages.get_mut(&(group, prefix(key, self.depth_of(group)))) {
                page.entries.push(Entry::of(key, &slot.state, &slot.timers));
            }
        }
        for page in pages.values_mut() {
            page.entries.sort_by(|a, b| a.key.cmp(&b.key));
        }
        pages
    }

    /// Goes one level deeper in the groups whose pages have outgrown the limit; returns the pages left behind.
    fn split(&mut self, groups: &BTreeSet<u32>) -> (PagesByGroup, Vec<(u32, String)>) {
        let mut wanted = BTreeMap::new();
        let mut left_behind = Vec::new();
        for group in groups {
            let depth = self.depth_of(*group);
            left_behind.extend((0..1u32 << depth).map(|prefix| (*group, page_name(depth, prefix))));
            self.depth.insert(*group, depth + 1);
            wanted.insert(*group, (0..1u32 << (depth + 1)).collect());
        }
        (wanted, left_behind)
    }
}

impl<O: KeyedOperator> OperatorState for KeyedRunner<O> {
    fn operator(&self) -> &'static str {
        O::ID
    }

    fn take_delta(&mut self) -> Vec<u8> {
        let mut delta = Vec::new();
        for (key, stored) in std::mem::take(&mut self.changed) {
            let before = delta.len();
            match self.slots.get_mut(&key) {
                Some(slot) => {
                    // A key that was forgotten and came back is listed twice: once is enough.
                    if !std::mem::take(&mut slot.changed) {
                        continue;
                    }
                    slot.stored = true;
                    entry::write(&mut delta, &key, Some((&slot.state, &slot.timers)));
                }
                None if !stored => continue,
                None => entry::write::<O::State>(&mut delta, &key, None),
            }
            let bytes = delta.len() - before;
            self.touch(&key, bytes);
        }
        delta
    }

    fn apply_delta(&mut self, delta: &[u8]) -> Result<(), DecodeError> {
        for entry in Entries::decode(delta)?.entries {
            self.touch(&entry.key, entry.encoded_len());
            self.put(entry)?;
        }
        Ok(())
    }

    fn load(&mut self, pages: Vec<Page>) -> Result<(), DecodeError> {
        let mut by_group: BTreeMap<u32, Vec<(u64, u8, u32, Page)>> = BTreeMap::new();
        for page in pages {
            let (depth, prefix) = parse_page_name(&page.address.page)?;
            by_group.entry(page.address.group).or_default().push((page.version, depth, prefix, page));
        }
        for (group, mut pages) in by_group {
            pages.sort_by_key(|(version, depth, prefix, _)| (*version, *depth, *prefix));
            let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
            for (_, depth, range, page) in &pages {
                entries.retain(|key, _| prefix(key, *depth) != *range);
                for entry in Entries::decode(page.body.clone())?.entries {
                    entries.insert(entry.key.clone(), entry);
                }
            }
            let depth = pages.iter().map(|p| p.1).max().unwrap_or(0);
            self.depth.insert(group, depth);
            if pages.iter().any(|p| p.1 < depth) {
                // A flush stopped half-way through a split: the next one writes all pages of the group.
                self.dirty.extend((0..1u32 << depth).map(|prefix| (group, prefix)));
            }
            for entry in entries.into_values() {
                self.put(entry)?;
            }
        }
        Ok(())
    }

    fn take_dirty_pages(&mut self, _seq: u64) -> DirtyPages {
        let mut result = DirtyPages::default();
        let mut wanted = PagesByGroup::new();
        for (group, prefix) in self.dirty.drain() {
            wanted.entry(group).or_default().insert(prefix);
        }
        self.dirty_bytes = 0;
        while !wanted.is_empty() {
            let pages = self.pages(&wanted);
            let too_large: BTreeSet<u32> = pages
                .iter()
                .filter(|((group, _), page)| page.is_too_large() && self.depth_of(*group) < MAX_DEPTH)
                .map(|((group, _), _)| *group)
                .collect();
            for ((group, prefix), entries) in pages {
                if !too_large.contains(&group) {
                    let page = page_name(self.depth_of(group), prefix);
                    result.put.push(PageBody { group, page, body: entries.encode_to_vec(), expires_at_s: None });
                }
            }
            let (next, left_behind) = self.split(&too_large);
            wanted = next;
            result.delete.extend(left_behind);
        }
        result
    }

    fn dirty_bytes(&self) -> usize {
        self.dirty_bytes
    }

    fn keys(&self) -> usize {
        self.slots.len()
    }
}

fn handle_event<O: KeyedOperator>(
    operator: &O,
    key: &SmolStr,
    event: &O::Event,
    slot: &mut Slot<O::State>,
    queues: &mut Queues,
    out: &mut Collector,
    emit: &mut Emit<'_, O::Output>,
) {
    let mut context = KeyContext { key, timers: &mut slot.timers, queues, operator: O::ID, out, emit };
    operator.on_event(key, event, &mut slot.state, &mut context);
}

fn mark<S>(slot: &mut Slot<S>, key: &SmolStr, changed: &mut Vec<Changed>) {
    if !slot.changed {
        slot.changed = true;
        changed.push((key.clone(), slot.stored));
    }
}

/// The first `depth` bits of the key's hash.
fn prefix(key: &str, depth: u8) -> u32 {
    if depth == 0 { 0 } else { (xxh3_64(key.as_bytes()) >> (64 - u32::from(depth))) as u32 }
}

fn page_name(depth: u8, prefix: u32) -> String {
    format!("{depth}-{prefix}")
}

fn parse_page_name(name: &str) -> Result<(u8, u32), DecodeError> {
    name.split_once('-')
        .and_then(|(depth, prefix)| Some((depth.parse().ok()?, prefix.parse().ok()?)))
        .filter(|(depth, prefix): &(u8, u32)| *depth <= MAX_DEPTH && u64::from(*prefix) < 1u64 << depth)
        .ok_or_else(|| DecodeError(format!("`{name}` is not a page name")))
}

#[cfg(test)]
mod tests;
