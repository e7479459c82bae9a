//! `payguard generate`: files of generated payments.

use std::path::PathBuf;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use payguard_generator::{ConnectionConfig, GeneratorConfig, write_connections, write_files};
use payguard_topology::{Config, System};

use crate::Failure;
use crate::config::{ConfigArgs, SystemArg};
use crate::text::grouped;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) system: SystemArg,
    /// Folder for payments.jsonl, confirmations.jsonl and confirmations.after, or for connections.jsonl
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Records to write
    #[arg(long, default_value_t = 100_000)]
    records: u64,
    #[command(flatten)]
    load: LoadArgs,
    /// Event time of the first record, milliseconds since the epoch
    #[arg(long, default_value_t = GeneratorConfig::default().start_ms)]
    start: i64,
    /// Share of records that get a confirmation; 0 writes no confirmations
    #[arg(long, default_value_t = GeneratorConfig::default().confirm)]
    confirm: f64,
    #[command(flatten)]
    connections: ConnectionArgs,
}

/// What only connection events have.
#[derive(clap::Args)]
pub(crate) struct ConnectionArgs {
    /// Share of connection events that arrive up to 10 s late, which is within the bound of disorder
    #[arg(long, default_value_t = ConnectionConfig::default().out_of_order)]
    out_of_order: f64,
    /// Share of the steps of a connection attempt that fail
    #[arg(long, default_value_t = ConnectionConfig::default().failures)]
    failures: f64,
    /// Share of the failed steps that are tried again
    #[arg(long, default_value_t = ConnectionConfig::default().retries)]
    retries: f64,
}

impl ConnectionArgs {
    /// The generator's configuration for a load.
    pub(crate) fn config(&self, load: &LoadArgs) -> ConnectionConfig {
        ConnectionConfig {
            rate: load.rate,
            out_of_order: self.out_of_order,
            late: load.late,
            late_max_ms: load.late_max_ms,
            burst: load.burst,
            failures: self.failures,
            retries: self.retries,
            bad: load.bad,
            seed: load.seed,
            ..ConnectionConfig::default()
        }
    }
}

/// The shape of generated load.
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    /// Records a second of event time
    #[arg(long, default_value_t = 200)]
    pub(crate) rate: u32,
    /// Share of late payments, or of connection events that come beyond the bound of disorder
    #[arg(long, default_value_t = 0.05)]
    pub(crate) late: f64,
    /// How late they are at most, milliseconds
    #[arg(long, default_value_t = 30_000)]
    pub(crate) late_max_ms: i64,
    /// Share of repeated records
    #[arg(long, default_value_t = 0.0)]
    pub(crate) dup: f64,
    /// Share of broken records
    #[arg(long, default_value_t = 0.0)]
    pub(crate) bad: f64,
    /// Probability that a burst of 25 small payments of one card begins; for connections, that in a second one begins
    /// with 20 times as many
    #[arg(long, default_value_t = 0.0)]
    pub(crate) burst: f64,
    /// Probability that five small payments of one card and then a large one begin
    #[arg(long, default_value_t = 0.0)]
    pub(crate) card_testing: f64,
    /// Probability that a payment at home and at once one abroad begin
    #[arg(long, default_value_t = 0.0)]
    pub(crate) travel: f64,
    /// Equal seeds and options give equal files
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    match config.load(Config::default())?.system {
        System::Payments => payments(args),
        System::Connections => connections(args),
    }
}

fn progress_bar(records: u64) -> Result<ProgressBar, Failure> {
    let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} records, {per_sec}, {eta} left")?;
    Ok(ProgressBar::new(records).with_style(style))
}

fn connections(args: &Args) -> Result<ExitCode, Failure> {
    let config =
        ConnectionConfig { records: args.records, start_ms: args.start, ..args.connections.config(&args.load) };
    config.validate()?;
    let bar = progress_bar(args.records)?;
    let summary = write_connections(&config, &args.out, |written| bar.set_position(written))?;
    bar.finish_and_clear();
    say!(
        "{} records in {}: {} sessions, {} broken, {} bursts (seed {})",
        grouped(summary.records),
        args.out.display(),
        grouped(summary.sessions),
        grouped(summary.bad),
        grouped(summary.bursts),
        args.load.seed
    );
    Ok(ExitCode::SUCCESS)
}

fn payments(args: &Args) -> Result<ExitCode, Failure> {
    let config =
        GeneratorConfig { records: args.records, start_ms: args.start, confirm: args.confirm, ..args.load.config() };
    config.validate()?;
    let bar = progress_bar(args.records)?;
    let summary = write_files(&config, &args.out, |written| bar.set_position(written))?;
    bar.finish_and_clear();
    say!(
        "{} records in {}: {} broken, {} repeats, {} bursts, {} card testing attacks, {} impossible journeys, \
         {} confirmations (seed {})",
        grouped(summary.records),
        args.out.display(),
        grouped(summary.bad),
        grouped(summary.duplicates),
        grouped(summary.bursts),
        grouped(summary.card_testing),
        grouped(summary.travel),
        grouped(summary.confirmations),
        args.load.seed
    );
    Ok(ExitCode::SUCCESS)
}

impl LoadArgs {
    /// The generator's configuration for this load.
    pub(crate) fn config(&self) -> GeneratorConfig {
        GeneratorConfig {
            rate: self.rate,
            late: self.late,
            late_max_ms: self.late_max_ms,
            dup: self.dup,
            bad: self.bad,
            burst: self.burst,
            card_testing: self.card_testing,
            travel: self.travel,
            seed: self.seed,
            ..GeneratorConfig::default()
        }
    }
}
