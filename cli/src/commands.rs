//! The commands, one file each.

pub(crate) mod demo;
pub(crate) mod diff_state;
#[cfg(feature = "kafka")]
pub(crate) mod dlq;
pub(crate) mod explain;
pub(crate) mod generate;
pub(crate) mod keys;
pub(crate) mod ledger;
pub(crate) mod load;
#[cfg(feature = "kafka")]
pub(crate) mod local;
#[cfg(feature = "postgres")]
pub(crate) mod migrate;
#[cfg(feature = "kafka")]
pub(crate) mod produce;
pub(crate) mod rescale;
pub(crate) mod rules;
pub(crate) mod run;
pub(crate) mod savepoint;
pub(crate) mod stack;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod summary;
pub(crate) mod topology;
#[cfg(feature = "kafka")]
pub(crate) mod verify_topic;
#[cfg(feature = "kafka")]
pub(crate) mod watch;

use std::process::ExitCode;

use payguard_topology::Config;

use crate::Failure;
use crate::config::ConfigArgs;
use crate::text::print;

/// `payguard config`.
pub(crate) fn print_config(config: &ConfigArgs) -> Result<ExitCode, Failure> {
    print(&config.load(Config::default())?.to_toml());
    Ok(ExitCode::SUCCESS)
}
