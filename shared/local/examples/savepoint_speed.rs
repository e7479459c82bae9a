//! How fast savepoints are taken and restored, how much memory that takes, and how long tasks with that much state take to
//! their first commit: so many card profiles and remembered
//! payment ids in the embedded stores.
//!
//! `cargo run --release -p payguard-local --example savepoint_speed -- [keys] [directory]`; the state is written as a task
//! would have flushed it, without running the payments.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use payguard_engine::export::{Held, Keys, Value};
use payguard_engine::logic::SourceRecord;
use payguard_engine::page::{Page, PageAddress, version};
use payguard_engine::task::consumer::ConsumerTask;
use payguard_engine::task::source::SourceTask;
use payguard_engine::task::{Budget, Env};
use payguard_engine::{CommitRow, Head, StageId, TaskId};
use payguard_local::dir_files::DirFiles;
use payguard_local::embedded::{EmbeddedStack, StackOptions};
use payguard_local::stores::env;
use payguard_model::{CardProfile, KEY_GROUPS, ProcessingTime, key_group};
use payguard_savepoint::{Create, Restore, create, restore};
use payguard_topology::keys::encoding;
use payguard_topology::{Config, operator, payguard, stage};
use prost::Message;

/// Keys that are laid out at once, for the memory of this example itself.
const AT_ONCE: u64 = 250_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let keys: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let temporary = tempfile::tempdir()?;
    let dir = std::env::args().nth(2).map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let stack = EmbeddedStack::start(StackOptions { dir: Some(dir.join("state")), ..StackOptions::default() }).await?;
    let config = Config::default();
    let stores = env(&stack, &config, &Arc::default());
    let started = Instant::now();
    for (stage, operator) in [(stage::RULES, operator::CARD_PROFILE), (stage::DEDUP, "deduplicate")] {
        fill(&stores, stage, operator, keys / 2).await?;
    }
    println!("{keys} keys made in {:.1} s; {}", started.elapsed().as_secs_f64(), memory());
    let files = DirFiles::new(&dir.join("savepoints"));
    let started = Instant::now();
    let progress = |_: &payguard_savepoint::Progress| ();
    let request =
        Create { env: &stores, files: &files, config: &config, name: "speed", sinks: None, progress: &progress };
    let manifest = create(&request).await?;
    let (saved, bytes): (u64, u64) =
        manifest.sizes().values().fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
    report("taken", saved, bytes, started);
    let mut other = config.clone();
    other.pipeline = "restored".to_owned();
    let stores = env(&stack, &other, &Arc::default());
    let started = Instant::now();
    restore(&Restore { env: &stores, files: &files, config: &other, name: "speed", allow_dropped: false }).await?;
    report("restored", saved, bytes, started);
    first_commits(&stores, &other).await?;
    stack.stop().await;
    Ok(())
}

/// One payment through tasks that have nothing in memory: how long each takes to its first commit.
async fn first_commits(env: &Env, config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    let topology = payguard(config);
    let plan = |id: &TaskId| topology.plan(id).ok_or("the topology has no such task");
    let source = TaskId::partition(&StageId::new(stage::PARSE), &config.source.topic, 0);
    let mut source = SourceTask::new(env.clone(), plan(&source)?, &payguard_parse::make(config, &topology));
    let payment = br#"{"paymentId":"p-1","cardId":"c-00000007","merchantId":"m-0001","amountMinor":100,"currency":"EUR","country":"DE","eventTimeMs":1780000000000}"#;
    let record = SourceRecord { offset: 0, timestamp: None, value: Some(payment), watermark_bound: None, replays: 0 };
    source.ingest(&[record]).await?;
    source.end().await?;
    let bodies = [
        (stage::DEDUP, payguard_dedup::make(config, &topology)),
        (stage::RULES, payguard_rules::make(config, &topology)),
    ];
    for (name, body) in bodies {
        let id = TaskId::shard(&StageId::new(name), 0);
        let mut task = ConsumerTask::new(env.clone(), plan(&id)?, body);
        let started = Instant::now();
        let report = task.run(Budget { until: ProcessingTime(i64::MAX), commits: 1 }).await?;
        println!(
            "{id}: {} records, first commit after {:.2} s; {}",
            report.records,
            started.elapsed().as_secs_f64(),
            memory()
        );
    }
    Ok(())
}

fn report(what: &str, keys: u64, bytes: u64, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{what}: {keys} keys, {:.1} MB in {seconds:.1} s, {:.0} keys a second; {}",
        bytes as f64 / 1e6,
        keys as f64 / seconds,
        memory()
    );
}

/// Writes the state of `keys` keys and a head that says it is flushed.
async fn fill(env: &Env, stage: &str, operator: &str, keys: u64) -> Result<(), Box<dyn std::error::Error>> {
    let task = TaskId::shard(&StageId::new(stage), 0);
    let (mut parts, mut group_parts) = (Vec::new(), 0);
    let per_part = u32::try_from((keys / AT_ONCE).max(1)).unwrap_or(1);
    for first in (0..KEY_GROUPS).step_by((KEY_GROUPS / per_part).max(1) as usize) {
        parts.push(first..(first + (KEY_GROUPS / per_part).max(1)).min(KEY_GROUPS));
    }
    for groups in parts {
        group_parts += 1;
        let mut by_group: Vec<Keys> = vec![Keys::new(); KEY_GROUPS as usize];
        for number in 0..keys {
            let (key, value) = entry(operator, number);
            let group = key_group(&key, KEY_GROUPS).0;
            if groups.contains(&group) {
                by_group[group as usize].insert(key, value);
            }
        }
        for (group, keys) in (0..).zip(by_group) {
            for body in encoding(operator).lay_out(group, keys, 1) {
                let address =
                    PageAddress { stage: task.stage.clone(), group, operator: operator.to_owned(), page: body.page };
                let page =
                    Page { address, version: version(1, 1), body: body.body.into(), expires_at_s: body.expires_at_s };
                env.state.put_page(&page).await?;
            }
        }
    }
    println!("{stage}: written in {group_parts} parts");
    let head = Head { seq: 1, attempt: format!("speed-{stage}"), flushed_seq: 1, shards: 1, ..Head::empty() };
    let row = CommitRow { seq: 1, attempt: head.attempt.clone(), ..CommitRow::default() };
    env.ledger.register(&task).await?;
    env.ledger.commit(&task, &head, &row).await?;
    Ok(())
}

fn entry(operator: &str, number: u64) -> (String, Value) {
    if operator == operator::CARD_PROFILE {
        let count = i64::try_from(number % 90).unwrap_or(0);
        let country = Some("DE".to_owned());
        let profile = CardProfile { payment_count: count, total_amount_minor: count * 4_711, last_country: country };
        return (format!("c-{number:08}"), Value::State(Held { state: profile.encode_to_vec(), ..Held::default() }));
    }
    // Far in the future, so that the pages do not expire while they are looked at.
    let at = ProcessingTime(4_000_000_000_000);
    (format!("{:08x}-0000-4000-8000-{number:012x}", number.wrapping_mul(2_654_435_761) as u32), Value::WrittenAt(at))
}

/// Resident size of this process, now and at most; the embedded servers are part of it.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let find = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|n| n.parse::<u64>().ok());
        kib.map_or_else(|| "unknown".to_owned(), |kib| format!("{} MB", kib / 1024))
    };
    format!("memory {}, at most {}", find("VmRSS:"), find("VmHWM:"))
}
