//! How a simulated pipeline is set up, and what the naive model says of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use payguard_directory::{MerchantDirectory, SeededDirectory};
use payguard_engine::StageId;
use payguard_engine::task::Settings;
use payguard_model::ProcessingTime;
use payguard_sim::check::Reads;
use payguard_sim::reference::{Configured, Names, Published, RawRecord, Reference};
use payguard_topology::config::{AlignmentMode, Shards};
use payguard_topology::{Config, StageKind, Topology, payguard};

use crate::data::NOW_MS;
use crate::feed::Feed;

/// How a pipeline is set up.
#[derive(Clone)]
pub struct Setup {
    /// Its configuration.
    pub config: Config,
    /// Numbers of the engine.
    pub settings: Settings,
    /// Commits of one invocation at most.
    pub commits: u32,
    /// Who knows the merchants' risks.
    pub directory: Arc<dyn MerchantDirectory>,
    /// Changes of the number of shards while payments flow, in order.
    pub redraws: Vec<Redraw>,
}

/// A change of the number of shards of a stage.
#[derive(Clone, Debug)]
pub struct Redraw {
    /// Once so many records are acknowledged.
    pub after: u64,
    /// The stage.
    pub stage: &'static str,
    /// Its shards from then on; another number than before.
    pub shards: u32,
}

impl Default for Setup {
    /// Strict alignment, limits that a few payments reach, small commits, segments in objects from 200 bytes on; no
    /// confirmations.
    fn default() -> Setup {
        let mut config = Config::default();
        config.rules.velocity_max_payments = 2;
        config.rules.amount_spike_limit_minor = 6_000;
        config.engine.alignment = AlignmentMode::Strict;
        config.source.confirmations_topic.clear();
        let settings = Settings {
            records_per_commit: 16,
            inline_bytes: 200,
            flush_every_ms: i64::MAX,
            store_tries: 3,
            ..Settings::default()
        };
        Setup { config, settings, commits: u32::MAX, directory: Arc::new(SeededDirectory), redraws: Vec::new() }
    }
}

impl Setup {
    /// The default with confirmations: every stage takes part.
    #[must_use]
    pub fn full() -> Setup {
        let mut setup = Setup::default();
        setup.config.source.confirmations_topic = Config::default().source.confirmations_topic;
        setup
    }

    /// The topology.
    #[must_use]
    pub fn topology(&self) -> Topology {
        payguard(&self.config)
    }

    /// The same for another number of shards of every stage with state.
    #[must_use]
    pub fn with_shards(mut self, shards: u32) -> Setup {
        self.config.shards = Shards::all(shards);
        self
    }

    /// The same with other settings.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Settings)) -> Setup {
        change(&mut self.settings);
        self
    }

    /// What the naive model publishes for one partition of payments.
    #[must_use]
    pub fn reference(&self, records: &[RawRecord]) -> Published {
        self.reference_of(&Feed::one(records, 1))
    }

    /// What the naive model publishes for a feed of one partition of payments.
    #[must_use]
    pub fn reference_of(&self, feed: &Feed) -> Published {
        let names = Names {
            alerts: payguard_publish::ALERTS_TOPIC,
            dlq: payguard_publish::DLQ_TOPIC,
            late: payguard_publish::LATE_TOPIC,
            sessions: payguard_publish::SESSIONS_TOPIC,
            totals: payguard_totals::TABLE,
            confirmed: payguard_publish::CONFIRMED_TOPIC,
            profiles: payguard_publish::PROFILES_TOPIC,
            rejected_rules: payguard_publish::REJECTED_RULES_TOPIC,
        };
        let mut reference = Reference::new(Configured {
            names,
            policy: self.config.parse_policy(),
            rules: self.config.default_rules(),
            amount_limit: self.config.rules.amount_spike_limit_minor,
            has_confirmations: self.config.has_confirmations(),
            language: self.config.language(),
            risk: seeded_risk,
        });
        let now = ProcessingTime(NOW_MS);
        feed.rules.iter().filter_map(|r| r.value.as_deref()).for_each(|raw| reference.message(raw, now));
        feed.partitions.iter().flatten().for_each(|r| reference.record(r, now));
        feed.confirmations.iter().for_each(|c| reference.confirmation(&c.record, c.bound));
        reference.finish()
    }
}

/// The risk of the merchants of the tests, by the formula of the demonstration.
fn seeded_risk(merchant: &str) -> &'static str {
    let number = merchant.strip_prefix("m-").and_then(|digits| digits.parse::<u32>().ok());
    match number {
        Some(0 | 10 | 20 | 30 | 40) => "HIGH",
        Some(n) if n < 50 && n % 3 == 0 => "MEDIUM",
        Some(n) if n < 50 => "LOW",
        _ => "UNKNOWN",
    }
}

/// Who reads what.
#[must_use]
pub fn reads(topology: &Topology) -> Reads {
    let names = |id: &StageId| topology.inputs(id).map(|s| s.name.to_owned()).collect();
    let of_kind = |is_meant: fn(&StageKind) -> bool| -> BTreeSet<StageId> {
        topology.stages.iter().filter(|s| is_meant(&s.kind)).map(|s| s.id.clone()).collect()
    };
    let mut kept = of_kind(|kind| matches!(kind, StageKind::Broadcast { .. }));
    // Its log says of which savepoint a pipeline was made.
    kept.insert(StageId::new("restore"));
    let tasks = topology.consumer_tasks().into_iter();
    Reads {
        streams: topology.stages.iter().map(|s| (s.id.clone(), names(&s.id))).collect(),
        readers: tasks.filter_map(|task| topology.plan(&task).map(|plan| (task, plan.upstreams))).collect(),
        stateful: of_kind(|kind| *kind == StageKind::Operators),
        kept,
    }
}
