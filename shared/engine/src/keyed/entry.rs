//! What deltas and pages hold of a key.

use payguard_operators::{Timers, Times};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

use super::SPLIT_BYTES;

/// A key and what is stored of it; no state means the key was forgotten.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) state: Option<Vec<u8>>,
    /// Differences between ascending times.
    #[prost(sint64, repeated, tag = "3")]
    pub(super) event_timers: Vec<i64>,
    /// Differences between ascending times.
    #[prost(sint64, repeated, tag = "4")]
    pub(super) processing_timers: Vec<i64>,
}

/// Entries of a delta or a page.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Entries {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<Entry>,
}

impl Entry {
    /// The entry of a key that is held.
    pub(super) fn of<S: Message>(key: &str, state: &S, timers: &Timers) -> Entry {
        Entry {
            key: key.to_owned(),
            state: Some(state.encode_to_vec()),
            event_timers: steps(&timers.event).collect(),
            processing_timers: steps(&timers.processing).collect(),
        }
    }
}

impl Entries {
    /// Whether a page of these entries is to be split. One large entry alone is not: no split makes it smaller.
    pub(super) fn is_too_large(&self) -> bool {
        let largest = self.entries.iter().map(Entry::encoded_len).max().unwrap_or(0);
        self.encoded_len() > SPLIT_BYTES + largest
    }
}

/// The timers of an entry's steps.
pub(super) fn timers(event: &[i64], processing: &[i64]) -> Timers {
    Timers { event: undo_steps(event), processing: undo_steps(processing) }
}

/// Appends one entry to the encoding of an [`Entries`]: what [`Entry::of`] encodes to, without the copies in between.
///
/// A delta has an entry for nearly every record, so this is a hot path.
pub(super) fn write<S: Message>(bytes: &mut Vec<u8>, key: &str, held: Option<(&S, &Timers)>) {
    let state_len = held.map(|(state, _)| state.encoded_len());
    let (event, processing) = held.map_or((&[][..], &[][..]), |(_, t)| (&t.event[..], &t.processing[..]));
    let (event_len, processing_len) = (steps_len(event), steps_len(processing));
    let len = field_len(key.len(), key.is_empty())
        + state_len.map_or(0, |len| field_len(len, false))
        + field_len(event_len, event.is_empty())
        + field_len(processing_len, processing.is_empty());
    bytes.reserve(len + 8);
    begin(bytes, 1, len);
    if !key.is_empty() {
        begin(bytes, 1, key.len());
        bytes.extend_from_slice(key.as_bytes());
    }
    if let (Some((state, _)), Some(len)) = (held, state_len) {
        begin(bytes, 2, len);
        state.encode_raw(bytes);
    }
    for (tag, times, len) in [(3, event, event_len), (4, processing, processing_len)] {
        if !times.is_empty() {
            begin(bytes, tag, len);
            steps(times).for_each(|step| encode_varint(zigzag(step), bytes));
        }
    }
}

fn begin(bytes: &mut Vec<u8>, tag: u32, len: usize) {
    encode_key(tag, WireType::LengthDelimited, bytes);
    encode_varint(len as u64, bytes);
}

/// Length of a field with its key and length; 0 when it is left out.
fn field_len(len: usize, absent: bool) -> usize {
    if absent { 0 } else { 1 + encoded_len_varint(len as u64) + len }
}

fn steps_len(times: &[i64]) -> usize {
    steps(times).map(|step| encoded_len_varint(zigzag(step))).sum()
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// What an entry holds of ascending times.
pub(super) fn to_steps(times: &[i64]) -> Vec<i64> {
    steps(times).collect()
}

fn steps(times: &[i64]) -> impl Iterator<Item = i64> {
    let mut last = 0i64;
    times.iter().map(move |t| t.wrapping_sub(std::mem::replace(&mut last, *t)))
}

fn undo_steps(steps: &[i64]) -> Times {
    let mut last = 0i64;
    let times = steps.iter().map(|s| {
        last = last.wrapping_add(*s);
        last
    });
    times.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_the_encoding_of_the_entries(
            held in prop::collection::vec((
                "[a-zé]{0,30}",
                prop::option::of(("[a-z]{0,300}", prop::collection::vec(any::<i64>(), 0..4), prop::collection::vec(any::<i64>(), 0..2))),
            ), 0..6),
        ) {
            let (mut written, mut expected) = (Vec::new(), Entries::default());
            for (key, state) in held {
                let state = state.map(|(text, event, processing)| {
                    (text, Timers { event: Times::from_vec(event), processing: Times::from_vec(processing) })
                });
                write(&mut written, &key, state.as_ref().map(|(text, timers)| (text, timers)));
                expected.entries.push(match &state {
                    Some((text, timers)) => Entry::of(&key, text, timers),
                    None => Entry { key, ..Entry::default() },
                });
                if let Some((_, held)) = &state {
                    let entry = expected.entries.last().unwrap();
                    prop_assert_eq!(&timers(&entry.event_timers, &entry.processing_timers), held);
                }
            }
            prop_assert_eq!(written, expected.encode_to_vec());
        }
    }
}
