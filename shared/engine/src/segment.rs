//! Segments: the bytes of one commit.
//!
//! A segment is a run of slices, one per (stream, shard of its consumer), followed by the state delta. A slice is a
//! sequence of records in the order they were emitted; each record carries its *stamp*: the watermark its producer had
//! reached when it emitted it, and the arrival of the source record that it comes of. So a consumer sees records and
//! watermarks interleaved as they were, whatever the batches were, and its result does not depend on them; and it can
//! put records that several tasks of a stage emitted at one watermark into the order in which they had arrived.
//!
//! Record: zigzag varints of (watermark - previous watermark), (partition - previous partition) and (offset - previous
//! offset), varint of (order - previous order), varint length, payload. The *order* is the record's number among all
//! records of the commit: a consumer of several streams takes the records of one commit as they were emitted, so that
//! it does not depend on where one commit ended and the next began. Slices of more than [`COMPRESS_FROM`] bytes are
//! LZ4 blocks when that makes them smaller.

use std::ops::Range;

use bytes::{BufMut, Bytes};
use payguard_model::EventTime;
use prost::encoding::{decode_varint, encode_varint};

use crate::ids::{Attempt, TaskId};
use crate::row::Slice;

/// Slices shorter than this are stored as they are.
pub const COMPRESS_FROM: usize = 1024;
/// Digits of a seq in the key of an object: as many as the greatest has.
const SEQ_DIGITS: usize = 20;

/// Key of the object that holds the segment of an attempt at commit `seq`. The keys of a task sort by seq.
#[must_use]
pub fn object_key(task: &TaskId, seq: u64, attempt: &Attempt) -> String {
    format!("{}{seq:0SEQ_DIGITS$}-{}", object_prefix(task), attempt.0)
}

/// What the keys of all segments of a task begin with, and no other task's.
#[must_use]
pub fn object_prefix(task: &TaskId) -> String {
    format!("{task}/")
}

/// The commit that an object of `task` was made for; `None` when the key is no segment's.
#[must_use]
pub fn object_seq(task: &TaskId, key: &str) -> Option<u64> {
    let (seq, _) = key.strip_prefix(&object_prefix(task))?.split_once('-')?;
    seq.parse().ok().filter(|_| seq.len() == SEQ_DIGITS)
}

/// Where in the sources a record comes from.
///
/// Tasks that read the same sources meet their records in one and the same order at any number of shards: by watermark,
/// then by this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Arrival {
    /// Kafka partition.
    pub partition: u32,
    /// Offset.
    pub offset: i64,
}

impl Arrival {
    /// Of what no record caused: timers fire when all records of the watermark before are handled.
    pub const TIMER: Arrival = Arrival { partition: u32::MAX, offset: 0 };
}

/// A record's place in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// The producer's watermark when it emitted the record.
    pub watermark: EventTime,
    /// The source record that it comes of.
    pub arrival: Arrival,
}

impl Stamp {
    /// What the first record's differences are taken to.
    const ZERO: Stamp = Stamp { watermark: EventTime(0), arrival: Arrival { partition: 0, offset: 0 } };
}

/// Collects the records of one slice.
#[derive(Debug)]
struct SliceBuilder {
    bytes: Vec<u8>,
    count: u32,
    last: Header,
    min_event_time: i64,
    max_event_time: i64,
}

impl SliceBuilder {
    /// An empty one that uses the room of `bytes`.
    fn within(mut bytes: Vec<u8>) -> SliceBuilder {
        bytes.clear();
        SliceBuilder { bytes, count: 0, last: Header::ZERO, min_event_time: 0, max_event_time: 0 }
    }

    fn write_header(&mut self, header: Header, len: usize) {
        let (last, bytes) = (self.last, &mut self.bytes);
        let (stamp, arrival) = (header.stamp, header.stamp.arrival);
        encode_varint(zigzag(stamp.watermark.0.wrapping_sub(last.stamp.watermark.0)), bytes);
        encode_varint(zigzag(i64::from(arrival.partition) - i64::from(last.stamp.arrival.partition)), bytes);
        encode_varint(zigzag(arrival.offset.wrapping_sub(last.stamp.arrival.offset)), bytes);
        encode_varint(header.order - last.order, bytes);
        encode_varint(len as u64, bytes);
        self.last = header;
    }
}

/// Collects the output records of one commit.
#[derive(Debug, Default)]
pub struct SegmentBuilder {
    /// Per output stream: its name and one builder per consumer shard.
    outputs: Vec<(String, Vec<SliceBuilder>)>,
    /// Records so far.
    records: u64,
    bytes: usize,
    /// Room for compressed blocks.
    scratch: Vec<u8>,
}

/// A finished segment and its index.
#[derive(Debug, Default)]
pub struct Segment {
    /// The bytes.
    pub bytes: Bytes,
    /// Where the records are.
    pub slices: Vec<Slice>,
    /// Where the state delta is.
    pub delta: Option<Slice>,
}

/// Why a slice could not be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SliceError {
    /// Fewer bytes than the index says.
    #[error("{got} bytes where the index says {expected}")]
    Truncated {
        /// Bytes there are.
        got: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// The checksum differs.
    #[error("checksum {got:08x} where the index says {expected:08x}")]
    Checksum {
        /// Checksum of the bytes.
        got: u32,
        /// Checksum in the index.
        expected: u32,
    },
    /// The bytes are not what a builder writes.
    #[error("{0}")]
    Malformed(&'static str),
}

impl SegmentBuilder {
    /// A builder for outputs given as (stream, consumer shards).
    #[must_use]
    pub fn new<'a>(outputs: impl IntoIterator<Item = (&'a str, u32)>) -> SegmentBuilder {
        let outputs = outputs
            .into_iter()
            .map(|(stream, shards)| {
                (stream.to_owned(), (0..shards).map(|_| SliceBuilder::within(Vec::new())).collect())
            })
            .collect();
        SegmentBuilder { outputs, records: 0, bytes: 0, scratch: Vec::new() }
    }

    /// Shards of the consumer of output `output`.
    #[must_use]
    pub fn shards(&self, output: usize) -> u32 {
        u32::try_from(self.outputs[output].1.len()).unwrap_or(u32::MAX)
    }

    /// Appends a record of `len` bytes that `write` produces.
    pub fn push(
        &mut self,
        output: usize,
        shard: u32,
        stamp: Stamp,
        event_time: EventTime,
        len: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let slice = &mut self.outputs[output].1[shard as usize];
        slice.write_header(Header { stamp, order: self.records }, len);
        let start = slice.bytes.len();
        write(&mut slice.bytes);
        debug_assert_eq!(slice.bytes.len() - start, len, "a record's length is written before it");
        self.records += 1;
        if slice.count == 0 {
            (slice.min_event_time, slice.max_event_time) = (event_time.0, event_time.0);
        } else {
            slice.min_event_time = slice.min_event_time.min(event_time.0);
            slice.max_event_time = slice.max_event_time.max(event_time.0);
        }
        slice.count += 1;
        self.bytes += len;
    }

    /// Lays the slices and the delta out as one run of bytes, and leaves the builder empty for the next commit, its
    /// buffers as large as they have grown.
    #[must_use]
    pub fn finish(&mut self, delta: &[u8]) -> Segment {
        let mut bytes = Vec::with_capacity(self.bytes + delta.len() + 64);
        let mut slices = Vec::new();
        for (stream, shards) in &mut self.outputs {
            let among = u32::try_from(shards.len()).unwrap_or(u32::MAX);
            for (shard, builder) in shards.iter_mut().enumerate() {
                if builder.count == 0 {
                    continue;
                }
                let mut slice = append(&mut bytes, &builder.bytes, &mut self.scratch);
                slice.stream.clone_from(stream);
                slice.shard = u32::try_from(shard).unwrap_or(u32::MAX);
                slice.shards = among;
                slice.count = builder.count;
                slice.min_event_time_ms = builder.min_event_time;
                slice.max_event_time_ms = builder.max_event_time;
                slices.push(slice);
                *builder = SliceBuilder::within(std::mem::take(&mut builder.bytes));
            }
        }
        (self.records, self.bytes) = (0, 0);
        let delta = (!delta.is_empty()).then(|| append(&mut bytes, delta, &mut self.scratch));
        Segment { bytes: Bytes::from(bytes), slices, delta }
    }
}

/// Appends `raw`, compressed when that pays, and describes where it went.
fn append(bytes: &mut Vec<u8>, raw: &[u8], scratch: &mut Vec<u8>) -> Slice {
    let offset = bytes.len();
    let packed = if raw.len() >= COMPRESS_FROM { compress(raw, scratch) } else { None };
    bytes.put_slice(packed.filter(|packed| packed.len() < raw.len()).unwrap_or(raw));
    let stored = &bytes[offset..];
    Slice {
        offset: offset as u64,
        len: stored.len() as u64,
        raw_len: raw.len() as u64,
        crc: crc32fast::hash(stored),
        ..Slice::default()
    }
}

/// The LZ4 block of `raw`, in `scratch`, which grows as needed and is never cleared.
fn compress<'s>(raw: &[u8], scratch: &'s mut Vec<u8>) -> Option<&'s [u8]> {
    let most = lz4_flex::block::get_maximum_output_size(raw.len());
    if scratch.len() < most {
        scratch.resize(most, 0);
    }
    let packed = lz4_flex::block::compress_into(raw, scratch).ok()?;
    Some(&scratch[..packed])
}

/// Checks a slice's bytes against the index and unpacks them.
///
/// # Errors
/// When the bytes are not the ones that were written.
pub fn open(slice: &Slice, stored: &Bytes) -> Result<Bytes, SliceError> {
    if stored.len() as u64 != slice.len {
        return Err(SliceError::Truncated { got: stored.len() as u64, expected: slice.len });
    }
    let crc = crc32fast::hash(stored);
    if crc != slice.crc {
        return Err(SliceError::Checksum { got: crc, expected: slice.crc });
    }
    if slice.len == slice.raw_len {
        return Ok(stored.clone());
    }
    let raw_len = usize::try_from(slice.raw_len).map_err(|_| SliceError::Malformed("length out of range"))?;
    lz4_flex::block::decompress(stored, raw_len)
        .map(Bytes::from)
        .map_err(|_| SliceError::Malformed("compressed block does not unpack"))
}

/// Reads the records of one unpacked slice in order.
#[derive(Debug, Clone)]
pub struct SliceReader {
    bytes: Bytes,
    /// Where what is not parsed yet begins.
    rest: usize,
    left: u32,
    /// The next record, already parsed.
    next: Option<(Header, Range<usize>)>,
    last: Header,
}

/// The records of a slice for which `keep` has a true, one after the other.
///
/// # Errors
/// When a record does not parse.
pub(crate) fn retain(mut slice: SliceReader, keep: impl Iterator<Item = bool>) -> Result<SliceReader, SliceError> {
    let mut kept = SliceBuilder::within(Vec::new());
    for keep in keep {
        let Some(record) = slice.take()? else { break };
        if keep {
            kept.write_header(record.header, record.payload.len());
            kept.bytes.put_slice(record.payload);
            kept.count += 1;
        }
    }
    SliceReader::new(Bytes::from(kept.bytes), kept.count)
}

/// What precedes a record's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Its place in time.
    pub stamp: Stamp,
    /// Its number among the records of the commit.
    pub order: u64,
}

impl Header {
    const ZERO: Header = Header { stamp: Stamp::ZERO, order: 0 };
}

/// One record of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// What precedes it.
    pub header: Header,
    /// The protobuf bytes.
    pub payload: &'a [u8],
}

impl SliceReader {
    /// A reader of `count` records.
    ///
    /// # Errors
    /// When the first record does not parse.
    pub fn new(bytes: Bytes, count: u32) -> Result<SliceReader, SliceError> {
        let mut reader = SliceReader { bytes, rest: 0, left: count, next: None, last: Header::ZERO };
        reader.advance()?;
        Ok(reader)
    }

    /// Records that are left.
    #[must_use]
    pub fn count(&self) -> usize {
        self.left as usize + usize::from(self.next.is_some())
    }

    /// The next record's header.
    #[must_use]
    pub fn peek(&self) -> Option<Header> {
        self.next.as_ref().map(|(header, _)| *header)
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// When the one after it does not parse.
    pub fn take(&mut self) -> Result<Option<Record<'_>>, SliceError> {
        let taken = self.pass()?;
        Ok(taken.map(|(header, range)| Record { header, payload: self.payload(range) }))
    }

    /// Takes the next record and says where its payload is.
    pub(crate) fn pass(&mut self) -> Result<Option<(Header, Range<usize>)>, SliceError> {
        let taken = self.next.take();
        if taken.is_some() {
            self.advance()?;
        }
        Ok(taken)
    }

    /// The payload of a record that was taken.
    pub(crate) fn payload(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    fn advance(&mut self) -> Result<(), SliceError> {
        let mut rest = &self.bytes[self.rest..];
        if self.left == 0 {
            return if rest.is_empty() { Ok(()) } else { Err(SliceError::Malformed("bytes after the last record")) };
        }
        let malformed = |_| SliceError::Malformed("a record's header does not parse");
        let time = decode_varint(&mut rest).map_err(malformed)?;
        let partition = decode_varint(&mut rest).map_err(malformed)?;
        let offset = decode_varint(&mut rest).map_err(malformed)?;
        let later = decode_varint(&mut rest).map_err(malformed)?;
        let len = decode_varint(&mut rest).map_err(malformed)?;
        let len = usize::try_from(len).ok().filter(|len| *len <= rest.len());
        let len = len.ok_or(SliceError::Malformed("a record is longer than its slice"))?;
        let last = &mut self.last.stamp;
        last.watermark = EventTime(last.watermark.0.wrapping_add(unzigzag(time)));
        let partition = i64::from(last.arrival.partition).checked_add(unzigzag(partition));
        let partition = partition.and_then(|partition| u32::try_from(partition).ok());
        last.arrival.partition = partition.ok_or(SliceError::Malformed("a record's partition is out of range"))?;
        last.arrival.offset = last.arrival.offset.wrapping_add(unzigzag(offset));
        self.last.order = self.last.order.wrapping_add(later);
        self.left -= 1;
        let start = self.bytes.len() - rest.len();
        self.rest = start + len;
        self.next = Some((self.last, start..self.rest));
        Ok(())
    }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stamp((watermark, partition, offset): (i64, u32, i64)) -> Stamp {
        Stamp { watermark: EventTime(watermark), arrival: Arrival { partition, offset } }
    }

    /// Shard, stamp and payload of a record.
    type Drawn = (u32, (i64, u32, i64), Vec<u8>);

    fn build(records: &[Drawn], delta: &[u8]) -> Segment {
        let mut builder = SegmentBuilder::new([("s", 3)]);
        // What was built before leaves no trace.
        builder.push(0, 1, stamp((77, 7, 77)), EventTime(77), 3, |b| b.put_slice(b"old"));
        let _ = builder.finish(b"old delta");
        for (shard, at, payload) in records {
            builder.push(0, *shard, stamp(*at), EventTime(at.0), payload.len(), |b| b.put_slice(payload));
        }
        builder.finish(delta)
    }

    fn stored(segment: &Segment, slice: &Slice) -> Bytes {
        let from = usize::try_from(slice.offset).unwrap();
        segment.bytes.slice(from..from + usize::try_from(slice.len).unwrap())
    }

    proptest! {
        #[test]
        fn every_record_comes_back_in_order_with_its_stamp(
            records in prop::collection::vec((0u32..3, any::<(i64, u32, i64)>(), prop::collection::vec(any::<u8>(), 0..80)), 0..200),
            delta in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            let segment = build(&records, &delta);
            for shard in 0..3 {
                let expected: Vec<_> = records.iter().enumerate().filter(|(_, r)| r.0 == shard).collect();
                let slice = segment.slices.iter().find(|s| s.shard == shard);
                prop_assert_eq!(slice.is_some(), !expected.is_empty());
                let Some(slice) = slice else { continue };
                let mut reader = SliceReader::new(open(slice, &stored(&segment, slice)).unwrap(), slice.count).unwrap();
                for (order, (_, at, payload)) in expected {
                    prop_assert_eq!(reader.peek().map(|r| r.stamp), Some(stamp(*at)));
                    let record = reader.take().unwrap().unwrap();
                    prop_assert_eq!(record.header.stamp, stamp(*at));
                    prop_assert_eq!(record.header.order, order as u64);
                    prop_assert_eq!(record.payload, &payload[..]);
                }
                prop_assert_eq!(reader.take().unwrap(), None);
            }
            let back = segment.delta.as_ref().map(|d| open(d, &stored(&segment, d)).unwrap().to_vec());
            prop_assert_eq!(back.unwrap_or_default(), delta);
        }

        #[test]
        fn a_flipped_byte_or_a_cut_is_noticed(len in 1usize..4000, at in any::<prop::sample::Index>(), cut in any::<bool>()) {
            let payload: Vec<u8> = (0..len).map(|i| (i % 7) as u8).collect();
            let segment = build(&[(0, (5, 0, 0), payload)], &[]);
            let slice = &segment.slices[0];
            let mut bytes = stored(&segment, slice).to_vec();
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] ^= 0x10 }
            prop_assert!(open(slice, &Bytes::from(bytes)).is_err());
        }
    }

    #[test]
    fn the_keys_of_a_task_sort_by_seq_and_tell_it() {
        let task: TaskId = "dedup/1".parse().unwrap();
        let key = |seq| object_key(&task, seq, &Attempt("a-b".into()));
        assert_eq!(key(7), "dedup/1/00000000000000000007-a-b");
        assert!(key(9) < key(10) && key(10) < key(u64::MAX));
        assert_eq!([7, u64::MAX].map(|seq| object_seq(&task, &key(seq))), [Some(7), Some(u64::MAX)]);
        let others = ["dedup/1/7-a", "dedup/1/0000000000000000000x-a", "dedup/1/00000000000000000007", "dedup/1/"];
        assert!(others.iter().all(|key| object_seq(&task, key).is_none()));
        assert_eq!(object_seq(&"dedup/10".parse().unwrap(), &key(7)), None, "tasks are apart");
    }

    #[test]
    fn long_slices_are_compressed_and_short_ones_are_not() {
        let long = build(&[(0, (1, 0, 0), vec![7; 10_000])], &[]);
        assert!(long.bytes.len() < 200, "{}", long.bytes.len());
        let short = build(&[(0, (1, 0, 0), vec![7; 100])], &[]);
        assert_eq!(short.slices[0].len, short.slices[0].raw_len);
    }
}
