//! The anti-fraud pipeline.

use payguard_engine::StageId;
use payguard_engine::input::TopicPartitions;
use payguard_operators::{
    KeyedOperator,
    amount_spike::AmountSpikeRule,
    blocked_country,
    card_profile::CardProfiles,
    card_sessions::CardSessionWindow,
    dedup,
    matching::PaymentMatching,
    merchant_stats::MerchantStatsWindow,
    salted_stats::{CombineParts, SaltedStatsWindow},
    sequences::SequenceRules,
    velocity::VelocityRule,
};

use crate::config::Config;
use crate::{SourceTopic, Stage, StageKind, Stream, Topology};

/// Permanent ids of the stages.
pub mod stage {
    /// Decodes and validates what comes from Kafka, and defines time.
    pub const PARSE: &str = "parse";
    /// Decides the rules in force.
    pub const CONTROL: &str = "control";
    /// Lets the first copy of a payment pass.
    pub const DEDUP: &str = "dedup";
    /// Totals per merchant and minute, sessions per card.
    pub const WINDOW: &str = "window";
    /// Adds the parts of salted totals up.
    pub const COMBINE: &str = "combine";
    /// Rules per card.
    pub const RULES: &str = "rules";
    /// Payments and their confirmations.
    pub const MATCH: &str = "match";
    /// Adds the merchant's risk to alerts.
    pub const ENRICH: &str = "enrich";
    /// Sessions of connection attempts, read by arrival.
    pub const REORDER_A: &str = "reorder_a";
    /// Sessions of connection attempts, read by event time.
    pub const REORDER_B: &str = "reorder_b";
    /// Writes topics.
    pub const PUBLISH: &str = "publish";
    /// Writes the table of totals.
    pub const TOTALS: &str = "totals";
    /// Heartbeats, lost wake-ups, garbage.
    pub const CLOCK: &str = "clock";
}

/// Names of the streams.
pub mod stream {
    /// Valid payments, repeats included.
    pub const PAYMENTS: &str = "payments";
    /// Refused records.
    pub const REJECTED: &str = "rejected";
    /// Confirmations by banks.
    pub const CONFIRMATIONS: &str = "confirmations";
    /// Refused changes of the rules.
    pub const REJECTED_RULES: &str = "rejected-rules";
    /// First copies, for the rules.
    pub const CLEAN_BY_CARD: &str = "clean-by-card";
    /// First copies, for the merchant totals.
    pub const CLEAN_BY_MERCHANT: &str = "clean-by-merchant";
    /// First copies, for the card sessions.
    pub const CLEAN_FOR_SESSIONS: &str = "clean-for-sessions";
    /// First copies, to be matched with confirmations.
    pub const CLEAN_BY_PAYMENT: &str = "clean-by-payment";
    /// Emissions of merchant totals.
    pub const MERCHANT_STATS: &str = "merchant-stats";
    /// Parts of merchant totals, one per salt.
    pub const MERCHANT_PARTS: &str = "merchant-parts";
    /// Payments no window accepted.
    pub const TOO_LATE: &str = "too-late";
    /// Finished card sessions.
    pub const CARD_SESSIONS: &str = "card-sessions";
    /// Running profiles of cards.
    pub const CARD_PROFILES: &str = "card-profiles";
    /// Alerts about a card's payments.
    pub const CARD_ALERTS: &str = "card-alerts";
    /// Alerts about payments that nobody confirmed.
    pub const UNCONFIRMED: &str = "unconfirmed";
    /// Confirmed payments.
    pub const CONFIRMED: &str = "confirmed";
    /// Alerts with the merchant's risk.
    pub const ALERTS: &str = "alerts";
    /// Connection events, for variant `a`.
    pub const CONNECTIONS_A: &str = "connections-a";
    /// Connection events, for variant `b`.
    pub const CONNECTIONS_B: &str = "connections-b";
    /// What `a` says about sessions.
    pub const VERDICTS_A: &str = "verdicts-a";
    /// What `b` says about sessions.
    pub const VERDICTS_B: &str = "verdicts-b";
    /// Events that came too late for `a`.
    pub const LATE_A: &str = "late-events-a";
    /// Events that came too late for `b`.
    pub const LATE_B: &str = "late-events-b";
}

/// Permanent ids of the operators that can be left out of a run.
pub mod operator {
    /// Totals per merchant and minute.
    pub const MERCHANT_STATS: &str = "merchant-stats-1m";
    /// Sessions per card.
    pub const CARD_SESSIONS: &str = "card-sessions";
    /// Too many payments of a card.
    pub const VELOCITY: &str = "rule-velocity";
    /// Payments from blocked countries.
    pub const BLOCKED_COUNTRY: &str = "rule-blocked-country";
    /// Too much spent by a card.
    pub const AMOUNT_SPIKE: &str = "rule-amount-spike";
    /// Small payments and at once a large one.
    pub const CARD_TESTING: &str = "rule-card-testing";
    /// Two countries within minutes.
    pub const IMPOSSIBLE_TRAVEL: &str = "rule-impossible-travel";
    /// Running profiles of cards.
    pub const CARD_PROFILE: &str = "card-profile";
    /// Payments joined with confirmations.
    pub const JOIN: &str = "join-confirmations";
    /// Payments that nobody confirmed.
    pub const UNCONFIRMED: &str = "rule-unconfirmed";

    /// All of them.
    pub const ALL: [&str; 10] = [
        MERCHANT_STATS,
        CARD_SESSIONS,
        VELOCITY,
        BLOCKED_COUNTRY,
        AMOUNT_SPIKE,
        CARD_TESTING,
        IMPOSSIBLE_TRAVEL,
        CARD_PROFILE,
        JOIN,
        UNCONFIRMED,
    ];
    /// Totals and the rules that count: what the benchmarks compare.
    pub const CORE: [&str; 4] = [MERCHANT_STATS, VELOCITY, BLOCKED_COUNTRY, AMOUNT_SPIKE];
    /// Those that need confirmations.
    pub const WITH_CONFIRMATIONS: [&str; 2] = [JOIN, UNCONFIRMED];
}

/// The topology for a configuration.
pub(crate) fn payments(config: &Config) -> Topology {
    let (alignment, sink_alignment) = config.alignments();
    Topology {
        pipeline: config.pipeline.clone(),
        stages: stages(config),
        streams: streams(config),
        alignment,
        sink_alignment,
        broadcasts: vec![(StageId::new(stage::RULES), StageId::new(stage::CONTROL))],
    }
}

fn source_topics(config: &Config) -> Vec<SourceTopic> {
    let new = |topic: &str, streams| {
        let partitions = TopicPartitions { topic: topic.to_owned(), known: config.source.partitions };
        SourceTopic { partitions, streams }
    };
    let mut topics = vec![new(&config.source.topic, vec![stream::PAYMENTS, stream::REJECTED])];
    if config.has_confirmations() {
        topics.push(new(&config.source.confirmations_topic, vec![stream::CONFIRMATIONS]));
    }
    topics
}

/// Whether an operator runs; one that cannot be left out does.
fn is_on(config: &Config, id: &str) -> bool {
    !operator::ALL.contains(&id) || config.has_operator(id)
}

/// The ids under which the operators of a stage keep state.
fn states(config: &Config, stage: &str) -> Vec<&'static str> {
    let totals = if config.is_salted() { SaltedStatsWindow::ID } else { MerchantStatsWindow::ID };
    let sequences = [operator::CARD_TESTING, operator::IMPOSSIBLE_TRAVEL].iter().any(|o| config.has_operator(o));
    let states = match stage {
        stage::DEDUP => vec![dedup::ID],
        stage::WINDOW => vec![totals, CardSessionWindow::ID],
        stage::COMBINE => vec![CombineParts::ID],
        stage::RULES => vec![VelocityRule::ID, AmountSpikeRule::ID, SequenceRules::ID, CardProfiles::ID],
        stage::MATCH => vec![PaymentMatching::ID],
        _ => Vec::new(),
    };
    let keeps = |id: &&'static str| if *id == SequenceRules::ID { sequences } else { is_on(config, id) };
    states.into_iter().filter(keeps).collect()
}

fn stages(config: &Config) -> Vec<Stage> {
    let new = |id: &str, kind, operators: &[&'static str], shards, summary| Stage {
        id: StageId::new(id),
        kind,
        operators: operators.iter().copied().filter(|o| is_on(config, o)).collect(),
        states: states(config, id),
        shards,
        summary,
    };
    use StageKind::{Lookup, Operators, Sink};
    let salted = config.is_salted();
    let totals = if salted { SaltedStatsWindow::ID } else { MerchantStatsWindow::ID };
    let windows = [totals, CardSessionWindow::ID];
    let sequences = [operator::CARD_TESTING, operator::IMPOSSIBLE_TRAVEL];
    let rules =
        [VelocityRule::ID, blocked_country::ID, AmountSpikeRule::ID, sequences[0], sequences[1], CardProfiles::ID];
    let pairs = operator::WITH_CONFIRMATIONS;
    let shards = &config.shards;
    let parse = StageKind::Source { topics: source_topics(config) };
    let control = StageKind::Broadcast { topic: config.source.rules_topic.clone() };
    let mut stages = vec![
        new(stage::PARSE, parse, &["parse", "lateness-probe"], 1, "decode, validate, watermark"),
        new(stage::CONTROL, control, &["rule-versions"], 1, "one order for all changes of the rules"),
        new(stage::DEDUP, Operators, &[dedup::ID], shards.dedup, "first arrival of a payment wins"),
        new(stage::WINDOW, Operators, &windows, shards.window, "totals per minute, card sessions"),
    ];
    if salted {
        stages.push(new(stage::COMBINE, Operators, &[CombineParts::ID], shards.combine, "adds up salted totals"));
    }
    stages.push(new(stage::RULES, Operators, &rules, shards.rules, "what one card's payments give away"));
    if config.has_confirmations() {
        stages.push(new(stage::MATCH, Operators, &pairs, shards.r#match, "payments and their confirmations"));
    }
    stages.extend([
        new(stage::ENRICH, Lookup, &["enrich-alerts"], shards.enrich, "adds the merchant's risk to alerts"),
        new(stage::PUBLISH, Sink, &["publish"], 1, "alerts and all other topics"),
        new(stage::TOTALS, Sink, &["totals"], 1, "upserts of merchant totals"),
        new(stage::CLOCK, StageKind::Schedule, &[], 1, "idle partitions, lost wake-ups, garbage"),
    ]);
    stages
}

/// Every stream that the configuration needs.
fn streams(config: &Config) -> Vec<Stream> {
    use stage::{COMBINE, CONTROL, DEDUP, ENRICH, MATCH, PARSE, PUBLISH, RULES, TOTALS, WINDOW};
    let on = |operator: &str| config.has_operator(operator);
    let (stats, sessions) = (on(operator::MERCHANT_STATS), on(operator::CARD_SESSIONS));
    let (pairs, salted) = (config.has_confirmations(), config.is_salted());
    let profiles = on(operator::CARD_PROFILE);
    let all = [
        (true, stream::PAYMENTS, PARSE, DEDUP, "paymentId"),
        (true, stream::REJECTED, PARSE, PUBLISH, "reason"),
        (pairs, stream::CONFIRMATIONS, PARSE, MATCH, "paymentId"),
        (true, stream::REJECTED_RULES, CONTROL, PUBLISH, "reason"),
        (true, stream::CLEAN_BY_CARD, DEDUP, RULES, "cardId"),
        (stats, stream::CLEAN_BY_MERCHANT, DEDUP, WINDOW, if salted { "merchantId#salt" } else { "merchantId" }),
        (sessions, stream::CLEAN_FOR_SESSIONS, DEDUP, WINDOW, "cardId"),
        (pairs, stream::CLEAN_BY_PAYMENT, DEDUP, MATCH, "paymentId"),
        (salted, stream::MERCHANT_PARTS, WINDOW, COMBINE, "merchantId"),
        (true, stream::MERCHANT_STATS, if salted { COMBINE } else { WINDOW }, TOTALS, "merchantId"),
        (true, stream::TOO_LATE, WINDOW, PUBLISH, "paymentId"),
        (sessions, stream::CARD_SESSIONS, WINDOW, PUBLISH, "cardId"),
        (true, stream::CARD_ALERTS, RULES, ENRICH, "merchantId"),
        (profiles, stream::CARD_PROFILES, RULES, PUBLISH, "cardId"),
        (pairs, stream::CONFIRMED, MATCH, PUBLISH, "paymentId"),
        (pairs, stream::UNCONFIRMED, MATCH, ENRICH, "merchantId"),
        (true, stream::ALERTS, ENRICH, PUBLISH, "cardId"),
    ];
    all.into_iter()
        .filter(|(needed, ..)| *needed)
        .map(|(_, name, producer, consumer, key)| Stream {
            name,
            producer: StageId::new(producer),
            consumer: StageId::new(consumer),
            key,
        })
        .collect()
}
