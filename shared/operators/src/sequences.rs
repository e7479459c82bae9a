//! Rules about the order of a card's payments (lesson 10): card testing and impossible travel.
//!
//! Key: card id. Both rules need the payments in order of event time, so every payment waits until the watermark
//! reaches its time and is then shown to the two automata, payments of the same time in order of arrival. A payment at
//! or before the watermark comes too late for that: it is dropped, and counted for each rule that is on.
//!
//! An alert therefore appears when the watermark passes the payment that ends the pattern, and never while no newer
//! payment of any card moves it. A payment belongs to at most one match of a rule.
//!
//! INV: a payment waits exactly as long as the timer at its time is set. Besides those a card has at most one timer,
//! after which nothing remembered can match. It is not moved with every payment: when it is due too early, it is set
//! again.

pub mod card_testing;
pub mod impossible_travel;

use payguard_model::{EventTime, FraudAlert, Payment};
use serde::Serialize;

use crate::detail::DetailLanguage;
use crate::{Context, KeyedOperator, TimerDomain};

/// Counter of payments that came too late for card testing.
pub const CARD_TESTING_LATE: &str = "card_testing_late";

/// Counter of payments that came too late for impossible travel.
pub const IMPOSSIBLE_TRAVEL_LATE: &str = "impossible_travel_late";

/// A payment that waits for the watermark: what the automata and the alert need of it.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pending {
    /// Event time, milliseconds.
    #[prost(int64, tag = "1")]
    #[serde(rename = "eventTimeMs")]
    pub(crate) t_ms: i64,
    /// The payment.
    #[prost(string, tag = "2")]
    pub(crate) payment_id: String,
    /// Its merchant.
    #[prost(string, tag = "3")]
    merchant_id: String,
    /// Its amount in minor units.
    #[prost(int64, tag = "4")]
    pub(crate) amount_minor: i64,
    /// Its country.
    #[prost(string, optional, tag = "5")]
    pub(crate) country: Option<String>,
    /// Where it was read from.
    #[prost(uint32, tag = "6")]
    source_partition: u32,
    /// Where it was read from.
    #[prost(int64, tag = "7")]
    source_offset: i64,
}

/// What is remembered of one card.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SequenceState {
    /// Payments after the watermark, by time, then by arrival.
    #[prost(message, repeated, tag = "1")]
    pending: Vec<Pending>,
    /// Automaton of card testing.
    #[prost(message, required, tag = "2")]
    probes: card_testing::ProbeRun,
    /// Automaton of impossible travel.
    #[prost(message, required, tag = "3")]
    travel: impossible_travel::Travel,
    /// The timer after which the automata are looked at again, milliseconds; absent when none is set.
    #[prost(int64, optional, tag = "4")]
    expiry_ms: Option<i64>,
}

/// The payments that fit a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Match {
    /// Their ids in order; the last one triggers the alert.
    pub(crate) payments: Vec<String>,
    /// Milliseconds from the first to the last of them.
    pub(crate) span_ms: i64,
}

/// The operator; a rule that is off sees no payment and forgets what it knew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequenceRules {
    /// Whether card testing is looked for.
    pub card_testing: bool,
    /// Whether impossible travel is looked for.
    pub impossible_travel: bool,
    /// Language of the alerts' detail.
    pub language: DetailLanguage,
}

impl KeyedOperator for SequenceRules {
    type Event = Payment;
    type State = SequenceState;
    type Output = FraudAlert;

    const ID: &'static str = "card-sequences";

    fn on_event(&self, _card: &str, payment: &Payment, state: &mut SequenceState, ctx: &mut dyn Context<FraudAlert>) {
        let t = EventTime(payment.event_time_ms);
        if t <= ctx.watermark() {
            self.count_late(ctx);
        } else if self.card_testing || self.impossible_travel {
            let at = state.pending.partition_point(|other| other.t_ms <= t.0);
            state.pending.insert(at, Pending::of(payment));
            ctx.register_timer(TimerDomain::EventTime, t.0);
        }
    }

    fn on_timer(
        &self,
        card: &str,
        _domain: TimerDomain,
        time: i64,
        state: &mut SequenceState,
        ctx: &mut dyn Context<FraudAlert>,
    ) {
        let due = state.pending.partition_point(|payment| payment.t_ms <= time);
        let due: Vec<Pending> = state.pending.drain(..due).collect();
        for payment in due {
            self.step(card, payment, state, ctx);
        }
        state.forget(time);
        if let Some(expiry_ms) = state.expiry_to_set() {
            ctx.register_timer(TimerDomain::EventTime, expiry_ms);
        }
    }
}

impl SequenceRules {
    fn count_late(&self, ctx: &mut dyn Context<FraudAlert>) {
        if self.card_testing {
            ctx.count(CARD_TESTING_LATE, 1);
        }
        if self.impossible_travel {
            ctx.count(IMPOSSIBLE_TRAVEL_LATE, 1);
        }
    }

    /// Shows the next payment to the automata and tells what they found.
    fn step(&self, card: &str, payment: Pending, state: &mut SequenceState, ctx: &mut dyn Context<FraudAlert>) {
        let (mut probed, mut travelled) = (None, None);
        if self.card_testing {
            probed = card_testing::step(&mut state.probes, &payment);
        } else {
            state.probes = card_testing::ProbeRun::default();
        }
        if self.impossible_travel {
            travelled = impossible_travel::step(&mut state.travel, &payment);
        } else {
            state.travel = impossible_travel::Travel::default();
        }
        if probed.is_none() && travelled.is_none() {
            return;
        }
        let trigger = payment.into_payment(card);
        let mut emit = |rule_id, detail, found: Match, window_ms| {
            let alert = FraudAlert::of(rule_id, &trigger, detail)
                .with_fact("span_ms", found.span_ms)
                .with_fact("window_ms", window_ms)
                .with_payments(found.payments);
            ctx.emit(EventTime(trigger.event_time_ms), alert);
        };
        if let Some(found) = probed {
            emit(card_testing::RULE_ID, self.language.card_testing(), found, card_testing::WINDOW_MS);
        }
        if let Some(found) = travelled {
            emit(impossible_travel::RULE_ID, self.language.impossible_travel(), found, impossible_travel::WINDOW_MS);
        }
    }
}

impl SequenceState {
    /// Forgets what no payment after `time` can match, and a timer that was due.
    fn forget(&mut self, time: i64) {
        self.probes.forget(time);
        self.travel.forget(time);
        self.expiry_ms = self.expiry_ms.filter(|&expiry_ms| expiry_ms > time);
    }

    /// The timer to set so that what is remembered now is forgotten; `None` when one is set or nothing is remembered.
    fn expiry_to_set(&mut self) -> Option<i64> {
        if self.expiry_ms.is_none() {
            self.expiry_ms = self.probes.over_at().max(self.travel.over_at());
            return self.expiry_ms;
        }
        None
    }
}

impl Pending {
    fn of(payment: &Payment) -> Pending {
        Pending {
            t_ms: payment.event_time_ms,
            payment_id: payment.payment_id.clone(),
            merchant_id: payment.merchant_id.clone(),
            amount_minor: payment.amount_minor,
            country: payment.country.clone(),
            source_partition: payment.source_partition,
            source_offset: payment.source_offset,
        }
    }

    fn into_payment(self, card: &str) -> Payment {
        Payment {
            payment_id: self.payment_id,
            card_id: card.to_owned(),
            merchant_id: self.merchant_id,
            amount_minor: self.amount_minor,
            country: self.country,
            event_time_ms: self.t_ms,
            source_partition: self.source_partition,
            source_offset: self.source_offset,
            ..Payment::default()
        }
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
