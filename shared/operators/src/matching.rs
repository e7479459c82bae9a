//! Payments and their confirmations (lesson 9): the interval join and the rule of unconfirmed payments.
//!
//! Key: payment id. Both need the same two streams by the same key, so they share one state and one look-up per event;
//! each can be off, and neither's result depends on the other.
//!
//! INV: what the join keeps of a side, and what the rule waits for, has its timer; a timer that nobody needs any more
//! finds nothing.

pub mod join;
pub mod unconfirmed;

use payguard_model::{ConfirmedPayment, EventTime, FraudAlert, Payment, PaymentConfirmation};
use serde::Serialize;

use crate::detail::DetailLanguage;
use crate::{Context, KeyedOperator, TimerDomain};

/// How long after its payment a confirmation may be, and is waited for: five minutes of event time, inclusive.
pub const MAX_DELAY_MS: i64 = 300_000;

/// The two sides in one stream, at the smaller of their watermarks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MatchEvent {
    /// A payment, its repeats removed.
    Payment(Payment),
    /// A confirmation; repeats do occur.
    Confirmation(PaymentConfirmation),
}

/// What the two say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MatchOutput {
    /// A payment and a confirmation of it.
    Confirmed(ConfirmedPayment),
    /// A payment nobody confirmed.
    Alert(FraudAlert),
}

/// What is remembered of one payment id.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MatchState {
    /// The join's.
    #[prost(message, required, tag = "1")]
    join: join::JoinState,
    /// The rule's.
    #[prost(message, required, tag = "2")]
    rule: unconfirmed::WaitState,
}

/// The operator; a part that is off sees no event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PaymentMatching {
    /// Whether payments are joined with their confirmations.
    pub join: bool,
    /// Whether payments that nobody confirmed are told of.
    pub unconfirmed: bool,
    /// Language of the alerts' detail.
    pub language: DetailLanguage,
}

impl KeyedOperator for PaymentMatching {
    type Event = MatchEvent;
    type State = MatchState;
    type Output = MatchOutput;

    const ID: &'static str = "payment-matching";

    fn on_event(&self, id: &str, event: &MatchEvent, state: &mut MatchState, ctx: &mut dyn Context<MatchOutput>) {
        match event {
            MatchEvent::Payment(payment) => {
                if self.join {
                    state.join.on_payment(id, payment, ctx);
                }
                if self.unconfirmed {
                    state.rule.on_payment(payment, ctx);
                }
            }
            MatchEvent::Confirmation(confirmation) => {
                if self.join {
                    state.join.on_confirmation(id, confirmation, ctx);
                }
                if self.unconfirmed {
                    let over = state.rule.on_confirmation(confirmation, ctx);
                    if let Some(time) = over.filter(|time| !state.join.needs(*time)) {
                        ctx.delete_timer(TimerDomain::EventTime, time);
                    }
                }
            }
        }
    }

    fn on_timer(
        &self,
        id: &str,
        _domain: TimerDomain,
        time: i64,
        state: &mut MatchState,
        ctx: &mut dyn Context<MatchOutput>,
    ) {
        state.join.forget(time);
        if let Some(payment) = state.rule.end(id, time) {
            let detail = self.language.unconfirmed(MAX_DELAY_MS);
            let alert = FraudAlert::of(unconfirmed::RULE_ID, &payment, detail).with_fact("timeout_ms", MAX_DELAY_MS);
            ctx.emit(EventTime(time), MatchOutput::Alert(alert));
        }
    }
}

/// When a payment or confirmation at `t_ms` is waited for no longer.
fn deadline(t_ms: i64) -> i64 {
    t_ms.saturating_add(MAX_DELAY_MS)
}

#[cfg(test)]
mod model_tests;
