//! Phase 2: the parts of a merchant's minute as one total.

use payguard_model::{EventTime, MerchantPart, MerchantStats};
use serde::Serialize;

use super::windows;
use crate::merchant_stats::LATE_FIRINGS;
use crate::minute_windows::{as_window_start, index_of, max_timestamp, window_end, window_start};
use crate::{Context, KeyedOperator, TimerDomain};

/// Counter of parts dropped because their window was forgotten. It stays 0 when the watermark follows the parts.
pub const LATE_PARTS: &str = "late_parts";

/// The latest part of one salt.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PartTotal {
    /// The salt.
    #[prost(uint32, tag = "1")]
    salt: u32,
    /// Payments in the part.
    #[prost(int64, tag = "2")]
    payment_count: i64,
    /// Their sum in minor units.
    #[prost(int64, tag = "3")]
    amount_minor: i64,
}

/// The parts of one window.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CombinedWindow {
    /// Number of the window, counted from the epoch.
    #[prost(int64, tag = "1")]
    #[serde(rename = "windowStartMs", serialize_with = "as_window_start")]
    index: i64,
    /// The parts, ascending by salt.
    #[prost(message, repeated, tag = "2")]
    parts: Vec<PartTotal>,
}

/// The windows of one merchant, ascending by time; seldom more than three.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CombinedWindows {
    /// The windows.
    #[prost(message, repeated, tag = "1")]
    windows: Vec<CombinedWindow>,
}

/// Phase 2, keyed by merchant.
///
/// A window is emitted when the watermark reaches its last millisecond; with `late_updates` it is then kept for a
/// minute and emitted again, whole, with every part that comes.
///
/// INV: a window is kept exactly as long as its cleanup timer is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CombineParts {
    /// As in phase 1.
    pub late_updates: bool,
}

impl KeyedOperator for CombineParts {
    type Event = MerchantPart;
    type State = CombinedWindows;
    type Output = MerchantStats;

    const ID: &'static str = "merchant-stats-total";

    fn on_event(
        &self,
        merchant: &str,
        part: &MerchantPart,
        state: &mut CombinedWindows,
        ctx: &mut dyn Context<MerchantStats>,
    ) {
        let index = index_of(EventTime(part.window_start_ms));
        let cleanup_time = windows(self.late_updates).cleanup_time(index);
        let watermark = ctx.watermark();
        if cleanup_time <= watermark {
            ctx.count(LATE_PARTS, 1);
            return;
        }
        let is_over = max_timestamp(index) <= watermark;
        let at = state.windows.binary_search_by_key(&index, |window| window.index).unwrap_or_else(|at| {
            state.windows.insert(at, CombinedWindow { index, parts: Vec::new() });
            if !is_over {
                ctx.register_timer(TimerDomain::EventTime, max_timestamp(index).0);
            }
            ctx.register_timer(TimerDomain::EventTime, cleanup_time.0);
            at
        });
        state.windows[at].put(part);
        if is_over {
            ctx.count(LATE_FIRINGS, 1);
            state.windows[at].fire(merchant, ctx);
        }
    }

    fn on_timer(
        &self,
        merchant: &str,
        _domain: TimerDomain,
        time: i64,
        state: &mut CombinedWindows,
        ctx: &mut dyn Context<MerchantStats>,
    ) {
        let time = EventTime(time);
        for window in state.windows.iter().filter(|window| max_timestamp(window.index) == time) {
            window.fire(merchant, ctx);
        }
        state.windows.retain(|window| windows(self.late_updates).cleanup_time(window.index) > time);
    }
}

impl CombinedWindow {
    /// Puts a part in the place of the one before with its salt.
    fn put(&mut self, part: &MerchantPart) {
        let MerchantPart { salt, payment_count, amount_minor, .. } = *part;
        let total = PartTotal { salt, payment_count, amount_minor };
        match self.parts.binary_search_by_key(&salt, |part| part.salt) {
            Ok(at) => self.parts[at] = total,
            Err(at) => self.parts.insert(at, total),
        }
    }

    fn fire(&self, merchant: &str, ctx: &mut dyn Context<MerchantStats>) {
        let sum = |value: fn(&PartTotal) -> i64| self.parts.iter().map(value).fold(0, i64::saturating_add);
        let stats = MerchantStats {
            merchant_id: merchant.to_owned(),
            window_start_ms: window_start(self.index),
            window_end_ms: window_end(self.index),
            payment_count: sum(|part| part.payment_count),
            amount_minor: sum(|part| part.amount_minor),
        };
        ctx.emit(max_timestamp(self.index), stats);
    }
}
