//! What must come out.

use std::collections::{BTreeMap, BTreeSet};

use payguard_model::json::to_json;
use payguard_model::{
    ConfirmedPayment, EventTime, FraudAlert, Payment, PaymentConfirmation, ProcessingTime, RejectedRule, RuleConfig,
    parse_confirmation, parse_payment, parse_rule_change, raw_text,
};
use payguard_operators::card_profile::CardProfiles;
use payguard_operators::matching::{MAX_DELAY_MS, unconfirmed};
use payguard_operators::sequences::SequenceRules;
use payguard_operators::testing::Harness;
use payguard_operators::{amount_spike, blocked_country, velocity};
use payguard_publish::{
    ALERTS_TOPIC, CONFIRMED_TOPIC, DLQ_TOPIC, LATE_TOPIC, PROFILES_TOPIC, REJECTED_RULES_TOPIC, SESSIONS_TOPIC,
};
use payguard_sim::reference::RawRecord;
use payguard_tests::Setup;
use payguard_tests::data::NOW_MS;
use payguard_totals::TABLE;
use serde_json::Value;

use crate::data::{BLOCKED, BLOCKED_FROM, CLOSING, Topics};

/// The directory of merchants: who is not in it is UNKNOWN.
pub(crate) fn merchants_csv() -> String {
    let of = |n: usize| format!("m{n}-0000,HIGH\nm{n}-0001,LOW\n");
    format!("merchant_id,risk_level\n{}", (0..crate::data::PARTITIONS).map(of).collect::<String>())
}

/// The first copy of every payment of a partition, with its offset.
pub(crate) fn first_copies(setup: &Setup, records: &[RawRecord]) -> Vec<(i64, Payment)> {
    let policy = setup.config.parse_policy();
    let mut seen = BTreeSet::new();
    let payments = records.iter().filter_map(|record| {
        let payment = parse_payment(record.value.as_ref()?, ProcessingTime(NOW_MS), &policy).ok()?;
        seen.insert(payment.payment_id.clone()).then_some((record.offset, payment))
    });
    payments.collect()
}

/// Records by topic or table, sorted.
pub(crate) fn expected(setup: &Setup, topics: &Topics) -> BTreeMap<String, Vec<String>> {
    let mut expected = Expected::default();
    for (payments, confirmations) in topics.payments.partitions.iter().zip(&topics.confirmations.partitions) {
        expected.of_the_naive_model(setup, payments);
        let first = first_copies(setup, payments);
        expected.of_cards(setup, &first);
        let confirmations = confirmations.iter().filter_map(|r| parse_confirmation(r.value.as_ref()?));
        expected.of_confirmations(setup, &first, &confirmations.collect::<Vec<_>>());
    }
    let refused = |raw: &RawRecord| {
        let text = raw.value.as_deref().unwrap_or_default();
        let refusal = parse_rule_change(text).err()?;
        let (reason, detail) = (refusal.code().to_owned(), refusal.to_string());
        Some(RejectedRule { raw: raw_text(text), reason, detail, rejected_at_ms: 0 })
    };
    for record in topics.rules.partitions.iter().flatten().filter_map(refused) {
        expected.add(REJECTED_RULES_TOPIC, &to_json(&record));
    }
    expected.0.values_mut().for_each(|lines| lines.sort());
    expected.0
}

/// The rules of every version, in order.
pub(crate) fn versions(setup: &Setup, topics: &Topics) -> Vec<RuleConfig> {
    let mut rules = setup.config.default_rules();
    let values = topics.rules.partitions.iter().flatten().filter_map(|r| r.value.as_deref());
    let changes = values.filter_map(|text| parse_rule_change(text).ok());
    let next = |change| {
        rules = rules.apply(&change);
        rules.clone()
    };
    changes.map(next).collect()
}

#[derive(Default)]
struct Expected(BTreeMap<String, Vec<String>>);

impl Expected {
    fn add(&mut self, topic: &str, json: &[u8]) {
        self.0.entry(topic.to_owned()).or_default().push(comparable(&String::from_utf8_lossy(json)));
    }

    /// Alerts, each with the risk of its merchant.
    fn alerts(&mut self, alerts: impl IntoIterator<Item = FraudAlert>) {
        for mut alert in alerts {
            let risk = match alert.merchant_id.rsplit('-').next() {
                Some("0000") => "HIGH",
                Some("0001") => "LOW",
                _ => "UNKNOWN",
            };
            alert.merchant_risk = risk.to_owned();
            self.add(ALERTS_TOPIC, &to_json(&alert));
        }
    }

    /// What the naive model knows: dead letters, late payments, sessions, totals, the rules that count.
    fn of_the_naive_model(&mut self, setup: &Setup, records: &[RawRecord]) {
        for (topic, published) in setup.reference(records) {
            let own: Vec<_> = published.iter().filter(|record| !record.key.starts_with(CLOSING)).collect();
            if topic == ALERTS_TOPIC {
                let alerts = own.iter().filter_map(|record| serde_json::from_slice::<FraudAlert>(&record.value).ok());
                self.alerts(alerts.filter(|a| [velocity::RULE_ID, amount_spike::RULE_ID].contains(&&*a.rule_id)));
            } else if [DLQ_TOPIC, LATE_TOPIC, SESSIONS_TOPIC, TABLE].contains(&topic) {
                own.iter().for_each(|record| self.add(topic, &record.value));
            }
        }
    }

    /// The rules that look at a card's payments one by one, and its profiles.
    fn of_cards(&mut self, setup: &Setup, payments: &[(i64, Payment)]) {
        let (language, blocked) = (setup.config.language(), [BLOCKED.to_owned()]);
        let mut sequences = Harness::new(SequenceRules { card_testing: true, impossible_travel: true, language });
        let mut profiles = Harness::new(CardProfiles);
        for (offset, payment) in payments {
            if *offset >= BLOCKED_FROM as i64 {
                self.alerts(blocked_country::check(payment, &blocked, language));
            }
            sequences.process(&payment.card_id, payment);
            profiles.process(&payment.card_id, payment);
        }
        sequences.advance_watermark(EventTime::MAX);
        self.alerts(sequences.take_outputs());
        profiles.take_outputs().iter().for_each(|profile| self.add(PROFILES_TOPIC, &to_json(profile)));
    }

    /// Pairs, and alerts of payments without one.
    fn of_confirmations(&mut self, setup: &Setup, payments: &[(i64, Payment)], confirmations: &[PaymentConfirmation]) {
        for (_, payment) in payments.iter().filter(|(_, payment)| !payment.payment_id.starts_with(CLOSING)) {
            let own: Vec<_> = confirmations.iter().filter(|c| c.payment_id == payment.payment_id).collect();
            for confirmation in &own {
                let delay = confirmation.event_time_ms - payment.event_time_ms;
                assert!((0..=MAX_DELAY_MS).contains(&delay));
                let pair = ConfirmedPayment {
                    payment_id: payment.payment_id.clone(),
                    merchant_id: payment.merchant_id.clone(),
                    amount_minor: payment.amount_minor,
                    status: confirmation.status.clone(),
                    confirmation_delay_ms: delay,
                };
                self.add(CONFIRMED_TOPIC, &to_json(&pair));
            }
            if own.is_empty() {
                let detail = setup.config.language().unconfirmed(MAX_DELAY_MS);
                self.alerts([FraudAlert::of(unconfirmed::RULE_ID, payment, detail)]);
            }
        }
    }
}

/// A line without what depends on the time of day.
pub(crate) fn comparable(line: &str) -> String {
    let mut value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("not a record ({e}): {line}"));
    if let Some(fields) = value.as_object_mut() {
        fields.remove("rejectedAtMs");
    }
    value.to_string()
}
