//! The flags of the mappings.

use std::time::Duration;

use payguard_mapping::core::{Limits, PAYLOAD_BYTES};
use payguard_mapping::{Faults, MappingOptions, StartPosition};
use payguard_topology::Config;

use super::PATIENCE;

#[derive(clap::Args)]
#[command(next_help_heading = "Event source mapping")]
pub(crate) struct MappingArgs {
    /// Where to begin in partitions that the group has committed nothing of: earliest, latest, or milliseconds since 1970
    #[arg(long, value_name = "POSITION", default_value = "earliest", value_parser = start)]
    start: StartPosition,
    /// What the consumer groups are called, with -parse and -control behind it [default: the pipeline's name]
    #[arg(long, value_name = "NAME")]
    group_id: Option<String>,
    /// Records of one invocation at most
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    batch_size: usize,
    /// How long the first record of a batch waits for more, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    batching_window_ms: i64,
    /// Invocations of a function at a time at most
    #[arg(long, value_name = "N", default_value_t = 4)]
    pollers: usize,
    /// How often a batch that fails is repeated before its records are given up [default: for ever]
    #[arg(long, value_name = "N")]
    maximum_retries: Option<u32>,
    /// Records of a batch that fails are given up when they are older, seconds [default: never]
    #[arg(long, value_name = "S")]
    maximum_record_age_s: Option<i64>,
    /// Do not cut a batch that fails in two
    #[arg(long)]
    no_bisect: bool,
    /// Fault: share of invocations after which records are delivered again, with other borders
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    fault_duplicate: f64,
    /// Fault: share of invocations that are given up, and repeated, while they work
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    fault_timeout: f64,
    /// Fault: share of invocations before which the mapping sleeps, up to two seconds
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    fault_pause: f64,
    /// Fault: share of invocations after which the group is rebalanced
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    fault_rebalance: f64,
    /// Seed of the faults
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    fault_seed: u64,
}

/// The longest pause of a mapping, as a fault.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The pause before a first repetition, milliseconds.
const BACKOFF_MS: i64 = 100;

impl MappingArgs {
    /// The mapping of `parse`.
    pub(super) fn of_parse(&self, config: &Config, topics: Vec<String>) -> MappingOptions {
        self.of("parse", config, topics, self.start)
    }

    /// The mapping of `control`. Rules are those in force now, however old: all changes are read.
    pub(super) fn of_control(&self, config: &Config, topic: String) -> MappingOptions {
        self.of("control", config, vec![topic], StartPosition::Earliest)
    }

    fn of(&self, stage: &str, config: &Config, topics: Vec<String>, start: StartPosition) -> MappingOptions {
        let group = self.group_id.as_deref().unwrap_or(&config.pipeline);
        MappingOptions {
            topics,
            group: format!("{group}-{stage}"),
            // Only one such process can have the state folder. A member with a name is not rebalanced at will.
            instance: (self.fault_rebalance <= 0.0).then(|| format!("{group}-{stage}-local")),
            start,
            limits: self.limits(),
            faults: self.faults(),
            patience: PATIENCE,
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            batch_size: self.batch_size.max(1),
            window_ms: self.batching_window_ms,
            payload_bytes: PAYLOAD_BYTES,
            pollers: self.pollers.max(1),
            maximum_retries: self.maximum_retries,
            maximum_age_ms: self.maximum_record_age_s.map(|seconds| seconds.saturating_mul(1_000)),
            bisect: !self.no_bisect,
            backoff_ms: BACKOFF_MS,
        }
    }

    fn faults(&self) -> Option<Faults> {
        let all = [self.fault_duplicate, self.fault_timeout, self.fault_pause, self.fault_rebalance];
        all.iter().any(|share| *share > 0.0).then_some(Faults {
            seed: self.fault_seed,
            duplicate: self.fault_duplicate,
            timeout: self.fault_timeout,
            pause: self.fault_pause,
            longest_pause: LONGEST_PAUSE,
            rebalance: self.fault_rebalance,
        })
    }
}

fn start(text: &str) -> Result<StartPosition, String> {
    match text {
        "earliest" => Ok(StartPosition::Earliest),
        "latest" => Ok(StartPosition::Latest),
        ms => {
            let ms = ms.parse().map_err(|_| "expected earliest, latest, or milliseconds since 1970")?;
            Ok(StartPosition::Timestamp(ms))
        }
    }
}
