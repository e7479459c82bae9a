//! What a run came to: records, outputs, resources, and whether everything adds up.

mod connections;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use payguard_aws::usage::UsageSnapshot;
use payguard_engine::{Head, TaskId};
use payguard_local::accounting::{self, Discrepancy};
use payguard_model::{ConnectionReason, Reason};
use payguard_operators::matching::unconfirmed;
use payguard_operators::sequences::{card_testing, impossible_travel};
use payguard_operators::{amount_spike, blocked_country, velocity};
use payguard_topology::{System, stage, stream};
use serde_json::json;

use crate::session::Session;
use crate::text::{bytes, grouped};

/// Stage and id of every rule.
const RULES: [(&str, &str); 6] = [
    (stage::RULES, velocity::RULE_ID),
    (stage::RULES, blocked_country::RULE_ID),
    (stage::RULES, amount_spike::RULE_ID),
    (stage::RULES, card_testing::RULE_ID),
    (stage::RULES, impossible_travel::RULE_ID),
    (stage::MATCH, unconfirmed::RULE_ID),
];
/// Stage and name of the counters of late records that are dropped.
const DROPPED: [(&str, &str); 5] = [
    (stage::WINDOW, "merchant-stats-salted.too_late"),
    (stage::RULES, "card-sequences.card_testing_late"),
    (stage::RULES, "card-sequences.impossible_travel_late"),
    (stage::MATCH, "payment-matching.late_payments"),
    (stage::MATCH, "payment-matching.late_confirmations"),
];

/// The figures of a finished run.
pub(crate) struct Summary {
    records: u64,
    accepted: u64,
    refused: Vec<(&'static str, u64)>,
    duplicates: u64,
    late_events: u64,
    late_firings: u64,
    sessions_dropped: u64,
    /// Late records that other operators dropped, by operator and counter.
    dropped: Vec<(String, u64)>,
    alerts: Vec<(&'static str, u64)>,
    lookups: u64,
    lookup_failures: u64,
    /// What the variants of the connections pipeline came to; the figures of payments are then 0.
    variants: Option<connections::Variants>,
    outputs: Vec<(String, u64)>,
    out: PathBuf,
    elapsed: Duration,
    usage: UsageSnapshot,
    peak_memory: Option<u64>,
    pub(crate) discrepancies: Vec<Discrepancy>,
}

impl Summary {
    pub(crate) fn of(
        session: &Session,
        heads: &[(TaskId, Head)],
        records: u64,
        elapsed: Duration,
        out: &Path,
    ) -> Summary {
        let totals = accounting::totals(heads);
        let count = |stage: &str, name: &str| totals.get(stage).and_then(|c| c.get(name)).copied().unwrap_or(0);
        let written = |stage: &str, stream: &str| count(stage, &format!("{}{stream}", payguard_engine::task::IN));
        let config = &session.pipeline.config;
        let is_connections = config.system == System::Connections;
        let reasons: Vec<&str> = match config.system {
            System::Payments => Reason::ALL.iter().map(|r| r.code()).collect(),
            System::Connections => ConnectionReason::ALL.iter().map(|r| r.code()).collect(),
        };
        Summary {
            variants: is_connections.then(|| connections::Variants::of(config, &count)),
            records,
            accepted: count(stage::PARSE, "parse.accepted"),
            refused: reasons.into_iter().map(|r| (r, count(stage::PARSE, &format!("parse.{r}")))).collect(),
            duplicates: count(stage::DEDUP, "deduplicate.duplicates"),
            late_events: count(stage::PARSE, "lateness-probe.late_events"),
            late_firings: count(stage::WINDOW, "merchant-stats-1m.late_firings"),
            sessions_dropped: count(stage::WINDOW, "card-sessions.late_dropped"),
            dropped: DROPPED.iter().map(|(stage, name)| ((*name).to_owned(), count(stage, name))).collect(),
            alerts: RULES.iter().map(|(stage, rule)| (*rule, count(stage, &format!("alerts.{rule}")))).collect(),
            lookups: count(stage::ENRICH, "enrich-alerts.lookups"),
            lookup_failures: count(stage::ENRICH, "enrich-alerts.lookup_failures"),
            outputs: if is_connections { connections::outputs(config, &written) } else { payment_outputs(&written) },
            out: out.to_owned(),
            elapsed,
            usage: session.usage.snapshot(),
            peak_memory: peak_memory(),
            discrepancies: accounting::check(&session.pipeline.topology, heads, records),
        }
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        let seconds = self.elapsed.as_secs_f64();
        let rate = (self.records as f64 / seconds.max(1e-3)) as u64;
        let _ = writeln!(text, "{} records in {seconds:.1} s ({} a second)", grouped(self.records), grouped(rate));
        let _ = writeln!(text, "  accepted   {:>12}", grouped(self.accepted));
        for (reason, count) in self.refused.iter().filter(|r| r.1 > 0) {
            let _ = writeln!(text, "  refused    {:>12}  {reason}", grouped(*count));
        }
        match &self.variants {
            Some(variants) => variants.write(&mut text),
            None => self.write_payments(&mut text),
        }
        let _ = writeln!(text, "written to {}", self.out.display());
        for (topic, count) in self.outputs.iter().filter(|o| o.1 > 0) {
            let _ = writeln!(text, "  {:>12}  {topic}.jsonl", grouped(*count));
        }
        let per_record = self.usage.write_units / (self.records.max(1)) as f64;
        let _ = writeln!(
            text,
            "stores: {} DynamoDB write units ({per_record:.4} a record), {} read units; {} S3 puts of {}, {} gets",
            grouped(self.usage.write_units as u64),
            grouped(self.usage.read_units as u64),
            grouped(self.usage.s3_puts),
            bytes(self.usage.s3_put_bytes),
            grouped(self.usage.s3_gets)
        );
        if self.discrepancies.is_empty() {
            let _ = write!(text, "every record is accounted for");
        }
        for d in &self.discrepancies {
            let _ = write!(text, "NOT ACCOUNTED FOR: {}: expected {}, found {}", d.what, d.expected, d.found);
        }
        text
    }

    fn write_payments(&self, text: &mut String) {
        let _ = writeln!(text, "  duplicates {:>12}", grouped(self.duplicates));
        let _ = writeln!(
            text,
            "  late       {:>12}  of these {} updated a total, {} were dropped by sessions",
            grouped(self.late_events),
            grouped(self.late_firings),
            grouped(self.sessions_dropped)
        );
        for (counter, count) in self.dropped.iter().filter(|d| d.1 > 0) {
            let _ = writeln!(text, "             {:>12}  {counter}", grouped(*count));
        }
        let alerts: Vec<String> =
            self.alerts.iter().filter(|a| a.1 > 0).map(|(rule, count)| format!("{rule} {}", grouped(*count))).collect();
        let _ = writeln!(text, "alerts: {}", if alerts.is_empty() { "none".to_owned() } else { alerts.join(", ") });
        let (lookups, failures) = (grouped(self.lookups), grouped(self.lookup_failures));
        let _ = writeln!(text, "merchants looked up: {lookups}, of these {failures} without an answer");
    }

    pub(crate) fn to_json(&self) -> String {
        let refused: serde_json::Map<String, serde_json::Value> =
            self.refused.iter().map(|(reason, count)| ((*reason).to_owned(), json!(count))).collect();
        let outputs: serde_json::Map<String, serde_json::Value> =
            self.outputs.iter().map(|(topic, count)| (topic.clone(), json!(count))).collect();
        let mut figures = json!({
            "records": self.records,
            "seconds": self.elapsed.as_secs_f64(),
            "accepted": self.accepted,
            "refused": refused,
            "duplicates": self.duplicates,
            "late_events": self.late_events,
            "late_firings": self.late_firings,
            "sessions_dropped": self.sessions_dropped,
            "dropped": self.dropped.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            "alerts": self.alerts.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
            "lookups": self.lookups,
            "lookup_failures": self.lookup_failures,
            "outputs": outputs,
            "dynamodb_write_units": self.usage.write_units,
            "dynamodb_read_units": self.usage.read_units,
            "dynamodb_write_requests": self.usage.write_requests,
            "dynamodb_read_requests": self.usage.read_requests,
            "s3_puts": self.usage.s3_puts,
            "s3_gets": self.usage.s3_gets,
            "s3_lists": self.usage.s3_lists,
            "s3_put_bytes": self.usage.s3_put_bytes,
            "s3_get_bytes": self.usage.s3_get_bytes,
            "peak_memory_bytes": self.peak_memory,
            "unaccounted": self.discrepancies.iter().map(|d| &d.what).collect::<Vec<_>>(),
        });
        if let Some(variants) = &self.variants {
            figures["variants"] = variants.to_json();
        }
        figures.to_string()
    }
}

/// The topics and the table of the anti-fraud pipeline.
fn payment_outputs(written: &impl Fn(&str, &str) -> u64) -> Vec<(String, u64)> {
    vec![
        (payguard_publish::ALERTS_TOPIC.to_owned(), written(stage::PUBLISH, stream::ALERTS)),
        (payguard_totals::TABLE.to_owned(), written(stage::TOTALS, stream::MERCHANT_STATS)),
        (payguard_publish::SESSIONS_TOPIC.to_owned(), written(stage::PUBLISH, stream::CARD_SESSIONS)),
        (payguard_publish::DLQ_TOPIC.to_owned(), written(stage::PUBLISH, stream::REJECTED)),
        (payguard_publish::LATE_TOPIC.to_owned(), written(stage::PUBLISH, stream::TOO_LATE)),
        (payguard_publish::CONFIRMED_TOPIC.to_owned(), written(stage::PUBLISH, stream::CONFIRMED)),
        (payguard_publish::PROFILES_TOPIC.to_owned(), written(stage::PUBLISH, stream::CARD_PROFILES)),
        (payguard_publish::REJECTED_RULES_TOPIC.to_owned(), written(stage::PUBLISH, stream::REJECTED_RULES)),
    ]
}

/// Greatest resident size of this process so far; `None` where the system does not tell.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}
