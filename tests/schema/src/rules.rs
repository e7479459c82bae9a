//! What may become of a schema without stored data being lost or misread: protobuf's rules, and ids that stay.

use std::collections::BTreeMap;

use crate::schema::{Field, Id, IdKind, Message, Schema};

/// What a schema is compared with its lock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Comparison {
    /// The lock of the new schema; what is reserved and retired stays so.
    pub lock: Schema,
    /// Compatible changes that the lock does not have yet, a sentence each.
    pub unrecorded: Vec<String>,
    /// How many of them change what is stored, and not only a name in the source.
    pub stored: usize,
    /// Incompatible changes, a sentence each with its effect and the cure.
    pub refused: Vec<String>,
}

/// Compares what the code has now with the lock.
#[must_use]
pub fn compare(lock: &Schema, now: &Schema) -> Comparison {
    let mut result =
        Comparison { lock: Schema { retired: lock.retired.clone(), ..now.clone() }, ..Comparison::default() };
    for gone in lock.ids.difference(&now.ids) {
        result.refused.push(lost_id(gone, now));
    }
    for new in now.ids.difference(&lock.ids) {
        let (word, name) = (new.kind.word(), &new.name);
        if lock.retired.contains(&(new.kind, name.clone())) {
            result.refused.push(format!(
                "{word} `{name}` is retired: what is still stored under this id would be taken for the new one's. \
                 Choose another id."
            ));
        } else {
            result.record(format!("{word} `{name}` ({}) is new", new.of));
        }
    }
    for (name, locked) in &lock.messages {
        match now.messages.get(name) {
            Some(message) => {
                let reserved = result.compare_fields(name, locked, message);
                if let Some(recorded) = result.lock.messages.get_mut(name) {
                    recorded.reserved = reserved;
                }
            }
            None => result.refused.push(format!(
                "message `{name}` is gone: rows, segments and pages that hold it could no longer be read. Keep it as long \
                 as anything stored has it. If its type was only renamed, or nothing stored has it any more, rename or \
                 remove it in schema.lock by hand."
            )),
        }
    }
    // A field that took another's place is met at both tags.
    result.refused.dedup();
    for name in now.messages.keys().filter(|name| !lock.messages.contains_key(*name)) {
        result.record(format!("message `{name}` is new"));
    }
    result.lock.number = lock.number + u32::from(result.stored > 0);
    result
}

impl Comparison {
    /// A compatible change of what is stored.
    fn record(&mut self, change: String) {
        self.unrecorded.push(change);
        self.stored += 1;
    }

    /// Compares one message; returns what is reserved of it from now on.
    fn compare_fields(&mut self, name: &str, locked: &Message, now: &Message) -> BTreeMap<u32, Field> {
        let mut reserved = locked.reserved.clone();
        for (tag, old) in &locked.fields {
            match now.fields.get(tag) {
                Some(new) => self.compare_field(name, *tag, old, new, locked),
                None => match tag_of(now, &old.name) {
                    Some(moved) => self.refused.push(moved_field(name, &old.name, *tag, moved)),
                    None => {
                        self.record(format!(
                            "`{name}` no longer has field {tag} ({old}): what is stored of it is dropped when its message \
                             is next written; the tag becomes reserved"
                        ));
                        reserved.insert(*tag, old.clone());
                    }
                },
            }
        }
        for (tag, new) in now.fields.iter().filter(|(tag, _)| !locked.fields.contains_key(tag)) {
            match locked.reserved.get(tag) {
                Some(old) => self.refused.push(format!(
                    "`{name}` uses tag {tag} for `{new}`, but it was the tag of `{old}`, which stored messages may still \
                     have: it would be read as the new field. Give `{}` a tag that was never used.",
                    new.name
                )),
                // One that moved is told of under its old tag.
                None if tag_of(locked, &new.name).is_some_and(|old| !now.fields.contains_key(&old)) => {}
                None => self.record(format!("`{name}` has a new field {tag} ({new})")),
            }
        }
        reserved
    }

    fn compare_field(&mut self, name: &str, tag: u32, old: &Field, new: &Field, locked: &Message) {
        if old.kind != new.kind {
            self.refused.push(format!(
                "`{name}` field {tag} was `{old}` and is `{new}`: what is stored under the tag would not decode, or be \
                 read as something else. Give the new field a tag that was never used, keep reading tag {tag} as \
                 `{}`, and remove it when nothing stored has it.",
                old.kind
            ));
        } else if old.name != new.name {
            match tag_of(locked, &new.name) {
                Some(from) => self.refused.push(moved_field(name, &new.name, from, tag)),
                None => self.unrecorded.push(format!("`{name}` field {tag}: `{}` is now `{}`", old.name, new.name)),
            }
        }
    }
}

fn tag_of(message: &Message, field: &str) -> Option<u32> {
    message.fields.iter().find(|(_, other)| other.name == field).map(|(tag, _)| *tag)
}

fn moved_field(message: &str, field: &str, from: u32, to: u32) -> String {
    format!(
        "`{message}` field `{field}` has gone from tag {from} to tag {to}: its stored values are under {from} and would be \
         read as absent, or as another field's. Give it tag {from} back; a new field gets a tag that was never used."
    )
}

fn lost_id(gone: &Id, now: &Schema) -> String {
    let (word, name) = (gone.kind.word(), &gone.name);
    let effect = match gone.kind {
        IdKind::Stage => "the logs, segments and pages of its tasks are stored under the id and would be left behind",
        IdKind::Operator => "settings and counters that are stored name it",
        IdKind::State => "its pages would belong to no operator, or be read as another message: its tasks would stop",
        IdKind::Stream => "rows that are committed and not yet read name it: consumers would pass over their records",
    };
    let what = match now.ids.iter().find(|id| id.kind == gone.kind && id.name == *name) {
        Some(other) => format!("{word} `{name}` was `{}` and is `{}`", gone.of, other.of),
        None => format!("{word} `{name}` ({}) is gone", gone.of),
    };
    format!(
        "{what}: {effect}. Give it back what it was; something new gets an id of its own. If nothing is stored under it \
         any more, replace its line in schema.lock by `retired {word} {name}` by hand."
    )
}

#[cfg(test)]
mod tests;
