//! Totals of a merchant per minute in two phases (lesson 18), for a merchant too busy for one task.
//!
//! Phase 1 ([`SaltedStatsWindow`]) spreads a merchant over several keys by a salt taken from the payment id and totals
//! each; phase 2 ([`CombineParts`]) adds the parts up by merchant. A part is emitted when the watermark reaches the
//! last millisecond of the window, with that time as its event time; it reaches phase 2 before the watermark does, so
//! the parts of a window are all there when phase 2 fires.
//!
//! In the course a payment after the end of its window is not added: a part told again would be added twice. With
//! `late_updates` it is, as in the totals of one phase: a part is the whole total of its salt so far, and phase 2 puts
//! it in the place of the one before.

mod combine;

pub use combine::{CombineParts, CombinedWindow, CombinedWindows, LATE_PARTS, PartTotal};

use payguard_model::key_group::java_string_hash;
use payguard_model::{EventTime, MerchantPart, Payment};

use crate::merchant_stats::{LATE_FIRINGS, TOO_LATE};
use crate::minute_windows::{self, Added, MinuteWindows, WindowTotal, WindowTotals, max_timestamp};
use crate::{Context, KeyedOperator, TimerDomain};

/// How much further than the end of a window the watermark may be while late payments are still added to it, with
/// `late_updates`: as much as in the totals of one phase.
pub const ALLOWED_LATENESS_MS: i64 = crate::merchant_stats::ALLOWED_LATENESS_MS;

/// Between the merchant and the salt in a key of phase 1.
const SEPARATOR: char = '#';

/// The salt of a payment: always the same for an id, evenly spread, from 0 up to `salts`, exclusive.
///
/// No or one salt means no salting: then it is 0.
#[must_use]
pub fn salt_of(payment_id: &str, salts: u32) -> u32 {
    // Java's `floorMod`: a plain remainder would be negative for half of the ids.
    let salt = i64::from(java_string_hash(payment_id)).rem_euclid(i64::from(salts.max(1)));
    u32::try_from(salt).unwrap_or_default() // below `salts`
}

/// The key of phase 1: `<merchant>#<salt>`.
#[must_use]
pub fn salted_key(merchant_id: &str, salt: u32) -> String {
    format!("{merchant_id}{SEPARATOR}{salt}")
}

/// What phase 1 emits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// The total so far of one merchant, salt and window; its event time is the last millisecond of the window.
    Part(MerchantPart),
    /// A payment that no window accepted (topic `payments.late`).
    TooLate(Payment),
}

/// Phase 1, keyed by [`salted_key`]. Counters as those of the totals of one phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SaltedStatsWindow {
    /// Whether payments up to a minute late change the totals; otherwise they are too late.
    pub late_updates: bool,
}

impl KeyedOperator for SaltedStatsWindow {
    type Event = Payment;
    type State = WindowTotals;
    type Output = Output;

    const ID: &'static str = "merchant-stats-salted";

    fn on_event(&self, key: &str, payment: &Payment, state: &mut WindowTotals, ctx: &mut dyn Context<Output>) {
        match windows(self.late_updates).add(payment, state, ctx) {
            Added::Counted => {}
            Added::Again(window) => {
                ctx.count(LATE_FIRINGS, 1);
                fire(key, window, ctx);
            }
            Added::TooLate => {
                ctx.count(TOO_LATE, 1);
                ctx.emit(EventTime(payment.event_time_ms), Output::TooLate(payment.clone()));
            }
        }
    }

    fn on_timer(
        &self,
        key: &str,
        _domain: TimerDomain,
        time: i64,
        state: &mut WindowTotals,
        ctx: &mut dyn Context<Output>,
    ) {
        windows(self.late_updates).on_timer(EventTime(time), state, |window| fire(key, window, ctx));
    }
}

fn windows(late_updates: bool) -> MinuteWindows {
    MinuteWindows { lateness_ms: if late_updates { ALLOWED_LATENESS_MS } else { 0 } }
}

fn fire(key: &str, window: &WindowTotal, ctx: &mut dyn Context<Output>) {
    let (merchant_id, salt) = split_key(key);
    let part = MerchantPart {
        merchant_id: merchant_id.to_owned(),
        salt,
        window_start_ms: minute_windows::window_start(window.index),
        window_end_ms: minute_windows::window_end(window.index),
        payment_count: window.payment_count,
        amount_minor: window.amount_minor,
    };
    ctx.emit(max_timestamp(window.index), Output::Part(part));
}

/// Merchant and salt of a key made by [`salted_key`]; a merchant id may hold the separator itself.
fn split_key(key: &str) -> (&str, u32) {
    let split = key.rsplit_once(SEPARATOR);
    split.and_then(|(merchant, salt)| Some((merchant, salt.parse().ok()?))).unwrap_or((key, 0))
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
