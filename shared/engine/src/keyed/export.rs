//! Pages and deltas of keyed state, key by key.

use std::collections::BTreeMap;

use prost::Message;

use super::entry::{Entries, Entry, timers, to_steps};
use super::{MAX_DEPTH, page_name, parse_page_name, prefix};
use crate::export::{Change, Held, Keys, Value};
use crate::logic::{DecodeError, PageBody};
use crate::page::Page;

/// The keys of one operator and key group: pages by ascending version, each replacing its range.
pub(crate) fn read_pages(pages: Vec<Page>) -> Result<Keys, DecodeError> {
    let mut placed = Vec::with_capacity(pages.len());
    for page in pages {
        let (depth, range) = parse_page_name(&page.address.page)?;
        placed.push((page.version, depth, range, page));
    }
    placed.sort_by_key(|(version, depth, range, _)| (*version, *depth, *range));
    let same_depth = placed.windows(2).all(|pair| pair[0].1 == pair[1].1);
    let mut keys = Keys::new();
    for (_, depth, range, page) in placed {
        if !same_depth {
            keys.retain(|key, _| prefix(key, depth) != range);
        }
        for entry in Entries::decode(page.body)?.entries {
            if let (key, Some(value)) = change(entry) {
                keys.insert(key, value);
            }
        }
    }
    Ok(keys)
}

/// The changes of a delta.
pub(crate) fn read_delta(delta: &[u8]) -> Result<Vec<Change>, DecodeError> {
    Ok(Entries::decode(delta)?.entries.into_iter().map(change).collect())
}

/// Pages of the smallest depth at which none is too large, as flushing would end up with.
pub(crate) fn lay_out(group: u32, keys: Keys) -> Vec<PageBody> {
    let mut depth = 0;
    let mut pages: BTreeMap<u32, Entries> = BTreeMap::new();
    pages.insert(0, Entries { entries: keys.into_iter().filter_map(entry).collect() });
    while depth < MAX_DEPTH && pages.values().any(Entries::is_too_large) {
        depth += 1;
        for entry in std::mem::take(&mut pages).into_values().flat_map(|page| page.entries) {
            pages.entry(prefix(&entry.key, depth)).or_default().entries.push(entry);
        }
    }
    let body = |(range, page): (u32, Entries)| PageBody {
        group,
        page: page_name(depth, range),
        body: page.encode_to_vec(),
        expires_at_s: None,
    };
    pages.into_iter().filter(|(_, page)| !page.entries.is_empty()).map(body).collect()
}

fn change(entry: Entry) -> Change {
    let value = entry.state.map(|state| {
        let timers = timers(&entry.event_timers, &entry.processing_timers);
        let (event_timers, processing_timers) = (timers.event.to_vec(), timers.processing.to_vec());
        Value::State(Held { state, event_timers, processing_timers })
    });
    (entry.key, value)
}

fn entry((key, value): (String, Value)) -> Option<Entry> {
    let Value::State(held) = value else { return None };
    Some(Entry {
        key,
        state: Some(held.state),
        event_timers: to_steps(&held.event_timers),
        processing_timers: to_steps(&held.processing_timers),
    })
}
