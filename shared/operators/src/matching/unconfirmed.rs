//! The rule of unconfirmed payments (assignment of lesson 9): no confirmation within five minutes of event time.
//!
//! Unlike the join it drops nothing and checks no interval: a confirmation of any event time counts when it arrives
//! before the watermark reaches the payment's time + 300,000. A confirmation may also come before its payment; it is then
//! remembered for 300,000 after its own time, and is used up by the first payment. Whatever timer was set first ends a
//! wait, one left by an earlier confirmation or payment too; as in the course.

use payguard_model::{Payment, PaymentConfirmation};
use serde::Serialize;

use super::{MatchOutput, deadline};
use crate::{Context, TimerDomain};

/// Id of the rule in its alerts.
pub const RULE_ID: &str = "unconfirmed";

/// What the alert needs of a payment that waits.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingPayment {
    /// Event time, milliseconds.
    #[prost(int64, tag = "1")]
    #[serde(rename = "eventTimeMs")]
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

/// What the rule remembers of one payment id.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitState {
    /// The payment that waits for its confirmation; its timer is at its deadline.
    #[prost(message, optional, tag = "1")]
    waiting: Option<WaitingPayment>,
    /// Whether a confirmation came that no payment has used up.
    #[prost(bool, tag = "2")]
    is_confirmed: bool,
    /// Times of the other timers that are set, those of confirmations and of payments that another one replaced.
    #[prost(sint64, repeated, tag = "3")]
    #[serde(rename = "otherTimersMs")]
    other_timers: Vec<i64>,
}

impl WaitState {
    pub(super) fn on_payment(&mut self, payment: &Payment, ctx: &mut dyn Context<MatchOutput>) {
        if self.is_confirmed {
            // The timer of the confirmation stays and will find nothing.
            self.is_confirmed = false;
            return;
        }
        if let Some(replaced) = self.waiting.replace(WaitingPayment::of(payment)) {
            self.keep(deadline(replaced.t_ms));
        }
        ctx.register_timer(TimerDomain::EventTime, deadline(payment.event_time_ms));
    }

    /// Ends the wait of the payment, if one waits, and says which timer the rule needs no longer.
    pub(super) fn on_confirmation(
        &mut self,
        confirmation: &PaymentConfirmation,
        ctx: &mut dyn Context<MatchOutput>,
    ) -> Option<i64> {
        if let Some(waiting) = self.waiting.take() {
            let over = deadline(waiting.t_ms);
            self.other_timers.retain(|time| *time != over);
            return Some(over);
        }
        self.is_confirmed = true;
        self.keep(deadline(confirmation.event_time_ms));
        ctx.register_timer(TimerDomain::EventTime, deadline(confirmation.event_time_ms));
        None
    }

    /// A timer is due: if it is one of the rule's, whatever is remembered is over; returns the payment that waited.
    pub(super) fn end(&mut self, id: &str, time: i64) -> Option<Payment> {
        let is_other = self.other_timers.contains(&time);
        self.other_timers.retain(|other| *other != time);
        if !is_other && self.waiting.as_ref().is_none_or(|waiting| deadline(waiting.t_ms) != time) {
            return None;
        }
        self.is_confirmed = false;
        let waiting = self.waiting.take()?;
        let own = deadline(waiting.t_ms);
        if own != time {
            // Its timer is still set.
            self.keep(own);
        }
        Some(waiting.into_payment(id))
    }

    fn keep(&mut self, time: i64) {
        if !self.other_timers.contains(&time) {
            self.other_timers.push(time);
        }
    }
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
