//! The anti-fraud pipeline.

use payguard_engine::StageId;
use payguard_engine::input::TopicPartitions;
use payguard_engine::merge::Alignment;
use payguard_operators::{
    KeyedOperator, amount_spike::AmountSpikeRule, card_sessions::CardSessionWindow, dedup,
    merchant_stats::MerchantStatsWindow, velocity::VelocityRule,
};

use crate::config::{AlignmentMode, Config};
use crate::{SourceTopic, Stage, StageKind, Stream, Topology};

/// Permanent ids of the stages.
pub mod stage {
    /// Decodes and validates what comes from Kafka, and defines time.
    pub const PARSE: &str = "parse";
    /// Lets the first copy of a payment pass.
    pub const DEDUP: &str = "dedup";
    /// Totals per merchant and minute, sessions per card.
    pub const WINDOW: &str = "window";
    /// Rules per card.
    pub const RULES: &str = "rules";
    /// Writes topics.
    pub const PUBLISH: &str = "publish";
    /// Writes the table of totals.
    pub const TOTALS: &str = "totals";
    /// Heartbeats and lost wake-ups.
    pub const CLOCK: &str = "clock";
}

/// Names of the streams.
pub mod stream {
    /// Valid payments, repeats included.
    pub const PAYMENTS: &str = "payments";
    /// Refused records.
    pub const REJECTED: &str = "rejected";
    /// First copies, for the rules.
    pub const CLEAN_BY_CARD: &str = "clean-by-card";
    /// First copies, for the merchant totals.
    pub const CLEAN_BY_MERCHANT: &str = "clean-by-merchant";
    /// First copies, for the card sessions.
    pub const CLEAN_FOR_SESSIONS: &str = "clean-for-sessions";
    /// Emissions of merchant totals.
    pub const MERCHANT_STATS: &str = "merchant-stats";
    /// Payments no window accepted.
    pub const TOO_LATE: &str = "too-late";
    /// Finished card sessions.
    pub const CARD_SESSIONS: &str = "card-sessions";
    /// Alerts.
    pub const ALERTS: &str = "alerts";
}

/// Permanent ids of the operators that can be left out of a run.
pub mod operator {
    /// Totals per merchant and minute.
    pub const MERCHANT_STATS: &str = "merchant-stats-1m";
    /// Sessions per card.
    pub const CARD_SESSIONS: &str = "card-sessions";
    /// Too many payments of a card.
    pub const VELOCITY: &str = "rule-velocity";
    /// Too much spent by a card.
    pub const AMOUNT_SPIKE: &str = "rule-amount-spike";

    /// All of them.
    pub const ALL: [&str; 4] = [MERCHANT_STATS, CARD_SESSIONS, VELOCITY, AMOUNT_SPIKE];
    /// Without sessions: what the benchmarks compare.
    pub const CORE: [&str; 3] = [MERCHANT_STATS, VELOCITY, AMOUNT_SPIKE];
}

/// The topology for a configuration.
#[must_use]
pub fn payguard(config: &Config) -> Topology {
    let on = |operator: &str| config.has_operator(operator);
    let drift = Alignment::MaxDrift(config.engine.max_drift_ms);
    let (alignment, sink_alignment) = match config.engine.alignment {
        AlignmentMode::Strict => (Alignment::Strict, Alignment::Strict),
        AlignmentMode::Drift => (drift, Alignment::Off),
        AlignmentMode::Off => (Alignment::Off, Alignment::Off),
    };
    Topology {
        pipeline: config.pipeline.clone(),
        stages: stages(config),
        streams: streams().into_iter().filter(|(_, needs)| needs.is_none_or(on)).map(|(s, _)| s).collect(),
        alignment,
        sink_alignment,
    }
}

fn stages(config: &Config) -> Vec<Stage> {
    let new = |id: &str, kind, operators: &[&'static str], shards, summary| Stage {
        id: StageId::new(id),
        kind,
        operators: operators.iter().copied().filter(|o| !operator::ALL.contains(o) || config.has_operator(o)).collect(),
        shards,
        summary,
    };
    let payments = TopicPartitions { topic: config.source.topic.clone(), known: config.source.partitions };
    let topics = vec![SourceTopic { partitions: payments, streams: vec![stream::PAYMENTS, stream::REJECTED] }];
    let windows = [MerchantStatsWindow::ID, CardSessionWindow::ID];
    let rules = [VelocityRule::ID, AmountSpikeRule::ID];
    let shards = &config.shards;
    vec![
        new(stage::PARSE, StageKind::Source { topics }, &["parse", "lateness-probe"], 1, "decode, validate, watermark"),
        new(stage::DEDUP, StageKind::Operators, &[dedup::ID], shards.dedup, "first arrival of a payment wins"),
        new(stage::WINDOW, StageKind::Operators, &windows, shards.window, "totals per minute, card sessions"),
        new(stage::RULES, StageKind::Operators, &rules, shards.rules, "velocity and amount alerts"),
        new(stage::PUBLISH, StageKind::Sink, &["publish"], 1, "alerts, dead letters, late payments, sessions"),
        new(stage::TOTALS, StageKind::Sink, &["totals"], 1, "upserts of merchant totals"),
        new(stage::CLOCK, StageKind::Schedule, &[], 1, "idle partitions, lost wake-ups"),
    ]
}

/// Every stream, with the operator without which it is not needed.
fn streams() -> Vec<(Stream, Option<&'static str>)> {
    use operator::{CARD_SESSIONS, MERCHANT_STATS};
    let new = |name, producer, consumer, key| Stream {
        name,
        producer: StageId::new(producer),
        consumer: StageId::new(consumer),
        key,
    };
    vec![
        (new(stream::PAYMENTS, stage::PARSE, stage::DEDUP, "paymentId"), None),
        (new(stream::REJECTED, stage::PARSE, stage::PUBLISH, "reason"), None),
        (new(stream::CLEAN_BY_CARD, stage::DEDUP, stage::RULES, "cardId"), None),
        (new(stream::CLEAN_BY_MERCHANT, stage::DEDUP, stage::WINDOW, "merchantId"), Some(MERCHANT_STATS)),
        (new(stream::CLEAN_FOR_SESSIONS, stage::DEDUP, stage::WINDOW, "cardId"), Some(CARD_SESSIONS)),
        (new(stream::MERCHANT_STATS, stage::WINDOW, stage::TOTALS, "merchantId"), None),
        (new(stream::TOO_LATE, stage::WINDOW, stage::PUBLISH, "paymentId"), None),
        (new(stream::CARD_SESSIONS, stage::WINDOW, stage::PUBLISH, "cardId"), None),
        (new(stream::ALERTS, stage::RULES, stage::PUBLISH, "cardId"), None),
    ]
}
