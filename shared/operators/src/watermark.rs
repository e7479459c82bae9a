//! How far event time has come (lesson 5): the generator of one source partition and the merge of several inputs.
//!
//! A watermark `T` says "no event at or before `T` is expected any more". It is a promise, not a filter: nothing is
//! dropped here. When a watermark is read, and what happens to an input that is silent, is the engine's business.
//!
//! All times are milliseconds of event time, idleness is milliseconds of processing time.

use payguard_model::EventTime;

/// How far behind the newest event of a partition an event may come and still be on time (10 s of event time).
pub const MAX_OUT_OF_ORDERNESS_MS: i64 = 10_000;

/// After this long without a record and without a backlog a partition no longer holds back time (1 min of processing
/// time).
pub const IDLE_AFTER_MS: i64 = 60_000;

/// The watermark of one source partition: the newest event time seen, less the bound of disorder.
///
/// # Ordering
///
/// A record meets the watermark made by the records before it: read [`watermark`](Self::watermark) first, then
/// [`observe`](Self::observe).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BoundedOutOfOrderness {
    max_event_time: Option<EventTime>,
}

impl BoundedOutOfOrderness {
    /// Continues from the newest event time of an earlier run; `None` when there was no event.
    #[must_use]
    pub fn restore(max_event_time: Option<EventTime>) -> BoundedOutOfOrderness {
        BoundedOutOfOrderness { max_event_time }
    }

    /// The newest event time so far: all there is to store.
    #[must_use]
    pub fn max_event_time(&self) -> Option<EventTime> {
        self.max_event_time
    }

    /// Takes note of an event; an older one changes nothing.
    pub fn observe(&mut self, event_time: EventTime) {
        self.max_event_time = self.max_event_time.max(Some(event_time));
    }

    /// Newest event time − 10,000 − 1, so that an event exactly 10 s behind is on time; [`EventTime::MIN`] before the
    /// first event.
    #[must_use]
    pub fn watermark(&self) -> EventTime {
        match self.max_event_time {
            Some(max) => max.minus(MAX_OUT_OF_ORDERNESS_MS).minus(1),
            None => EventTime::MIN,
        }
    }
}

/// Merges the watermarks of several inputs, each with its idle flag, into one watermark and idle flag.
///
/// The minimum over the active inputs; when all are idle the maximum over all of them, and the result is idle; without
/// inputs nothing is known: `(EventTime::MIN, false)`.
///
/// The result may be behind an earlier one when an idle input comes back with old events. Time does not go back: the
/// caller keeps the greater of the two, and those events are late.
#[must_use]
pub fn combine(inputs: impl IntoIterator<Item = (EventTime, bool)>) -> (EventTime, bool) {
    let mut slowest_active: Option<EventTime> = None;
    let mut newest_idle: Option<EventTime> = None;
    for (watermark, idle) in inputs {
        if idle {
            newest_idle = newest_idle.max(Some(watermark));
        } else {
            slowest_active = Some(slowest_active.map_or(watermark, |slowest| slowest.min(watermark)));
        }
    }
    match (slowest_active, newest_idle) {
        (Some(watermark), _) => (watermark, false),
        (None, Some(watermark)) => (watermark, true),
        (None, None) => (EventTime::MIN, false),
    }
}

#[cfg(test)]
mod tests;
