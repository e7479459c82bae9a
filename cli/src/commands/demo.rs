//! `payguard demo`: generated payments, or connection events, through all stages, live.

mod connections;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use payguard_aws::system::SystemClock;
use payguard_engine::Broadcast;
use payguard_engine::logic::SourceRecord;
use payguard_engine::store::Clock;
use payguard_engine::task::broadcast::Decided;
use payguard_engine::task::source::{Backlog, SourceTask};
use payguard_generator::PaymentSource;
use payguard_local::runner::{LocalPipeline, Running};
use payguard_model::{EventTime, RuleConfig};
use payguard_topology::{Config, System, progress};
use prost::Message;

use super::generate::{ConnectionArgs, LoadArgs};
use super::{rules, status, summary::Summary};
use crate::Failure;
use crate::config::{ConfigArgs, SystemArg};
use crate::live::{AlertWatch, Screen};
use crate::session::Session;

/// Partitions of each generated topic.
const PARTITIONS: i32 = 4;
/// What a card may spend within 10 minutes here, minor units.
const AMOUNT_SPIKE_LIMIT_MINOR: i64 = 120_000;
/// Half-way, the rules are changed like this.
const RULE_CHANGE: &str = r#"{"blockedCountries":["XX"]}"#;
/// Payments are made and sent this often.
const TICK: Duration = Duration::from_millis(100);
/// The table is drawn this often.
const REDRAW: Duration = Duration::from_millis(500);
/// Where output is not a terminal, a line is printed this often instead.
const REPORT: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
#[command(
    mut_arg("dup", |arg| arg.default_value("0.02")),
    mut_arg("bad", |arg| arg.default_value("0.01")),
    mut_arg("burst", |arg| arg.default_value("0.003")),
    mut_arg("card_testing", |arg| arg.default_value("0.002")),
    mut_arg("travel", |arg| arg.default_value("0.002"))
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) system: SystemArg,
    /// How long records are generated
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Folder for the outputs; those of an earlier demo are replaced
    #[arg(long, value_name = "DIR", default_value = "demo-out")]
    out: PathBuf,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    connections: ConnectionArgs,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let mut base = Config::default();
    // Low enough that an emptied card shows.
    base.rules.amount_spike_limit_minor = AMOUNT_SPIKE_LIMIT_MINOR;
    let config = config.load(base)?;
    make_room(&args.out)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match config.system {
        System::Payments => runtime.block_on(show(args, config)),
        System::Connections => runtime.block_on(connections::show(args, config)),
    }
}

/// Removes the outputs of an earlier demo; anything else in the folder is left alone and is an error.
fn make_room(out: &Path) -> Result<(), Failure> {
    if out.join(".payguard").is_dir() {
        std::fs::remove_dir_all(out).map_err(|e| format!("{}: {e}", out.display()))?;
    } else if out.exists() && out.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(
            format!("{}: holds something that is not a demo's output; choose another --out", out.display()).into()
        );
    }
    Ok(())
}

async fn show(args: &Args, config: Config) -> Result<ExitCode, Failure> {
    let screen = Screen::new()?;
    screen.print(&format!(
        "{} payments a second for {} s: {:.0} % late, {:.0} % repeated, {:.0} % broken, 5 % never confirmed; now and then \
         a burst of 25 on one card, a tested card, an impossible journey",
        args.load.rate,
        args.seconds,
        args.load.late * 100.0,
        args.load.dup * 100.0,
        args.load.bad * 100.0
    ));
    let alerts = Arc::new(AlertWatch::new(screen.clone()));
    let session = Session::open(config, None, &args.out, None, Some(alerts.clone())).await?;
    let pipeline = &session.pipeline;
    let mut topics = Topics::of(pipeline);
    pipeline.control().begin().await?;
    let mut running = pipeline.start();
    let started = Instant::now();
    let records = generate(args, pipeline, &mut topics, &screen, &mut running).await?;
    screen.print("no more payments: closing the windows; what is not confirmed by now never will be");
    alerts.close();
    pipeline.control().end().await?;
    for source in topics.payments.iter_mut().chain(&mut topics.confirmations) {
        source.end().await?;
    }
    running.finished().await?;
    let heads = pipeline.heads().await?;
    let summary = Summary::of(&session, &heads, records, started.elapsed(), &args.out);
    session.stack.stop().await;
    screen.clear();
    say!("\n{}", summary.to_text());
    say!("{}", alerts.summary());
    Ok(if summary.discrepancies.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The tasks of the generated topics, and the next offset of every partition.
struct Topics {
    payments: Vec<SourceTask>,
    confirmations: Vec<SourceTask>,
    sent: [u64; 2],
}

/// Records for the partitions of a topic: offset and value.
type Batches = Vec<Vec<(i64, String)>>;

impl Topics {
    fn of(pipeline: &LocalPipeline) -> Topics {
        let confirmations = if pipeline.config.has_confirmations() {
            (0..PARTITIONS).map(|p| pipeline.confirmations(p)).collect()
        } else {
            Vec::new()
        };
        Topics { payments: (0..PARTITIONS).map(|p| pipeline.payments(p)).collect(), confirmations, sent: [0; 2] }
    }

    /// Adds a record to the next partition of a topic, as a producer without keys does.
    fn add(sent: &mut u64, batches: &mut Batches, value: &str) -> Result<(), Failure> {
        let partitions = batches.len() as u64;
        let (partition, offset) = ((*sent % partitions) as usize, i64::try_from(*sent / partitions)?);
        batches[partition].push((offset, value.to_owned()));
        *sent += 1;
        Ok(())
    }

    /// Sends one tick's records.
    async fn send(&mut self, generator: &mut PaymentSource, count: u64) -> Result<(), Failure> {
        let now = SystemClock.now();
        let mut payments: Batches = vec![Vec::new(); self.payments.len()];
        let mut confirmations: Batches = vec![Vec::new(); self.confirmations.len()];
        for _ in 0..count {
            let record = generator.next_record(now.0);
            Topics::add(&mut self.sent[0], &mut payments, record.line)?;
            if let Some(confirmation) = record.confirmation
                && !confirmations.is_empty()
            {
                Topics::add(&mut self.sent[1], &mut confirmations, confirmation)?;
            }
        }
        let sources = self.payments.iter_mut().chain(&mut self.confirmations);
        let feeds = sources.zip(payments.iter().chain(&confirmations));
        let feeds = feeds.map(|(source, values)| feed(source, values, EventTime(now.0)));
        futures_util::future::try_join_all(feeds).await?;
        Ok(())
    }
}

/// Makes payments and confirmations and feeds them to the partitions; returns how many of both.
async fn generate(
    args: &Args,
    pipeline: &LocalPipeline,
    topics: &mut Topics,
    screen: &Screen,
    running: &mut Running,
) -> Result<u64, Failure> {
    let mut generator = PaymentSource::new(&args.load.config())?;
    let per_tick = (u64::from(args.load.rate) / 10).max(1);
    let ticks = args.seconds * 10;
    let mut timer = tokio::time::interval(TICK);
    let (mut drawn, mut reported) = (Instant::now(), Instant::now());
    for tick in 0..ticks {
        timer.tick().await;
        if tick == ticks / 2 {
            change_rules(pipeline, screen).await?;
        }
        topics.send(&mut generator, per_tick).await?;
        running.check()?;
        if drawn.elapsed() >= REDRAW {
            drawn = Instant::now();
            let rows = progress::of(&pipeline.topology, &pipeline.heads().await?);
            screen.draw(&status::table(&rows, SystemClock.now().0));
            if screen.is_plain() && reported.elapsed() >= REPORT {
                reported = Instant::now();
                screen.print(&format!("{} payments sent", topics.sent[0]));
            }
        }
    }
    Ok(topics.sent.iter().sum())
}

/// What an analyst does with `payguard rules set`.
async fn change_rules(pipeline: &LocalPipeline, screen: &Screen) -> Result<(), Failure> {
    if let Decided::Accepted(Broadcast { version, value }) = pipeline.control().send(RULE_CHANGE.as_bytes()).await? {
        screen.print(&format!("RULES {}", rules::describe(version, &RuleConfig::decode(value)?)));
    }
    Ok(())
}

async fn feed(source: &mut SourceTask, values: &[(i64, String)], timestamp: EventTime) -> Result<(), Failure> {
    let record = |(offset, value)| SourceRecord {
        offset,
        timestamp: Some(timestamp),
        value: Some(value),
        watermark_bound: None,
        replays: 0,
    };
    let records: Vec<_> = values.iter().map(|(offset, value)| record((*offset, value.as_bytes()))).collect();
    if records.is_empty() {
        source.heartbeat(Backlog::None).await?;
    } else {
        source.ingest(&records).await?;
    }
    Ok(())
}
