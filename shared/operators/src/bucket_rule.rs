//! What the velocity and the amount rule have in common (lesson 7): a sum over a window against a limit.
//!
//! It owns the decision "alert or not" and the eviction of buckets; the value that is added and the text are the
//! rule's. Late payments are not dropped: they add to their bucket and may alert.
//!
//! INV: a bucket is kept exactly as long as its timer (end of the bucket + window) is set. The timer is therefore
//! registered when the bucket is new, and all payments of a bucket share it.

use payguard_model::EventTime;
use serde::Serialize;

use crate::buckets::{BucketSize, BucketedSum};
use crate::{Context, TimerDomain};

/// What a rule remembers of a card.
///
/// `last_alert_at` is never forgotten, as in the course, so a card that once raised an alert keeps a few bytes. It
/// cannot go with the buckets: rules take payments of any lateness, and it is what keeps one of them, older than the
/// last alert, silent.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RuleState {
    /// Sum per bucket.
    #[prost(message, required, tag = "1")]
    pub(crate) buckets: BucketedSum,
    /// Event time of the last alert, milliseconds.
    #[prost(int64, optional, tag = "2")]
    pub(crate) last_alert_at: Option<i64>,
}

/// What a rule remembers of a card, for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleView {
    /// The buckets that are not empty, ascending by time.
    pub buckets: Vec<BucketView>,
    /// Event time of the last alert, milliseconds.
    pub last_alert_ms: Option<i64>,
}

/// One bucket of a rule, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BucketView {
    /// Its start, milliseconds of event time.
    pub start_ms: i64,
    /// Payments or minor units in it.
    pub sum: i64,
}

impl RuleState {
    /// The state with the starts of its buckets, which have this size.
    #[must_use]
    pub fn view(&self, size: BucketSize) -> RuleView {
        let bucket = |(start, sum): (EventTime, i64)| BucketView { start_ms: start.0, sum };
        RuleView { buckets: self.buckets.buckets(size).map(bucket).collect(), last_alert_ms: self.last_alert_at }
    }
}

/// Constants of one rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketRule {
    /// Length of the window and of the silence after an alert, milliseconds of event time.
    pub(crate) window_ms: i64,
    /// Precision of the window.
    pub(crate) bucket: BucketSize,
}

impl BucketRule {
    /// Adds `value` at `t`; the sum of the window when it is above `limit` and the last alert is a window ago.
    pub(crate) fn add<Out>(
        &self,
        t: EventTime,
        value: i64,
        limit: i64,
        state: &mut RuleState,
        ctx: &mut dyn Context<Out>,
    ) -> Option<i64> {
        if state.buckets.add(self.bucket, t, value) {
            ctx.register_timer(TimerDomain::EventTime, self.bucket.bucket_end(t).plus(self.window_ms).0);
        }
        let sum = state.buckets.sum_since(self.bucket, t.minus(self.window_ms));
        if sum <= limit || !self.may_alert(t, state.last_alert_at) {
            return None;
        }
        state.last_alert_at = Some(t.0);
        Some(sum)
    }

    /// Evicts the buckets whose timer is `time` or earlier: no window that is still expected reaches them.
    pub(crate) fn expire(&self, time: i64, state: &mut RuleState) {
        state.buckets.evict_while(self.bucket, |end| end.plus(self.window_ms).0 <= time);
    }

    /// An alert exactly one window after the last one is allowed; one before the last alert is not.
    fn may_alert(&self, t: EventTime, last_alert_at: Option<i64>) -> bool {
        last_alert_at.is_none_or(|last| t.0.saturating_sub(last) >= self.window_ms)
    }
}
