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
//!
//! **Written through.** A runner can also write every key that a commit changed right after that commit, as applications
//! do that keep their state in a store. Its pages have the greatest depth from the beginning, so that nearly every key
//! has a page of its own.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::{HashMap, HashSet};
use payguard_model::{EventTime, KEY_GROUPS, ProcessingTime, key_group};
use payguard_operators::{Context, KeyedOperator, TimerDomain, Timers};
use prost::Message;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

mod entry;
pub(crate) mod export;
mod slots;

use self::entry::{Entries, Entry};
use self::slots::{Key, Slot, SlotId, Slots};
use crate::logic::{Collector, DecodeError, DirtyPages, OperatorState, PageBody};
use crate::page::Page;
use crate::timer_queue::TimerQueue;

/// A page larger than this and its largest entry is split; far below the 400 KB an item may have.
pub const SPLIT_BYTES: usize = 16 * 1024;
/// No key group is split deeper than this.
const MAX_DEPTH: u8 = 16;

/// Prefixes of pages by key group.
type PagesByGroup = BTreeMap<u32, BTreeSet<u32>>;

/// Keys by key group and prefix of their page.
type KeysByPage = HashMap<(u32, u32), SmallVec<[SlotId; 1]>>;

/// The timers of all keys. May hold timers that were deleted since; a timer counts only if the key's set has it.
#[derive(Default)]
struct Queues {
    event: TimerQueue<SlotId>,
    processing: TimerQueue<SlotId>,
}

impl Queues {
    fn of(&self, domain: TimerDomain) -> &TimerQueue<SlotId> {
        match domain {
            TimerDomain::EventTime => &self.event,
            TimerDomain::ProcessingTime => &self.processing,
        }
    }

    fn of_mut(&mut self, domain: TimerDomain) -> &mut TimerQueue<SlotId> {
        match domain {
            TimerDomain::EventTime => &mut self.event,
            TimerDomain::ProcessingTime => &mut self.processing,
        }
    }
}

/// One operator with the state of all its keys.
pub struct KeyedRunner<O: KeyedOperator> {
    operator: O,
    slots: Slots<O::State>,
    queues: Queues,
    /// Keys changed since the last delta; those that were forgotten meanwhile name nothing.
    changed: Vec<SlotId>,
    /// Keys forgotten since the last delta that a delta or a page has.
    forgotten: Vec<Key>,
    layout: PageLayout,
}

/// The pages the keys lie on, and which of them changed since the last flush.
#[derive(Default)]
struct PageLayout {
    /// By key group; 0 for those that are not there.
    depth: Vec<u8>,
    /// Key groups and prefixes.
    dirty: HashSet<(u32, u32)>,
    dirty_bytes: usize,
    /// Pages of a split that the table still has: the next flush writes all that replaces them.
    left_behind: Vec<(u32, String)>,
    /// The keys of every page, for a runner that writes through.
    through: Option<KeysByPage>,
}

impl PageLayout {
    fn depth_of(&self, group: u32) -> u8 {
        if self.through.is_some() {
            return MAX_DEPTH;
        }
        self.depth.get(group as usize).copied().unwrap_or(0)
    }

    fn set_depth(&mut self, group: u32, depth: u8) {
        let at = group as usize;
        self.depth.resize(self.depth.len().max(at + 1), 0);
        self.depth[at] = depth;
    }

    /// The page of a key.
    fn page_of(&self, key: &str, group: u32) -> (u32, u32) {
        (group, prefix(key, self.depth_of(group)))
    }

    /// Notes that `bytes` of a key changed.
    fn touch(&mut self, key: &str, group: u32, bytes: usize) {
        self.dirty.insert(self.page_of(key, group));
        self.dirty_bytes += bytes;
    }

    /// Notes that a slot is in use.
    fn used<S>(&mut self, slot: &Slot<S>) {
        if self.through.is_none() {
            return;
        }
        let (page, id) = (self.page_of(&slot.key, slot.group), slot.id());
        let keys = self.through.get_or_insert_default().entry(page).or_default();
        if !keys.contains(&id) {
            keys.push(id);
        }
    }

    /// Notes that a slot is given up.
    fn given_up<S>(&mut self, slot: &Slot<S>) {
        let page = self.page_of(&slot.key, slot.group);
        if let Some(pages) = &mut self.through
            && let Some(keys) = pages.get_mut(&page)
        {
            keys.retain(|id| *id != slot.id());
            if keys.is_empty() {
                pages.remove(&page);
            }
        }
    }

    /// Goes one level deeper in the groups whose pages have outgrown the limit; returns the pages left behind.
    fn split(&mut self, groups: &BTreeSet<u32>) -> (PagesByGroup, Vec<(u32, String)>) {
        let mut wanted = BTreeMap::new();
        let mut left_behind = Vec::new();
        for group in groups {
            let depth = self.depth_of(*group);
            left_behind.extend((0..1u32 << depth).map(|prefix| (*group, page_name(depth, prefix))));
            self.set_depth(*group, depth + 1);
            wanted.insert(*group, (0..1u32 << (depth + 1)).collect());
        }
        (wanted, left_behind)
    }
}

/// What a stage does with an output of an operator, usually `Collector::emit`.
pub type Emit<'a, Out> = dyn FnMut(&mut Collector, EventTime, Out) + 'a;

/// The view of one key that its operator gets.
struct KeyContext<'a, 'e, Out> {
    slot: SlotId,
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
            self.queues.of_mut(domain).push(time, self.slot);
        }
    }

    fn delete_timer(&mut self, domain: TimerDomain, time: i64) {
        self.timers.remove(domain, time);
    }

    fn delete_all_timers(&mut self) {
        *self.timers = Timers::default();
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
            slots: Slots::new(),
            queues: Queues::default(),
            changed: Vec::new(),
            forgotten: Vec::new(),
            layout: PageLayout::default(),
        }
    }

    /// The same, written through.
    #[must_use]
    pub fn write_through(mut self) -> KeyedRunner<O> {
        self.layout.through = Some(HashMap::new());
        self
    }

    /// The operator, to change its settings between batches.
    pub fn operator_mut(&mut self) -> &mut O {
        &mut self.operator
    }

    /// Handles one event of `key` at the collector's watermark.
    pub fn process(&mut self, key: &str, event: &O::Event, out: &mut Collector, emit: &mut Emit<'_, O::Output>) {
        let slot = self.slots.find_or_add(key);
        let (id, timers, queues) = (slot.id(), &mut slot.timers, &mut self.queues);
        let mut context = KeyContext { slot: id, timers, queues, operator: O::ID, out, emit };
        self.operator.on_event(key, event, &mut slot.state, &mut context);
        self.handled(id);
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
        while self.fire_one(domain, due, out, emit) {}
    }

    /// Calls the earliest timer of a domain before it is due: for a host that has to give keys up. False when there is
    /// none.
    pub fn fire_earliest(&mut self, domain: TimerDomain, out: &mut Collector, emit: &mut Emit<'_, O::Output>) -> bool {
        self.fire_one(domain, i64::MAX, out, emit)
    }

    /// Calls the first timer up to `due`, by (time, key); false when there is none.
    fn fire_one(&mut self, domain: TimerDomain, due: i64, out: &mut Collector, emit: &mut Emit<'_, O::Output>) -> bool {
        loop {
            let slots = &self.slots;
            let by_key = |a: &SlotId, b: &SlotId| slots.text(*a).cmp(slots.text(*b));
            let Some((time, id)) = self.queues.of_mut(domain).pop_due(due, by_key) else { return false };
            let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.timers.of(domain).contains(&time)) else {
                continue;
            };
            slot.timers.remove(domain, time);
            let (timers, queues) = (&mut slot.timers, &mut self.queues);
            let mut context = KeyContext { slot: id, timers, queues, operator: O::ID, out, emit };
            self.operator.on_timer(&slot.key, domain, time, &mut slot.state, &mut context);
            self.handled(id);
            return true;
        }
    }

    /// Notes that a key may have changed, or forgets it.
    fn handled(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if slot.is_forgotten() {
            if slot.stored {
                self.forgotten.push(slot.key.clone());
            }
            self.layout.given_up(slot);
            self.slots.remove(id);
        } else if !slot.changed {
            slot.changed = true;
            self.layout.used(slot);
            self.changed.push(id);
        }
    }

    /// Takes an entry over, replacing what there is of its key.
    fn put(&mut self, entry: Entry) -> Result<(), DecodeError> {
        let Some(state) = entry.state else {
            if let Some(id) = self.slots.find(&entry.key) {
                if let Some(slot) = self.slots.get_mut(id) {
                    self.layout.given_up(slot);
                }
                self.slots.remove(id);
            }
            return Ok(());
        };
        let state = O::State::decode(&state[..])?;
        let slot = self.slots.find_or_add(&entry.key);
        slot.state = state;
        slot.timers = entry::timers(&entry.event_timers, &entry.processing_timers);
        slot.stored = true;
        self.layout.used(slot);
        for time in &slot.timers.event {
            self.queues.event.push(*time, slot.id());
        }
        for time in &slot.timers.processing {
            self.queues.processing.push(*time, slot.id());
        }
        Ok(())
    }

    /// Entries of every page of the dirty groups that `wanted` asks for.
    fn pages(&self, wanted: &PagesByGroup) -> BTreeMap<(u32, u32), Entries> {
        let mut pages: BTreeMap<(u32, u32), Entries> = BTreeMap::new();
        for (group, prefixes) in wanted {
            for prefix in prefixes {
                pages.insert((*group, *prefix), Entries::default());
            }
        }
        match &self.layout.through {
            Some(keys) => {
                for (at, page) in &mut pages {
                    let slots = keys.get(at).into_iter().flatten().filter_map(|id| self.slots.get(*id));
                    page.entries.extend(slots.map(|slot| Entry::of(&slot.key, &slot.state, &slot.timers)));
                }
            }
            None => {
                for slot in self.slots.iter().filter(|slot| wanted.contains_key(&slot.group)) {
                    if let Some(page) = pages.get_mut(&self.layout.page_of(&slot.key, slot.group)) {
                        page.entries.push(Entry::of(&slot.key, &slot.state, &slot.timers));
                    }
                }
            }
        }
        for page in pages.values_mut() {
            page.entries.sort_by(|a, b| a.key.cmp(&b.key));
        }
        pages
    }
}

impl<O: KeyedOperator> OperatorState for KeyedRunner<O> {
    fn operator(&self) -> &'static str {
        O::ID
    }

    fn take_delta(&mut self) -> Vec<u8> {
        let mut delta = Vec::new();
        for key in std::mem::take(&mut self.forgotten) {
            // One that came back meanwhile is among the changed.
            if self.slots.find(&key).is_none() {
                let before = delta.len();
                entry::write::<O::State>(&mut delta, &key, None);
                self.layout.touch(&key, group_of(&key), delta.len() - before);
            }
        }
        let mut changed = std::mem::take(&mut self.changed);
        for id in changed.drain(..) {
            let Some(slot) = self.slots.get_mut(id) else { continue };
            (slot.changed, slot.stored) = (false, true);
            let before = delta.len();
            entry::write(&mut delta, &slot.key, Some((&slot.state, &slot.timers)));
            self.layout.touch(&slot.key, slot.group, delta.len() - before);
        }
        self.changed = changed;
        delta
    }

    fn apply_delta(&mut self, delta: &[u8]) -> Result<(), DecodeError> {
        for entry in Entries::decode(delta)?.entries {
            self.layout.touch(&entry.key, group_of(&entry.key), entry.encoded_len());
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
            self.layout.set_depth(group, pages.iter().map(|p| p.1).max().unwrap_or(0));
            let depth = self.layout.depth_of(group);
            let left_behind = pages.iter().filter(|p| p.1 < depth).map(|p| (group, p.3.address.page.clone()));
            let before = self.layout.left_behind.len();
            self.layout.left_behind.extend(left_behind);
            if self.layout.left_behind.len() > before {
                // A flush stopped half-way through a split: the next one writes all pages of the group. Written through, the
                // keys come of a savepoint: each gets its own page, and there is none yet of a key that is not there.
                match self.layout.through {
                    Some(_) => self.layout.dirty.extend(entries.keys().map(|key| (group, prefix(key, depth)))),
                    None => self.layout.dirty.extend((0..1u32 << depth).map(|prefix| (group, prefix))),
                }
            }
            for entry in entries.into_values() {
                self.put(entry)?;
            }
        }
        Ok(())
    }

    fn take_dirty_pages(&mut self, _version: u64) -> DirtyPages {
        let delete = std::mem::take(&mut self.layout.left_behind);
        let mut result = DirtyPages { put: Vec::new(), delete };
        let mut wanted = PagesByGroup::new();
        for (group, prefix) in self.layout.dirty.drain() {
            wanted.entry(group).or_default().insert(prefix);
        }
        self.layout.dirty_bytes = 0;
        while !wanted.is_empty() {
            let pages = self.pages(&wanted);
            let too_large: BTreeSet<u32> = pages
                .iter()
                .filter(|((group, _), page)| page.is_too_large() && self.layout.depth_of(*group) < MAX_DEPTH)
                .map(|((group, _), _)| *group)
                .collect();
            for ((group, prefix), entries) in pages {
                if !too_large.contains(&group) {
                    let page = page_name(self.layout.depth_of(group), prefix);
                    result.put.push(PageBody { group, page, body: entries.encode_to_vec(), expires_at_s: None });
                }
            }
            let (next, left_behind) = self.layout.split(&too_large);
            wanted = next;
            result.delete.extend(left_behind);
        }
        result
    }

    fn dirty_bytes(&self) -> usize {
        self.layout.dirty_bytes
    }

    fn writes_through(&self) -> bool {
        self.layout.through.is_some()
    }

    fn keys(&self) -> usize {
        self.slots.len()
    }
}

fn group_of(key: &str) -> u32 {
    key_group(key, KEY_GROUPS).0
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
