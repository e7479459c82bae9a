//! `payguard topology`: stages, operators and streams.

use std::process::ExitCode;

use payguard_topology::{Config, payguard};

use crate::Failure;
use crate::config::{ConfigArgs, SystemArg};
use crate::text::print;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) system: SystemArg,
    /// Draw a Mermaid flow chart instead of text
    #[arg(long)]
    mermaid: bool,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let topology = payguard(&config.load(Config::default())?);
    print(&(if args.mermaid { topology.to_mermaid() } else { topology.to_text() }));
    Ok(ExitCode::SUCCESS)
}
