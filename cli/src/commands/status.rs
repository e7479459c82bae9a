//! `payguard status`: where every task stands.

use std::collections::BTreeMap;
use std::process::ExitCode;

use payguard_aws::system::SystemClock;
use payguard_engine::gc::Collected;
use payguard_engine::store::Clock;
use payguard_engine::task::{IN, OUT};
use payguard_engine::{Head, TaskId};
use payguard_local::accounting;
use payguard_topology::payguard;
use payguard_topology::progress::{self, Progress};
use serde_json::{Value, json};

use crate::Failure;
use crate::config::ConfigArgs;
use crate::session::{Place, on_folder};
use crate::text::{duration, grouped, print, time_of_day};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let config = config.load_of(&args.place.state)?;
    let topology = payguard(&config);
    let (heads, collected) = on_folder(&args.place.state, &config, async |env| {
        Ok((progress::heads(&*env.ledger, &topology).await?, env.ledger.collected().await?))
    })?;
    let rows = progress::of(&topology, &heads);
    let stuck = progress::stuck(&rows, SystemClock.now());
    if args.place.json {
        say!("{}", json(&rows, &heads, &collected, stuck.as_deref()));
    } else {
        print(&table(&rows, SystemClock.now().0));
        if let Some(from) = restored_from(&heads) {
            say!("\nrestored from {from}");
        }
        let counted = counters(&heads);
        if !counted.is_empty() {
            print(&format!("\n{counted}"));
        }
        if !collected.is_empty() {
            print(&format!("\n{}\n", garbage(&collected)));
        }
        if let Some(reason) = &stuck {
            say!("STUCK: {reason}");
        }
    }
    Ok(if stuck.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The savepoint that the pipeline began with, if it did.
fn restored_from(heads: &[(TaskId, Head)]) -> Option<&str> {
    heads.iter().map(|(_, head)| head.restored_from.as_str()).find(|from| !from.is_empty())
}

/// What has been collected since the pipeline began.
fn garbage(collected: &Collected) -> String {
    let Collected { rows, objects, orphans, pages, .. } = *collected;
    format!(
        "collected: {} log rows, {} segments, {} segments that were never committed, {} pages of state",
        grouped(rows),
        grouped(objects),
        grouped(orphans),
        grouped(pages)
    )
}

/// The same as one value. Watermarks are milliseconds of event time, `null` where there is none yet or no more.
fn json(rows: &[Progress], heads: &[(TaskId, Head)], collected: &Collected, stuck: Option<&str>) -> Value {
    let task = |row: &Progress| {
        let watermark = Some(row.watermark.0).filter(|ms| ![i64::MIN, i64::MAX].contains(ms));
        json!({
            "task": row.task.to_string(), "commit": row.seq, "records": row.records, "watermark_ms": watermark,
            "behind_ms": row.behind_ms, "idle": row.idle, "ended": row.ended,
            "sealed": row.sealed, "committed_at_ms": row.committed_at_ms,
            "rows_waiting": row.rows_waiting,
        })
    };
    json!({
        "tasks": rows.iter().map(task).collect::<Vec<_>>(), "counters": accounting::totals(heads),
        "collected": collected, "stuck": stuck, "restored_from": restored_from(heads),
    })
}

/// What the operators counted, apart from what they read and wrote: one line per operator.
pub(crate) fn counters(heads: &[(TaskId, Head)]) -> String {
    let mut by_operator: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (stage, counters) in accounting::totals(heads) {
        for (name, count) in counters.iter().filter(|(name, count)| is_of_operator(name) && **count > 0) {
            let (operator, what) = name.split_once('.').unwrap_or((name, ""));
            let what = format!("{what} {}", grouped(*count));
            by_operator.entry((stage.clone(), operator.to_owned())).or_default().push(what);
        }
    }
    let mut text = String::new();
    for ((stage, operator), counts) in by_operator {
        text.push_str(&format!("{stage:8} {operator:22} {}\n", counts.join(", ")));
    }
    text
}

fn is_of_operator(name: &str) -> bool {
    ![IN, OUT, "task.", "source."].iter().any(|prefix| name.starts_with(prefix))
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
            _ if row.sealed => "handed over".to_owned(),
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
