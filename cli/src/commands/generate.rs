//! `payguard generate`: files of generated payments.

use std::path::PathBuf;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use payguard_generator::{GeneratorConfig, write_files};

use crate::Failure;
use crate::text::grouped;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder for payments.jsonl, confirmations.jsonl and confirmations.after
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
}

/// The shape of generated load.
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    /// Records a second of event time
    #[arg(long, default_value_t = 200)]
    pub(crate) rate: u32,
    /// Share of late payments
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
    /// Probability that a burst of 25 small payments of one card begins
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

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config =
        GeneratorConfig { records: args.records, start_ms: args.start, confirm: args.confirm, ..args.load.config() };
    config.validate()?;
    let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} records, {per_sec}, {eta} left")?;
    let bar = ProgressBar::new(args.records).with_style(style);
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
