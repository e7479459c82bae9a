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

/// A suspicion raised by a rule (topic `fraud.alerts`).
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FraudAlert {
    /// `<ruleId>:<paymentId>`: reprocessing the same payment gives the same id.
    #[prost(string, tag = "1")]
    pub alert_id: String,
    /// The rule that fired.
    #[prost(string, tag = "2")]
    pub rule_id: String,
    /// The card.
    #[prost(string, tag = "3")]
    pub card_id: String,
    /// Merchant of the payment that triggered the alert.
    #[prost(string, tag = "4")]
    pub merchant_id: String,
    /// The payment that triggered the alert.
    #[prost(string, tag = "5")]
    pub payment_id: String,
    /// A sentence for a person, in the configured language.
    #[prost(string, tag = "6")]
    pub detail: String,
    /// Event time of the triggering payment.
    #[prost(int64, tag = "7")]
    pub event_time_ms: i64,
}

impl FraudAlert {
    /// The alert of rule `rule_id` for the payment that triggered it.
    #[must_use]
    pub fn of(rule_id: &str, trigger: &Payment, detail: String) -> FraudAlert {
        FraudAlert {
            alert_id: format!("{rule_id}:{}", trigger.payment_id),
            rule_id: rule_id.to_owned(),
            card_id: trigger.card_id.clone(),
            merchant_id: trigger.merchant_id.clone(),
            payment_id: trigger.payment_id.clone(),
            detail,
            event_time_ms: trigger.event_time_ms,
        }
    }
}
