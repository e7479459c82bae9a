//! What the protocol tests have in common: data, and a driver of the whole pipeline on a simulated world.

use std::path::{Path, PathBuf};

pub mod account;
pub mod collector;
pub mod data;
pub mod feed;
pub mod outputs;
pub mod pipeline;
mod seeds;
pub mod setup;
pub mod splitting;

pub use account::account;
pub use data::{Shape, records};
pub use feed::{Feed, Order};
pub use outputs::{Outputs, assert_same, difference};
pub use pipeline::{Pipeline, Restart, interleaved, run_to_end, undisturbed};
pub use seeds::{Seeds, are_chosen, seeds};
pub use setup::{Redraw, Setup, reads};

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
