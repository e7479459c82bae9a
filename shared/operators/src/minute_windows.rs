//! Tumbling windows of one minute of event time with a count and a sum, aligned to the epoch (lessons 6 and 18).
//!
//! They own when a window accepts a payment, when it is over and when it is forgotten; what is then emitted is the
//! operator's. Payments are never stored, only their number and sum.
//!
//! INV: a window is kept exactly as long as its cleanup timer is set. Both timers of a window are therefore registered
//! when it is new.

use payguard_model::{EventTime, Payment};
use serde::{Serialize, Serializer};

use crate::{Context, TimerDomain};

/// Length of a window.
pub(crate) const WINDOW_SIZE_MS: i64 = 60_000;

/// The total of one window that may still change.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WindowTotal {
    /// Number of the window, counted from the epoch.
    #[prost(int64, tag = "1")]
    #[serde(rename = "windowStartMs", serialize_with = "as_window_start")]
    pub(crate) index: i64,
    /// Payments so far.
    #[prost(int64, tag = "2")]
    pub(crate) payment_count: i64,
    /// Their sum in minor units.
    #[prost(int64, tag = "3")]
    pub(crate) amount_minor: i64,
}

/// The windows of one key, ascending by time; seldom more than three.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WindowTotals {
    /// The windows.
    #[prost(message, repeated, tag = "1")]
    windows: Vec<WindowTotal>,
}

/// Windows that are kept for `lateness_ms` after they are over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinuteWindows {
    /// How much further than the end of a window the watermark may be while late payments are still added to it; 0 for
    /// not at all.
    pub(crate) lateness_ms: i64,
}

/// What became of a payment.
pub(crate) enum Added<'a> {
    /// No window accepts it any more.
    TooLate,
    /// It is in a window that is not over.
    Counted,
    /// It is in a window that is over: the total has to be told again.
    Again(&'a WindowTotal),
}

impl MinuteWindows {
    /// Adds a payment to its window.
    pub(crate) fn add<'a, Out>(
        self,
        payment: &Payment,
        state: &'a mut WindowTotals,
        ctx: &mut dyn Context<Out>,
    ) -> Added<'a> {
        let index = index_of(EventTime(payment.event_time_ms));
        let watermark = ctx.watermark();
        if self.cleanup_time(index) <= watermark {
            return Added::TooLate;
        }
        let is_over = max_timestamp(index) <= watermark;
        let at = state.windows.binary_search_by_key(&index, |window| window.index).unwrap_or_else(|at| {
            state.windows.insert(at, WindowTotal { index, payment_count: 0, amount_minor: 0 });
            if !is_over {
                ctx.register_timer(TimerDomain::EventTime, max_timestamp(index).0);
            }
            ctx.register_timer(TimerDomain::EventTime, self.cleanup_time(index).0);
            at
        });
        let window = &mut state.windows[at];
        window.payment_count = window.payment_count.saturating_add(1);
        window.amount_minor = window.amount_minor.saturating_add(payment.amount_minor);
        if is_over { Added::Again(window) } else { Added::Counted }
    }

    /// Calls `fire` for the window that is over at `time`, then forgets those whose cleanup time it is.
    ///
    /// One timer may be due for two windows: with a minute of lateness the last millisecond of a window is the cleanup
    /// time of the one before. A window that was over when its first payment came is not fired again: were its last
    /// millisecond the cleanup time of a window that still waits, it would not be over.
    pub(crate) fn on_timer(self, time: EventTime, state: &mut WindowTotals, fire: impl FnMut(&WindowTotal)) {
        state.windows.iter().filter(|window| max_timestamp(window.index) == time).for_each(fire);
        state.windows.retain(|window| self.cleanup_time(window.index) > time);
    }

    /// When the watermark reaches this time, the window is forgotten.
    pub(crate) fn cleanup_time(self, index: i64) -> EventTime {
        max_timestamp(index).plus(self.lateness_ms)
    }
}

/// The number of the window of `t`.
pub(crate) fn index_of(t: EventTime) -> i64 {
    t.0.div_euclid(WINDOW_SIZE_MS)
}

/// Start of a window, inclusive; also the end, exclusive, of the one before.
pub(crate) fn window_start(index: i64) -> i64 {
    index.saturating_mul(WINDOW_SIZE_MS)
}

/// Writes the number of a window as its start.
pub(crate) fn as_window_start<S: Serializer>(index: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(window_start(*index))
}

/// End of a window, exclusive; stops at the end of the scale.
pub(crate) fn window_end(index: i64) -> i64 {
    window_start(index.saturating_add(1))
}

/// The last millisecond of a window: when the watermark reaches it, the window is over.
pub(crate) fn max_timestamp(index: i64) -> EventTime {
    // The last window has its end outside the scale, but its events on it: it is over at the end of the scale.
    match index.checked_add(1).and_then(|next| next.checked_mul(WINDOW_SIZE_MS)) {
        Some(end) => EventTime(end).minus(1),
        None => EventTime::MAX,
    }
}
