//! What a test has reached: runs, seeds, and operations by kind and fault.
//!
//! Every test runs on a thread of its own. When that ends, its counts are appended to the file that `SIM_COVERAGE`
//! names, a line each: test, operation, fault (`-` for none), count; and `runs` and `seeds` in place of an operation.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;

use crate::faults::{Fault, OpKind};

thread_local! {
    static REACHED: RefCell<Reached> = RefCell::new(Reached::new());
}

struct Reached {
    test: String,
    /// Where the counts go; without it nothing is counted.
    file: Option<PathBuf>,
    runs: u64,
    seeds: u64,
    operations: BTreeMap<(OpKind, &'static str), u64>,
}

impl Reached {
    fn new() -> Reached {
        let file = std::env::var_os("SIM_COVERAGE").map(PathBuf::from);
        Reached { test: this_test(), file, runs: 0, seeds: 0, operations: BTreeMap::new() }
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        let mut lines = String::new();
        let counts = [("runs".to_owned(), "-", self.runs), ("seeds".to_owned(), "-", self.seeds)];
        let operations = self.operations.iter().map(|((kind, fault), count)| (format!("{kind:?}"), *fault, *count));
        for (what, fault, count) in counts.into_iter().chain(operations) {
            let _ = writeln!(lines, "{}\t{what}\t{fault}\t{count}", self.test);
        }
        let written = OpenOptions::new().create(true).append(true).open(file).and_then(|mut to| {
            // In one piece, so that tests do not write into each other's lines.
            to.write_all(lines.as_bytes())
        });
        if let Err(error) = written {
            eprintln!("SIM_COVERAGE: {}: {error}", file.display());
        }
    }
}

/// The running test, `binary::test`.
#[must_use]
pub fn this_test() -> String {
    let binary = std::env::current_exe().ok();
    let stem = binary.as_deref().and_then(|path| path.file_stem()).and_then(|stem| stem.to_str()).unwrap_or("test");
    let name = stem.rsplit_once('-').map_or(stem, |(name, _hash)| name);
    let thread = std::thread::current();
    format!("{name}::{}", thread.name().unwrap_or("?"))
}

/// Counts a seed.
pub fn seed() {
    count(|reached| reached.seeds += 1);
}

pub(crate) fn run() {
    count(|reached| reached.runs += 1);
}

pub(crate) fn operation(kind: OpKind, fault: Option<Fault>) {
    count(|reached| *reached.operations.entry((kind, fault.map_or("-", Fault::name))).or_default() += 1);
}

fn count(add: impl FnOnce(&mut Reached)) {
    REACHED.with_borrow_mut(|reached| {
        if reached.file.is_some() {
            add(reached);
        }
    });
}
