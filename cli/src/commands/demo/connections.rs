//! Connection attempts, live: verdicts of the variants side by side.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use payguard_aws::system::SystemClock;
use payguard_engine::store::{Clock, SinkObserver};
use payguard_engine::task::source::SourceTask;
use payguard_generator::{ConnectionConfig, ConnectionSource};
use payguard_local::runner::Running;
use payguard_model::EventTime;
use payguard_publish::connections::VERDICTS_TOPIC;
use payguard_topology::{Config, progress};
use serde_json::Value;

use super::{Args, PARTITIONS, REDRAW, TICK, Topics, feed};
use crate::Failure;
use crate::commands::{status, summary::Summary};
use crate::live::Screen;
use crate::session::Session;

/// So many failed sessions are shown.
const SHOWN: usize = 10;
/// Sessions close 40 s behind the newest event: a demo is too short for that, so its time runs faster.
const FASTER: u64 = 10;

/// Shows the first sessions that failed.
struct Failures {
    screen: Screen,
    shown: Mutex<usize>,
}

impl SinkObserver for Failures {
    fn on_record(&self, topic: &str, value: &[u8]) {
        if topic != VERDICTS_TOPIC {
            return;
        }
        let Ok(verdict) = serde_json::from_slice::<Value>(value) else { return };
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if verdict["verdict"] != "failed" || *shown == SHOWN {
            return;
        }
        *shown += 1;
        let text = |name: &str| verdict[name].as_str().unwrap_or_default().to_owned();
        let (session, client, step, reason) = (text("sessionId"), text("clientId"), text("failedStep"), text("reason"));
        self.screen.print(&format!("FAILED session {session} of {client} at {step}: {reason} {}", verdict["steps"]));
    }
}

pub(super) async fn show(args: &Args, config: Config) -> Result<ExitCode, Failure> {
    let screen = Screen::new()?;
    screen.print(&format!(
        "{} connection events a second for {} s, event time {FASTER} times as fast: {:.0} % up to 10 s late, {:.0} % later, \
         {:.0} % broken; the first {SHOWN} failed sessions:",
        args.load.rate,
        args.seconds,
        args.connections.config(&args.load).out_of_order * 100.0,
        args.load.late * 100.0,
        args.load.bad * 100.0
    ));
    let failures = Arc::new(Failures { screen: screen.clone(), shown: Mutex::default() });
    let session = Session::open(config, None, &args.out, None, Some(failures)).await?;
    let mut sources: Vec<SourceTask> = (0..PARTITIONS).map(|p| session.pipeline.input(p)).collect();
    let mut running = session.pipeline.start();
    let started = Instant::now();
    let records = generate(args, &session, &mut sources, &screen, &mut running).await?;
    screen.print("no more events: closing the sessions");
    for source in &mut sources {
        source.end().await?;
    }
    running.finished().await?;
    let heads = session.pipeline.heads().await?;
    let summary = Summary::of(&session, &heads, records, started.elapsed(), &args.out);
    session.stack.stop().await;
    screen.clear();
    say!("\n{}", summary.to_text());
    Ok(if summary.discrepancies.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes events and feeds them to the partitions; returns how many.
async fn generate(
    args: &Args,
    session: &Session,
    sources: &mut [SourceTask],
    screen: &Screen,
    running: &mut Running,
) -> Result<u64, Failure> {
    let start_ms = SystemClock.now().0;
    // So many a second of the clock are a tenth of that in a second of event time.
    let rate = (args.load.rate / u32::try_from(FASTER)?).max(1);
    let config = ConnectionConfig { rate, start_ms, ..args.connections.config(&args.load) };
    let mut generator = ConnectionSource::new(&config)?;
    let mut timer = tokio::time::interval(TICK);
    let (mut sent, mut drawn) = (0, Instant::now());
    for tick in 1..=args.seconds * 10 {
        timer.tick().await;
        let now = EventTime(start_ms).plus(i64::try_from(tick * FASTER * 100)?);
        let mut batches = vec![Vec::new(); sources.len()];
        while let Some(line) = generator.next_until(now.0) {
            Topics::add(&mut sent, &mut batches, line)?;
        }
        let feeds = sources.iter_mut().zip(&batches).map(|(source, values)| feed(source, values, now));
        futures_util::future::try_join_all(feeds).await?;
        running.check()?;
        if drawn.elapsed() >= REDRAW {
            drawn = Instant::now();
            let pipeline = &session.pipeline;
            let rows = progress::of(&pipeline.topology, &pipeline.heads().await?);
            screen.draw(&status::table(&rows, SystemClock.now().0));
        }
    }
    Ok(sent)
}
