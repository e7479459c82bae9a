//! A sink's position as the metadata of committed offsets.
//!
//! A transaction can commit offsets of a group together with records, and an offset may carry a short text. So the
//! position of a task is written as offsets of a group of its own: the offset is the batch's number, the text a part of
//! the position. A broker takes 4096 bytes of text (`offset.metadata.max.bytes`), so a long position is spread over the
//! partitions of a topic, part by part.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use payguard_engine::Seq;
use payguard_engine::store::SinkPosition;

/// What brokers take by default, bytes.
const TEXT_LIMIT: usize = 4096;
/// Room for `<parts>:` before a part.
const HEAD_LIMIT: usize = 8;

/// A position's part, for one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// The committed offset: the number of the batch.
    pub(super) offset: i64,
    /// Its metadata.
    pub(super) text: String,
}

/// A committed position that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum PositionError {
    /// There are more parts than partitions.
    #[error("it takes {needed} parts of {TEXT_LIMIT} bytes and the topic has {partitions} partitions: add some to it")]
    TooLong {
        /// Parts of the position.
        needed: usize,
        /// Partitions of the topic.
        partitions: usize,
    },
    /// Not what [`to_parts`] wrote.
    #[error("the committed offsets of the group are not a position ({0}): does something else use this group?")]
    Foreign(String),
}

/// The position in as many parts as it takes, for partitions 0, 1, …
pub(super) fn to_parts(position: &SinkPosition, partitions: usize) -> Result<Vec<Part>, PositionError> {
    let text = BASE64_STANDARD.encode(lz4_flex::compress_prepend_size(&position.to_bytes()));
    let needed = text.len().div_ceil(TEXT_LIMIT - HEAD_LIMIT);
    if needed > partitions {
        return Err(PositionError::TooLong { needed, partitions });
    }
    let offset = i64::try_from(position.seq.0).unwrap_or(i64::MAX);
    let parts = text.as_bytes().chunks(TEXT_LIMIT - HEAD_LIMIT);
    let part = |part: &[u8]| Part { offset, text: format!("{needed}:{}", String::from_utf8_lossy(part)) };
    Ok(parts.map(part).collect())
}

/// The position that partitions 0, 1, … have parts of; the default when none has.
pub(super) fn from_parts(parts: &[Option<Part>]) -> Result<SinkPosition, PositionError> {
    let Some(Some(first)) = parts.first() else {
        return match parts.iter().flatten().next() {
            None => Ok(SinkPosition::default()),
            Some(_) => Err(foreign("partition 0 has no part")),
        };
    };
    let (count, _) = split(&first.text)?;
    let mut text = String::new();
    // What follows is of longer positions before.
    for (number, part) in (0..count).map(|number| (number, parts.get(number).and_then(Option::as_ref))) {
        let part = part.filter(|part| part.offset == first.offset);
        let (of, rest) = split(&part.ok_or_else(|| foreign(&format!("part {number} of {count} is missing")))?.text)?;
        if of != count {
            return Err(foreign(&format!("part {number} is one of {of}, not of {count}")));
        }
        text.push_str(rest);
    }
    let bytes = BASE64_STANDARD.decode(text).map_err(|e| foreign(&e.to_string()))?;
    let bytes = lz4_flex::decompress_size_prepended(&bytes).map_err(|e| foreign(&e.to_string()))?;
    let position = SinkPosition::from_bytes(&bytes).map_err(|e| foreign(&e.0))?;
    match position.seq == Seq(u64::try_from(first.offset).unwrap_or(0)) {
        true => Ok(position),
        false => Err(foreign("the offset is not its batch")),
    }
}

fn split(text: &str) -> Result<(usize, &str), PositionError> {
    let (count, rest) = text.split_once(':').ok_or_else(|| foreign("metadata without a number of parts"))?;
    Ok((count.parse().map_err(|_| foreign("metadata without a number of parts"))?, rest))
}

fn foreign(detail: &str) -> PositionError {
    PositionError::Foreign(detail.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use payguard_engine::{InputState, Position};

    use super::*;

    /// A position with so many inputs, whose numbers compress badly.
    fn position(seq: u64, inputs: u64) -> SinkPosition {
        let input = |n: u64| {
            let noise = n.wrapping_add(seq).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let position = Position { at: (noise >> 8) as i64, within: (noise % 1000) as u32 };
            (
                format!("rules/g{n}.{noise:x}of9"),
                InputState { position, watermark_ms: (noise >> 3) as i64, idle: n.is_multiple_of(2) },
            )
        };
        SinkPosition {
            seq: Seq(seq),
            inputs: (0..inputs).map(input).collect(),
            counters: BTreeMap::from([("in.alerts".to_owned(), seq)]),
        }
    }

    fn stored(parts: Vec<Part>, partitions: usize) -> Vec<Option<Part>> {
        let mut stored: Vec<Option<Part>> = parts.into_iter().map(Some).collect();
        stored.resize(partitions, None);
        stored
    }

    #[test]
    fn a_position_of_any_length_is_read_as_it_was_written() {
        for inputs in [0, 1, 3, 50, 200, 400] {
            let position = position(7, inputs);
            let parts = to_parts(&position, 100).unwrap();
            assert!(parts.iter().all(|part| part.text.len() <= TEXT_LIMIT && part.offset == 7));
            assert_eq!(from_parts(&stored(parts, 100)).unwrap(), position);
        }
    }

    #[test]
    fn what_a_longer_position_left_behind_is_not_read() {
        let long = to_parts(&position(7, 400), 100).unwrap();
        let short = to_parts(&position(8, 2), 100).unwrap();
        assert!(long.len() > short.len());
        let mut both = stored(long, 100);
        for (slot, part) in both.iter_mut().zip(short) {
            *slot = Some(part);
        }
        assert_eq!(from_parts(&both).unwrap(), position(8, 2));
    }

    #[test]
    fn nothing_committed_is_the_beginning_and_anything_else_is_foreign() {
        assert_eq!(from_parts(&[None, None]).unwrap(), SinkPosition::default());
        assert_eq!(from_parts(&[]).unwrap(), SinkPosition::default());
        let good = to_parts(&position(7, 400), 100).unwrap();
        let mut missing = stored(good.clone(), 100);
        missing[1] = None;
        let mut mixed = stored(good.clone(), 100);
        mixed[1].as_mut().unwrap().offset = 6;
        let mut without_first = stored(good.clone(), 100);
        without_first[0] = None;
        let mut altered = stored(to_parts(&position(7, 0), 1).unwrap(), 1);
        altered[0].as_mut().unwrap().offset = 8;
        let of_a_consumer = vec![Some(Part { offset: 100, text: String::new() })];
        for parts in [missing, mixed, without_first, altered, of_a_consumer] {
            assert!(matches!(from_parts(&parts), Err(PositionError::Foreign(_))), "{:?}", &parts[0]);
        }
    }

    #[test]
    fn a_position_that_does_not_fit_says_how_many_partitions_it_takes() {
        let error = to_parts(&position(7, 400), 1).unwrap_err().to_string();
        assert!(error.contains("the topic has 1 partitions: add some"), "{error}");
    }
}
