//! Totals of a merchant per minute (lesson 6): tumbling windows of event time with one minute of allowed lateness.
//!
//! Key: merchant id. A window `[start, start + 60,000)` is emitted when the watermark reaches its last millisecond, and
//! again, whole, at once with every payment that comes later; the last emission of a (merchant, window) is right, so a
//! consumer overwrites. When the watermark is 60,000 ms further the window is forgotten, and a payment that belonged
//! to it goes out as [`Output::TooLate`]. Payments are never stored, only their number and sum.
//!
//! INV: a window is kept exactly as long as its cleanup timer is set. Both timers of a window are therefore registered
//! when it is new.

use payguard_model::{EventTime, MerchantStats, Payment};

use crate::{Context, KeyedOperator, TimerDomain};

/// Length of a window: one minute of event time, aligned to the epoch.
pub const WINDOW_SIZE_MS: i64 = 60_000;

/// How much further than the end of a window the watermark may be while late payments are still added to it.
pub const ALLOWED_LATENESS_MS: i64 = 60_000;

/// Counter of payments that no window accepted, each of which is emitted as [`Output::TooLate`].
pub const TOO_LATE: &str = "too_late";

/// Counter of emissions that repeat the total of a window because of a late payment.
pub const LATE_FIRINGS: &str = "late_firings";

/// What the operator emits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// The total of a window so far; its event time is the last millisecond of the window.
    Stats(MerchantStats),
    /// A payment that no window accepted (topic `payments.late`).
    TooLate(Payment),
}

/// The total of one window that may still change.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct WindowTotal {
    /// Number of the window, counted from the epoch.
    #[prost(int64, tag = "1")]
    index: i64,
    /// Payments so far.
    #[prost(int64, tag = "2")]
    payment_count: i64,
    /// Their sum in minor units.
    #[prost(int64, tag = "3")]
    amount_minor: i64,
}

/// The windows of one merchant, ascending by time; seldom more than three.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MerchantState {
    /// The windows.
    #[prost(message, repeated, tag = "1")]
    windows: Vec<WindowTotal>,
}

/// The operator.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MerchantStatsWindow;

impl KeyedOperator for MerchantStatsWindow {
    type Event = Payment;
    type State = MerchantState;
    type Output = Output;

    const ID: &'static str = "merchant-stats-1m";

    fn on_event(&self, merchant: &str, payment: &Payment, state: &mut MerchantState, ctx: &mut dyn Context<Output>) {
        let t = EventTime(payment.event_time_ms);
        let index = t.0.div_euclid(WINDOW_SIZE_MS);
        let watermark = ctx.watermark();
        if cleanup_time(index) <= watermark {
            ctx.count(TOO_LATE, 1);
            ctx.emit(t, Output::TooLate(payment.clone()));
            return;
        }
        let is_over = max_timestamp(index) <= watermark;
        let at = state.windows.binary_search_by_key(&index, |window| window.index).unwrap_or_else(|at| {
            state.windows.insert(at, WindowTotal { index, payment_count: 0, amount_minor: 0 });
            if !is_over {
                ctx.register_timer(TimerDomain::EventTime, max_timestamp(index).0);
            }
            ctx.register_timer(TimerDomain::EventTime, cleanup_time(index).0);
            at
        });
        let window = &mut state.windows[at];
        window.payment_count = window.payment_count.saturating_add(1);
        window.amount_minor = window.amount_minor.saturating_add(payment.amount_minor);
        if is_over {
            ctx.count(LATE_FIRINGS, 1);
            fire(merchant, window, ctx);
        }
    }

    /// One timer may be due for two windows: the last millisecond of a window is the cleanup time of the one before.
    ///
    /// A window that was over when its first payment came is not fired again: were its last millisecond the cleanup
    /// time of a window that still waits, it would not be over.
    fn on_timer(
        &self,
        merchant: &str,
        _domain: TimerDomain,
        time: i64,
        state: &mut MerchantState,
        ctx: &mut dyn Context<Output>,
    ) {
        let time = EventTime(time);
        for window in state.windows.iter().filter(|window| max_timestamp(window.index) == time) {
            fire(merchant, window, ctx);
        }
        state.windows.retain(|window| cleanup_time(window.index) > time);
    }
}

fn fire(merchant: &str, window: &WindowTotal, ctx: &mut dyn Context<Output>) {
    let stats = MerchantStats {
        merchant_id: merchant.to_owned(),
        window_start_ms: window_start(window.index),
        window_end_ms: window_start(window.index.saturating_add(1)),
        payment_count: window.payment_count,
        amount_minor: window.amount_minor,
    };
    ctx.emit(max_timestamp(window.index), Output::Stats(stats));
}

fn window_start(index: i64) -> i64 {
    index.saturating_mul(WINDOW_SIZE_MS)
}

/// The last millisecond of a window: when the watermark reaches it, the window is over.
fn max_timestamp(index: i64) -> EventTime {
    // The last window has its end outside the scale, but its events on it: it is over at the end of the scale.
    match index.checked_add(1).and_then(|next| next.checked_mul(WINDOW_SIZE_MS)) {
        Some(end) => EventTime(end).minus(1),
        None => EventTime::MAX,
    }
}

/// When the watermark reaches this time, the window is forgotten.
fn cleanup_time(index: i64) -> EventTime {
    max_timestamp(index).plus(ALLOWED_LATENESS_MS)
}

#[cfg(test)]
mod tests;
