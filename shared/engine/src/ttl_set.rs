//! A set of ids that are forgotten a fixed processing time after they were written: the state of deduplication.
//!
//! Ids are written once and never change, so a flush only *adds* pages: the ids new since the last flush, one run of
//! pages per key group, named by the commit they are current as of. Nothing is rewritten; a page as a whole expires
//! when its youngest id does.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use payguard_model::{KEY_GROUPS, ProcessingTime, key_group};
use payguard_operators::dedup::{REMEMBER_FOR_MS, SeenIds, is_expired};
use prost::Message;
use prost::encoding::encoded_len_varint;

use crate::logic::{DecodeError, DirtyPages, OperatorState, PageBody};
use crate::page::Page;

/// Bytes of ids in one page at most; far below the 400 KB an item may have.
const PAGE_BYTES: usize = 256 * 1024;
/// The table's own expiry comes this much later than the id's.
const EXPIRY_MARGIN_S: i64 = 600;
/// How often expired ids are swept from memory.
const SWEEP_EVERY_MS: i64 = 60_000;

/// An id; the common 36-character UUID form takes 16 bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
enum Id {
    Uuid([u8; 16]),
    Text(Box<str>),
}

/// Ids written at one processing time.
#[derive(Clone, PartialEq, Message)]
struct Written {
    #[prost(sint64, tag = "1")]
    at_ms: i64,
    /// 16-byte UUIDs, one after the other.
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

/// Ids and when they were written.
pub struct TtlSet {
    operator: &'static str,
    ids: HashMap<Id, ProcessingTime>,
    /// Written since the last delta.
    changed: Vec<(ProcessingTime, Id)>,
    /// In a delta, not yet flushed.
    unflushed: Vec<(ProcessingTime, Id)>,
    /// Stored size of what is in `unflushed`.
    unflushed_bytes: usize,
    swept_at: ProcessingTime,
}

impl TtlSet {
    /// An empty set that belongs to `operator`.
    #[must_use]
    pub fn new(operator: &'static str) -> TtlSet {
        TtlSet {
            operator,
            ids: HashMap::new(),
            changed: Vec::new(),
            unflushed: Vec::new(),
            unflushed_bytes: 0,
            swept_at: ProcessingTime(i64::MIN),
        }
    }

    /// Forgets what has expired by `now`; looks at most once a minute. Returns how many ids were forgotten.
    pub fn sweep(&mut self, now: ProcessingTime) -> usize {
        if now.since(self.swept_at) < SWEEP_EVERY_MS {
            return 0;
        }
        self.swept_at = now;
        let before = self.ids.len();
        self.ids.retain(|_, at| !is_expired(*at, now));
        self.ids.shrink_to(self.ids.len() * 2);
        self.unflushed.retain(|(at, _)| !is_expired(*at, now));
        self.unflushed_bytes = self.unflushed.iter().map(|(_, id)| id.stored_len()).sum();
        before - self.ids.len()
    }

    /// Ids that are committed and must be flushed.
    fn remember(&mut self, ids: Vec<(ProcessingTime, Id)>) {
        self.unflushed_bytes += ids.iter().map(|(_, id)| id.stored_len()).sum::<usize>();
        self.unflushed.extend(ids);
    }

    fn add(&mut self, run: &Written, mut each: impl FnMut(ProcessingTime, &Id)) -> Result<(), DecodeError> {
        let at = ProcessingTime(run.at_ms);
        let (uuids, rest) = run.uuids.as_chunks::<16>();
        if !rest.is_empty() {
            return Err(DecodeError("a run of ids is cut short".to_owned()));
        }
        let texts = run.texts.iter().map(|t| Id::Text(t.as_str().into()));
        for id in uuids.iter().map(|u| Id::Uuid(*u)).chain(texts) {
            each(at, &id);
            let written = self.ids.entry(id).or_insert(at);
            *written = at.max(*written);
        }
        Ok(())
    }
}

impl SeenIds for TtlSet {
    fn written_at(&self, id: &str) -> Option<ProcessingTime> {
        self.ids.get(&Id::new(id)).copied()
    }

    fn write(&mut self, id: &str, at: ProcessingTime) {
        let id = Id::new(id);
        self.changed.push((at, id.clone()));
        self.ids.insert(id, at);
    }
}

impl OperatorState for TtlSet {
    fn operator(&self) -> &'static str {
        self.operator
    }

    fn take_delta(&mut self) -> Vec<u8> {
        let delta = WrittenRuns { runs: runs(self.changed.iter()) };
        let written = std::mem::take(&mut self.changed);
        self.remember(written);
        delta.encode_to_vec()
    }

    fn apply_delta(&mut self, delta: &[u8]) -> Result<(), DecodeError> {
        let mut added = Vec::new();
        for run in WrittenRuns::decode(delta)?.runs {
            self.add(&run, |at, id| added.push((at, id.clone())))?;
        }
        self.remember(added);
        Ok(())
    }

    fn load(&mut self, pages: Vec<Page>) -> Result<(), DecodeError> {
        for page in pages {
            for run in WrittenRuns::decode(page.body)?.runs {
                self.add(&run, |_, _| ())?;
            }
        }
        Ok(())
    }

    fn take_dirty_pages(&mut self, version: u64) -> DirtyPages {
        let mut by_group: BTreeMap<u32, Vec<(ProcessingTime, Id)>> = BTreeMap::new();
        self.unflushed_bytes = 0;
        for (at, id) in std::mem::take(&mut self.unflushed) {
            by_group.entry(key_group(&id.text(), KEY_GROUPS).0).or_default().push((at, id));
        }
        let mut result = DirtyPages::default();
        for (group, ids) in by_group {
            result.put.extend(chunks(&ids).into_iter().enumerate().map(|(n, ids)| page_of(group, version, n, ids)));
        }
        result
    }

    fn dirty_bytes(&self) -> usize {
        self.unflushed_bytes
    }

    fn keys(&self) -> usize {
        self.ids.len()
    }
}

/// Page number `chunk` of what is added to a key group at `version`.
fn page_of(group: u32, version: u64, chunk: usize, ids: &[(ProcessingTime, Id)]) -> PageBody {
    let youngest = ids.iter().map(|(at, _)| at.0).max().unwrap_or(0);
    PageBody {
        group,
        page: format!("{version:020}-{chunk}"),
        body: WrittenRuns { runs: runs(ids.iter()) }.encode_to_vec(),
        expires_at_s: Some((youngest.saturating_add(REMEMBER_FOR_MS)) / 1000 + EXPIRY_MARGIN_S),
    }
}

/// Groups ids by the time they were written, keeping their order.
fn runs<'a>(ids: impl Iterator<Item = &'a (ProcessingTime, Id)>) -> Vec<Written> {
    let mut runs: Vec<Written> = Vec::new();
    for (at, id) in ids {
        if runs.last().is_none_or(|r| r.at_ms != at.0) {
            runs.push(Written { at_ms: at.0, ..Written::default() });
        }
        let Some(run) = runs.last_mut() else { continue };
        match id {
            Id::Uuid(bytes) => run.uuids.extend_from_slice(bytes),
            Id::Text(text) => run.texts.push(text.to_string()),
        }
    }
    runs
}

/// Cuts ids into runs of at most [`PAGE_BYTES`].
fn chunks(ids: &[(ProcessingTime, Id)]) -> Vec<&[(ProcessingTime, Id)]> {
    let mut chunks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (i, (_, id)) in ids.iter().enumerate() {
        if bytes + id.stored_len() > PAGE_BYTES && i > start {
            chunks.push(&ids[start..i]);
            (start, bytes) = (i, 0);
        }
        bytes += id.stored_len();
    }
    chunks.push(&ids[start..]);
    chunks
}

impl Id {
    fn new(text: &str) -> Id {
        match uuid_bytes(text.as_bytes()) {
            Some(bytes) => Id::Uuid(bytes),
            None => Id::Text(text.into()),
        }
    }

    fn text(&self) -> String {
        match self {
            Id::Text(text) => text.to_string(),
            Id::Uuid(bytes) => {
                let mut text = String::with_capacity(36);
                for (i, byte) in bytes.iter().enumerate() {
                    if matches!(i, 4 | 6 | 8 | 10) {
                        text.push('-');
                    }
                    text.push(char::from(HEX[usize::from(byte >> 4)]));
                    text.push(char::from(HEX[usize::from(byte & 15)]));
                }
                text
            }
        }
    }

    fn stored_len(&self) -> usize {
        match self {
            Id::Uuid(_) => 16,
            Id::Text(text) => 1 + encoded_len_varint(text.len() as u64) + text.len(),
        }
    }
}

pub(crate) mod export;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The bytes of a lower-case hyphenated UUID; `None` for any other text, so that the text can always be told back.
fn uuid_bytes(text: &[u8]) -> Option<[u8; 16]> {
    if text.len() != 36 {
        return None;
    }
    let mut bytes = [0u8; 16];
    let mut at = 0;
    for (i, byte) in bytes.iter_mut().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            if text[at] != b'-' {
                return None;
            }
            at += 1;
        }
        *byte = (nibble(text[at])? << 4) | nibble(text[at + 1])?;
        at += 2;
    }
    Some(bytes)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
