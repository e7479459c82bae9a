//! The seeds of a test, and which of them failed.

use payguard_sim::coverage::{self, this_test};

const CHOICE: &str = "SIM_SEEDS";

/// Seeds, one after the other. When the test fails at one, it is told with the command that runs it alone.
pub struct Seeds {
    rest: std::vec::IntoIter<u64>,
    current: Option<u64>,
}

/// The seeds to run: those of `SIM_SEEDS` (`17`, `3,17` or `0..500`), otherwise the first `count`.
///
/// # Panics
/// When `SIM_SEEDS` is something else.
#[must_use]
pub fn seeds(count: u64) -> Seeds {
    let number = |part: &str| part.trim().parse::<u64>().expect("SIM_SEEDS is `17`, `3,17` or `0..500`");
    let seeds: Vec<u64> = match std::env::var(CHOICE) {
        Err(_) => (0..count).collect(),
        Ok(text) => match text.split_once("..") {
            Some((from, to)) => (number(from)..number(to)).collect(),
            None => text.split(',').map(number).collect(),
        },
    };
    Seeds { rest: seeds.into_iter(), current: None }
}

/// Whether somebody has chosen the seeds: then a test cannot expect that they show everything it is about.
#[must_use]
pub fn are_chosen() -> bool {
    std::env::var_os(CHOICE).is_some()
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.current = self.rest.next();
        if self.current.is_some() {
            coverage::seed();
        }
        self.current
    }
}

impl Drop for Seeds {
    fn drop(&mut self) {
        if let Some(seed) = self.current.filter(|_| std::thread::panicking()) {
            let test = this_test();
            let (binary, name) = test.split_once("::").unwrap_or((&test, ""));
            println!(
                "failed with seed {seed}; to run it alone, told operation by operation:\n  {CHOICE}={seed} SIM_TRACE=1 \
                 cargo test --release -p payguard-tests --test {binary} {name} -- --exact --nocapture"
            );
        }
    }
}
