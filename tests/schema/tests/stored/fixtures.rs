//! The file of bytes that were stored.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Where some bytes are within their case, and the bytes: `group/page` for a page, `-` for a message.
pub(crate) type Stored = Vec<(String, Vec<u8>)>;

/// What was stored, by name and version.
pub(crate) struct Recorded(BTreeMap<(String, u32), Stored>);

const HEADER: &str = "\
# Bytes that versions of PayGuard have stored: name, version, place (key group/page, or - for a message), bytes.
# Lines are added by `PAYGUARD_SCHEMA=write cargo test --release -p payguard-schema`, from the cases in
# tests/schema/tests/stored/cases.rs, and never changed. Version 1 of card-profile is from before it had a country:
# tests/schema/tests/stored/profile.rs has its code of then, and checks that it writes these bytes.
";

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/stored.txt")
}

impl Recorded {
    pub(crate) fn load() -> Recorded {
        let text = std::fs::read_to_string(path()).unwrap_or_default();
        let mut recorded: BTreeMap<_, Stored> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let &[name, version, place, bytes] = &*words else { panic!("`{line}` is not a line of fixtures") };
            let key = (name.to_owned(), version.parse().unwrap());
            recorded.entry(key).or_default().push((place.to_owned(), from_hex(bytes)));
        }
        Recorded(recorded)
    }

    /// The versions of a case, ascending.
    pub(crate) fn versions(&self, name: &str) -> Vec<(u32, &Stored)> {
        self.0.iter().filter(|((other, _), _)| other == name).map(|((_, version), stored)| (*version, stored)).collect()
    }

    /// Adds a version.
    pub(crate) fn add(&mut self, name: &str, stored: Stored) {
        let version = self.versions(name).last().map_or(1, |(newest, _)| newest + 1);
        self.0.insert((name.to_owned(), version), stored);
    }

    pub(crate) fn store(&self) {
        let mut text = HEADER.to_owned();
        for ((name, version), stored) in &self.0 {
            for (place, bytes) in stored {
                writeln!(text, "{name} {version} {place} {}", to_hex(bytes)).unwrap();
            }
        }
        std::fs::write(path(), text).unwrap();
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "a byte has two digits: {text}");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
