//! A run told operation by operation: as it happens with `SIM_TRACE=1`, or with `SIM_TRACE=failed` at the end of those
//! runs that were going on when a test failed.

use std::sync::OnceLock;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Never,
    AsItHappens,
    OfFailures,
}

fn told() -> Told {
    static TOLD: OnceLock<Told> = OnceLock::new();
    *TOLD.get_or_init(|| match std::env::var("SIM_TRACE").as_deref() {
        Err(_) | Ok("" | "0") => Told::Never,
        Ok("failed") => Told::OfFailures,
        Ok(_) => Told::AsItHappens,
    })
}

/// What is kept of one run.
#[derive(Default)]
pub(crate) struct Story(Vec<String>);

impl Story {
    /// Adds a line, which is made only when it is wanted.
    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        match told() {
            Told::Never => {}
            Told::AsItHappens => println!("{}", line()),
            Told::OfFailures => self.0.push(line()),
        }
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        if !self.0.is_empty() && std::thread::panicking() {
            println!("== a run of {} operations\n{}", self.0.len(), self.0.join("\n"));
        }
    }
}
