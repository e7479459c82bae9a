//! The interval join of payments and confirmations.
//!
//! A payment at `t` pairs with every confirmation at `t` to `t + 300,000`, both included, at once when the second of the
//! two arrives; several pairs come in order of the other side's time, then of its arrival. A payment or a confirmation
//! before the watermark (`t < watermark`) is dropped and counted. One that comes before its other side waits: a payment
//! until the watermark reaches `t + 300,000`, a confirmation until it reaches `t`, when no payment that it could confirm
//! is on time any more.

use payguard_model::{ConfirmedPayment, EventTime, Payment, PaymentConfirmation};
use serde::Serialize;

use super::{MAX_DELAY_MS, MatchOutput, deadline};
use crate::{Context, TimerDomain};

/// Counter of payments dropped because they are before the watermark.
pub const LATE_PAYMENTS: &str = "late_payments";

/// Counter of confirmations dropped because they are before the watermark.
pub const LATE_CONFIRMATIONS: &str = "late_confirmations";

/// A payment that may still be confirmed.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinPayment {
    /// Event time, milliseconds.
    #[prost(int64, tag = "1")]
    #[serde(rename = "eventTimeMs")]
    t_ms: i64,
    /// Its merchant.
    #[prost(string, tag = "2")]
    merchant_id: String,
    /// Its amount in minor units.
    #[prost(int64, tag = "3")]
    amount_minor: i64,
}

/// A confirmation whose payment may still come.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinConfirmation {
    /// Event time, milliseconds.
    #[prost(int64, tag = "1")]
    #[serde(rename = "eventTimeMs")]
    t_ms: i64,
    /// What the bank said.
    #[prost(string, optional, tag = "2")]
    status: Option<String>,
}

/// The two sides of one payment id, each by time, then by arrival; seldom more than one of each.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinState {
    /// The payments.
    #[prost(message, repeated, tag = "1")]
    payments: Vec<JoinPayment>,
    /// The confirmations.
    #[prost(message, repeated, tag = "2")]
    confirmations: Vec<JoinConfirmation>,
}

impl JoinState {
    pub(super) fn on_payment(&mut self, id: &str, payment: &Payment, ctx: &mut dyn Context<MatchOutput>) {
        let t_ms = payment.event_time_ms;
        if EventTime(t_ms) < ctx.watermark() {
            ctx.count(LATE_PAYMENTS, 1);
            return;
        }
        let merchant_id = payment.merchant_id.clone();
        let payment = JoinPayment { t_ms, merchant_id, amount_minor: payment.amount_minor };
        self.confirmations.iter().for_each(|confirmation| emit_pair(id, &payment, confirmation, ctx));
        let at = self.payments.partition_point(|other| other.t_ms <= t_ms);
        self.payments.insert(at, payment);
        ctx.register_timer(TimerDomain::EventTime, deadline(t_ms));
    }

    pub(super) fn on_confirmation(
        &mut self,
        id: &str,
        confirmation: &PaymentConfirmation,
        ctx: &mut dyn Context<MatchOutput>,
    ) {
        let t_ms = confirmation.event_time_ms;
        if EventTime(t_ms) < ctx.watermark() {
            ctx.count(LATE_CONFIRMATIONS, 1);
            return;
        }
        let confirmation = JoinConfirmation { t_ms, status: confirmation.status.clone() };
        self.payments.iter().for_each(|payment| emit_pair(id, payment, &confirmation, ctx));
        let at = self.confirmations.partition_point(|other| other.t_ms <= t_ms);
        self.confirmations.insert(at, confirmation);
        ctx.register_timer(TimerDomain::EventTime, t_ms);
    }

    /// Whether something waits for the timer at `time`.
    pub(super) fn needs(&self, time: i64) -> bool {
        self.payments.iter().any(|payment| deadline(payment.t_ms) == time)
            || self.confirmations.iter().any(|confirmation| confirmation.t_ms == time)
    }

    /// Forgets what waits no longer at `time`.
    pub(super) fn forget(&mut self, time: i64) {
        self.payments.retain(|payment| deadline(payment.t_ms) > time);
        self.confirmations.retain(|confirmation| confirmation.t_ms > time);
    }
}

/// Emits the two as a pair when they are within the interval; its event time is the later of theirs.
fn emit_pair(id: &str, payment: &JoinPayment, confirmation: &JoinConfirmation, ctx: &mut dyn Context<MatchOutput>) {
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
    ctx.emit(EventTime(confirmation.t_ms), MatchOutput::Confirmed(pair));
}

#[cfg(test)]
mod tests;
