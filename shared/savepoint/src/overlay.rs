//! Changes of keys that are not in the pages read so far, by key group.

use std::collections::BTreeMap;

use payguard_engine::export::{Change, Keys, Value};
use payguard_engine::logic::{DecodeError, StageDelta};
use payguard_model::{KEY_GROUPS, key_group};
use payguard_topology::keys::encoding;
use prost::Message;

/// The newest change of a key and the commit that made it.
type Newest = (u64, Option<Value>);
/// Keys of one operator.
type OfOperator = BTreeMap<String, Newest>;

/// The newest changes of a task's keys.
#[derive(Debug, Default)]
pub struct Overlay {
    groups: BTreeMap<u32, BTreeMap<String, OfOperator>>,
    bytes: usize,
}

impl Overlay {
    /// Takes the delta of commit `seq` in; commits come in order.
    ///
    /// # Errors
    /// When it does not decode.
    pub fn add(&mut self, seq: u64, delta: &[u8]) -> Result<(), DecodeError> {
        self.add_only(seq, delta, |_, _| true)
    }

    /// The same for the changes that are `wanted`, by operator and key group.
    ///
    /// # Errors
    /// When it does not decode.
    pub fn add_only(&mut self, seq: u64, delta: &[u8], wanted: impl Fn(&str, u32) -> bool) -> Result<(), DecodeError> {
        for part in StageDelta::decode(delta)?.operators {
            for (key, value) in encoding(&part.operator).read_delta(&part.changes)? {
                let group = key_group(&key, KEY_GROUPS).0;
                if wanted(&part.operator, group) {
                    self.put(&part.operator, group, seq, (key, value));
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, operator: &str, group: u32, seq: u64, (key, value): Change) {
        let added = size(&key, &value);
        let operators = self.groups.entry(group).or_default();
        if !operators.contains_key(operator) {
            operators.insert(operator.to_owned(), OfOperator::new());
        }
        let keys = operators.get_mut(operator).expect("inserted above");
        if let Some((_, before)) = keys.get(&key) {
            self.bytes -= size(&key, before);
        }
        keys.insert(key, (seq, value));
        self.bytes += added;
    }

    /// Rough size in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The groups with changes.
    #[must_use]
    pub fn groups(&self) -> Vec<u32> {
        self.groups.keys().copied().collect()
    }

    /// The operators with changes in a group.
    #[must_use]
    pub fn operators(&self, group: u32) -> Vec<String> {
        self.groups.get(&group).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// Moves the changes of an operator in a group over to `keys`.
    pub fn apply(&mut self, group: u32, operator: &str, keys: &mut Keys) {
        let Some(operators) = self.groups.get_mut(&group) else { return };
        for (key, (_, value)) in operators.remove(operator).unwrap_or_default() {
            self.bytes -= size(&key, &value);
            match value {
                Some(value) => keys.insert(key, value),
                None => keys.remove(&key),
            };
        }
        if operators.is_empty() {
            self.groups.remove(&group);
        }
    }

    /// Forgets changes up to commit `seq` in groups from `first` on: pages that are yet to be read have them.
    pub fn forget(&mut self, first: u32, seq: u64) {
        let mut freed = 0;
        for operators in self.groups.range_mut(first..).map(|(_, operators)| operators) {
            for keys in operators.values_mut() {
                keys.retain(|key, (at, value)| {
                    let stays = *at > seq;
                    freed += if stays { 0 } else { size(key, value) };
                    stays
                });
            }
            operators.retain(|_, keys| !keys.is_empty());
        }
        self.groups.retain(|_, operators| !operators.is_empty());
        self.bytes -= freed;
    }
}

fn size(key: &str, value: &Option<Value>) -> usize {
    // What a node of the map takes besides its content.
    const NODE: usize = 96;
    NODE + key.len()
        + match value {
            Some(Value::State(held)) => held.state.len() + 8 * (held.event_timers.len() + held.processing_timers.len()),
            Some(Value::WrittenAt(_)) | None => 0,
        }
}
