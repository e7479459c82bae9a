//! The amount rule (lesson 7): too much money spent by one card within ten minutes.
//!
//! Key: card id. The algorithm is that of the velocity rule with other constants and the amount in place of 1. Buckets
//! of a minute make the ten minutes float between 10 and 11; at most one alert per card per ten minutes of event time.

use payguard_model::{EventTime, FraudAlert, Payment};

use crate::bucket_rule::BucketRule;
use crate::buckets::BucketSize;
use crate::detail::DetailLanguage;
use crate::{Context, KeyedOperator, RuleState, TimerDomain};

/// Id of the rule in its alerts.
pub const RULE_ID: &str = "amount-spike";

/// The window, and the silence after an alert: ten minutes of event time.
pub const WINDOW_MS: i64 = 600_000;

/// The length of a bucket: one minute of event time.
pub const BUCKET_MS: i64 = 60_000;

/// Minor units within the window that are still allowed, unless configured otherwise.
pub const DEFAULT_LIMIT_MINOR: i64 = 2_000_000;

const RULE: BucketRule = BucketRule { window_ms: WINDOW_MS, bucket: BucketSize::from_ms(BUCKET_MS) };

/// Alerts when a card spends more than `limit` within ten minutes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AmountSpikeRule {
    /// Minor units within the window that are still allowed.
    pub limit: i64,
    /// Language of the alert's detail.
    pub language: DetailLanguage,
}

impl KeyedOperator for AmountSpikeRule {
    type Event = Payment;
    type State = RuleState;
    type Output = FraudAlert;

    const ID: &'static str = "rule-amount-spike";

    fn on_event(&self, _card: &str, payment: &Payment, state: &mut RuleState, ctx: &mut dyn Context<FraudAlert>) {
        let t = EventTime(payment.event_time_ms);
        if let Some(spent) = RULE.add(t, payment.amount_minor, self.limit, state, ctx) {
            let alert = FraudAlert::of(RULE_ID, payment, self.language.amount_spike(spent));
            ctx.emit(t, alert.with_fact("spent_minor", spent).with_fact("limit_minor", self.limit));
        }
    }

    fn on_timer(
        &self,
        _card: &str,
        _domain: TimerDomain,
        time: i64,
        state: &mut RuleState,
        _ctx: &mut dyn Context<FraudAlert>,
    ) {
        RULE.expire(time, state);
    }
}

#[cfg(test)]
mod tests;
