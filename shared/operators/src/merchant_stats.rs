//! Totals of a merchant per minute (lesson 6): tumbling windows of event time with one minute of allowed lateness.
//!
//! Key: merchant id. A window `[start, start + 60,000)` is emitted when the watermark reaches its last millisecond, and
//! again, whole, at once with every payment that comes later; the last emission of a (merchant, window) is right, so a
//! consumer overwrites. When the watermark is 60,000 ms further the window is forgotten, and a payment that belonged
//! to it goes out as [`Output::TooLate`]. Payments are never stored, only their number and sum.

use payguard_model::{EventTime, MerchantStats, Payment};

use crate::minute_windows::{self, Added, MinuteWindows, WindowTotal, WindowTotals, max_timestamp};
use crate::{Context, KeyedOperator, TimerDomain};

/// Length of a window: one minute of event time, aligned to the epoch.
pub const WINDOW_SIZE_MS: i64 = minute_windows::WINDOW_SIZE_MS;

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

const WINDOWS: MinuteWindows = MinuteWindows { lateness_ms: ALLOWED_LATENESS_MS };

/// The operator.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MerchantStatsWindow;

impl KeyedOperator for MerchantStatsWindow {
    type Event = Payment;
    type State = WindowTotals;
    type Output = Output;

    const ID: &'static str = "merchant-stats-1m";

    fn on_event(&self, merchant: &str, payment: &Payment, state: &mut WindowTotals, ctx: &mut dyn Context<Output>) {
        match WINDOWS.add(payment, state, ctx) {
            Added::Counted => {}
            Added::Again(window) => {
                ctx.count(LATE_FIRINGS, 1);
                fire(merchant, window, ctx);
            }
            Added::TooLate => {
                ctx.count(TOO_LATE, 1);
                ctx.emit(EventTime(payment.event_time_ms), Output::TooLate(payment.clone()));
            }
        }
    }

    fn on_timer(
        &self,
        merchant: &str,
        _domain: TimerDomain,
        time: i64,
        state: &mut WindowTotals,
        ctx: &mut dyn Context<Output>,
    ) {
        WINDOWS.on_timer(EventTime(time), state, |window| fire(merchant, window, ctx));
    }
}

fn fire(merchant: &str, window: &WindowTotal, ctx: &mut dyn Context<Output>) {
    let stats = MerchantStats {
        merchant_id: merchant.to_owned(),
        window_start_ms: minute_windows::window_start(window.index),
        window_end_ms: minute_windows::window_end(window.index),
        payment_count: window.payment_count,
        amount_minor: window.amount_minor,
    };
    ctx.emit(max_timestamp(window.index), Output::Stats(stats));
}

#[cfg(test)]
mod tests;
