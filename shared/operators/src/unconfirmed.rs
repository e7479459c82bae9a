//! The rule of unconfirmed payments (lesson 9, assignment): no confirmation within five minutes of event time.
//!
//! Key: payment id. Unlike the join it drops nothing and checks no interval: a confirmation of any event time counts
//! when it arrives before the watermark reaches the payment's time + 300,000. A confirmation may also come before its
//! payment; it is then remembered as long as a payment is waited for, and is used up by the first payment. That memory
//! has its own end, or the second confirmation of a payment would be kept for ever.

use payguard_model::{EventTime, FraudAlert, Payment, PaymentConfirmation};

use crate::confirmation_join::MatchEvent;
use crate::detail::DetailLanguage;
use crate::{Context, KeyedOperator, TimerDomain};

/// Id of the rule in its alerts.
pub const RULE_ID: &str = "unconfirmed";

/// How long a confirmation is waited for: five minutes of event time.
pub const TIMEOUT_MS: i64 = 300_000;

/// What the alert needs of a payment that waits.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct WaitingPayment {
    /// Event time, milliseconds.
    #[prost(int64, tag = "1")]
    t_ms: i64,
    /// The card.
    #[prost(string, tag = "2")]
    card_id: String,
    /// The merchant.
    #[prost(string, tag = "3")]
    merchant_id: String,
    /// Where it was read from.
    #[prost(uint32, tag = "4")]
    source_partition: u32,
    /// Where it was read from.
    #[prost(int64, tag = "5")]
    source_offset: i64,
}

/// What is remembered of one payment id.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnconfirmedState {
    /// The payment that waits for its confirmation.
    #[prost(message, optional, tag = "1")]
    waiting: Option<WaitingPayment>,
    /// Whether a confirmation came that no payment has used up.
    #[prost(bool, tag = "2")]
    is_confirmed: bool,
}

/// The operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnconfirmedRule {
    /// Language of the alert's detail.
    pub language: DetailLanguage,
}

impl KeyedOperator for UnconfirmedRule {
    type Event = MatchEvent;
    type State = UnconfirmedState;
    type Output = FraudAlert;

    const ID: &'static str = "rule-unconfirmed";

    fn on_event(&self, _id: &str, event: &MatchEvent, state: &mut UnconfirmedState, ctx: &mut dyn Context<FraudAlert>) {
        match event {
            MatchEvent::Payment(payment) => on_payment(payment, state, ctx),
            MatchEvent::Confirmation(confirmation) => on_confirmation(confirmation, state, ctx),
        }
    }

    /// Any timer ends the wait, one left by an earlier confirmation too; as in the course.
    fn on_timer(
        &self,
        id: &str,
        _domain: TimerDomain,
        time: i64,
        state: &mut UnconfirmedState,
        ctx: &mut dyn Context<FraudAlert>,
    ) {
        if let Some(waiting) = std::mem::take(state).waiting {
            let detail = self.language.unconfirmed(TIMEOUT_MS);
            let alert = FraudAlert::of(RULE_ID, &waiting.into_payment(id), detail).with_fact("timeout_ms", TIMEOUT_MS);
            ctx.emit(EventTime(time), alert);
        }
    }
}

fn on_payment(payment: &Payment, state: &mut UnconfirmedState, ctx: &mut dyn Context<FraudAlert>) {
    if state.is_confirmed {
        // The timer of the confirmation stays and will find nothing.
        state.is_confirmed = false;
        return;
    }
    state.waiting = Some(WaitingPayment::of(payment));
    ctx.register_timer(TimerDomain::EventTime, deadline(payment.event_time_ms));
}

fn on_confirmation(
    confirmation: &PaymentConfirmation,
    state: &mut UnconfirmedState,
    ctx: &mut dyn Context<FraudAlert>,
) {
    match state.waiting.take() {
        Some(waiting) => ctx.delete_timer(TimerDomain::EventTime, deadline(waiting.t_ms)),
        None => {
            state.is_confirmed = true;
            ctx.register_timer(TimerDomain::EventTime, deadline(confirmation.event_time_ms));
        }
    }
}

fn deadline(t_ms: i64) -> i64 {
    t_ms.saturating_add(TIMEOUT_MS)
}

impl WaitingPayment {
    fn of(payment: &Payment) -> WaitingPayment {
        WaitingPayment {
            t_ms: payment.event_time_ms,
            card_id: payment.card_id.clone(),
            merchant_id: payment.merchant_id.clone(),
            source_partition: payment.source_partition,
            source_offset: payment.source_offset,
        }
    }

    fn into_payment(self, id: &str) -> Payment {
        Payment {
            payment_id: id.to_owned(),
            card_id: self.card_id,
            merchant_id: self.merchant_id,
            event_time_ms: self.t_ms,
            source_partition: self.source_partition,
            source_offset: self.source_offset,
            ..Payment::default()
        }
    }
}

#[cfg(test)]
mod tests;
