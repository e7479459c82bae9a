//! The naive model: one partition, record by record, everything in memory, the watermark known to every operator at
//! once. No batches, no segments, no logs, no stores.

use std::collections::BTreeMap;

use payguard_engine::store::SinkRecord;
use payguard_model::json::to_json;
use payguard_model::{EventTime, ParsePolicy, Payment, ProcessingTime, RejectedRecord, parse_payment, raw_text};
use payguard_operators::amount_spike::AmountSpikeRule;
use payguard_operators::card_sessions::CardSessionWindow;
use payguard_operators::dedup::is_expired;
use payguard_operators::merchant_stats::{MerchantStatsWindow, Output};
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
}

/// The pipeline.
pub struct Reference {
    names: Names,
    policy: ParsePolicy,
    watermark: EventTime,
    seen: BTreeMap<String, ProcessingTime>,
    merchants: Harness<MerchantStatsWindow>,
    sessions: Harness<CardSessionWindow>,
    velocity: Harness<VelocityRule>,
    amount: Harness<AmountSpikeRule>,
    published: Published,
}

impl Reference {
    /// A pipeline that has seen nothing.
    #[must_use]
    pub fn new(names: Names, policy: ParsePolicy, velocity: VelocityRule, amount: AmountSpikeRule) -> Reference {
        Reference {
            names,
            policy,
            watermark: EventTime::MIN,
            seen: BTreeMap::new(),
            merchants: Harness::new(MerchantStatsWindow),
            sessions: Harness::new(CardSessionWindow),
            velocity: Harness::new(velocity),
            amount: Harness::new(amount),
            published: Published::new(),
        }
    }

    /// Handles the next record of the partition at processing time `now`.
    pub fn record(&mut self, record: &RawRecord, now: ProcessingTime) {
        let Some(raw) = &record.value else { return };
        self.advance(self.watermark);
        let time = match parse_payment(raw, now, &self.policy) {
            Ok(payment) => {
                self.payment(&payment, now);
                Some(payment.event_time_ms)
            }
            Err(reason) => {
                let rejected =
                    RejectedRecord { raw: raw_text(raw), reason: reason.code().to_owned(), rejected_at_ms: now.0 };
                self.publish(self.names.dlq, rejected.reason.clone(), to_json(&rejected));
                let bound = self.policy.max_future_ms.map_or(i64::MAX, |ms| now.0 + ms);
                record.timestamp.filter(|t| *t <= bound)
            }
        };
        if let Some(time) = time {
            self.watermark = self.watermark.max(EventTime(time - DISORDER_MS));
        }
    }

    /// Ends the input and gives out what was published.
    #[must_use]
    pub fn finish(mut self) -> Published {
        self.advance(EventTime::MAX);
        self.published
    }

    fn payment(&mut self, payment: &Payment, now: ProcessingTime) {
        if self.seen.get(&payment.payment_id).is_some_and(|at| !is_expired(*at, now)) {
            return;
        }
        self.seen.insert(payment.payment_id.clone(), now);
        self.merchants.process(&payment.merchant_id, payment);
        self.sessions.process(&payment.card_id, payment);
        self.velocity.process(&payment.card_id, payment);
        self.amount.process(&payment.card_id, payment);
        self.collect();
    }

    fn advance(&mut self, watermark: EventTime) {
        self.merchants.advance_watermark(watermark);
        self.sessions.advance_watermark(watermark);
        self.velocity.advance_watermark(watermark);
        self.amount.advance_watermark(watermark);
        self.collect();
    }

    fn collect(&mut self) {
        for output in self.merchants.take_outputs() {
            match output {
                Output::Stats(stats) => {
                    let key = format!("{}:{}", stats.merchant_id, stats.window_start_ms);
                    self.publish(self.names.totals, key, to_json(&stats));
                }
                Output::TooLate(payment) => {
                    self.publish(self.names.late, payment.payment_id.clone(), to_json(&payment));
                }
            }
        }
        for session in self.sessions.take_outputs() {
            self.publish(self.names.sessions, session.card_id.clone(), to_json(&session));
        }
        for alert in [self.velocity.take_outputs(), self.amount.take_outputs()].into_iter().flatten() {
            self.publish(self.names.alerts, alert.card_id.clone(), to_json(&alert));
        }
    }

    fn publish(&mut self, topic: &'static str, key: String, value: Vec<u8>) {
        self.published.entry(topic).or_default().push(SinkRecord { topic, key, value });
    }
}
