//! What the protocol tests have in common: data, and a driver of the whole pipeline on a simulated world.

use std::path::{Path, PathBuf};

pub mod account;
pub mod collector;
pub mod data;
pub mod pipeline;
pub mod splitting;

pub use account::account;
pub use data::{Shape, records};
pub use pipeline::{
    Feed, Order, Outputs, Pipeline, Redraw, Restart, Setup, assert_same, difference, reads, run_to_end, undisturbed,
};

/// The command `payguard` as it was built beside the running test.
///
/// # Panics
/// When it is not there.
#[must_use]
pub fn payguard() -> PathBuf {
    let test = std::env::current_exe().expect("this test's path");
    let path = test.parent().and_then(Path::parent).expect("target/<profile>/deps").join("payguard");
    assert!(path.exists(), "{} is missing: build it with `cargo build --release -p payguard`", path.display());
    path
}

/// The seeds to run: those of `SIM_SEEDS` (`17`, `3,17` or `0..500`), otherwise the first `count`.
///
/// # Panics
/// When `SIM_SEEDS` is something else.
#[must_use]
pub fn seeds(count: u64) -> Vec<u64> {
    let Ok(text) = std::env::var("SIM_SEEDS") else { return (0..count).collect() };
    let number = |part: &str| part.trim().parse::<u64>().expect("SIM_SEEDS is `17`, `3,17` or `0..500`");
    match text.split_once("..") {
        Some((from, to)) => (number(from)..number(to)).collect(),
        None => text.split(',').map(number).collect(),
    }
}
