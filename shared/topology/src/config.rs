//! The configuration: `payguard.toml`, then `PAYGUARD_*` variables, then flags; the later wins, an unknown key is an
//! error.

use std::path::Path;

use payguard_engine::merge::Alignment;
use payguard_model::{ParsePolicy, RuleConfig};
use payguard_operators::detail::DetailLanguage;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::payguard::operator;

mod connections;

pub use connections::Connections;

/// Variables that are not keys of the configuration: they say where a process finds stores, sink and neighbours.
pub const RESERVED: [&str; 18] = [
    "PAYGUARD_DB_CA_FILE",
    "PAYGUARD_DB_PASSWORD",
    "PAYGUARD_DB_URL",
    "PAYGUARD_DB_USER",
    "PAYGUARD_DIRECTORY",
    "PAYGUARD_FUNCTION_PREFIX",
    "PAYGUARD_KAFKA_BOOTSTRAP",
    "PAYGUARD_KAFKA_CA_FILE",
    "PAYGUARD_KAFKA_PASSWORD",
    "PAYGUARD_KAFKA_SASL_MECHANISM",
    "PAYGUARD_KAFKA_TLS",
    "PAYGUARD_KAFKA_USER",
    "PAYGUARD_LEDGER_TABLE",
    "PAYGUARD_REPORT_BATCH_ITEM_FAILURES",
    "PAYGUARD_SEGMENT_BUCKET",
    "PAYGUARD_SINK",
    "PAYGUARD_STATE_TABLE",
    "PAYGUARD_TOTALS_SINK",
];

/// Everything that can be set. Keys are the field names; groups are tables.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Name of the deployment; prefixes every key in every store.
    pub pipeline: String,
    /// What it processes: `payments` or `connections`.
    pub system: System,
    /// Operators to run: ids, or `all`, or `core` (merchant totals and the rules that count).
    pub operators: Vec<String>,
    /// Language of alert details: `en` or `ru`.
    pub detail_language: String,
    /// What comes in.
    pub source: Source,
    /// Limits of the rules.
    pub rules: Rules,
    /// Totals per merchant.
    pub stats: Stats,
    /// Sessions of connection attempts.
    pub connections: Connections,
    /// Shards of the stages with keyed state.
    pub shards: Shards,
    /// What goes out to Kafka.
    pub publish: Publish,
    /// Numbers of the engine.
    pub engine: Engine,
    /// What is kept although no task needs it any more.
    pub gc: Gc,
}

/// What a pipeline processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// Payments by card: alerts, totals, sessions of cards.
    Payments,
    /// Steps of connection attempts: verdicts on sessions.
    Connections,
}

/// What comes in.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Source {
    /// Topic with raw payments.
    pub topic: String,
    /// Topic with confirmations of payments; empty: there are none, and neither are the operators that need them.
    pub confirmations_topic: String,
    /// Topic with changes of the rules.
    pub rules_topic: String,
    /// Partitions of each topic that are known to exist: stages wait for each until it has a record or is idle. 0: as
    /// they appear.
    pub partitions: u32,
    /// `reject` a payment with unknown fields, or `ignore` them.
    pub unknown_fields: String,
    /// An event time further in the future is refused, milliseconds.
    pub max_future_ms: i64,
}

/// Limits of the rules.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// More payments of a card within a minute raise `velocity`.
    pub velocity_max_payments: i64,
    /// More spent by a card within 10 minutes raises `amount-spike`, minor units.
    pub amount_spike_limit_minor: i64,
    /// Fault tool: every card profile takes this much longer, milliseconds.
    pub slow_ms: u64,
}

/// Totals per merchant.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stats {
    /// Parts that a merchant's payments are spread over before they are added up; 0 and 1: none, so that a merchant's
    /// late payments still update its total.
    pub salts: u32,
    /// With salts: late payments within a minute update the total too.
    pub late_updates: bool,
}

/// What goes out to Kafka. Files have the default names, whatever these are.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Publish {
    /// Begins the transactional ids; empty: the pipeline's name and `-alerts`. No two pipelines on a cluster may share
    /// it: each would end the other's transactions.
    pub transactional_id_prefix: String,
    /// Topic of alerts.
    pub alerts_topic: String,
    /// Topic of refused records.
    pub dlq_topic: String,
    /// Topic of payments no window accepted.
    pub late_topic: String,
    /// Topic of confirmed payments.
    pub confirmed_topic: String,
    /// Topic of finished sessions.
    pub sessions_topic: String,
    /// Topic of running profiles of cards.
    pub profiles_topic: String,
    /// Topic of refused changes of the rules.
    pub rejected_rules_topic: String,
}

/// Shards of the stages with keyed state: 1 to 128.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shards {
    /// Of `dedup`.
    pub dedup: u32,
    /// Of `window`.
    pub window: u32,
    /// Of `combine`.
    pub combine: u32,
    /// Of `rules`.
    pub rules: u32,
    /// Of `match`.
    pub r#match: u32,
    /// Of `enrich`.
    pub enrich: u32,
    /// Of `reorder_a`.
    pub reorder_a: u32,
    /// Of `reorder_b`.
    pub reorder_b: u32,
}

/// How inputs are kept together in event time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlignmentMode {
    /// In the order of watermarks: the same output every time, at the pace of the slowest input.
    Strict,
    /// At most `max_drift_ms` ahead of the slowest input.
    Drift,
    /// Not at all.
    Off,
}

/// Numbers of the engine; none of them changes results under `strict` alignment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Engine {
    /// How inputs are kept together.
    pub alignment: AlignmentMode,
    /// See `alignment`, milliseconds of event time.
    pub max_drift_ms: i64,
    /// Records in one commit at most.
    pub records_per_commit: usize,
    /// Segments up to this size go into the log row, bytes.
    pub inline_bytes: usize,
    /// State is written to the state table this often, milliseconds.
    pub flush_every_ms: i64,
    /// State is written as soon as the changes since the last time, which a recovery reads, are this long, bytes.
    pub flush_bytes: usize,
}

/// What is kept although no task needs it any more.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gc {
    /// Log rows and their segments stay this long after their commit, milliseconds: for people who look at them, and for
    /// whoever copies the pipeline while it runs.
    pub retention_ms: i64,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Not TOML, an unknown key, a wrong type.
    #[error("{origin}: {detail}")]
    Invalid {
        /// Where it was set.
        origin: String,
        /// What is wrong.
        detail: String,
    },
}

impl Default for Config {
    fn default() -> Config {
        Config {
            pipeline: System::Payments.default_name().to_owned(),
            system: System::Payments,
            operators: vec!["all".to_owned()],
            detail_language: DetailLanguage::En.to_string(),
            source: Source::default(),
            rules: Rules::default(),
            stats: Stats::default(),
            connections: Connections::default(),
            shards: Shards::default(),
            publish: Publish::default(),
            engine: Engine::default(),
            gc: Gc::default(),
        }
    }
}

impl System {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            System::Payments => "payments",
            System::Connections => "connections",
        }
    }

    /// The name of a deployment that is given no other one.
    #[must_use]
    pub const fn default_name(self) -> &'static str {
        match self {
            System::Payments => "payguard",
            System::Connections => "connections",
        }
    }
}

impl Default for Publish {
    fn default() -> Publish {
        Publish {
            transactional_id_prefix: String::new(),
            alerts_topic: "fraud.alerts".to_owned(),
            dlq_topic: "payments.dlq".to_owned(),
            late_topic: "payments.late".to_owned(),
            confirmed_topic: "payments.confirmed".to_owned(),
            sessions_topic: "card.sessions".to_owned(),
            profiles_topic: "card.profiles".to_owned(),
            rejected_rules_topic: "rules.rejected".to_owned(),
        }
    }
}

impl Publish {
    /// Every topic with its key.
    fn topics(&self) -> [(&'static str, &str); 7] {
        [
            ("publish.alerts_topic", &self.alerts_topic),
            ("publish.dlq_topic", &self.dlq_topic),
            ("publish.late_topic", &self.late_topic),
            ("publish.confirmed_topic", &self.confirmed_topic),
            ("publish.sessions_topic", &self.sessions_topic),
            ("publish.profiles_topic", &self.profiles_topic),
            ("publish.rejected_rules_topic", &self.rejected_rules_topic),
        ]
    }
}

impl Default for Gc {
    fn default() -> Gc {
        Gc { retention_ms: 3_600_000 }
    }
}

impl Default for Source {
    fn default() -> Source {
        let policy = ParsePolicy::default();
        Source {
            topic: "payments.raw".to_owned(),
            confirmations_topic: "payments.confirmations".to_owned(),
            rules_topic: "rules.config".to_owned(),
            partitions: 0,
            unknown_fields: "reject".to_owned(),
            max_future_ms: policy.max_future_ms.unwrap_or(i64::MAX),
        }
    }
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            velocity_max_payments: payguard_operators::velocity::DEFAULT_LIMIT,
            amount_spike_limit_minor: payguard_operators::amount_spike::DEFAULT_LIMIT_MINOR,
            slow_ms: 0,
        }
    }
}

impl Default for Shards {
    fn default() -> Shards {
        Shards::all(1)
    }
}

impl Default for Engine {
    fn default() -> Engine {
        let settings = payguard_engine::task::Settings::default();
        Engine {
            alignment: AlignmentMode::Drift,
            max_drift_ms: payguard_operators::watermark::MAX_OUT_OF_ORDERNESS_MS,
            records_per_commit: settings.records_per_commit,
            inline_bytes: settings.inline_bytes,
            flush_every_ms: settings.flush_every_ms,
            flush_bytes: settings.flush_bytes,
        }
    }
}

impl Shards {
    /// The number of every stage that has shards.
    #[must_use]
    pub fn by_stage(&self) -> [(&'static str, u32); 8] {
        [
            ("dedup", self.dedup),
            ("window", self.window),
            ("combine", self.combine),
            ("rules", self.rules),
            ("match", self.r#match),
            ("enrich", self.enrich),
            ("reorder_a", self.reorder_a),
            ("reorder_b", self.reorder_b),
        ]
    }

    /// The number of a stage; `None` when it has no shards.
    #[must_use]
    pub fn of(&self, stage: &str) -> Option<u32> {
        self.by_stage().into_iter().find(|(name, _)| *name == stage).map(|(_, shards)| shards)
    }

    /// Gives a stage a number; a stage without shards has none to be given.
    pub fn set(&mut self, stage: &str, shards: u32) {
        let own = match stage {
            "dedup" => &mut self.dedup,
            "window" => &mut self.window,
            "combine" => &mut self.combine,
            "rules" => &mut self.rules,
            "match" => &mut self.r#match,
            "enrich" => &mut self.enrich,
            "reorder_a" => &mut self.reorder_a,
            "reorder_b" => &mut self.reorder_b,
            _ => return,
        };
        *own = shards;
    }

    /// The same number for every stage.
    #[must_use]
    pub fn all(shards: u32) -> Shards {
        Shards {
            dedup: shards,
            window: shards,
            combine: shards,
            rules: shards,
            r#match: shards,
            enrich: shards,
            reorder_a: shards,
            reorder_b: shards,
        }
    }
}

impl Config {
    /// Reads the file, if any, then the variables, then `key=value` overrides, on top of this configuration.
    ///
    /// `variables` are those of the environment; only names that begin with `PAYGUARD_` count, and of those each must
    /// name a key (`PAYGUARD_RULES_VELOCITY_MAX_PAYMENTS`) or be one of `reserved`.
    ///
    /// # Errors
    /// When a key is unknown or a value does not fit.
    pub fn load(
        self,
        file: Option<&Path>,
        variables: impl IntoIterator<Item = (String, String)>,
        reserved: &[&str],
        overrides: &[(String, String)],
    ) -> Result<Config, ConfigError> {
        let mut config = self;
        if let Some(path) = file {
            let name = path.display().to_string();
            let text =
                std::fs::read_to_string(path).map_err(|source| ConfigError::File { path: name.clone(), source })?;
            let unreadable = |e: toml::de::Error| invalid(&name, e.to_string().trim_end());
            // Read twice: as a configuration, so that an unknown key is an error at its line; as a table, to know what is set.
            toml::from_str::<Config>(&text).map_err(unreadable)?;
            let mut table = config.table();
            overlay(&mut table, text.parse::<Table>().map_err(unreadable)?);
            config = table.try_into().map_err(unreadable)?;
        }
        let mut variables: Vec<_> = variables.into_iter().filter(|(name, _)| name.starts_with("PAYGUARD_")).collect();
        variables.sort();
        for (name, value) in variables {
            if !reserved.contains(&name.as_str()) {
                let key = config.keys().into_iter().find(|key| variable(key) == name);
                let key = key.ok_or_else(|| invalid(&name, "no such key; `payguard config` lists them"))?;
                config = config.set(&key, &value, &name)?;
            }
        }
        for (key, value) in overrides {
            config = config.set(key, value, &format!("--set {key}"))?;
        }
        config.check()?;
        Ok(config)
    }

    /// Whether an operator is part of the run.
    #[must_use]
    pub fn has_operator(&self, id: &str) -> bool {
        let possible = !operator::WITH_CONFIRMATIONS.contains(&id) || !self.source.confirmations_topic.is_empty();
        possible
            && self.operators.iter().any(|o| o == "all" || o == id || (o == "core" && operator::CORE.contains(&id)))
    }

    /// Whether payments are matched with confirmations.
    #[must_use]
    pub fn has_confirmations(&self) -> bool {
        self.system == System::Payments && operator::WITH_CONFIRMATIONS.iter().any(|id| self.has_operator(id))
    }

    /// The topic whose records drive the pipeline.
    #[must_use]
    pub fn main_topic(&self) -> &str {
        match self.system {
            System::Payments => &self.source.topic,
            System::Connections => &self.connections.topic,
        }
    }

    /// The topic that people wait for.
    #[must_use]
    pub fn main_output_topic(&self) -> &str {
        match self.system {
            System::Payments => &self.publish.alerts_topic,
            System::Connections => &self.connections.verdicts_topic,
        }
    }

    /// How inputs are kept together: those of stages with operators, and those of sinks.
    #[must_use]
    pub fn alignments(&self) -> (Alignment, Alignment) {
        match self.engine.alignment {
            AlignmentMode::Strict => (Alignment::Strict, Alignment::Strict),
            AlignmentMode::Drift => (Alignment::MaxDrift(self.engine.max_drift_ms), Alignment::Off),
            AlignmentMode::Off => (Alignment::Off, Alignment::Off),
        }
    }

    /// What the transactional ids of the pipeline begin with.
    #[must_use]
    pub fn transactional_id_prefix(&self) -> String {
        match self.publish.transactional_id_prefix.as_str() {
            "" => format!("{}-alerts", self.pipeline),
            prefix => prefix.to_owned(),
        }
    }

    /// Whether merchant totals are made in two phases.
    #[must_use]
    pub fn is_salted(&self) -> bool {
        self.stats.salts > 1 && self.has_operator(operator::MERCHANT_STATS)
    }

    /// The rules until a first version is accepted.
    #[must_use]
    pub fn default_rules(&self) -> RuleConfig {
        RuleConfig { velocity_max_payments: self.rules.velocity_max_payments, blocked_countries: Vec::new() }
    }

    /// How payments are parsed.
    #[must_use]
    pub fn parse_policy(&self) -> ParsePolicy {
        let mut policy = ParsePolicy { max_future_ms: Some(self.source.max_future_ms), ..ParsePolicy::default() };
        if self.source.unknown_fields == "ignore" {
            policy.unknown_fields = payguard_model::parse::UnknownFields::Ignore;
        }
        policy
    }

    /// The numbers the engine runs with.
    #[must_use]
    pub fn settings(&self) -> payguard_engine::task::Settings {
        payguard_engine::task::Settings {
            records_per_commit: self.engine.records_per_commit,
            inline_bytes: self.engine.inline_bytes,
            flush_every_ms: self.engine.flush_every_ms,
            flush_bytes: self.engine.flush_bytes,
            ..payguard_engine::task::Settings::default()
        }
    }

    /// The language of alert details.
    #[must_use]
    pub fn language(&self) -> DetailLanguage {
        self.detail_language.parse().unwrap_or(DetailLanguage::En)
    }

    /// The configuration as a file with every key.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).unwrap_or_default()
    }

    /// All keys, dotted.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        collect_keys("", &self.table(), &mut keys);
        keys
    }

    fn table(&self) -> Table {
        Table::try_from(self).unwrap_or_default()
    }

    fn set(&self, key: &str, value: &str, origin: &str) -> Result<Config, ConfigError> {
        let mut table = self.table();
        let mut path: Vec<&str> = key.split('.').collect();
        let last = path.pop().unwrap_or_default();
        let mut at = Some(&mut table);
        for part in path {
            at = at.and_then(|t| t.get_mut(part)).and_then(Value::as_table_mut);
        }
        let slot = at.and_then(|t| t.get_mut(last));
        let slot = slot.ok_or_else(|| invalid(origin, "no such key; `payguard config` lists them"))?;
        *slot =
            parse_like(slot, value).ok_or_else(|| invalid(origin, &format!("`{value}` is not {}", expected(slot))))?;
        table.try_into().map_err(|e: toml::de::Error| invalid(origin, e.message()))
    }

    fn check(&self) -> Result<(), ConfigError> {
        let fail = |key: &str, detail: String| Err(invalid(key, &detail));
        if self.pipeline.is_empty() || !self.pipeline.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return fail("pipeline", format!("`{}` must be letters, digits, `-`, `_` or `.`", self.pipeline));
        }
        for id in &self.operators {
            if !["all", "core"].contains(&id.as_str()) && !operator::ALL.contains(&id.as_str()) {
                let known = operator::ALL.join(", ");
                return fail("operators", format!("`{id}` is none of all, core, {known}"));
            }
        }
        if let Err(detail) = self.detail_language.parse::<DetailLanguage>() {
            return fail("detail_language", detail.to_string());
        }
        if !["reject", "ignore"].contains(&self.source.unknown_fields.as_str()) {
            return fail("source.unknown_fields", "must be `reject` or `ignore`".to_owned());
        }
        let sources =
            [&self.source.topic, &self.source.confirmations_topic, &self.source.rules_topic, &self.connections.topic];
        for (key, topic) in self.publish.topics().into_iter().chain(self.connections.topics()) {
            if topic.is_empty()
                || topic.len() > 249
                || !topic.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            {
                return fail(key, format!("`{topic}` must be up to 249 letters, digits, `-`, `_` or `.`"));
            }
            if sources.contains(&&topic.to_owned()) {
                return fail(key, format!("`{topic}` is read by the pipeline: it would be its own input"));
            }
        }
        let shards = self.shards.by_stage();
        for (stage, shards) in shards {
            if !(1..=payguard_model::KEY_GROUPS).contains(&shards) {
                return fail(&format!("shards.{stage}"), format!("must be 1 to {}", payguard_model::KEY_GROUPS));
            }
        }
        let positive = [
            ("rules.velocity_max_payments", self.rules.velocity_max_payments),
            ("rules.amount_spike_limit_minor", self.rules.amount_spike_limit_minor),
            ("source.max_future_ms", self.source.max_future_ms),
            ("engine.max_drift_ms", self.engine.max_drift_ms),
            ("engine.flush_every_ms", self.engine.flush_every_ms),
            ("gc.retention_ms", self.gc.retention_ms),
        ];
        for (key, value) in positive {
            if value < 0 {
                return fail(key, "must not be negative".to_owned());
            }
        }
        self.connections.check()?;
        if self.engine.records_per_commit == 0 {
            return fail("engine.records_per_commit", "must be at least 1".to_owned());
        }
        if self.engine.inline_bytes > 100 << 10 {
            return fail("engine.inline_bytes", "must be at most 102400: a log row is limited to 400 KB".to_owned());
        }
        Ok(())
    }
}

fn overlay(base: &mut Table, over: Table) {
    for (name, value) in over {
        match (base.get_mut(&name), value) {
            (Some(Value::Table(inner)), Value::Table(value)) => overlay(inner, value),
            (_, value) => {
                base.insert(name, value);
            }
        }
    }
}

/// The variable that sets a key.
#[must_use]
pub fn variable(key: &str) -> String {
    format!("PAYGUARD_{}", key.replace('.', "_").to_uppercase())
}

fn invalid(origin: &str, detail: &str) -> ConfigError {
    ConfigError::Invalid { origin: origin.to_owned(), detail: detail.to_owned() }
}

fn collect_keys(prefix: &str, table: &Table, keys: &mut Vec<String>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(inner) => collect_keys(&key, inner, keys),
            _ => keys.push(key),
        }
    }
}

/// Reads `text` as the same type as `like`.
fn parse_like(like: &Value, text: &str) -> Option<Value> {
    match like {
        Value::String(_) => Some(Value::String(text.to_owned())),
        Value::Integer(_) => text.trim().parse().ok().map(Value::Integer),
        Value::Float(_) => text.trim().parse().ok().map(Value::Float),
        Value::Boolean(_) => text.trim().parse().ok().map(Value::Boolean),
        Value::Array(_) => {
            Some(Value::Array(text.split(',').map(|item| Value::String(item.trim().to_owned())).collect()))
        }
        Value::Datetime(_) | Value::Table(_) => None,
    }
}

fn expected(like: &Value) -> &'static str {
    match like {
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        _ => "of the right type",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn load(variables: &[(&str, &str)], overrides: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let own = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        Config::default().load(None, own(variables), &["PAYGUARD_TABLE"], &own(overrides))
    }

    #[test]
    fn flags_win_over_variables_and_variables_over_defaults() {
        let config = load(
            &[("PAYGUARD_RULES_VELOCITY_MAX_PAYMENTS", "3"), ("PAYGUARD_SHARDS_RULES", "4"), ("HOME", "x")],
            &[("rules.velocity_max_payments", "5")],
        )
        .unwrap();
        assert_eq!(config.rules.velocity_max_payments, 5);
        assert_eq!(config.shards.rules, 4);
        assert_eq!(config.rules.amount_spike_limit_minor, 2_000_000);
    }

    #[test]
    fn whatever_is_misspelt_or_out_of_range_is_an_error() {
        type Pairs<'a> = &'a [(&'a str, &'a str)];
        let cases: [(Pairs<'_>, Pairs<'_>, &str); 9] = [
            (&[("PAYGUARD_RULES_VELOCITY", "3")], &[], "no such key"),
            (&[], &[("rules.velocity", "3")], "no such key"),
            (&[], &[("rules.velocity_max_payments", "many")], "whole number"),
            (&[], &[("rules.velocity_max_payments", "-1")], "negative"),
            (&[("PAYGUARD_GC_RETENTION_MS", "-1")], &[], "negative"),
            (&[], &[("shards.dedup", "0")], "1 to 128"),
            (&[], &[("operators", "core,typo")], "typo"),
            (&[], &[("detail_language", "fr")], "fr"),
            (&[], &[("engine.alignment", "loose")], "loose"),
        ];
        for (variables, overrides, text) in cases {
            let error = load(variables, overrides).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        assert!(load(&[("PAYGUARD_TABLE", "reserved")], &[]).is_ok());
    }

    #[test]
    fn the_printed_configuration_reads_back() {
        let config = load(&[], &[("operators", "core"), ("engine.alignment", "strict")]).unwrap();
        assert_eq!(toml::from_str::<Config>(&config.to_toml()).unwrap(), config);
        assert!(toml::from_str::<Config>("velocity = 3").is_err());
        assert!(toml::from_str::<Config>("[rules]\nvelocity = 3").is_err());
    }
}
