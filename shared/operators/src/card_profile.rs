//! The profile of a card (lesson 13): how many payments, how much, and where last.
//!
//! Key: card id. It answers every payment with the profile after it, in order of arrival: event time plays no part, so
//! nothing is late, and the country is that of the payment handled last. A profile is never forgotten.

use payguard_model::{CardProfile, EventTime, Payment};

use crate::{Context, KeyedOperator, TimerDomain};

/// The operator.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CardProfiles;

impl KeyedOperator for CardProfiles {
    type Event = Payment;
    type State = CardProfile;
    type Output = CardProfile;

    const ID: &'static str = "card-profile";

    fn on_event(&self, _card: &str, payment: &Payment, state: &mut CardProfile, ctx: &mut dyn Context<CardProfile>) {
        *state = state.plus(payment);
        ctx.emit(EventTime(payment.event_time_ms), state.clone());
    }

    /// No timer is ever set.
    fn on_timer(
        &self,
        _card: &str,
        _domain: TimerDomain,
        _time: i64,
        _state: &mut CardProfile,
        _ctx: &mut dyn Context<CardProfile>,
    ) {
    }
}

#[cfg(test)]
mod tests;
