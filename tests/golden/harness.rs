//! Runs a pipeline on embedded stores in memory and gives its outputs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use payguard_aws::usage::Usage;
use payguard_directory::SeededDirectory;
use payguard_engine::logic::SourceRecord;
use payguard_engine::task::Budget;
use payguard_engine::task::consumer::ConsumerTask;
use payguard_local::bounded::Inputs;
use payguard_local::embedded::{EmbeddedStack, StackOptions};
use payguard_local::runner::LocalPipeline;
use payguard_local::stores::env;
use payguard_local::{accounting, bounded};
use payguard_model::ProcessingTime;
use payguard_sink_file::FileSink;
use payguard_topology::Config;
use payguard_topology::config::AlignmentMode;
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
    /// A message about the rules that came before everything else.
    pub(crate) rules: Option<String>,
    pub(crate) payments: Vec<String>,
    /// Absent: the operators that need confirmations were not run.
    pub(crate) confirmations: Option<Vec<String>>,
    /// For every confirmation, after how many payments it came.
    #[serde(default)]
    pub(crate) after: Vec<usize>,
    pub(crate) expected: BTreeMap<String, Vec<Value>>,
    /// What operators dropped, where it is not 0.
    pub(crate) dropped: BTreeMap<String, u64>,
}

/// A finished run.
pub(crate) struct Run {
    out: TempDir,
    /// Counters by stage.
    totals: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Run {
    /// Processes files to their end.
    pub(crate) async fn to_the_end(config: Config, inputs: &Inputs) -> Run {
        let (pipeline, out, stack) = open(config).await;
        let lines = bounded::run(&pipeline, inputs, |_| ()).await.expect("the run succeeds");
        let heads = pipeline.heads().await.expect("heads");
        assert_eq!(accounting::check(&pipeline.topology, &heads, lines), [], "every record is accounted for");
        stack.stop().await;
        Run { totals: accounting::totals(&heads), out }
    }

    /// Processes a case as it came, one record at a time through all stages.
    ///
    /// Nothing is aligned, so every stage sees the records in the order of their arrival, as in Flink.
    pub(crate) async fn one_by_one(mut config: Config, case: &Case) -> Run {
        config.engine.alignment = AlignmentMode::Off;
        let (pipeline, out, stack) = open(config).await;
        let mut tasks: Vec<ConsumerTask> = Vec::new();
        for id in pipeline.topology.consumer_tasks() {
            tasks.push(pipeline.consumer(&id).expect("a task of the topology"));
        }
        if let Some(rules) = &case.rules {
            pipeline.control().send(rules.as_bytes()).await.expect("it is decided about");
        }
        let (mut payments, mut confirmations) = (pipeline.payments(0), pipeline.confirmations(0));
        let has_confirmations = case.confirmations.is_some();
        // Known before the first record, as Flink knows its sources.
        for source in [&payments].into_iter().chain(has_confirmations.then_some(&confirmations)) {
            pipeline.env.ledger.register(source.id()).await.expect("it is registered");
        }
        let mut confirmed = 0;
        for arrived in 0..=case.payments.len() {
            if arrived > 0 {
                let line = &case.payments[arrived - 1];
                payments.ingest(&[record(arrived - 1, line)]).await.expect("it is committed");
                run_all(&mut tasks).await;
            }
            while case.after.get(confirmed) == Some(&arrived) {
                let line = &case.confirmations.as_ref().expect("confirmations")[confirmed];
                confirmations.ingest(&[record(confirmed, line)]).await.expect("it is committed");
                run_all(&mut tasks).await;
                confirmed += 1;
            }
        }
        assert_eq!(confirmed, case.after.len(), "{}", case.name);
        if case.flush {
            pipeline.control().end().await.expect("it ends");
            payments.end().await.expect("it ends");
            if has_confirmations {
                confirmations.end().await.expect("it ends");
            }
            run_all(&mut tasks).await;
        }
        let heads = pipeline.heads().await.expect("heads");
        stack.stop().await;
        Run { totals: accounting::totals(&heads), out }
    }

    /// A counter of a stage.
    pub(crate) fn count(&self, stage: &str, counter: &str) -> u64 {
        self.totals.get(stage).and_then(|counters| counters.get(counter)).copied().unwrap_or(0)
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
    (LocalPipeline::new(Arc::new(config), env, sink, Arc::new(SeededDirectory)), out, stack)
}

fn record(offset: usize, line: &str) -> SourceRecord<'_> {
    let offset = i64::try_from(offset).expect("small");
    SourceRecord { offset, timestamp: None, value: Some(line.as_bytes()), watermark_bound: None, replays: 0 }
}

async fn run_all(tasks: &mut [ConsumerTask]) {
    for task in tasks {
        let budget = Budget { until: ProcessingTime(i64::MAX), commits: u32::MAX };
        task.run(budget).await.expect("the task runs");
    }
}

impl Case {
    /// The case as files in a folder.
    pub(crate) fn files(&self, folder: &Path) -> Inputs {
        let write = |name: &str, lines: &[String]| {
            let path = folder.join(name);
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            std::fs::write(&path, text).expect("written");
            path
        };
        let after: Vec<String> = self.after.iter().map(usize::to_string).collect();
        write("confirmations.after", &after);
        Inputs {
            payments: vec![write("payments.jsonl", &self.payments)],
            confirmations: self.confirmations.as_ref().map(|lines| write("confirmations.jsonl", lines)),
            rules: self.rules.as_ref().map(|rules| write("rules.json", std::slice::from_ref(rules))),
        }
    }
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
