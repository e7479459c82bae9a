//! The records that cross a border: JSON on topics and tables (field order as declared here), protobuf between stages.
//!
//! A protobuf field number is never used again for something else.

use serde::{Deserialize, Serialize};

/// A payment by card that happened at `event_time_ms` (topic `payments.raw`).
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Payment {
    /// Unique id; a repeat with the same id is a duplicate.
    #[prost(string, tag = "1")]
    pub payment_id: String,
    /// The card, for example `c-2982`.
    #[prost(string, tag = "2")]
    pub card_id: String,
    /// The merchant, for example `m-0048`.
    #[prost(string, tag = "3")]
    pub merchant_id: String,
    /// Amount in minor currency units.
    #[prost(int64, tag = "4")]
    pub amount_minor: i64,
    /// Three capital letters.
    #[prost(string, tag = "5")]
    pub currency: String,
    /// Country of the terminal; not validated, may be absent.
    #[prost(string, optional, tag = "6")]
    pub country: Option<String>,
    /// Event time, milliseconds since the Unix epoch.
    #[prost(int64, tag = "7")]
    pub event_time_ms: i64,
    /// Partition of the source topic it was read from; inside only, never in JSON.
    #[prost(uint32, tag = "8")]
    #[serde(skip)]
    pub source_partition: u32,
    /// Offset in that partition; inside only, never in JSON.
    #[prost(int64, tag = "9")]
    #[serde(skip)]
    pub source_offset: i64,
}

/// A record that was refused (topic `payments.dlq`).
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectedRecord {
    /// The text as it came, so that it can be sent back after a repair.
    #[prost(string, tag = "1")]
    pub raw: String,
    /// Reason code, see [`crate::Reason`].
    #[prost(string, tag = "2")]
    pub reason: String,
    /// Wall clock at the moment of refusal, milliseconds since the Unix epoch.
    #[prost(int64, tag = "3")]
    pub rejected_at_ms: i64,
    /// How often it had been sent back to its topic before; not told when it never was.
    #[prost(uint32, tag = "4")]
    #[serde(default, skip_serializing_if = "is_zero")]
    pub replays: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// One emission of a merchant's total for one minute (table `merchant_stats`); a later one for the same merchant and
/// window replaces it.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MerchantStats {
    /// The merchant.
    #[prost(string, tag = "1")]
    pub merchant_id: String,
    /// Start of the window, inclusive.
    #[prost(int64, tag = "2")]
    pub window_start_ms: i64,
    /// End of the window, exclusive.
    #[prost(int64, tag = "3")]
    pub window_end_ms: i64,
    /// Payments in the window so far.
    #[prost(int64, tag = "4")]
    pub payment_count: i64,
    /// Their sum in minor currency units.
    #[prost(int64, tag = "5")]
    pub amount_minor: i64,
}

/// A series of payments of one card without a pause longer than the gap (topic `card.sessions`).
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CardSession {
    /// The card.
    #[prost(string, tag = "1")]
    pub card_id: String,
    /// Time of the first payment.
    #[prost(int64, tag = "2")]
    pub session_start_ms: i64,
    /// Time of the last payment plus the gap.
    #[prost(int64, tag = "3")]
    pub session_end_ms: i64,
    /// Payments in the session.
    #[prost(int64, tag = "4")]
    pub payment_count: i64,
    /// Their sum in minor currency units.
    #[prost(int64, tag = "5")]
    pub amount_minor: i64,
}

/// What phase 1 of the salted totals hands to phase 2: the total so far of a merchant's payments with one salt in one
/// minute. A later one for the same merchant, salt and window replaces it.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MerchantPart {
    /// The merchant.
    #[prost(string, tag = "1")]
    pub merchant_id: String,
    /// The salt, from 0 up to the number of salts, exclusive.
    #[prost(uint32, tag = "2")]
    pub salt: u32,
    /// Start of the window, inclusive.
    #[prost(int64, tag = "3")]
    pub window_start_ms: i64,
    /// End of the window, exclusive.
    #[prost(int64, tag = "4")]
    pub window_end_ms: i64,
    /// Payments with this salt in the window so far.
    #[prost(int64, tag = "5")]
    pub payment_count: i64,
    /// Their sum in minor currency units.
    #[prost(int64, tag = "6")]
    pub amount_minor: i64,
}

/// A message of the issuing bank about a payment (topic `payments.confirmations`).
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PaymentConfirmation {
    /// The payment it confirms.
    #[prost(string, tag = "1")]
    pub payment_id: String,
    /// What the bank said, for example `APPROVED`; passed on, never interpreted, may be absent.
    #[prost(string, optional, tag = "2")]
    pub status: Option<String>,
    /// Event time, milliseconds since the Unix epoch; 0 when the bank gave none.
    #[prost(int64, tag = "3")]
    pub event_time_ms: i64,
}

/// A payment with one of its confirmations (topic `payments.confirmed`).
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfirmedPayment {
    /// The payment.
    #[prost(string, tag = "1")]
    pub payment_id: String,
    /// Its merchant.
    #[prost(string, tag = "2")]
    pub merchant_id: String,
    /// Its amount in minor currency units.
    #[prost(int64, tag = "3")]
    pub amount_minor: i64,
    /// Status of the confirmation.
    #[prost(string, optional, tag = "4")]
    pub status: Option<String>,
    /// Event time of the confirmation less that of the payment, milliseconds.
    #[prost(int64, tag = "5")]
    pub confirmation_delay_ms: i64,
}

/// What is known of a card after one of its payments (topic `card.profiles`).
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CardProfile {
    /// Payments so far.
    #[prost(int64, tag = "1")]
    pub payment_count: i64,
    /// Their sum in minor currency units.
    #[prost(int64, tag = "2")]
    pub total_amount_minor: i64,
    /// Country of the payment handled last; absent in profiles from before the field was added.
    #[prost(string, optional, tag = "3")]
    pub last_country: Option<String>,
}

impl CardProfile {
    /// The profile after one more payment; numbers stop at the ends of the scale.
    #[must_use]
    pub fn plus(&self, payment: &Payment) -> CardProfile {
        CardProfile {
            payment_count: self.payment_count.saturating_add(1),
            total_amount_minor: self.total_amount_minor.saturating_add(payment.amount_minor),
            last_country: payment.country.clone(),
        }
    }
}

/// A profile and the card it is of, on its way to the topic, whose records do not name the card.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct CardProfileOf {
    /// The card.
    #[prost(string, tag = "1")]
    pub card_id: String,
    /// Its profile.
    #[prost(message, optional, tag = "2")]
    pub profile: Option<CardProfile>,
}

/// A rule message that was refused (topic `rules.rejected`).
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectedRule {
    /// The text as it came, so that it can be sent again after a repair.
    #[prost(string, tag = "1")]
    pub raw: String,
    /// Reason code, see [`crate::RuleRefusal::code`].
    #[prost(string, tag = "2")]
    pub reason: String,
    /// The reason as a sentence for the person who wrote the message.
    #[prost(string, tag = "3")]
    pub detail: String,
    /// Wall clock at the moment of refusal, milliseconds since the Unix epoch.
    #[prost(int64, tag = "4")]
    pub rejected_at_ms: i64,
}

#[cfg(test)]
mod tests;
