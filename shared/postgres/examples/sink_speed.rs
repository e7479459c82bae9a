//! How fast the sink is: rows per second by the size of the batch, half of them new and half updates.
//!
//! `cargo run --release -p payguard-postgres --features testing --example sink_speed`: a server of its own on this
//! machine, which waits for the disk at every commit.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use payguard_engine::store::{Sink, SinkBatch, SinkRecord, SinkReply};
use payguard_engine::{Seq, StageId, TaskId};
use payguard_postgres::testing::Server;
use payguard_postgres::{Patience, PostgresSink, TABLE};

const SECONDS_EACH: Duration = Duration::from_secs(4);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut server = Server::create();
    server.start_with(&["fsync=on"]).await;
    for size in [1, 100, 5_000, 50_000] {
        let settings = server.migrated(&format!("speed_{size}")).await;
        let sink = PostgresSink::new(&settings, "speed", Patience::default());
        let task = TaskId::shard(&StageId::new("totals"), 0);
        let (mut seq, mut slowest) = (0, Duration::ZERO);
        let started = Instant::now();
        while started.elapsed() < SECONDS_EACH {
            seq += 1;
            let batch = batch(seq, size);
            let began = Instant::now();
            assert_eq!(sink.write(&task, &batch).await.unwrap(), SinkReply::Written);
            slowest = slowest.max(began.elapsed());
        }
        let (batches, seconds) = (seq as f64, started.elapsed().as_secs_f64());
        println!(
            "{size:>6} rows a batch: {:>8.0} rows/s, {:>6.1} ms a batch, {:>6.1} ms at most",
            batches * size as f64 / seconds,
            seconds * 1e3 / batches,
            slowest.as_secs_f64() * 1e3,
        );
    }
}

/// Every window is written by two batches, one after the other.
fn batch(seq: u64, size: u64) -> SinkBatch {
    let first = (seq - 1) * size / 2;
    let record = |row: u64| {
        let start = row / 50 * 60_000;
        let value = format!(
            r#"{{"merchantId":"m-{:04}","windowStartMs":{start},"windowEndMs":{},"paymentCount":{seq},"amountMinor":12345}}"#,
            row % 50,
            start + 60_000,
        );
        SinkRecord { topic: TABLE, key: String::new(), value: value.into_bytes() }
    };
    let records = (first..first + size).map(record).collect();
    SinkBatch { seq: Seq(seq), inputs: BTreeMap::new(), counters: BTreeMap::new(), records }
}
