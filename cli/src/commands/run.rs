//! `payguard run`: files of payments or connection events, processed to their end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use payguard_engine::task::Env;
use payguard_local::bounded::{self, Inputs, Outcome};
use payguard_local::embedded::EmbeddedStack;
use payguard_local::file_source::FileSourceError;
use payguard_local::runner::LocalPipeline;
use payguard_topology::config::AlignmentMode;
use payguard_topology::{Config, System};

use super::{savepoint, summary};
use crate::Failure;
use crate::config::{ConfigArgs, SystemArg};
use crate::savepoints::{Named, SessionSinks, bring_back, folder_of, restored_in_words, take};
use crate::session::Session;
use crate::text::{chain, grouped};

/// How often the progress line is drawn anew.
const REDRAW: Duration = Duration::from_millis(250);

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) system: SystemArg,
    /// Files of raw payments or connection events, one record a line; each file is a partition
    #[arg(long, visible_alias = "input", required = true, num_args = 1.., value_name = "FILE")]
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
    #[arg(long, visible_alias = "output", value_name = "DIR")]
    out: PathBuf,
    /// Folder for the durable state; a run that was killed continues from it [default: in memory]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Stop, without ending the input, once so many records of every file are processed; run again to go on
    #[arg(long, value_name = "N")]
    stop_after: Option<u64>,
    /// After stopping take a savepoint of this name and print its path
    #[arg(long, value_name = "NAME", requires = "stop_after")]
    savepoint: Option<String>,
    /// Before the savepoint end the input: all windows close, incomplete ones too. Never for a release
    #[arg(long, requires = "savepoint")]
    drain: bool,
    /// Begin from a savepoint, given by its path or its name; a run that was killed goes on
    #[arg(long, value_name = "SAVEPOINT")]
    restore: Option<String>,
    /// With --restore: give up, for good, what this pipeline has no place for
    #[arg(long, requires = "restore")]
    allow_dropped: bool,
    /// Where savepoints are [default: savepoints/ in the state folder]
    #[arg(long, value_name = "DIR|s3://BUCKET/PREFIX")]
    savepoints: Option<String>,
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
    let asked = config.asked_shards()?;
    let config = config.load(base)?;
    let others = [("confirmations", &args.confirmations), ("rules", &args.rules), ("merchants", &args.merchants)];
    if let (System::Connections, Some((name, _))) = (config.system, others.iter().find(|(_, file)| file.is_some())) {
        return Err(format!("--{name}: the connections pipeline reads nothing but --input").into());
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(process(args, config, &asked))
}

async fn process(args: &Args, config: Config, asked: &[(&str, u32)]) -> Result<ExitCode, Failure> {
    let mut bytes = 0;
    for path in args.payments.iter().chain(&args.confirmations) {
        bytes += std::fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?.len();
    }
    let merchants = args.merchants.as_deref();
    let (state, out) = (args.state.as_deref(), &args.out);
    let first = async |stack: &EmbeddedStack, env: &Env, config: Config| match &args.restore {
        Some(restore) => begin_from(args, restore, stack, env, &config, asked).await,
        None => Ok(config),
    };
    let session = Session::open_after(config, state, out, merchants, None, first).await?;
    let started = Instant::now();
    let bar = progress_bar(bytes)?;
    let inputs = Inputs {
        payments: args.payments.clone(),
        confirmations: args.confirmations.clone(),
        rules: args.rules.clone(),
    };
    let result = bounded::run_until(&session.pipeline, &inputs, args.stop_after, |bytes| bar.inc(bytes)).await;
    bar.finish_and_clear();
    let lines = match result.map_err(|error| advise(&error, args.state.is_some()))? {
        Outcome::Finished(lines) => lines,
        Outcome::Stopped(payments) => return stopped(args, session, payments).await,
    };
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

/// Restores a savepoint into this run's stores, if that was not done before; returns the configuration it has then.
async fn begin_from(
    args: &Args,
    restore: &str,
    stack: &EmbeddedStack,
    env: &Env,
    config: &Config,
    asked: &[(&str, u32)],
) -> Result<Config, Failure> {
    let named = named(args, restore)?;
    let files = named.files(stack.clients())?;
    let brought = bring_back(env, config, &*files, named.name, args.allow_dropped, asked).await?;
    eprintln!("{}", restored_in_words(&brought, &config.pipeline));
    Ok(brought.restored.config)
}

/// What is left to do for a run that was told to stop.
async fn stopped(args: &Args, session: Session, payments: u64) -> Result<ExitCode, Failure> {
    let Some(name) = &args.savepoint else {
        session.stack.stop().await;
        match args.json {
            true => say!("{}", serde_json::json!({ "stopped_after": payments })),
            false => {
                say!("stopped after {} records; the same command without --stop-after goes on", grouped(payments))
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    let named = named(args, name)?;
    let files = named.files(session.stack.clients())?;
    if args.drain {
        bounded::drain(&session.pipeline).await?;
    }
    let sinks = SessionSinks(session.sink.clone());
    let LocalPipeline { env, config, .. } = &session.pipeline;
    let taken = take(env, config, &*files, named.name, Some(&sinks)).await?;
    session.stack.stop().await;
    savepoint::tell(&taken, args.json);
    Ok(ExitCode::SUCCESS)
}

fn named<'a>(args: &Args, name: &'a str) -> Result<Named<'a>, Failure> {
    Named::of(name, args.savepoints.as_deref(), || args.state.as_deref().map(folder_of))
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
