//! `payguard status`: where every task stands.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use payguard_aws::client::embedded_clients;
use payguard_aws::dynamo::{DynamoLedger, Tables};
use payguard_aws::system::SystemClock;
use payguard_aws::usage::Usage;
use payguard_engine::store::{Clock, Ledger};
use payguard_local::embedded::{EmbeddedStack, StackError, StackOptions};
use payguard_local::endpoints::Endpoints;
use payguard_topology::progress::{self, Progress};
use payguard_topology::{Config, Topology, payguard};

use crate::Failure;
use crate::config::ConfigArgs;
use crate::text::print;
use crate::text::{duration, grouped, time_of_day};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder with the durable state, of a run that goes on or has ended
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let config = config.load(Config::default())?;
    if !args.state.is_dir() {
        return Err(format!("{}: there is no such state folder", args.state.display()).into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rows = runtime.block_on(read(&args.state, &config, &payguard(&config)))?;
    print(&table(&rows, SystemClock.now().0));
    match progress::stuck(&rows, SystemClock.now()) {
        None => Ok(ExitCode::SUCCESS),
        Some(reason) => {
            say!("STUCK: {reason}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Reads the heads, through the process that has the folder open if there is one.
async fn read(state: &Path, config: &Config, topology: &Topology) -> Result<Vec<Progress>, Failure> {
    let ledger = |clients: &payguard_aws::client::Clients, tables: &Tables| -> Arc<dyn Ledger> {
        Arc::new(DynamoLedger::new(clients.dynamodb.clone(), tables, &config.pipeline, Arc::new(Usage::default())))
    };
    let options = StackOptions { dir: Some(state.to_owned()), ..StackOptions::default() };
    let found = match EmbeddedStack::start(options).await {
        Ok(stack) => {
            let found = progress::heads(&*ledger(stack.clients(), stack.tables()), topology).await;
            stack.stop().await;
            found
        }
        Err(StackError::InUse { .. }) => {
            let Endpoints { dynamodb, s3 } = Endpoints::read(state)?;
            progress::heads(&*ledger(&embedded_clients(&dynamodb, &s3), &Tables::default()), topology).await
        }
        Err(error) => return Err(error.into()),
    };
    Ok(progress::of(topology, &found?))
}

/// One line per task.
pub(crate) fn table(rows: &[Progress], now_ms: i64) -> String {
    let mut text = format!(
        "{:24} {:>7} {:>12} {:>13} {:>10} {:>10}  {}\n",
        "task", "commit", "records", "watermark", "behind", "committed", "waiting for"
    );
    for row in rows {
        let ago =
            if row.seq == 0 { "never".to_owned() } else { format!("{} ago", duration(now_ms - row.committed_at_ms)) };
        let behind = row.behind_ms.map_or_else(|| "-".to_owned(), duration);
        let state = match (row.ended, row.idle, row.rows_waiting) {
            (true, _, 0) => "ended".to_owned(),
            (_, true, 0) => "idle".to_owned(),
            (_, _, 0) => "input".to_owned(),
            (_, _, n) => format!("{} rows to read", grouped(n)),
        };
        text.push_str(&format!(
            "{:24} {:>7} {:>12} {:>13} {:>10} {:>10}  {state}\n",
            row.task.to_string(),
            grouped(row.seq),
            grouped(row.records),
            time_of_day(row.watermark),
            behind,
            ago
        ));
    }
    text
}
