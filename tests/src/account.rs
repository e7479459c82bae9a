//! INV-6: every accepted record is emitted, counted, or in a dead-letter or late stream.

use std::collections::BTreeMap;

use payguard_engine::task::{IN, OUT};
use payguard_model::{CardSession, MerchantStats};
use payguard_sim::SimWorld;
use payguard_topology::{stage, stream};

use crate::outputs::Outputs;

/// Checks the counts of a pipeline that has handled `delivered` records and has ended.
///
/// # Errors
/// The first sum that does not come out.
pub fn account(world: &SimWorld, delivered: u64) -> Result<(), String> {
    let mut of: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (task, log) in &world.lock().logs {
        let stage = of.entry(task.stage.to_string()).or_default();
        for (name, by) in log.head.iter().flat_map(|h| &h.counters) {
            *stage.entry(name.clone()).or_default() += by;
        }
        let mut rows: BTreeMap<String, u64> = BTreeMap::new();
        for (name, by) in log.history.values().flat_map(|r| &r.counters) {
            *rows.entry(name.clone()).or_default() += by;
        }
        if log.head.as_ref().is_some_and(|h| h.counters != rows) {
            return Err(format!("INV-6: {task}: the head's counters are not the sum of the rows'"));
        }
    }
    let get = |stage: &str, name: &str| of.get(stage).and_then(|c| c.get(name)).copied().unwrap_or(0);
    let sum = |stage: &str, prefix: &str| -> u64 {
        of.get(stage).into_iter().flatten().filter(|(name, _)| name.starts_with(prefix)).map(|(_, n)| n).sum()
    };
    let (input, output) = (|name: &str| format!("{IN}{name}"), |name: &str| format!("{OUT}{name}"));
    let clean = get(stage::DEDUP, &output(stream::CLEAN_BY_CARD));
    let outputs = Outputs::of(world);
    let has_pairs = of.contains_key(stage::MATCH);
    let late = get(stage::WINDOW, &output(stream::TOO_LATE));
    for (what, left, right) in [
        ("parsed", get(stage::PARSE, "source.records_in"), delivered),
        ("parsed", sum(stage::PARSE, "parse.") + sum(stage::PARSE, "parse-confirmations."), delivered),
        ("accepted", get(stage::PARSE, &output(stream::PAYMENTS)), get(stage::PARSE, "parse.accepted")),
        ("read by dedup", get(stage::DEDUP, &input(stream::PAYMENTS)), get(stage::PARSE, "parse.accepted")),
        ("clean", clean + get(stage::DEDUP, "deduplicate.duplicates"), get(stage::DEDUP, &input(stream::PAYMENTS))),
        ("read by rules", get(stage::RULES, &input(stream::CLEAN_BY_CARD)), clean),
        ("read by window", get(stage::WINDOW, &input(stream::CLEAN_BY_MERCHANT)), clean),
        ("read by window", get(stage::WINDOW, &input(stream::CLEAN_FOR_SESSIONS)), clean),
        ("in windows", outputs.payments_in_windows() + late, clean),
        ("in sessions", outputs.payments_in_sessions() + get(stage::WINDOW, "card-sessions.late_dropped"), clean),
        ("profiles", outputs.count(payguard_publish::PROFILES_TOPIC), clean),
        (
            "alerts of cards",
            get(stage::ENRICH, &input(stream::CARD_ALERTS)),
            get(stage::RULES, &output(stream::CARD_ALERTS)),
        ),
        ("alerts of cards", sum(stage::RULES, "alerts."), get(stage::RULES, &output(stream::CARD_ALERTS))),
        (
            "unconfirmed",
            get(stage::ENRICH, &input(stream::UNCONFIRMED)),
            get(stage::MATCH, &output(stream::UNCONFIRMED)),
        ),
        ("enriched", get(stage::ENRICH, &output(stream::ALERTS)), sum(stage::ENRICH, IN)),
        ("alerts", outputs.count(payguard_publish::ALERTS_TOPIC), sum(stage::ENRICH, IN)),
        ("read by match", get(stage::MATCH, &input(stream::CLEAN_BY_PAYMENT)), if has_pairs { clean } else { 0 }),
        (
            "read by match",
            get(stage::MATCH, &input(stream::CONFIRMATIONS)),
            get(stage::PARSE, "parse-confirmations.accepted"),
        ),
        ("confirmed", outputs.count(payguard_publish::CONFIRMED_TOPIC), get(stage::MATCH, &output(stream::CONFIRMED))),
        ("refused", outputs.count(payguard_publish::REJECTED_RULES_TOPIC), get(stage::CONTROL, "control.refused")),
        ("published", sum(stage::PUBLISH, IN), outputs.publish.len() as u64),
        ("upserted", sum(stage::TOTALS, IN), outputs.totals.len() as u64),
    ] {
        if left != right {
            return Err(format!("INV-6: {what}: {left} is not {right}"));
        }
    }
    Ok(())
}

impl Outputs {
    /// Records of a topic.
    #[must_use]
    pub fn count(&self, topic: &str) -> u64 {
        self.publish.iter().filter(|r| r.topic == topic).count() as u64
    }

    /// Payments in the last emission of every window.
    ///
    /// # Panics
    /// When a record of totals is not one.
    #[must_use]
    pub fn payments_in_windows(&self) -> u64 {
        let totals = self.final_totals();
        let count = |json: &Vec<u8>| serde_json::from_slice::<MerchantStats>(json).expect("totals").payment_count;
        totals.values().map(|json| u64::try_from(count(json)).unwrap_or(0)).sum()
    }

    /// Payments in all sessions.
    ///
    /// # Panics
    /// When a session is not one.
    #[must_use]
    pub fn payments_in_sessions(&self) -> u64 {
        let sessions = self.publish.iter().filter(|r| r.topic == payguard_publish::SESSIONS_TOPIC);
        let count = |json: &Vec<u8>| serde_json::from_slice::<CardSession>(json).expect("session").payment_count;
        sessions.map(|r| u64::try_from(count(&r.value)).unwrap_or(0)).sum()
    }
}
