//! The lateness probe (lesson 5): how many events come behind the watermark, and how far behind.
//!
//! It owns two measurements and drops nothing: the event goes on whatever is measured. It stands before
//! deduplication, so repeats count too. The numbers choose the bound of disorder: new bound = old bound + p99.

use std::collections::VecDeque;

use payguard_model::EventTime;

/// How many of the latest values the percentiles are taken over.
pub const RESERVOIR_SIZE: usize = 10_000;

/// Milliseconds an event is behind the watermark; `None` when it is on time.
///
/// An event exactly at the watermark is late by 0 ms.
#[must_use]
pub fn behind_watermark_ms(event_time: EventTime, watermark: EventTime) -> Option<i64> {
    (event_time <= watermark).then(|| watermark.0.saturating_sub(event_time.0))
}

/// Counter `late_events` and the distribution of `behind_watermark_ms` over the last 10,000 late events.
#[derive(Clone, Default, Debug)]
pub struct LatenessProbe {
    late_events: u64,
    latest: VecDeque<i64>,
}

impl LatenessProbe {
    /// Measures one event against the watermark it met; returns how late it is, `None` when on time.
    pub fn observe(&mut self, event_time: EventTime, watermark: EventTime) -> Option<i64> {
        let behind = behind_watermark_ms(event_time, watermark)?;
        self.late_events = self.late_events.saturating_add(1);
        if self.latest.len() == RESERVOIR_SIZE {
            self.latest.pop_front();
        }
        self.latest.push_back(behind);
        Some(behind)
    }

    /// Late events since the probe was made.
    #[must_use]
    pub fn late_events(&self) -> u64 {
        self.late_events
    }

    /// The `p`-th percentile (0 to 100) of milliseconds behind the watermark; `None` while nothing was late.
    ///
    /// Exact over the kept values, with the interpolation of the reference system: position `p / 100 × (n + 1)` in the
    /// sorted values, between two of them linearly. Sorts a copy: for reports, not for every event.
    #[must_use]
    pub fn percentile(&self, p: f64) -> Option<f64> {
        let mut sorted: Vec<i64> = self.latest.iter().copied().collect();
        sorted.sort_unstable();
        let (&least, &greatest) = (sorted.first()?, sorted.last()?);
        let position = p / 100.0 * (sorted.len() as f64 + 1.0);
        if position < 1.0 {
            return Some(least as f64);
        }
        if position >= sorted.len() as f64 {
            return Some(greatest as f64);
        }
        let below = position.floor();
        let at = below as usize;
        let (lower, upper) = (sorted[at - 1] as f64, sorted[at] as f64);
        Some(lower + (position - below) * (upper - lower))
    }
}

#[cfg(test)]
mod tests;
