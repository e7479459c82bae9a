//! `payguard ledger`: the log of tasks, row by row.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use payguard_engine::row::SegmentLocation;
use payguard_engine::store::RowLimits;
use payguard_engine::task::Env;
use payguard_engine::{CommitRow, Head, InputId, InputState, Position, Seq, TaskId};
use payguard_inspect::rows;
use payguard_topology::progress;
use serde_json::{Value, json};

use crate::Failure;
use crate::config::ConfigArgs;
use crate::inspect::{Pipeline, config_of};
use crate::log::Log;
use crate::text::{bytes, date_time, duration, grouped, print, time_of_day};

/// How often `tail --follow` looks for new rows.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Rows that are read at once.
const ROWS_PER_READ: u32 = 256;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the newest rows of the log: what each commit read and wrote
    ///
    /// For example: ledger tail rules/0 rules/1 -n 10 --follow --state DIR
    Tail {
        /// Tasks, for example rules/0 or parse/payments.raw-0 [default: all]
        #[arg(value_name = "TASK")]
        tasks: Vec<String>,
        /// How many rows, of all these tasks together
        #[arg(short, long, value_name = "N", default_value_t = 20)]
        number: usize,
        /// Go on with the rows to come, until all these tasks have ended
        #[arg(short, long)]
        follow: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Show a task's head and one of its rows in full, as JSON
    ///
    /// For example: ledger show enrich/0 12 --records --state DIR
    Show {
        /// The task, for example rules/0
        task: String,
        /// The row [default: the newest]
        seq: Option<u64>,
        /// Show the records of the row too
        #[arg(long)]
        records: bool,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(clap::Args)]
struct Place {
    /// Folder with the durable state, of a run that goes on or has ended [default: the deployed stores that the
    /// environment names]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Print JSON, a line for each row
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let (Action::Tail { place, .. } | Action::Show { place, .. }) = &args.action;
    let config = config_of(place.state.as_deref(), config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let pipeline = Pipeline::open(place.state.as_deref(), &config).await?;
        let result = match &args.action {
            Action::Tail { tasks, number, follow, place } => {
                Tail { pipeline: &pipeline, json: place.json, printed: BTreeMap::new() }
                    .run(tasks, *number, *follow)
                    .await
            }
            Action::Show { task, seq, records, place } => show(&pipeline, task, *seq, *records, place.json).await,
        };
        pipeline.stores.close().await;
        result
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The heads of the tasks that are named, of all without a name; those that have committed nothing are left out.
async fn heads_of(pipeline: &Pipeline, names: &[String]) -> Result<Vec<(TaskId, Head)>, Failure> {
    let mut heads = progress::heads(&*pipeline.stores.env.ledger, &pipeline.topology).await?;
    let unknown = names.iter().find(|name| !heads.iter().any(|(task, _)| task.to_string() == **name));
    if let Some(name) = unknown {
        let there_are: Vec<String> = heads.iter().map(|(task, _)| task.to_string()).collect();
        return Err(format!("there is no task {name}; there are: {}", there_are.join(", ")).into());
    }
    heads.retain(|(task, head)| head.seq > 0 && (names.is_empty() || names.contains(&task.to_string())));
    Ok(heads)
}

/// Prints rows as they come.
struct Tail<'a> {
    pipeline: &'a Pipeline,
    json: bool,
    /// The last row that was printed, or passed over, of each task.
    printed: BTreeMap<TaskId, u64>,
}

impl Tail<'_> {
    async fn run(mut self, names: &[String], number: usize, follow: bool) -> Result<(), Failure> {
        let mut heads = heads_of(self.pipeline, names).await?;
        for (task, head) in &heads {
            self.printed.insert(task.clone(), head.seq.saturating_sub(number as u64));
        }
        let mut rows = self.new_rows(&heads).await?;
        rows.drain(..rows.len().saturating_sub(number));
        self.tell(&rows);
        // Nobody else can work on a folder that this command has opened itself.
        while follow && !self.pipeline.stores.is_alone() && !heads.iter().all(|(_, head)| is_over(head)) {
            tokio::time::sleep(LOOK_AGAIN).await;
            heads = heads_of(self.pipeline, names).await?;
            let rows = self.new_rows(&heads).await?;
            self.tell(&rows);
        }
        Ok(())
    }

    /// The rows up to these heads that were not printed, by the time of their commits.
    async fn new_rows(&mut self, heads: &[(TaskId, Head)]) -> Result<Vec<(TaskId, u64, CommitRow)>, Failure> {
        let env = &self.pipeline.stores.env;
        let mut rows = Vec::new();
        for (task, head) in heads {
            let printed = self.printed.entry(task.clone()).or_default();
            while *printed < head.seq {
                let limits = RowLimits { rows: ROWS_PER_READ };
                let read = env.ledger.remaining_rows(task, Seq(*printed), limits).await?;
                let Some(last) = read.last() else { break };
                *printed = last.seq.max(*printed);
                rows.extend(read.into_iter().map(|row| (task.clone(), head.flushed_seq, row)));
            }
        }
        rows.sort_by(|(a, _, x), (b, _, y)| (x.now_ms, a, x.seq).cmp(&(y.now_ms, b, y.seq)));
        Ok(rows)
    }

    fn tell(&self, rows: &[(TaskId, u64, CommitRow)]) {
        for (task, flushed_seq, row) in rows {
            if self.json {
                let mut told = rows::row(row);
                told["task"] = json!(task.to_string());
                told["flushedSeq"] = json!(flushed_seq);
                say!("{told}");
            } else {
                print(&in_words(task, *flushed_seq, row));
            }
        }
    }
}

fn is_over(head: &Head) -> bool {
    head.ended() || head.sealed.is_some()
}

/// A row in two lines.
fn in_words(task: &TaskId, flushed_seq: u64, row: &CommitRow) -> String {
    let inputs: Vec<String> = row.to.iter().map(|(id, to)| moved(id, row.from.get(id), to)).collect();
    let inputs = if inputs.is_empty() { "no input".to_owned() } else { inputs.join(", ") };
    let mut facts = vec![records(row), format!("watermark {}", time_of_day(row.watermark()))];
    facts.extend(row.idle.then(|| "idle".to_owned()));
    facts.extend(row.delta.as_ref().map(|delta| format!("delta {}", bytes(delta.raw_len))));
    facts.push(segment(row));
    facts.push(format!("flushed to {flushed_seq}"));
    facts.push(format!("attempt {}, code {}", row.attempt, row.code));
    facts.extend((row.pinned > 0).then(|| format!("rules version {}", row.pinned)));
    facts.extend(row.broadcast.as_ref().map(|value| format!("decides rules version {}", value.version)));
    facts.extend(row.sealed.map(|to| format!("sealed for generation {} of {} shards", to.generation, to.shards)));
    format!("{}  {task} #{}  {inputs}\n    {}\n", date_time(row.now_ms), row.seq, facts.join("; "))
}

fn moved(id: &InputId, from: Option<&Position>, to: &InputState) -> String {
    format!("{id} {} -> {}", at(from.copied().unwrap_or_default()), at(to.position))
}

/// A position: a row or offset, and records of the next one.
fn at(position: Position) -> String {
    match position.within {
        0 => position.at.to_string(),
        within => format!("{}+{within}", position.at),
    }
}

fn records(row: &CommitRow) -> String {
    let counts = rows::records_by_stream(row);
    match counts.is_empty() {
        true => "no records".to_owned(),
        false => {
            let count =
                |(stream, n): (&String, &Value)| format!("{stream} {}", grouped(n.as_u64().unwrap_or_default()));
            counts.iter().map(count).collect::<Vec<_>>().join(", ")
        }
    }
}

fn segment(row: &CommitRow) -> String {
    let size = bytes(rows::segment_bytes(row));
    match &row.segment {
        None => "no segment".to_owned(),
        Some(SegmentLocation::Inline(_)) => format!("segment {size} in the row"),
        Some(SegmentLocation::Object(_)) => format!("segment {size} as an object"),
    }
}

async fn show(
    pipeline: &Pipeline,
    name: &str,
    seq: Option<u64>,
    with_records: bool,
    as_json: bool,
) -> Result<(), Failure> {
    let env = &pipeline.stores.env;
    let mut heads = heads_of(pipeline, &[name.to_owned()]).await?;
    let (task, head) = heads.pop().ok_or_else(|| format!("{name} has committed nothing yet"))?;
    let seq = seq.unwrap_or(head.seq);
    let Some(row) = env.ledger.load_row(&task, Seq(seq)).await? else {
        return Err(no_row(env, &task, &head, seq, pipeline.config.gc.retention_ms).await?);
    };
    let mut told = json!({ "task": name, "head": rows::head(&head), "row": rows::row(&row) });
    if with_records {
        told["records"] = rows::records(env, &task, &row).await?.into();
    }
    match as_json {
        true => say!("{told}"),
        false => say!("{}", serde_json::to_string_pretty(&told)?),
    }
    Ok(())
}

/// The error for a row that is not there.
async fn no_row(env: &Env, task: &TaskId, head: &Head, seq: u64, retention_ms: i64) -> Result<Failure, Failure> {
    if seq == 0 || seq > head.seq {
        return Ok(format!("{task} has rows 1 to {}: there is no row {seq}", head.seq).into());
    }
    let first = Log::of(env, task).next().await?;
    let since = first.map_or_else(String::new, |row| {
        format!("; its log begins with row {}, committed {}", row.seq, date_time(row.now_ms))
    });
    let kept = duration(retention_ms);
    Ok(format!(
        "row {seq} of {task} has been collected{since}. gc.retention_ms, here {retention_ms} ({kept}), says how long rows \
         are kept"
    )
    .into())
}

#[cfg(test)]
mod tests {
    use payguard_engine::layout::Layout;
    use payguard_engine::row::Slice;

    use super::*;

    #[test]
    fn a_row_is_told_in_two_lines() {
        let to = InputState { position: Position { at: 5, within: 3 }, watermark_ms: 0, idle: false };
        let slice = |stream: &str, count| Slice { stream: stream.to_owned(), count, len: 1_000, ..Slice::default() };
        let row = CommitRow {
            seq: 7,
            attempt: "abc".to_owned(),
            code: "0.1.0".to_owned(),
            watermark_ms: 1_794_085_494_920,
            now_ms: 1_794_085_494_920,
            to: BTreeMap::from([("dedup/0".to_owned(), to)]),
            slices: vec![slice("card-alerts", 2), slice("card-alerts", 1_000)],
            delta: Some(Slice { len: 536, raw_len: 2_048, ..Slice::default() }),
            segment: Some(SegmentLocation::Object(String::new())),
            pinned: 2,
            sealed: Some(Layout { generation: 2, shards: 4 }),
            ..CommitRow::default()
        };
        let task: TaskId = "rules/0".parse().expect("a task");
        assert_eq!(
            in_words(&task, 6, &row),
            "2026-11-07T21:04:54.92Z  rules/0 #7  dedup/0 0 -> 5+3\n    card-alerts 1,002; watermark 21:04:54.920; \
             delta 2.0 KiB; segment 2.5 KiB as an object; flushed to 6; attempt abc, code 0.1.0; rules version 2; \
             sealed for generation 2 of 4 shards\n"
        );
        let empty = in_words(&task, 0, &CommitRow { idle: true, watermark_ms: i64::MIN, ..CommitRow::default() });
        assert!(
            empty.contains("no input") && empty.contains("no records; watermark none; idle; no segment"),
            "{empty}"
        );
    }
}
