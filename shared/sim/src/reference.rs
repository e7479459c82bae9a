//! The naive model: one partition of payments and one of confirmations, record by record, everything in memory, the
//! watermark known to every operator at once. No batches, no segments, no logs, no stores.
//!
//! What a strict run promises about order, in its simplest form: where two inputs meet, records are sorted by the
//! watermark they came with, and those of the first input go first when it is the same.

use std::collections::BTreeMap;

use payguard_engine::store::SinkRecord;
use payguard_model::json::to_json;
use payguard_model::{
    EventTime, FraudAlert, ParsePolicy, Payment, ProcessingTime, RejectedRecord, RejectedRule, RuleConfig,
    parse_confirmation, parse_payment, parse_rule_change, raw_text,
};
use payguard_operators::amount_spike::AmountSpikeRule;
use payguard_operators::blocked_country;
use payguard_operators::card_profile::CardProfiles;
use payguard_operators::card_sessions::CardSessionWindow;
use payguard_operators::dedup::is_expired;
use payguard_operators::detail::DetailLanguage;
use payguard_operators::matching::{MatchEvent, MatchOutput, PaymentMatching};
use payguard_operators::merchant_stats::{MerchantStatsWindow, Output};
use payguard_operators::sequences::SequenceRules;
use payguard_operators::testing::Harness;
use payguard_operators::velocity::VelocityRule;

/// How far behind the newest event the watermark is.
const DISORDER_MS: i64 = 10_001;

/// A record of the partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawRecord {
    /// Its offset.
    pub offset: i64,
    /// Kafka timestamp, milliseconds.
    pub timestamp: Option<i64>,
    /// Its value.
    pub value: Option<Vec<u8>>,
}

/// What the pipeline publishes, by topic or table, each in order.
pub type Published = BTreeMap<&'static str, Vec<SinkRecord>>;

/// Names of topics and tables.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Of alerts.
    pub alerts: &'static str,
    /// Of refused records.
    pub dlq: &'static str,
    /// Of late payments.
    pub late: &'static str,
    /// Of sessions.
    pub sessions: &'static str,
    /// Of totals.
    pub totals: &'static str,
    /// Of confirmed payments.
    pub confirmed: &'static str,
    /// Of profiles.
    pub profiles: &'static str,
    /// Of refused changes of the rules.
    pub rejected_rules: &'static str,
}

/// What the pipeline is configured with.
pub struct Configured {
    /// Topics and tables.
    pub names: Names,
    /// How payments are read.
    pub policy: ParsePolicy,
    /// The rules until the first message.
    pub rules: RuleConfig,
    /// Most that a card may spend.
    pub amount_limit: i64,
    /// Whether payments are matched with confirmations.
    pub has_confirmations: bool,
    /// Language of alerts.
    pub language: DetailLanguage,
    /// The risk of a merchant.
    pub risk: fn(&str) -> &'static str,
}

/// The pipeline.
pub struct Reference {
    configured: Configured,
    watermark: EventTime,
    seen: BTreeMap<String, ProcessingTime>,
    merchants: Harness<MerchantStatsWindow>,
    sessions: Harness<CardSessionWindow>,
    velocity: Harness<VelocityRule>,
    amount: Harness<AmountSpikeRule>,
    sequences: Harness<SequenceRules>,
    profiles: Harness<CardProfiles>,
    /// Alerts about cards, each with the watermark it was raised at.
    card_alerts: Vec<(EventTime, FraudAlert)>,
    /// First copies of payments with the watermark they met.
    payments: Vec<(EventTime, MatchEvent)>,
    /// Confirmations with the watermark they came with.
    confirmations: Vec<(EventTime, MatchEvent)>,
    confirmations_watermark: EventTime,
    published: Published,
}

impl Reference {
    /// A pipeline that has seen nothing.
    #[must_use]
    pub fn new(configured: Configured) -> Reference {
        let language = configured.language;
        let velocity = VelocityRule { limit: configured.rules.velocity_max_payments, language };
        let amount = AmountSpikeRule { limit: configured.amount_limit, language };
        let sequences = SequenceRules { card_testing: true, impossible_travel: true, language };
        Reference {
            configured,
            watermark: EventTime::MIN,
            seen: BTreeMap::new(),
            merchants: Harness::new(MerchantStatsWindow),
            sessions: Harness::new(CardSessionWindow),
            velocity: Harness::new(velocity),
            amount: Harness::new(amount),
            sequences: Harness::new(sequences),
            profiles: Harness::new(CardProfiles),
            card_alerts: Vec::new(),
            payments: Vec::new(),
            confirmations: Vec::new(),
            confirmations_watermark: EventTime::MIN,
            published: Published::new(),
        }
    }

    /// Takes a message that changes the rules of all payments to come.
    pub fn message(&mut self, raw: &[u8], now: ProcessingTime) {
        match parse_rule_change(raw) {
            Ok(change) => {
                self.configured.rules = self.configured.rules.apply(&change);
                self.velocity.operator_mut().limit = self.configured.rules.velocity_max_payments;
            }
            Err(refusal) => {
                let reason = refusal.code().to_owned();
                let (raw, detail) = (raw_text(raw), refusal.to_string());
                let rejected = RejectedRule { raw, reason, detail, rejected_at_ms: now.0 };
                self.publish(self.configured.names.rejected_rules, rejected.reason.clone(), to_json(&rejected));
            }
        }
    }

    /// Handles the next record of the partition at processing time `now`.
    pub fn record(&mut self, record: &RawRecord, now: ProcessingTime) {
        let Some(raw) = &record.value else { return };
        self.advance(self.watermark);
        let time = match parse_payment(raw, now, &self.configured.policy) {
            Ok(mut payment) => {
                payment.source_offset = record.offset;
                self.payment(&payment, now);
                Some(payment.event_time_ms)
            }
            Err(reason) => {
                let (raw, reason) = (raw_text(raw), reason.code().to_owned());
                let rejected = RejectedRecord { raw, reason, rejected_at_ms: now.0, replays: 0 };
                self.publish(self.configured.names.dlq, rejected.reason.clone(), to_json(&rejected));
                let bound = self.configured.policy.max_future_ms.map_or(i64::MAX, |ms| now.0 + ms);
                record.timestamp.filter(|t| *t <= bound)
            }
        };
        if let Some(time) = time {
            self.watermark = self.watermark.max(EventTime(time - DISORDER_MS));
        }
    }

    /// The watermark of the payments so far: what a confirmation that comes now is held to.
    #[must_use]
    pub fn watermark(&self) -> EventTime {
        self.watermark
    }

    /// Handles the next confirmation, which came when the payments' watermark was `bound`.
    pub fn confirmation(&mut self, record: &RawRecord, bound: EventTime) {
        let Some(confirmation) = record.value.as_deref().and_then(parse_confirmation) else { return };
        let time = confirmation.event_time_ms;
        let stamp = self.confirmations_watermark.min(bound);
        self.confirmations.push((stamp, MatchEvent::Confirmation(confirmation)));
        self.confirmations_watermark = self.confirmations_watermark.max(EventTime(time - DISORDER_MS));
    }

    /// Ends the input and gives out what was published.
    #[must_use]
    pub fn finish(mut self) -> Published {
        self.advance(EventTime::MAX);
        let mut alerts = if self.configured.has_confirmations { self.matched() } else { Vec::new() };
        alerts.append(&mut self.card_alerts);
        // Those of unconfirmed payments were put first.
        alerts.sort_by_key(|(stamp, _)| *stamp);
        for (_, mut alert) in alerts {
            alert.merchant_risk = (self.configured.risk)(&alert.merchant_id).to_owned();
            self.publish(self.configured.names.alerts, alert.card_id.clone(), to_json(&alert));
        }
        self.published
    }

    fn payment(&mut self, payment: &Payment, now: ProcessingTime) {
        if self.seen.get(&payment.payment_id).is_some_and(|at| !is_expired(*at, now)) {
            return;
        }
        self.seen.insert(payment.payment_id.clone(), now);
        self.payments.push((self.watermark, MatchEvent::Payment(payment.clone())));
        let blocked =
            blocked_country::check(payment, &self.configured.rules.blocked_countries, self.configured.language);
        self.card_alerts.extend(blocked.map(|alert| (self.watermark, alert)));
        self.merchants.process(&payment.merchant_id, payment);
        self.sessions.process(&payment.card_id, payment);
        self.velocity.process(&payment.card_id, payment);
        self.amount.process(&payment.card_id, payment);
        self.sequences.process(&payment.card_id, payment);
        self.profiles.process(&payment.card_id, payment);
        for profile in self.profiles.take_outputs() {
            self.publish(self.configured.names.profiles, payment.card_id.clone(), to_json(&profile));
        }
        self.collect(self.watermark);
    }

    fn advance(&mut self, watermark: EventTime) {
        let before = self.sequences.watermark();
        self.merchants.advance_watermark(watermark);
        self.sessions.advance_watermark(watermark);
        self.velocity.advance_watermark(watermark);
        self.amount.advance_watermark(watermark);
        self.sequences.advance_watermark(watermark);
        self.collect(before);
    }

    fn collect(&mut self, watermark: EventTime) {
        for output in self.merchants.take_outputs() {
            match output {
                Output::Stats(stats) => {
                    let key = format!("{}:{}", stats.merchant_id, stats.window_start_ms);
                    self.publish(self.configured.names.totals, key, to_json(&stats));
                }
                Output::TooLate(payment) => {
                    self.publish(self.configured.names.late, payment.payment_id.clone(), to_json(&payment));
                }
            }
        }
        for session in self.sessions.take_outputs() {
            self.publish(self.configured.names.sessions, session.card_id.clone(), to_json(&session));
        }
        for alert in [self.velocity.take_outputs(), self.amount.take_outputs()].into_iter().flatten() {
            self.card_alerts.push((watermark, alert));
        }
        // These are raised by timers: just before time came to the payment that ends the pattern.
        for alert in self.sequences.take_outputs() {
            self.card_alerts.push((watermark.max(EventTime(alert.event_time_ms).minus(1)), alert));
        }
    }

    /// Payments and confirmations in the order of their watermarks; gives the alerts with the times they were raised.
    fn matched(&mut self) -> Vec<(EventTime, FraudAlert)> {
        let mut events = std::mem::take(&mut self.payments);
        events.append(&mut self.confirmations);
        events.sort_by_key(|(stamp, _)| *stamp);
        let mut matching =
            Harness::new(PaymentMatching { join: true, unconfirmed: true, language: self.configured.language });
        let mut alerts = Vec::new();
        let end = std::iter::once((EventTime::MAX, None));
        for (stamp, event) in events.into_iter().map(|(stamp, event)| (stamp, Some(event))).chain(end) {
            let before = matching.watermark();
            matching.advance_watermark(stamp);
            let raised = matching.outputs().to_vec();
            matching.take_outputs();
            alerts.extend(raised.into_iter().filter_map(|(time, output)| match output {
                MatchOutput::Alert(alert) => Some((before.max(time.minus(1)), alert)),
                MatchOutput::Confirmed(_) => None,
            }));
            let Some(event) = event else { break };
            let id = match &event {
                MatchEvent::Payment(payment) => &payment.payment_id,
                MatchEvent::Confirmation(confirmation) => &confirmation.payment_id,
            };
            matching.process(id, &event);
            for output in matching.take_outputs() {
                if let MatchOutput::Confirmed(pair) = output {
                    self.publish(self.configured.names.confirmed, pair.payment_id.clone(), to_json(&pair));
                }
            }
        }
        alerts
    }

    fn publish(&mut self, topic: &'static str, key: String, value: Vec<u8>) {
        self.published.entry(topic).or_default().push(SinkRecord { topic, key, value });
    }
}
