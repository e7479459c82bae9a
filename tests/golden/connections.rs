//! The connections pipeline against the naive model, output by output: all stages, the SDK clients, the embedded stores.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use payguard_aws::usage::Usage;
use payguard_directory::SeededDirectory;
use payguard_engine::Head;
use payguard_engine::logic::SourceRecord;
use payguard_engine::task::Budget;
use payguard_generator::{CONNECTIONS_FILE, ConnectionConfig, write_connections};
use payguard_local::accounting;
use payguard_local::bounded::{self, Inputs, Outcome};
use payguard_local::embedded::{EmbeddedStack, StackOptions};
use payguard_local::runner::LocalPipeline;
use payguard_local::stores::env;
use payguard_model::{ConnectionEvent, EventTime, ProcessingTime, parse_connection_into, to_json};
use payguard_operators::connections::ReorderOutput;
use payguard_operators::connections::model::Model;
use payguard_operators::watermark::BoundedOutOfOrderness;
use payguard_publish::connections::{DLQ_TOPIC, LATE_TOPIC, TOPICS, VARIANT_TOPICS, VERDICTS_TOPIC};
use payguard_sink_file::FileSink;
use payguard_topology::config::{AlignmentMode, Shards};
use payguard_topology::{Config, System};
use tempfile::TempDir;

/// Events of the generated file.
const EVENTS: u64 = 6_000;

fn config(shards: u32, records_per_commit: usize) -> Config {
    let mut config = Config { system: System::Connections, ..Config::default() };
    config.engine.alignment = AlignmentMode::Strict;
    config.engine.records_per_commit = records_per_commit;
    config.shards = Shards::all(shards);
    config
}

/// A file with everything in it: disorder, late and too late events, retries, bursts, broken records.
fn input(folder: &Path) -> PathBuf {
    let config = ConnectionConfig {
        records: EVENTS,
        rate: 20,
        out_of_order: 0.3,
        late: 0.1,
        // Some find their session forgotten.
        late_max_ms: 400_000,
        burst: 0.01,
        failures: 0.2,
        bad: 0.02,
        ..ConnectionConfig::default()
    };
    write_connections(&config, folder, |_| ()).expect("written");
    folder.join(CONNECTIONS_FILE)
}

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(str::to_owned).collect()
}

/// What the model says to a file: verdicts and late events, as they are written.
fn expected(input: &Path, variant: &'static str, config: &Config) -> [Vec<String>; 2] {
    let (mut model, mut watermark) =
        (Model::new(variant, config.connections.limits()), BoundedOutOfOrderness::default());
    let mut event = ConnectionEvent::default();
    for line in lines(input) {
        if parse_connection_into(line.as_bytes(), &mut event).is_ok() {
            model.event(&event);
            watermark.observe(EventTime(event.event_time_ms));
            // Timers of the past wait for the next step.
            if watermark.watermark().0 > model.watermark() {
                model.advance_watermark(watermark.watermark().0);
            }
        }
    }
    model.advance_watermark(i64::MAX);
    let text = |json: Vec<u8>| String::from_utf8(json).expect("text");
    let mut expected = [Vec::new(), Vec::new()];
    for output in &model.outputs {
        match output {
            ReorderOutput::Verdict(verdict) => expected[0].push(text(to_json(verdict))),
            ReorderOutput::Late(event) => expected[1].push(text(to_json(event))),
        }
    }
    expected
}

/// A pipeline that may be stopped and started.
struct Place {
    stack: EmbeddedStack,
    out: TempDir,
    sink: Arc<FileSink>,
}

impl Place {
    async fn new() -> Place {
        let stack = EmbeddedStack::start(StackOptions::default()).await.expect("the stack starts");
        let out = tempfile::tempdir().expect("a temporary folder");
        let sink = Arc::new(FileSink::open(out.path(), &TOPICS, None).expect("the sink opens"));
        Place { stack, out, sink }
    }

    fn pipeline(&self, config: &Config) -> LocalPipeline {
        let env = env(&self.stack, config, &Arc::new(Usage::default()));
        LocalPipeline::new(Arc::new(config.clone()), env, self.sink.clone(), Arc::new(SeededDirectory))
    }

    /// Runs to the end; what counts in the heads adds up.
    async fn finish(&self, config: &Config, inputs: &Inputs) -> Vec<(payguard_engine::TaskId, Head)> {
        let pipeline = self.pipeline(config);
        let lines = bounded::run(&pipeline, inputs, |_| ()).await.expect("the run succeeds");
        let heads = pipeline.heads().await.expect("heads");
        assert_eq!(accounting::check(&pipeline.topology, &heads, lines), [], "every record is accounted for");
        heads
    }

    fn topic(&self, topic: &str) -> Vec<String> {
        lines(&self.out.path().join(format!("{topic}.jsonl")))
    }
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

/// All outputs are those of the model; with one shard in its order, with several in any.
fn assert_outputs(name: &str, place: &Place, input: &Path, config: &Config) {
    let order = |lines| if config.shards.reorder_b == 1 { lines } else { sorted(lines) };
    for (variant, topic) in VARIANT_TOPICS {
        let [verdicts, late] = expected(input, variant, config);
        assert!(verdicts.len() > 500 && late.len() > 10, "{} and {}", verdicts.len(), late.len());
        assert!(order(place.topic(topic)) == order(verdicts.clone()), "{name}: {topic}");
        if variant == config.connections.visible_variant {
            assert!(order(place.topic(VERDICTS_TOPIC)) == order(verdicts), "{name}: {VERDICTS_TOPIC}");
            assert!(order(place.topic(LATE_TOPIC)) == order(late), "{name}: {LATE_TOPIC}");
        }
    }
    let mut event = ConnectionEvent::default();
    let refused = |line: &&String| parse_connection_into(line.as_bytes(), &mut event).is_err();
    let broken: Vec<String> = lines(input).iter().filter(refused).cloned().collect();
    let raw = |line: String| {
        let record: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        record["raw"].as_str().expect("a text").to_owned()
    };
    assert_eq!(place.topic(DLQ_TOPIC).into_iter().map(raw).collect::<Vec<_>>(), broken, "{name}");
}

fn inputs(input: &Path) -> Inputs {
    Inputs { payments: vec![input.to_owned()], ..Inputs::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_variants_equal_the_model_at_any_number_of_shards_and_commit_size() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let input = input(folder.path());
    for (shards, records_per_commit) in [(1, 70), (1, 1_000), (1, 10_000), (2, 333), (4, 10_000), (4, 150)] {
        let config = config(shards, records_per_commit);
        let place = Place::new().await;
        place.finish(&config, &inputs(&input)).await;
        let name = format!("{shards} shards, {records_per_commit} per commit");
        assert_outputs(&name, &place, &input, &config);
        place.stack.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_stopped_and_started_again_and_again_says_the_same() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let input = input(folder.path());
    for visible in ["a", "b"] {
        let mut config = config(2, 200);
        config.connections.visible_variant = visible.to_owned();
        let place = Place::new().await;
        for stop_after in [1, 700, 701, 3_000, 5_500] {
            let pipeline = place.pipeline(&config);
            let outcome = bounded::run_until(&pipeline, &inputs(&input), Some(stop_after), |_| ()).await;
            assert_eq!(outcome.expect("it stops"), Outcome::Stopped(stop_after));
        }
        place.finish(&config, &inputs(&input)).await;
        assert_outputs(&format!("{visible} is visible"), &place, &input, &config);
        place.stack.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_are_delivered_again_and_tasks_that_start_afresh_change_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let input = input(folder.path());
    let config = config(1, 500);
    let place = Place::new().await;
    let all = lines(&input);
    let offsets: Vec<i64> = (0..).take(all.len()).collect();
    for start in (0..all.len()).step_by(400) {
        let pipeline = place.pipeline(&config);
        // A hundred that were delivered before, and the next ones.
        let range = start.saturating_sub(100)..(start + 400).min(all.len());
        let record = |at: usize| SourceRecord {
            offset: offsets[at],
            timestamp: None,
            value: Some(all[at].as_bytes()),
            watermark_bound: None,
            replays: 0,
        };
        let records: Vec<SourceRecord<'_>> = range.map(record).collect();
        pipeline.input(0).ingest(&records).await.expect("they are committed");
        for id in pipeline.topology.consumer_tasks() {
            let mut task = pipeline.consumer(&id).expect("a task of the topology");
            let budget = Budget { until: ProcessingTime(i64::MAX), commits: u32::MAX };
            task.run(budget).await.expect("the task runs");
        }
    }
    place.finish(&config, &inputs(&input)).await;
    assert_outputs("delivered again", &place, &input, &config);
    place.stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guards_bound_what_is_remembered_and_everything_is_still_accounted_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let input = input(folder.path());
    let mut config = config(1, 300);
    (config.connections.max_buffered_sessions, config.connections.max_events_per_session) = (40, 3);
    let place = Place::new().await;
    let heads = place.finish(&config, &inputs(&input)).await;
    let totals = accounting::totals(&heads);
    for (stage, operator) in [("reorder_a", "reorder-by-arrival"), ("reorder_b", "reorder-by-event-time")] {
        for counter in ["evicted_full", "events_dropped", "forgotten_early"] {
            assert!(totals[stage].get(&format!("{operator}.{counter}")) > Some(&0), "{stage} {counter}");
        }
    }
    // Every session has a verdict, however early it was given up.
    let mut event = ConnectionEvent::default();
    let mut told: Vec<String> = Vec::new();
    for line in place.topic(VERDICTS_TOPIC).iter().chain(&place.topic(LATE_TOPIC)) {
        let record: serde_json::Value = serde_json::from_str(line).expect("JSON");
        told.push(record["sessionId"].as_str().expect("a text").to_owned());
    }
    for line in lines(&input) {
        if parse_connection_into(line.as_bytes(), &mut event).is_ok() {
            assert!(told.contains(&event.session_id), "{}", event.session_id);
        }
    }
    place.stack.stop().await;
}
