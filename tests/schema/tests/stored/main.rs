//! What was stored once is read by today's code, and today's code stores what is recorded.
//!
//! `fixtures/stored.txt` has the bytes of every durable message and state in every version so far. A line is never
//! changed; when the bytes of something change, a new version is added to the old ones, which must still be read.
#![allow(clippy::unwrap_used)]

mod cases;
mod fixtures;
mod profile;
mod savepoint;

use std::collections::BTreeSet;
use std::path::Path;

use payguard_schema::{IdKind, Schema};

use crate::cases::cases;
use crate::fixtures::Recorded;

const WRITE: &str = "PAYGUARD_SCHEMA=write cargo test --release -p payguard-schema";

#[test]
fn what_is_stored_is_recorded_and_every_version_of_it_is_read() {
    let mut recorded = Recorded::load();
    let is_writing = std::env::var("PAYGUARD_SCHEMA").is_ok_and(|mode| mode == "write");
    for case in cases() {
        for (version, stored) in recorded.versions(case.name) {
            (case.read)(version, stored);
        }
        if recorded.versions(case.name).last().is_none_or(|(_, stored)| **stored != case.written) {
            let changed = "is stored in another form than before, or for the first time";
            assert!(is_writing, "{} {changed}; run `{WRITE}`, which adds it to the fixtures", case.name);
            recorded.add(case.name, case.written);
        }
    }
    if is_writing {
        recorded.store();
    }
}

#[test]
fn every_message_and_state_of_the_lock_is_among_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema.lock");
    let lock: Schema = std::fs::read_to_string(path).unwrap().parse().unwrap();
    let cases = cases();
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
    let states = lock.ids.iter().filter(|id| id.kind == IdKind::State);
    let missing: Vec<_> = states.filter(|id| !names.contains(&*id.name)).collect();
    assert!(missing.is_empty(), "there is no case in `cases` for {missing:?}");

    let mut covered: BTreeSet<String> = cases.iter().flat_map(|case| case.messages.clone()).collect();
    loop {
        let fields = lock.messages.iter().filter(|(name, _)| covered.contains(last(name)));
        let kinds = fields.flat_map(|(_, message)| message.fields.values().map(|field| &*field.kind));
        let words = kinds.flat_map(|kind| kind.split([' ', '<', '>', ',']));
        let more: Vec<String> = words.filter(|word| !covered.contains(*word)).map(str::to_owned).collect();
        if more.is_empty() {
            break;
        }
        covered.extend(more);
    }
    let missing: Vec<_> = lock.messages.keys().filter(|name| !covered.contains(last(name))).collect();
    assert!(missing.is_empty(), "there is no case in `cases` that stores {missing:?}");
}

fn last(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}
