//! `payguard run`: files of payments, processed to their end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use payguard_local::bounded::{self, Inputs};
use payguard_local::file_source::FileSourceError;
use payguard_topology::Config;
use payguard_topology::config::AlignmentMode;

use super::summary;
use crate::Failure;
use crate::config::ConfigArgs;
use crate::session::Session;
use crate::text::chain;

/// How often the progress line is drawn anew.
const REDRAW: Duration = Duration::from_millis(250);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files of raw payments, one record a line; each file is a partition
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    payments: Vec<PathBuf>,
    /// File of confirmations; without it payments are not matched with any
    #[arg(long, value_name = "FILE")]
    confirmations: Option<PathBuf>,
    /// File of changes of the rules, one a line, in force before the first payment
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// File of merchants and their risks, .csv or .jsonl [default: the 50 generated merchants]
    #[arg(long, value_name = "FILE")]
    merchants: Option<PathBuf>,
    /// Folder for the outputs, one JSONL file per topic or table
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Folder for the durable state; a run that was killed continues from it [default: in memory]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Print the summary as JSON, with the resources used
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let mut base = Config::default();
    base.engine.alignment = AlignmentMode::Strict;
    if args.confirmations.is_none() {
        base.source.confirmations_topic.clear();
    }
    let config = config.load(base)?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(process(args, config))
}

async fn process(args: &Args, config: Config) -> Result<ExitCode, Failure> {
    let mut bytes = 0;
    for path in args.payments.iter().chain(&args.confirmations) {
        bytes += std::fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?.len();
    }
    let merchants = args.merchants.as_deref();
    let session = Session::open(config, args.state.as_deref(), &args.out, merchants, None).await?;
    let started = Instant::now();
    let bar = progress_bar(bytes)?;
    let inputs = Inputs {
        payments: args.payments.clone(),
        confirmations: args.confirmations.clone(),
        rules: args.rules.clone(),
    };
    let result = bounded::run(&session.pipeline, &inputs, |bytes| bar.inc(bytes)).await;
    bar.finish_and_clear();
    let lines = result.map_err(|error| advise(&error, args.state.is_some()))?;
    let heads = session.pipeline.heads().await?;
    let summary = summary::Summary::of(&session, &heads, lines, started.elapsed(), &args.out);
    if args.state.is_some() {
        session.pipeline.collect().await;
    }
    session.stack.stop().await;
    let text = if args.json { summary.to_json() } else { summary.to_text() };
    say!("{text}");
    Ok(if summary.discrepancies.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The error, with what it means for the work done so far.
fn advise(error: &FileSourceError, durable: bool) -> Failure {
    let text = chain(error);
    match durable {
        true => format!("{text}\nWhat was committed is kept: mend the cause and run the same command to go on").into(),
        false => {
            format!("{text}\nThe state was in memory only: with --state DIR a run can go on after a failure").into()
        }
    }
}

fn progress_bar(bytes: u64) -> Result<ProgressBar, Failure> {
    let template = "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {elapsed}";
    let bar = ProgressBar::new(bytes).with_style(ProgressStyle::with_template(template)?);
    bar.enable_steady_tick(REDRAW);
    Ok(bar)
}
