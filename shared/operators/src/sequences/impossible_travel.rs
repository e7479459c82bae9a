//! Impossible travel: two payments next to each other in different countries, less than ten minutes apart.
//!
//! The payment that ends a match does not begin the next one: DE, ES, FR is one match, DE, ES, FR, NL are two. An
//! absent country is a country of its own here, as in the course: it differs from every other and equals itself.

use serde::Serialize;

use super::{Match, Pending};

/// Id of the rule in its alerts.
pub const RULE_ID: &str = "impossible-travel";

/// The two payments are less than this apart: ten minutes of event time.
pub const WINDOW_MS: i64 = 600_000;

/// The payment directly before the next one, unless it ended a match.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Travel {
    /// The payment.
    #[prost(message, optional, tag = "1")]
    first: Option<Stay>,
}

/// Where a card was.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stay {
    /// Event time, milliseconds.
    #[prost(int64, tag = "1")]
    #[serde(rename = "eventTimeMs")]
    t_ms: i64,
    /// The payment.
    #[prost(string, tag = "2")]
    payment_id: String,
    /// Its country.
    #[prost(string, optional, tag = "3")]
    country: Option<String>,
}

/// Takes the card's next payment; the match it ends.
pub(super) fn step(travel: &mut Travel, payment: &Pending) -> Option<Match> {
    if let Some(first) = travel.first.take() {
        let span_ms = payment.t_ms.saturating_sub(first.t_ms);
        if first.country != payment.country && span_ms < WINDOW_MS {
            return Some(Match { payments: vec![first.payment_id, payment.payment_id.clone()], span_ms });
        }
    }
    travel.first =
        Some(Stay { t_ms: payment.t_ms, payment_id: payment.payment_id.clone(), country: payment.country.clone() });
    None
}

impl Travel {
    /// When the payment can no longer be part of a match.
    pub(super) fn over_at(&self) -> Option<i64> {
        self.first.as_ref().map(|first| first.t_ms.saturating_add(WINDOW_MS))
    }

    /// Forgets the payment when no payment after `time` can match it.
    pub(super) fn forget(&mut self, time: i64) {
        if self.over_at().is_some_and(|over_at| over_at <= time) {
            self.first = None;
        }
    }
}
