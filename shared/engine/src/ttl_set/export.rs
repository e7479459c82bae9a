//! Pages and deltas of a set of ids, id by id.

use payguard_model::ProcessingTime;
use prost::Message;

use super::{Id, Written, WrittenRuns, chunks, page_of};
use crate::export::{Change, Keys, Value};
use crate::logic::{DecodeError, PageBody};
use crate::page::Page;

/// The ids of one key group; of one that was written twice, the later time.
pub(crate) fn read_pages(pages: Vec<Page>) -> Result<Keys, DecodeError> {
    let mut keys = Keys::new();
    for page in pages {
        for_each_id(&page.body, |id, at| {
            let held = keys.entry(id).or_insert(Value::WrittenAt(at));
            if matches!(held, Value::WrittenAt(before) if *before < at) {
                *held = Value::WrittenAt(at);
            }
        })?;
    }
    Ok(keys)
}

/// The ids of a delta.
pub(crate) fn read_delta(delta: &[u8]) -> Result<Vec<Change>, DecodeError> {
    let mut changes = Vec::new();
    for_each_id(delta, |id, at| changes.push((id, Some(Value::WrittenAt(at)))))?;
    Ok(changes)
}

/// Bounded pages, the ids by the time they were written, so that pages expire one after the other.
pub(crate) fn lay_out(group: u32, keys: Keys, version: u64) -> Vec<PageBody> {
    let mut ids: Vec<(ProcessingTime, Id)> = keys
        .into_iter()
        .filter_map(|(id, value)| match value {
            Value::WrittenAt(at) => Some((at, Id::new(&id))),
            Value::State(_) => None,
        })
        .collect();
    ids.sort();
    if ids.is_empty() {
        return Vec::new();
    }
    chunks(&ids).into_iter().enumerate().map(|(chunk, ids)| page_of(group, version, chunk, ids)).collect()
}

fn for_each_id(bytes: &[u8], mut each: impl FnMut(String, ProcessingTime)) -> Result<(), DecodeError> {
    for Written { at_ms, uuids, texts } in WrittenRuns::decode(bytes)?.runs {
        let (uuids, rest) = uuids.as_chunks::<16>();
        if !rest.is_empty() {
            return Err(DecodeError("a run of ids is cut short".to_owned()));
        }
        let at = ProcessingTime(at_ms);
        uuids.iter().for_each(|uuid| each(Id::Uuid(*uuid).text(), at));
        texts.into_iter().for_each(|text| each(text, at));
    }
    Ok(())
}
