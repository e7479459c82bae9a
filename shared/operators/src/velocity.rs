//! The velocity rule (lessons 7 and 8): too many payments of one card within a minute.
//!
//! Key: card id. It answers on every payment, so that a tested card is stopped at the first payment above the limit.
//! Buckets of 10 s make the minute float between 60 and 70 s; at most one alert per card per minute of event time.

use payguard_model::{EventTime, FraudAlert, Payment};

use crate::bucket_rule::BucketRule;
use crate::buckets::BucketSize;
use crate::detail::DetailLanguage;
use crate::{Context, KeyedOperator, RuleState, TimerDomain};

/// Id of the rule in its alerts.
pub const RULE_ID: &str = "velocity";

/// The window, and the silence after an alert: one minute of event time.
pub const WINDOW_MS: i64 = 60_000;

/// The length of a bucket: ten seconds of event time.
pub const BUCKET_MS: i64 = 10_000;

/// Payments within the window that are still allowed, unless configured otherwise: the 11th alerts.
pub const DEFAULT_LIMIT: i64 = 10;

const RULE: BucketRule = BucketRule { window_ms: WINDOW_MS, bucket: BucketSize::from_ms(BUCKET_MS) };

/// Alerts when a card makes more than `limit` payments within a minute.
///
/// The limit is that of the rules' version in force (lesson 8) and may be another one with every payment: the buckets
/// and the silence after an alert do not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VelocityRule {
    /// Payments within the window that are still allowed.
    pub limit: i64,
    /// Language of the alert's detail.
    pub language: DetailLanguage,
}

impl KeyedOperator for VelocityRule {
    type Event = Payment;
    type State = RuleState;
    type Output = FraudAlert;

    const ID: &'static str = "rule-velocity";

    fn on_event(&self, _card: &str, payment: &Payment, state: &mut RuleState, ctx: &mut dyn Context<FraudAlert>) {
        let t = EventTime(payment.event_time_ms);
        if let Some(payments) = RULE.add(t, 1, self.limit, state, ctx) {
            let alert = FraudAlert::of(RULE_ID, payment, self.language.velocity(payments));
            ctx.emit(t, alert.with_fact("payments", payments).with_fact("limit", self.limit));
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
