//! How busy a task is.

use payguard_model::ProcessingTime;

use super::{BUSY_MS, WAITED_MS};

/// Time spent and time waited since the last commit: told with the next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    busy_ms: i64,
    waited_ms: i64,
    rested_at: ProcessingTime,
}

impl Load {
    /// Nothing yet; waiting begins now.
    pub(super) fn since(now: ProcessingTime) -> Load {
        Load { busy_ms: 0, waited_ms: 0, rested_at: now }
    }

    /// A commit has told it all.
    pub(super) fn told(&mut self) {
        *self = Load::since(self.rested_at);
    }

    /// Takes a batch in that began at `began` and ended at `ended`.
    pub(super) fn worked(&mut self, began: ProcessingTime, ended: ProcessingTime) {
        self.waited_ms += began.since(self.rested_at);
        self.busy_ms += ended.since(began);
        self.rested_at = ended;
    }

    /// The counters for a commit.
    pub(super) fn counters(&self) -> impl Iterator<Item = (String, u64)> {
        let counts = [(BUSY_MS, self.busy_ms), (WAITED_MS, self.waited_ms)];
        counts
            .into_iter()
            .filter_map(|(name, ms)| Some((name.to_owned(), u64::try_from(ms).ok().filter(|ms| *ms > 0)?)))
    }
}
