//! Where the configuration comes from: a file, the environment, flags.

use std::path::{Path, PathBuf};

use payguard_topology::config::{RESERVED, Shards};
use payguard_topology::{Config, ConfigError, System};

/// Read when it is in the working directory and no other file is named.
const DEFAULT_FILE: &str = "payguard.toml";

/// Where a state folder keeps the configuration it was made with.
const STATE_FILE: &str = "payguard.toml";

/// Keeps the configuration of a run in its state folder, for the commands that look into it.
pub(crate) fn keep(config: &Config, state: &Path) -> std::io::Result<()> {
    std::fs::write(state.join(STATE_FILE), config.to_toml())
}

/// The same for a folder that holds none yet.
pub(crate) fn keep_first(config: &Config, state: &Path) -> std::io::Result<()> {
    if state.join(STATE_FILE).exists() { Ok(()) } else { keep(config, state) }
}

/// What is processed, for commands that begin something.
#[derive(clap::Args)]
pub(crate) struct SystemArg {
    /// What is processed: payments or connections [default: payments]
    #[arg(long = "pipeline", value_name = "PIPELINE", value_parser = system)]
    pub(crate) system: Option<System>,
}

fn system(text: &str) -> Result<System, String> {
    match text {
        "payments" => Ok(System::Payments),
        "connections" => Ok(System::Connections),
        _ => Err("expected payments or connections".to_owned()),
    }
}

#[derive(clap::Args)]
pub(crate) struct ConfigArgs {
    /// What the command line says is processed.
    #[arg(skip)]
    pub(crate) system: Option<System>,
    /// Configuration file [default: payguard.toml if it exists]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Configuration")]
    config: Option<PathBuf>,
    /// Set one key, for example rules.velocity_max_payments=3 (also PAYGUARD_RULES_VELOCITY_MAX_PAYMENTS=3)
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = key_value, help_heading = "Configuration")]
    set: Vec<(String, String)>,
    /// Payments of a card allowed within a minute
    #[arg(long, global = true, value_name = "N", help_heading = "Configuration")]
    velocity_max_payments: Option<i64>,
    /// Amount a card may spend within 10 minutes, minor units
    #[arg(long, global = true, value_name = "N", help_heading = "Configuration")]
    amount_spike_limit_minor: Option<i64>,
    /// Language of alert details: en or ru
    #[arg(long, global = true, value_name = "LANGUAGE", help_heading = "Configuration")]
    detail_language: Option<String>,
    /// Operators to run: all, core (merchant totals, velocity, countries, amounts), or ids separated by commas
    #[arg(long, global = true, value_name = "LIST", help_heading = "Configuration")]
    operators: Option<String>,
    /// Begins the transactional ids in Kafka [default: the pipeline's name and -alerts]; another pipeline needs another
    #[arg(long, global = true, value_name = "PREFIX", help_heading = "Configuration")]
    alerts_transactional_id_prefix: Option<String>,
    /// Shards of every stage with keyed state
    #[arg(long, global = true, value_name = "N", help_heading = "Configuration")]
    shards: Option<u32>,
    /// Parts that a merchant's payments are spread over before they are added up; 0: none
    #[arg(long, global = true, value_name = "N", help_heading = "Configuration")]
    stats_salts: Option<u32>,
    /// Fault tool: makes every card profile take this much longer
    #[arg(long, global = true, value_name = "MS", help_heading = "Configuration")]
    slow_ms: Option<u64>,
    /// Records in one commit at most
    #[arg(long, global = true, value_name = "N", help_heading = "Configuration")]
    rows_per_commit: Option<usize>,
}

impl ConfigArgs {
    /// The effective configuration, on top of a command's own defaults.
    pub(crate) fn load(&self, mut base: Config) -> Result<Config, ConfigError> {
        if let Some(system) = self.system.filter(|_| base.pipeline == base.system.default_name()) {
            base.pipeline = system.default_name().to_owned();
        }
        let default = Path::new(DEFAULT_FILE);
        let file = self.config.as_deref().or_else(|| default.exists().then_some(default));
        base.load(file, std::env::vars(), &RESERVED, &self.overrides())
    }

    /// The configuration of the run that a state folder belongs to, with what is set here on top.
    pub(crate) fn load_of(&self, state: &Path) -> Result<Config, ConfigError> {
        let kept = state.join(STATE_FILE);
        let base = match kept.exists() {
            true => Config::default().load(Some(&kept), [], &[], &[])?,
            false => Config::default(),
        };
        self.load(base)
    }

    /// The same configuration for a pipeline of another name.
    pub(crate) fn renamed(config: Config, pipeline: &str) -> Result<Config, ConfigError> {
        config.load(None, [], &[], &[("pipeline".to_owned(), pipeline.to_owned())])
    }

    /// The shards that file, variables or flags name: what is merely the default is not asked for.
    pub(crate) fn asked_shards(&self) -> Result<Vec<(&'static str, u32)>, ConfigError> {
        let with = |shards| self.load(Config { shards: Shards::all(shards), ..Config::default() });
        let (one, two) = (with(1)?.shards.by_stage(), with(2)?.shards.by_stage());
        Ok(one.into_iter().zip(two).filter(|(one, two)| one == two).map(|(one, _)| one).collect())
    }

    fn overrides(&self) -> Vec<(String, String)> {
        let mut overrides = self.set.clone();
        let mut set = |key: &str, value: Option<String>| overrides.extend(value.map(|v| (key.to_owned(), v)));
        set("system", self.system.map(|system| system.name().to_owned()));
        set("rules.velocity_max_payments", self.velocity_max_payments.map(|n| n.to_string()));
        set("rules.amount_spike_limit_minor", self.amount_spike_limit_minor.map(|n| n.to_string()));
        set("detail_language", self.detail_language.clone());
        set("operators", self.operators.clone());
        set("publish.transactional_id_prefix", self.alerts_transactional_id_prefix.clone());
        set("engine.records_per_commit", self.rows_per_commit.map(|n| n.to_string()));
        set("stats.salts", self.stats_salts.map(|n| n.to_string()));
        set("rules.slow_ms", self.slow_ms.map(|n| n.to_string()));
        for (stage, _) in Shards::default().by_stage() {
            set(&format!("shards.{stage}"), self.shards.map(|n| n.to_string()));
        }
        overrides
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}
