//! Payments with their confirmations (lesson 9): an interval join.
//!
//! Key: payment id. A payment at `t` pairs with every confirmation at `t` to `t + 300,000`, both included, at once when
//! the second of the two arrives; several pairs come in order of the other side's time, then of its arrival. A payment
//! or a confirmation before the watermark (`t < watermark`) is dropped and counted. One that comes before its other
//! side waits: a payment until the watermark reaches `t + 300,000`, a confirmation until it reaches `t`, when no
//! payment that it could confirm is on time any more.
//!
//! INV: every entry is kept exactly as long as its timer is set.

use payguard_model::{ConfirmedPayment, EventTime, Payment, PaymentConfirmation};

use crate::{Context, KeyedOperator, TimerDomain};

/// How long after its payment a confirmation may be: five minutes of event time, inclusive.
pub const MAX_DELAY_MS: i64 = 300_000;

/// Counter of payments dropped because they are before the watermark.
pub const LATE_PAYMENTS: &str = "late_payments";

/// Counter of confirmations dropped because they are before the watermark.
pub const LATE_CONFIRMATIONS: &str = "late_confirmations";

/// What the operators keyed by payment id take: the two sides in one stream, at the smaller of their watermarks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MatchEvent {
    /// A payment, its repeats removed.
    Payment(Payment),
    /// A confirmation; repeats do occur.
    Confirmation(PaymentConfirmation),
}

/// A payment that may still be confirmed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct JoinPayment {
    /// Event time, milliseconds.
    #[prost(int64, tag = "1")]
    t_ms: i64,
    /// Its merchant.
    #[prost(string, tag = "2")]
    merchant_id: String,
    /// Its amount in minor units.
    #[prost(int64, tag = "3")]
    amount_minor: i64,
}

/// A confirmation whose payment may still come.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct JoinConfirmation {
    /// Event time, milliseconds.
    #[prost(int64, tag = "1")]
    t_ms: i64,
    /// What the bank said.
    #[prost(string, optional, tag = "2")]
    status: Option<String>,
}

/// The two sides of one payment id, each by time, then by arrival; seldom more than one of each.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct JoinState {
    /// The payments.
    #[prost(message, repeated, tag = "1")]
    payments: Vec<JoinPayment>,
    /// The confirmations.
    #[prost(message, repeated, tag = "2")]
    confirmations: Vec<JoinConfirmation>,
}

/// The operator.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ConfirmationJoin;

impl KeyedOperator for ConfirmationJoin {
    type Event = MatchEvent;
    type State = JoinState;
    type Output = ConfirmedPayment;

    const ID: &'static str = "join-confirmations";

    fn on_event(&self, id: &str, event: &MatchEvent, state: &mut JoinState, ctx: &mut dyn Context<ConfirmedPayment>) {
        match event {
            MatchEvent::Payment(payment) => on_payment(id, payment, state, ctx),
            MatchEvent::Confirmation(confirmation) => on_confirmation(id, confirmation, state, ctx),
        }
    }

    fn on_timer(
        &self,
        _id: &str,
        _domain: TimerDomain,
        time: i64,
        state: &mut JoinState,
        _ctx: &mut dyn Context<ConfirmedPayment>,
    ) {
        state.payments.retain(|payment| last_delay(payment.t_ms) > time);
        state.confirmations.retain(|confirmation| confirmation.t_ms > time);
    }
}

fn on_payment(id: &str, payment: &Payment, state: &mut JoinState, ctx: &mut dyn Context<ConfirmedPayment>) {
    let t_ms = payment.event_time_ms;
    if EventTime(t_ms) < ctx.watermark() {
        ctx.count(LATE_PAYMENTS, 1);
        return;
    }
    let payment = JoinPayment { t_ms, merchant_id: payment.merchant_id.clone(), amount_minor: payment.amount_minor };
    state.confirmations.iter().for_each(|confirmation| emit_pair(id, &payment, confirmation, ctx));
    let at = state.payments.partition_point(|other| other.t_ms <= t_ms);
    state.payments.insert(at, payment);
    ctx.register_timer(TimerDomain::EventTime, last_delay(t_ms));
}

fn on_confirmation(
    id: &str,
    confirmation: &PaymentConfirmation,
    state: &mut JoinState,
    ctx: &mut dyn Context<ConfirmedPayment>,
) {
    let t_ms = confirmation.event_time_ms;
    if EventTime(t_ms) < ctx.watermark() {
        ctx.count(LATE_CONFIRMATIONS, 1);
        return;
    }
    let confirmation = JoinConfirmation { t_ms, status: confirmation.status.clone() };
    state.payments.iter().for_each(|payment| emit_pair(id, payment, &confirmation, ctx));
    let at = state.confirmations.partition_point(|other| other.t_ms <= t_ms);
    state.confirmations.insert(at, confirmation);
    ctx.register_timer(TimerDomain::EventTime, t_ms);
}

/// Emits the two as a pair when they are within the interval; its event time is the later of theirs.
fn emit_pair(
    id: &str,
    payment: &JoinPayment,
    confirmation: &JoinConfirmation,
    ctx: &mut dyn Context<ConfirmedPayment>,
) {
    let delay_ms = confirmation.t_ms.saturating_sub(payment.t_ms);
    if !(0..=MAX_DELAY_MS).contains(&delay_ms) {
        return;
    }
    let pair = ConfirmedPayment {
        payment_id: id.to_owned(),
        merchant_id: payment.merchant_id.clone(),
        amount_minor: payment.amount_minor,
        status: confirmation.status.clone(),
        confirmation_delay_ms: delay_ms,
    };
    // The delay is not negative, so the confirmation is the later one.
    ctx.emit(EventTime(confirmation.t_ms), pair);
}

/// The last time at which a payment at `t_ms` can be confirmed.
fn last_delay(t_ms: i64) -> i64 {
    t_ms.saturating_add(MAX_DELAY_MS)
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
