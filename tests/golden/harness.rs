//! Runs a pipeline on embedded stores in memory and gives its outputs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use payguard_aws::usage::Usage;
use payguard_engine::logic::SourceRecord;
use payguard_engine::task::Budget;
use payguard_local::embedded::{EmbeddedStack, StackOptions};
use payguard_local::runner::LocalPipeline;
use payguard_local::stores::env;
use payguard_local::{accounting, bounded};
use payguard_model::ProcessingTime;
use payguard_sink_file::FileSink;
use payguard_topology::Config;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

/// A case that was run on Flink.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Whether the end of the input closes all windows.
    pub(crate) flush: bool,
    pub(crate) velocity_max_payments: i64,
    pub(crate) amount_spike_limit_minor: i64,
    pub(crate) payments: Vec<String>,
    pub(crate) expected: BTreeMap<String, Vec<Value>>,
}

/// A finished run.
pub(crate) struct Run {
    out: TempDir,
    /// Payments the parser accepted.
    pub(crate) accepted: u64,
}

impl Run {
    /// Processes a file to its end.
    pub(crate) async fn to_the_end(config: Config, payments: &Path) -> Run {
        let (pipeline, out, stack) = open(config).await;
        let lines = bounded::run(&pipeline, &[payments.to_owned()], |_| ()).await.expect("the run succeeds");
        let heads = pipeline.heads().await.expect("heads");
        assert_eq!(accounting::check(&pipeline.topology, &heads, lines), [], "every record is accounted for");
        stack.stop().await;
        Run { accepted: accepted(&heads), out }
    }

    /// Processes records as far as they go, without an end of the input.
    pub(crate) async fn so_far(config: Config, payments: &[String]) -> Run {
        let (pipeline, out, stack) = open(config).await;
        let records: Vec<SourceRecord<'_>> = payments
            .iter()
            .zip(0..)
            .map(|(line, offset)| SourceRecord {
                offset,
                timestamp: None,
                value: Some(line.as_bytes()),
                watermark_bound: None,
            })
            .collect();
        pipeline.source(0).ingest(&records).await.expect("the records are committed");
        for id in pipeline.topology.consumer_tasks() {
            let mut task = pipeline.consumer(&id).expect("a task of the topology");
            let budget = Budget { until: ProcessingTime(i64::MAX), commits: u32::MAX };
            task.run(budget).await.expect("the task runs");
        }
        let heads = pipeline.heads().await.expect("heads");
        stack.stop().await;
        Run { accepted: accepted(&heads), out }
    }

    /// The records of a topic or table.
    pub(crate) fn topic(&self, topic: &str) -> Vec<Value> {
        read_lines(&self.out.path().join(format!("{topic}.jsonl")))
    }
}

async fn open(config: Config) -> (LocalPipeline, TempDir, EmbeddedStack) {
    let stack = EmbeddedStack::start(StackOptions::default()).await.expect("the stack starts");
    let out = tempfile::tempdir().expect("a temporary folder");
    let topics: Vec<&str> = payguard_publish::TOPICS.into_iter().chain([payguard_totals::TABLE]).collect();
    let sink = Arc::new(FileSink::open(out.path(), &topics, None).expect("the sink opens"));
    let env = env(&stack, &config, &Arc::new(Usage::default()));
    (LocalPipeline::new(Arc::new(config), env, sink), out, stack)
}

fn accepted(heads: &[(payguard_engine::TaskId, payguard_engine::Head)]) -> u64 {
    accounting::totals(heads)["parse"].get("parse.accepted").copied().unwrap_or(0)
}

/// A temporary file with these lines; it is kept, for a look after a failure.
pub(crate) fn file_of(lines: &[String]) -> PathBuf {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    for line in lines {
        writeln!(file, "{line}").expect("written");
    }
    file.into_temp_path().keep().expect("kept")
}

/// The JSON lines of a file.
pub(crate) fn read_lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

/// Texts with their multiplicity.
pub(crate) fn counted(texts: impl IntoIterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for text in texts {
        *counts.entry(text).or_insert(0) += 1;
    }
    counts
}
