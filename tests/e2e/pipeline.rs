//! The durable side: the embedded stores in this process, the outputs in a folder.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use payguard_aws::client::{EMBEDDED_ACCESS_KEY, EMBEDDED_REGION, EMBEDDED_SECRET_KEY};
use payguard_aws::dynamo::DynamoLedger;
use payguard_aws::usage::Usage;
use payguard_engine::gc::Collected;
use payguard_engine::ids::Seq;
use payguard_engine::store::{Ledger, RowLimits};
use payguard_engine::{Head, StageId, TaskId};
use payguard_local::accounting;
use payguard_local::embedded::{EmbeddedStack, StackOptions};
use payguard_model::RuleConfig;
use payguard_tests::Setup;
use payguard_topology::config::variable;
use payguard_topology::{Topology, progress, stage};
use prost::Message;

use crate::expected::{comparable, merchants_csv};
use crate::watch::Watch;

/// How often the clock is pushed while tasks are behind.
const TICK: Duration = Duration::from_millis(500);
/// After so many pushes without a change nothing moves any more; longer than a lease lasts.
const STILL_TICKS: u32 = 24;
/// How long catching up may take.
const CATCH_UP_TIME: Duration = Duration::from_secs(60);

/// Stores and outputs.
pub(crate) struct Pipeline {
    stack: EmbeddedStack,
    topology: Topology,
    ledger: DynamoLedger,
    dir: tempfile::TempDir,
}

impl Pipeline {
    /// Empty stores, an empty folder.
    pub(crate) async fn start(setup: &Setup) -> Pipeline {
        let stack = EmbeddedStack::start(StackOptions::default()).await.expect("the embedded stack starts");
        let usage = Arc::new(Usage::default());
        let client = stack.clients().dynamodb.clone();
        let ledger = DynamoLedger::new(client, stack.tables(), &setup.config.pipeline, usage);
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(dir.path().join("merchants.csv"), merchants_csv()).expect("the folder can be written");
        Pipeline { stack, topology: setup.topology(), ledger, dir }
    }

    /// What the functions print.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.path().join("functions.log")
    }

    /// The environment of the functions.
    pub(crate) fn variables(&self, setup: &Setup, lambda_url: String) -> Vec<(String, String)> {
        let config = &setup.config;
        let sink = format!("file://{}", self.dir.path().join("out").display());
        let own = [
            ("AWS_ENDPOINT_URL_DYNAMODB", self.stack.dynamodb_endpoint()),
            ("AWS_ENDPOINT_URL_S3", self.stack.s3_endpoint()),
            ("AWS_ENDPOINT_URL_LAMBDA", lambda_url),
            ("AWS_ACCESS_KEY_ID", EMBEDDED_ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", EMBEDDED_SECRET_KEY.to_owned()),
            ("AWS_REGION", EMBEDDED_REGION.to_owned()),
            ("RUST_LOG", "info".to_owned()),
            ("PAYGUARD_LEDGER_TABLE", self.stack.tables().ledger.clone()),
            ("PAYGUARD_STATE_TABLE", self.stack.tables().state.clone()),
            ("PAYGUARD_SEGMENT_BUCKET", self.stack.bucket().to_owned()),
            ("PAYGUARD_SINK", sink),
            ("PAYGUARD_DIRECTORY", format!("file://{}", self.dir.path().join("merchants.csv").display())),
            ("PAYGUARD_REPORT_BATCH_ITEM_FAILURES", "true".to_owned()),
        ];
        let keys = [
            ("rules.velocity_max_payments", config.rules.velocity_max_payments.to_string()),
            ("rules.amount_spike_limit_minor", config.rules.amount_spike_limit_minor.to_string()),
            ("source.partitions", config.source.partitions.to_string()),
            ("source.max_future_ms", config.source.max_future_ms.to_string()),
            ("engine.records_per_commit", "40".to_owned()),
            ("engine.inline_bytes", "200".to_owned()),
            ("engine.flush_every_ms", "500".to_owned()),
            ("gc.retention_ms", "0".to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        own.chain(keys.into_iter().map(|(key, value)| (variable(key), value))).collect()
    }

    /// The heads of all tasks.
    pub(crate) async fn heads(&self) -> Vec<(TaskId, Head)> {
        progress::heads(&self.ledger, &self.topology).await.expect("the embedded ledger answers")
    }

    /// The rules of every version, in order.
    pub(crate) async fn versions(&self) -> Vec<RuleConfig> {
        let control = TaskId::shard(&StageId::new(stage::CONTROL), 0);
        let rows = self.ledger.load_rows(&control, Seq(0), RowLimits { rows: 1_000 }).await;
        let decided: Vec<_> =
            rows.expect("the embedded ledger answers").into_iter().filter_map(|r| r.broadcast).collect();
        assert!(decided.iter().map(|b| b.version).eq(1..=decided.len() as u64), "versions without gaps");
        decided.into_iter().map(|b| RuleConfig::decode(b.value).expect("rules")).collect()
    }

    /// Pushes the clock until all log rows of a task are collected but the newest; what has been collected till then.
    pub(crate) async fn until_collected(&self, watch: &Watch, task: &str) -> Collected {
        let (task, started): (TaskId, _) = (task.parse().expect("a task"), Instant::now());
        loop {
            self.tick(watch).await;
            let left = self.ledger.remaining_rows(&task, Seq(0), RowLimits { rows: 1_000 }).await;
            let left = left.expect("the embedded ledger answers").len();
            if left == 1 {
                return self.ledger.collected().await.expect("the embedded ledger answers");
            }
            assert!(started.elapsed() < CATCH_UP_TIME, "{left} rows of {task} are left\n{}", watch.last_lines());
            tokio::time::sleep(TICK).await;
        }
    }

    /// Looks at the heads, and now and then pushes the clock, until they are as wanted.
    pub(crate) async fn until(&self, watch: &Watch, wanted: impl Fn(&[(TaskId, Head)]) -> bool) {
        let (started, mut ticked) = (Instant::now(), Instant::now());
        while !wanted(&self.heads().await) {
            assert!(started.elapsed() < CATCH_UP_TIME, "it does not come to that\n{}", watch.last_lines());
            if ticked.elapsed() > TICK {
                self.tick(watch).await;
                ticked = Instant::now();
            }
        }
    }

    /// Pushes the clock until nothing moves any more. Rows may be left: a partition that is ahead of the others waits.
    pub(crate) async fn settle(&self, watch: &Watch) {
        let (started, mut before, mut still) = (Instant::now(), Vec::new(), 0);
        while still < STILL_TICKS {
            assert!(started.elapsed() < CATCH_UP_TIME, "it never settles\n{}", watch.last_lines());
            self.tick(watch).await;
            tokio::time::sleep(TICK).await;
            let heads = self.heads().await;
            still = if heads == before { still + 1 } else { 0 };
            before = heads;
        }
    }

    async fn tick(&self, watch: &Watch) {
        let answer = watch.invoke("clock", &serde_json::json!({"source": "aws.events"})).await;
        assert_eq!(answer.status, 200, "{:?}\n{}", answer.body, watch.last_lines());
    }

    /// Pushes the clock until no task has rows to read and what `done` looks at is there.
    pub(crate) async fn catch_up(&self, watch: &Watch, done: impl Fn(&[(TaskId, Head)]) -> bool) {
        let started = Instant::now();
        loop {
            let heads = self.heads().await;
            let behind = progress::of(&self.topology, &heads).into_iter().filter(|row| row.rows_waiting > 0);
            let behind: Vec<String> = behind.map(|row| format!("{} ({})", row.task, row.rows_waiting)).collect();
            if behind.is_empty() && done(&heads) {
                return;
            }
            assert!(started.elapsed() < CATCH_UP_TIME, "still behind: {behind:?}\n{}", watch.last_lines());
            self.tick(watch).await;
            tokio::time::sleep(TICK).await;
        }
    }

    /// What is in the output files, by topic or table, sorted.
    pub(crate) fn outputs(&self) -> BTreeMap<String, Vec<String>> {
        let folder = std::fs::read_dir(self.dir.path().join("out")).expect("the sinks made their folder");
        let files = folder.map(|entry| entry.expect("a readable folder").path());
        let topics = files.filter(|path| path.extension().is_some_and(|e| e == "jsonl")).map(|path| {
            let text = std::fs::read_to_string(&path).expect("UTF-8");
            let mut lines: Vec<String> = text.lines().map(comparable).collect();
            lines.sort();
            (path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(), lines)
        });
        topics.collect()
    }

    /// Fails unless every record of every stream was read as often as it was emitted.
    pub(crate) async fn account(&self, records: usize) {
        let discrepancies = accounting::check(&self.topology, &self.heads().await, records as u64);
        assert_eq!(discrepancies, [], "INV-6");
    }

    /// Stops the stores.
    pub(crate) async fn stop(self) {
        self.stack.stop().await;
    }
}
