//! Alerts, and how they came about.

use serde::{Deserialize, Serialize};

use crate::{EventTime, Payment};

/// [`FraudAlert::merchant_risk`] of an alert that was not enriched yet; never published.
pub const RISK_NOT_LOADED: &str = "NOT_LOADED";

/// [`FraudAlert::merchant_risk`] when the merchant is not in the directory or the directory did not answer.
pub const RISK_UNKNOWN: &str = "UNKNOWN";

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
    /// Risk of the merchant: a level of the directory, [`RISK_UNKNOWN`] or [`RISK_NOT_LOADED`].
    #[prost(string, tag = "8")]
    #[serde(default = "not_loaded")]
    pub merchant_risk: String,
    /// How the alert came about; kept beside it, never in its JSON.
    #[prost(message, optional, tag = "9")]
    #[serde(skip)]
    pub decision: Option<Decision>,
}

/// How an alert came about: enough to find the input and to repeat the decision.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// Version of the rules in force; absent when the rule does not depend on them.
    #[prost(uint64, optional, tag = "1")]
    pub rule_version: Option<u64>,
    /// Partition of the source topic with the triggering payment.
    #[prost(uint32, tag = "2")]
    pub source_partition: u32,
    /// Its offset in that partition.
    #[prost(int64, tag = "3")]
    pub source_offset: i64,
    /// The task that decided.
    #[prost(string, tag = "4")]
    pub task: String,
    /// The commit of that task.
    #[prost(uint64, tag = "5")]
    pub seq: u64,
    /// The watermark at the decision, milliseconds of event time.
    #[prost(int64, tag = "6")]
    pub watermark_ms: i64,
    /// The numbers that were compared.
    #[prost(message, repeated, tag = "7")]
    pub facts: Vec<Fact>,
    /// Ids of the payments of a pattern, in its order.
    #[prost(string, repeated, tag = "8")]
    pub payments: Vec<String>,
}

/// One number of a [`Decision`].
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fact {
    /// What it is, for example `limit`; an amount ends in `_minor`, a length of time in `_ms`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The number.
    #[prost(int64, tag = "2")]
    pub value: i64,
}

impl FraudAlert {
    /// The alert of rule `rule_id` for the payment that triggered it; the merchant's risk is not loaded, and of the
    /// decision only the source of the payment is known.
    #[must_use]
    pub fn of(rule_id: &str, trigger: &Payment, detail: String) -> FraudAlert {
        let decision = Decision {
            source_partition: trigger.source_partition,
            source_offset: trigger.source_offset,
            ..Decision::default()
        };
        FraudAlert {
            alert_id: format!("{rule_id}:{}", trigger.payment_id),
            rule_id: rule_id.to_owned(),
            card_id: trigger.card_id.clone(),
            merchant_id: trigger.merchant_id.clone(),
            payment_id: trigger.payment_id.clone(),
            detail,
            event_time_ms: trigger.event_time_ms,
            merchant_risk: not_loaded(),
            decision: Some(decision),
        }
    }

    /// With one more number that was compared.
    #[must_use]
    pub fn with_fact(mut self, name: &str, value: i64) -> FraudAlert {
        self.decision.get_or_insert_default().facts.push(Fact { name: name.to_owned(), value });
        self
    }

    /// With the commit that decides it, the watermark there, and the version of the rules in force, for rules that
    /// have versions (0: the defaults).
    #[must_use]
    pub fn decided_by(mut self, task: &str, seq: u64, watermark: EventTime, rules: Option<u64>) -> FraudAlert {
        let decision = self.decision.get_or_insert_default();
        task.clone_into(&mut decision.task);
        (decision.seq, decision.watermark_ms, decision.rule_version) = (seq, watermark.0, rules);
        self
    }

    /// With the ids of the pattern's payments, in its order.
    #[must_use]
    pub fn with_payments(mut self, ids: Vec<String>) -> FraudAlert {
        self.decision.get_or_insert_default().payments = ids;
        self
    }
}

fn not_loaded() -> String {
    RISK_NOT_LOADED.to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::to_json;

    fn alert() -> FraudAlert {
        let trigger = Payment {
            payment_id: "p3".into(),
            card_id: "c1".into(),
            merchant_id: "m1".into(),
            event_time_ms: 3_000,
            source_partition: 2,
            source_offset: 17,
            ..Payment::default()
        };
        FraudAlert::of("velocity", &trigger, "3 payments".into())
    }

    #[test]
    fn lesson_09_the_risk_comes_last_and_the_decision_stays_inside() {
        let json = concat!(
            r#"{"alertId":"velocity:p3","ruleId":"velocity","cardId":"c1","merchantId":"m1","paymentId":"p3","#,
            r#""detail":"3 payments","eventTimeMs":3000,"merchantRisk":"NOT_LOADED"}"#
        );
        let alert = alert().with_fact("payments", 3);
        assert_eq!(String::from_utf8(to_json(&alert)).unwrap(), json);
    }

    #[test]
    fn an_alert_written_before_enrichment_existed_is_read_as_not_loaded() {
        let json = concat!(
            r#"{"alertId":"velocity:p3","ruleId":"velocity","cardId":"c1","merchantId":"m1","paymentId":"p3","#,
            r#""detail":"3 payments","eventTimeMs":3000}"#
        );
        let read: FraudAlert = serde_json::from_str(json).unwrap();
        assert_eq!(read, FraudAlert { decision: None, ..alert() });
    }

    #[test]
    fn the_decision_travels_between_stages() {
        let alert =
            alert().with_fact("payments", 3).with_fact("limit", 2).with_payments(vec!["p1".into(), "p3".into()]);
        let decision = alert.decision.clone().unwrap();
        assert_eq!((decision.source_partition, decision.source_offset), (2, 17));
        assert_eq!(FraudAlert::decode(alert.encode_to_vec().as_slice()).unwrap(), alert);
        let json = concat!(
            r#"{"ruleVersion":null,"sourcePartition":2,"sourceOffset":17,"task":"","seq":0,"watermarkMs":0,"#,
            r#""facts":[{"name":"payments","value":3},{"name":"limit","value":2}],"payments":["p1","p3"]}"#
        );
        assert_eq!(String::from_utf8(to_json(&decision)).unwrap(), json);
    }
}
