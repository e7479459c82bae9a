//! The whole pipeline with its totals in PostgreSQL, which goes away and comes back, and with a process that dies: the
//! table is what the files of an undisturbed run say.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use payguard_aws::Usage;
use payguard_directory::SeededDirectory;
use payguard_engine::store::Sink;
use payguard_generator::{GeneratorConfig, write_files};
use payguard_local::bounded::{self, Inputs};
use payguard_local::embedded::{EmbeddedStack, StackOptions};
use payguard_local::runner::LocalPipeline;
use payguard_local::stores::env;
use payguard_model::MerchantStats;
use payguard_postgres::testing::Server;
use payguard_postgres::{DatabaseSettings, Patience, PostgresSink};
use payguard_sink_file::FileSink;
use payguard_topology::config::AlignmentMode;
use payguard_topology::{Config, stage};

type Table = BTreeMap<(String, i64), [i64; 3]>;

/// A run over the state in a folder.
struct Run {
    pipeline: LocalPipeline,
    stack: EmbeddedStack,
}

impl Run {
    async fn open(dir: &Path, database: Option<&DatabaseSettings>) -> Run {
        let mut config = Config::default();
        config.engine.alignment = AlignmentMode::Strict;
        config.engine.records_per_commit = 500;
        config.source.confirmations_topic.clear();
        let options = StackOptions { dir: Some(dir.join("state")), ..StackOptions::default() };
        let stack = EmbeddedStack::start(options).await.expect("the stack starts");
        let topics: Vec<&str> = payguard_publish::TOPICS.into_iter().chain([payguard_totals::TABLE]).collect();
        let sink = Arc::new(FileSink::open(&dir.join("out"), &topics, None).expect("the sink opens"));
        let env = env(&stack, &config, &Arc::new(Usage::default()));
        let name = config.pipeline.clone();
        let mut pipeline = LocalPipeline::new(Arc::new(config), env, sink, Arc::new(SeededDirectory));
        if let Some(settings) = database {
            let totals: Arc<dyn Sink> = Arc::new(PostgresSink::new(settings, name, Patience::default()));
            pipeline = pipeline.with_remote_sink(stage::TOTALS, totals);
        }
        Run { pipeline, stack }
    }

    /// Whether every other stage has seen the end of its input.
    async fn others_have_ended(&self) -> bool {
        let heads = self.pipeline.heads().await.expect("the heads are read");
        heads.iter().filter(|(task, _)| &*task.stage.0 != stage::TOTALS).all(|(_, head)| head.ended())
    }
}

/// The last total of every window in a file of totals.
fn table_of(dir: &Path) -> Table {
    let text = std::fs::read_to_string(dir.join("out/merchant_stats.jsonl")).expect("the totals are there");
    let totals = text.lines().map(|line| serde_json::from_str::<MerchantStats>(line).expect("a total"));
    totals.map(|t| ((t.merchant_id, t.window_start_ms), [t.window_end_ms, t.payment_count, t.amount_minor])).collect()
}

async fn table_in(server: &Server, database: &str) -> Table {
    let sql = "SELECT merchant_id, window_start_ms, window_end_ms, payment_count, amount_minor FROM merchant_stats";
    let rows = server.connect(database).await.query(sql, &[]).await.expect("the table is read");
    rows.iter().map(|r| ((r.get(0), r.get(1)), [r.get(2), r.get(3), r.get(4)])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_goes_away_costs_no_total_and_holds_up_no_other_stage() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let load = GeneratorConfig {
        records: 20_000,
        seed: 5,
        rate: 50,
        late: 0.05,
        late_max_ms: 100_000,
        dup: 0.02,
        bad: 0.01,
        confirm: 0.0,
        ..GeneratorConfig::default()
    };
    write_files(&load, &dir.path().join("data"), |_| ()).expect("payments are generated");
    let inputs = Inputs { payments: vec![dir.path().join("data/payments.jsonl")], ..Inputs::default() };

    let undisturbed = dir.path().join("undisturbed");
    let run = Run::open(&undisturbed, None).await;
    bounded::run(&run.pipeline, &inputs, |_| ()).await.expect("it runs");
    run.stack.stop().await;
    let expected = table_of(&undisturbed);
    assert!(expected.len() > 100, "{} totals", expected.len());

    let disturbed = dir.path().join("disturbed");
    let mut server = Server::create();
    server.start().await;
    let settings = server.migrated("payguard").await;

    // A process that dies with some totals written; the database dies with it.
    let run = Run::open(&disturbed, Some(&settings)).await;
    tokio::select! {
        result = bounded::run(&run.pipeline, &inputs, |_| ()) => panic!("it was to be killed: {result:?}"),
        () = async { while table_in(&server, "payguard").await.is_empty() {} } => {}
    }
    server.crash();
    run.stack.stop().await;
    drop(run.pipeline);

    // The next one finds no database. Everything but the totals is done before it is back.
    let run = Run::open(&disturbed, Some(&settings)).await;
    let back = async {
        while !run.others_have_ended().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server.start().await;
    };
    let (result, ()) = tokio::join!(bounded::run(&run.pipeline, &inputs, |_| ()), back);
    result.expect("it runs");
    run.stack.stop().await;

    assert_eq!(table_in(&server, "payguard").await, expected);
    for topic in payguard_publish::TOPICS {
        let text =
            |dir: &Path| std::fs::read_to_string(dir.join(format!("out/{topic}.jsonl"))).expect("the topic is there");
        let (of, with) = (text(&undisturbed), text(&disturbed));
        assert_eq!(of.lines().count(), with.lines().count(), "{topic}");
    }
}
