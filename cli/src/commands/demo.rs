//! `payguard demo`: generated payments through all stages, live.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use payguard_aws::system::SystemClock;
use payguard_engine::logic::SourceRecord;
use payguard_engine::store::Clock;
use payguard_engine::task::source::{Backlog, SourceTask};
use payguard_generator::PaymentSource;
use payguard_local::runner::{LocalPipeline, Running};
use payguard_model::{EventTime, FraudAlert};
use payguard_sink_file::SinkObserver;
use payguard_topology::{Config, progress};

use super::generate::LoadArgs;
use super::{status, summary::Summary};
use crate::Failure;
use crate::config::ConfigArgs;
use crate::session::Session;
use crate::text::duration;

/// Partitions of the generated topic.
const PARTITIONS: i32 = 4;
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
    mut_arg("burst", |arg| arg.default_value("0.005")),
    mut_arg("card_testing", |arg| arg.default_value("0.002")),
    mut_arg("travel", |arg| arg.default_value("0.002"))
)]
pub(crate) struct Args {
    /// How long payments are generated
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Folder for the outputs; those of an earlier demo are replaced
    #[arg(long, value_name = "DIR", default_value = "demo-out")]
    out: PathBuf,
    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let config = config.load(Config::default())?;
    make_room(&args.out)?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(show(args, config))
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
        "{} payments a second for {} s: {:.0} % late, {:.0} % repeated, {:.0} % broken, now and then a burst of 25 on one card",
        args.load.rate,
        args.seconds,
        args.load.late * 100.0,
        args.load.dup * 100.0,
        args.load.bad * 100.0
    ));
    let alerts = Arc::new(AlertWatch { screen: screen.clone(), delays: Mutex::default() });
    let session = Session::open(config, None, &args.out, None, Some(alerts.clone())).await?;
    let pipeline = &session.pipeline;
    let mut sources: Vec<SourceTask> = (0..PARTITIONS).map(|p| pipeline.payments(p)).collect();
    let mut running = pipeline.start();
    let started = Instant::now();
    let records = generate(args, pipeline, &mut sources, &screen, &mut running).await?;
    screen.print("no more payments: closing the windows");
    for source in &mut sources {
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

/// Makes payments and feeds them to the partitions in turn, as a producer without keys does.
async fn generate(
    args: &Args,
    pipeline: &LocalPipeline,
    sources: &mut [SourceTask],
    screen: &Screen,
    running: &mut Running,
) -> Result<u64, Failure> {
    let mut generator = PaymentSource::new(&args.load.config())?;
    let per_tick = (u64::from(args.load.rate) / 10).max(1);
    let ticks = args.seconds * 10;
    let mut timer = tokio::time::interval(TICK);
    let (mut sent, mut drawn, mut reported) = (0, Instant::now(), Instant::now());
    for _ in 0..ticks {
        timer.tick().await;
        let now = SystemClock.now();
        let mut values: Vec<Vec<(i64, String)>> = vec![Vec::new(); sources.len()];
        for _ in 0..per_tick {
            let partition = (sent % sources.len() as u64) as usize;
            let offset = i64::try_from(sent / sources.len() as u64)?;
            values[partition].push((offset, generator.next(now.0).to_owned()));
            sent += 1;
        }
        let feeds = sources.iter_mut().zip(&values).map(|(source, values)| feed(source, values, EventTime(now.0)));
        futures_util::future::try_join_all(feeds).await?;
        running.check()?;
        if drawn.elapsed() >= REDRAW {
            drawn = Instant::now();
            let rows = progress::of(&pipeline.topology, &pipeline.heads().await?);
            screen.draw(&status::table(&rows, SystemClock.now().0));
            if screen.is_plain() && reported.elapsed() >= REPORT {
                reported = Instant::now();
                screen.print(&format!("{sent} payments sent"));
            }
        }
    }
    Ok(sent)
}

async fn feed(source: &mut SourceTask, values: &[(i64, String)], timestamp: EventTime) -> Result<(), Failure> {
    let record = |(offset, value)| SourceRecord {
        offset,
        timestamp: Some(timestamp),
        value: Some(value),
        watermark_bound: None,
    };
    let records: Vec<_> = values.iter().map(|(offset, value)| record((*offset, value.as_bytes()))).collect();
    if records.is_empty() {
        source.heartbeat(Backlog::None).await?;
    } else {
        source.ingest(&records).await?;
    }
    Ok(())
}

/// Shows alerts as they become real and remembers how long that took.
struct AlertWatch {
    screen: Screen,
    delays: Mutex<Vec<i64>>,
}

impl SinkObserver for AlertWatch {
    fn on_record(&self, topic: &str, value: &[u8]) {
        if topic != payguard_publish::ALERTS_TOPIC {
            return;
        }
        let Ok(alert) = serde_json::from_slice::<FraudAlert>(value) else { return };
        let delay = SystemClock.now().0 - alert.event_time_ms;
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).push(delay);
        self.screen.print(&format!(
            "ALERT {:12} card {} {} (visible {} after the payment)",
            alert.rule_id,
            alert.card_id,
            alert.detail,
            duration(delay)
        ));
    }
}

impl AlertWatch {
    fn summary(&self) -> String {
        let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner).clone();
        delays.sort_unstable();
        let at = |share: f64| delays.get(((delays.len() as f64 - 1.0) * share) as usize).copied().unwrap_or(0);
        match delays.len() {
            0 => "no alerts".to_owned(),
            n => format!(
                "{n} alerts, visible {} (median) and {} (slowest) after the payment",
                duration(at(0.5)),
                duration(at(1.0))
            ),
        }
    }
}

/// A block of lines at the bottom of the terminal that is drawn anew, with other lines scrolling above it.
#[derive(Clone)]
struct Screen {
    lines: MultiProgress,
    block: ProgressBar,
    plain: bool,
}

impl Screen {
    fn new() -> Result<Screen, Failure> {
        let lines = MultiProgress::new();
        let block = lines.add(ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{msg}")?));
        Ok(Screen { lines, block, plain: !std::io::stderr().is_terminal() })
    }

    fn is_plain(&self) -> bool {
        self.plain
    }

    fn print(&self, line: &str) {
        if self.plain || self.lines.println(line).is_err() {
            say!("{line}");
        }
    }

    fn draw(&self, text: &str) {
        self.block.set_message(text.to_owned());
    }

    fn clear(&self) {
        self.block.finish_and_clear();
    }
}
