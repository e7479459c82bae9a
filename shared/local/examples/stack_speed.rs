//! How fast the embedded stack is through the SDK clients: objects per second and commits per second.
//!
//! `cargo run --release -p payguard-local --example stack_speed [directory]`; without a directory the ledger is in
//! memory and the objects are in a temporary directory.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use payguard_aws::{DynamoLedger, DynamoStateTable, S3Segments, Usage};
use payguard_engine::page::{Page, PageAddress};
use payguard_engine::row::SegmentLocation;
use payguard_engine::store::{CommitReply, Ledger, RowLimits, SegmentStore, StateTable};
use payguard_engine::{CommitRow, Head, Seq, StageId, StoreError, StoreErrorKind, TaskId};
use payguard_local::embedded::{EmbeddedStack, StackOptions};

const SECONDS_EACH: Duration = Duration::from_secs(3);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).map(std::path::PathBuf::from);
    let started = Instant::now();
    let stack = EmbeddedStack::start(StackOptions { dir, ..StackOptions::default() }).await?;
    println!("started in {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
    let usage = Arc::new(Usage::default());
    let ledger = Arc::new(DynamoLedger::new(stack.clients().dynamodb.clone(), stack.tables(), "speed", usage.clone()));
    let state =
        Arc::new(DynamoStateTable::new(stack.clients().dynamodb.clone(), stack.tables(), "speed", usage.clone()));
    let segments = Arc::new(S3Segments::new(stack.clients(), stack.bucket(), "speed", usage.clone()));
    for size in [200_000, 2_000_000] {
        for tasks in [1, 4] {
            objects(&segments, size, tasks).await?;
        }
    }
    for tasks in [1, 4, 8] {
        commits(&ledger, tasks, 2_000).await?;
    }
    commits(&ledger, 4, 8_000).await?;
    rows(&ledger).await?;
    pages(&state, 4, 30_000).await?;
    println!("{:?}", usage.snapshot());
    let stopping = Instant::now();
    stack.stop().await;
    println!("stopped in {:.1} ms", stopping.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

/// Runs `work` on `tasks` tasks for a while and prints how often it was done per second.
async fn measure<F, W>(name: &str, bytes: usize, tasks: usize, work: W) -> Result<(), StoreError>
where
    F: Future<Output = Result<(), StoreError>> + Send,
    W: Fn(usize, u64) -> F + Send + Sync + 'static,
{
    let work = Arc::new(work);
    let began = (Instant::now(), cpu_seconds());
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let work = Arc::clone(&work);
        running.spawn(async move {
            let mut done = 0u64;
            while began.0.elapsed() < SECONDS_EACH {
                work(task, done).await?;
                done += 1;
            }
            Ok::<u64, StoreError>(done)
        });
    }
    let mut total = 0;
    while let Some(done) = running.join_next().await {
        total += done.map_err(|err| StoreError::new(StoreErrorKind::Invalid, "measure", name, err.to_string()))??;
    }
    let rate = total as f64 / began.0.elapsed().as_secs_f64();
    let cpu = (cpu_seconds() - began.1) * 1e6 / total as f64;
    println!("{name:<28} {tasks} tasks: {rate:>8.0}/s {:>7.1} MB/s {cpu:>7.0} us CPU each", rate * bytes as f64 / 1e6);
    Ok(())
}

async fn objects(segments: &Arc<S3Segments>, size: usize, tasks: usize) -> Result<(), StoreError> {
    let body = Bytes::from((0..size).map(|i| (i * 31 % 251) as u8).collect::<Vec<u8>>());
    let key = move |task: usize, n: u64| format!("task-{task}/{size}-{tasks}-{n}");
    let store = Arc::clone(segments);
    measure(&format!("put {size}"), size, tasks, move |task, n| {
        let (store, body) = (Arc::clone(&store), body.clone());
        async move { store.put(&key(task, n), body).await }
    })
    .await?;
    let store = Arc::clone(segments);
    measure(&format!("get {size}"), size, tasks, move |task, n| {
        let store = Arc::clone(&store);
        async move { store.get(&key(task, n % 10), 0, size as u64).await.map(drop) }
    })
    .await
}

async fn commits(ledger: &Arc<DynamoLedger>, tasks: usize, bytes: usize) -> Result<(), StoreError> {
    let ledger = Arc::clone(ledger);
    measure(&format!("commit, row of {bytes} bytes"), bytes, tasks, move |task, n| {
        let ledger = Arc::clone(&ledger);
        async move {
            let task = TaskId::shard(&StageId::new(&format!("s{tasks}x{bytes}")), u32::try_from(task).unwrap_or(0));
            let attempt = format!("{}-{n}-{bytes}-{tasks}", task.instance);
            let head = Head { seq: n + 1, attempt: attempt.clone(), ..Head::default() };
            let segment = Some(SegmentLocation::Inline(Bytes::from(vec![7; bytes])));
            let row = CommitRow { seq: n + 1, attempt, segment, ..CommitRow::default() };
            match ledger.commit(&task, &head, &row).await? {
                CommitReply::Committed => Ok(()),
                other => {
                    let detail = format!("{other:?}; use a fresh directory");
                    Err(StoreError::new(StoreErrorKind::Invalid, "commit", task.to_string(), detail))
                }
            }
        }
    })
    .await
}

async fn rows(ledger: &Arc<DynamoLedger>) -> Result<(), StoreError> {
    let task = TaskId::shard(&StageId::new("s1x2000"), 0);
    for count in [1, 50] {
        let (ledger, task) = (Arc::clone(ledger), task.clone());
        measure(&format!("load {count} rows of 2000"), 2_000 * count as usize, 1, move |_, n| {
            let (ledger, task) = (Arc::clone(&ledger), task.clone());
            async move { ledger.load_rows(&task, Seq(n % 500), RowLimits { rows: count }).await.map(drop) }
        })
        .await?;
    }
    let (ledger, task) = (Arc::clone(ledger), task);
    measure("load head", 0, 1, move |_, _| {
        let (ledger, task) = (Arc::clone(&ledger), task.clone());
        async move { ledger.load_head(&task).await.map(drop) }
    })
    .await
}

async fn pages(state: &Arc<DynamoStateTable>, tasks: usize, bytes: usize) -> Result<(), StoreError> {
    let stage = StageId::new("dedup");
    let put = Arc::clone(state);
    let body = Bytes::from(vec![9u8; bytes]);
    measure(&format!("put page of {bytes}"), bytes, tasks, move |task, n| {
        let (state, stage, body) = (Arc::clone(&put), stage.clone(), body.clone());
        async move {
            let group = u32::try_from(task as u64 * 1000 + n % 8).unwrap_or(0);
            let address = PageAddress { stage, group, operator: "first".to_owned(), page: format!("{}", n % 4) };
            state.put_page(&Page { address, version: n + 1, body, expires_at_s: None }).await.map(drop)
        }
    })
    .await?;
    let load = Arc::clone(state);
    let address = PageAddress { stage: StageId::new("dedup"), group: 0, operator: String::new(), page: String::new() };
    measure("load a group", bytes, 1, move |_, _| {
        let (state, address) = (Arc::clone(&load), address.clone());
        async move { state.load_pages(&address.stage, address.key_group()).await.map(drop) }
    })
    .await
}

/// CPU time of this process, user and system (Linux; 0 elsewhere).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> =
        stat.rsplit(')').next().unwrap_or("").split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect();
    fields.get(11).zip(fields.get(12)).map_or(0.0, |(user, system)| (user + system) / 100.0)
}
