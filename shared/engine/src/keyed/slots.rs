//! The keys an operator remembers, each in a numbered slot.
//!
//! A slot holds everything of its key side by side, the key's text included, and timers and lists of changes name a key
//! by its slot: so handling an event costs one look-up, and firing a timer none.

use arrayvec::ArrayString;
use hashbrown::{DefaultHashBuilder, HashTable};
use payguard_model::{KEY_GROUPS, key_group};
use payguard_operators::Timers;
use std::hash::BuildHasher;
use std::ops::Deref;

/// Keys up to this many bytes are kept in place; a UUID has 36.
const SHORT: usize = 38;

/// A key's text.
#[derive(Clone, Debug)]
pub(super) enum Key {
    Short(ArrayString<SHORT>),
    Long(Box<str>),
}

impl From<&str> for Key {
    fn from(text: &str) -> Key {
        ArrayString::from(text).map_or_else(|_| Key::Long(text.into()), Key::Short)
    }
}

impl Deref for Key {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Key::Short(text) => text,
            Key::Long(text) => text,
        }
    }
}

/// Names a key for as long as it is remembered; a name of a key that was forgotten names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlotId {
    number: u32,
    /// How often the slot had been given up before.
    generation: u32,
}

/// Everything that is remembered of a key, what a look-up reads first of all: a look-up costs what the memory costs.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Slot<S> {
    pub(super) key: Key,
    id: SlotId,
    pub(super) group: u32,
    /// Whether the key is listed as changed already.
    pub(super) changed: bool,
    /// Whether a delta or a page has the key.
    pub(super) stored: bool,
    pub(super) state: S,
    pub(super) timers: Timers,
}

impl<S> Slot<S> {
    pub(super) fn id(&self) -> SlotId {
        self.id
    }
}

impl<S: Default + PartialEq> Slot<S> {
    /// Whether there is nothing to remember.
    pub(super) fn is_forgotten(&self) -> bool {
        self.timers.is_empty() && self.state == S::default()
    }
}

/// The slots of all keys.
#[derive(Debug)]
pub(super) struct Slots<S> {
    /// Numbers of the slots in use, by hash of the key.
    index: HashTable<u32>,
    slots: Vec<Slot<S>>,
    /// Numbers of the slots that are free.
    free: Vec<u32>,
    hasher: DefaultHashBuilder,
}

impl<S: Default + PartialEq> Slots<S> {
    pub(super) fn new() -> Slots<S> {
        Slots { index: HashTable::new(), slots: Vec::new(), free: Vec::new(), hasher: DefaultHashBuilder::default() }
    }

    /// Keys that are remembered.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// The key's slot.
    pub(super) fn find(&self, key: &str) -> Option<SlotId> {
        let hash = self.hasher.hash_one(key);
        self.number_of(key, hash).map(|number| self.slots[number as usize].id)
    }

    /// The key's slot, a new one if there is none.
    pub(super) fn find_or_add(&mut self, key: &str) -> &mut Slot<S> {
        let hash = self.hasher.hash_one(key);
        let number = self.number_of(key, hash).unwrap_or_else(|| self.add(key, hash));
        &mut self.slots[number as usize]
    }

    /// The slot of that name, while its key is remembered.
    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut Slot<S>> {
        self.slots.get_mut(id.number as usize).filter(|slot| slot.id == id)
    }

    /// The same, to look at.
    pub(super) fn get(&self, id: SlotId) -> Option<&Slot<S>> {
        self.slots.get(id.number as usize).filter(|slot| slot.id == id)
    }

    /// The text in the slot of that name, which tells nothing once the key was forgotten.
    pub(super) fn text(&self, id: SlotId) -> &str {
        &self.slots[id.number as usize].key
    }

    /// Forgets a key; nothing happens when the name names nothing.
    pub(super) fn remove(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get_mut(id.number as usize).filter(|slot| slot.id == id) else { return };
        slot.id.generation = slot.id.generation.wrapping_add(1);
        (slot.state, slot.timers) = (S::default(), Timers::default());
        let hash = self.hasher.hash_one(&*slot.key);
        if let Ok(entry) = self.index.find_entry(hash, |number| *number == id.number) {
            entry.remove();
        }
        self.free.push(id.number);
    }

    /// All slots, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<S>> {
        self.index.iter().map(|number| &self.slots[*number as usize])
    }

    fn number_of(&self, key: &str, hash: u64) -> Option<u32> {
        self.index.find(hash, |number| *self.slots[*number as usize].key == *key).copied()
    }

    fn add(&mut self, key: &str, hash: u64) -> u32 {
        let (key, group) = (Key::from(key), key_group(key, KEY_GROUPS).0);
        let number = match self.free.pop() {
            Some(number) => {
                let slot = &mut self.slots[number as usize];
                (slot.key, slot.group) = (key, group);
                (slot.changed, slot.stored) = (false, false);
                number
            }
            None => {
                let number = u32::try_from(self.slots.len()).expect("memory ends before four thousand million keys");
                let (state, timers) = (S::default(), Timers::default());
                let id = SlotId { number, generation: 0 };
                self.slots.push(Slot { key, id, group, changed: false, stored: false, state, timers });
                number
            }
        };
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.index.insert_unique(hash, number, |number| hasher.hash_one(&*slots[*number as usize].key));
        number
    }
}
