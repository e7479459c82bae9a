//! Batches, and what the tables hold.

use std::collections::BTreeMap;
use std::time::Duration;

use payguard_engine::store::{SinkBatch, SinkPosition, SinkRecord};
use payguard_engine::{InputState, Position, Seq, StageId, TaskId};
use payguard_model::MerchantStats;
use payguard_model::json::to_json;
use payguard_postgres::{DatabaseSettings, Patience, PostgresSink, TABLE};
use tokio_postgres::Client;

pub(crate) const PIPELINE: &str = "payguard";

/// A row of the table without its time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Row {
    pub(crate) merchant: String,
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) count: i64,
    pub(crate) amount: i64,
}

pub(crate) fn row(merchant: &str, start: i64, count: i64, amount: i64) -> Row {
    Row { merchant: merchant.to_owned(), start, end: start.saturating_add(60_000), count, amount }
}

pub(crate) fn task() -> TaskId {
    TaskId::shard(&StageId::new("totals"), 0)
}

pub(crate) fn sink(settings: &DatabaseSettings) -> PostgresSink {
    // Long, for a machine that is busy with other tests: where a time limit is tested, the test says so.
    let patience = Patience { connect: Duration::from_mins(1), answer: Duration::from_mins(1) };
    PostgresSink::new(settings, PIPELINE, patience)
}

/// A batch; `mark` tells batches with one seq apart.
pub(crate) fn batch(seq: u64, mark: i64, rows: &[Row]) -> SinkBatch {
    let record = |row: &Row| {
        let stats = MerchantStats {
            merchant_id: row.merchant.clone(),
            window_start_ms: row.start,
            window_end_ms: row.end,
            payment_count: row.count,
            amount_minor: row.amount,
        };
        SinkRecord { topic: TABLE, key: format!("{}:{}", row.merchant, row.start), value: to_json(&stats) }
    };
    let position = Position { at: mark, within: u32::MAX };
    let input = |watermark_ms, idle| InputState { position, watermark_ms, idle };
    SinkBatch {
        seq: Seq(seq),
        inputs: BTreeMap::from([
            ("window/0".to_owned(), input(i64::MIN, false)),
            ("window/1".to_owned(), input(i64::MAX, true)),
        ]),
        counters: BTreeMap::from([("in.merchant_stats".to_owned(), u64::MAX), ("n".to_owned(), rows.len() as u64)]),
        records: rows.iter().map(record).collect(),
    }
}

/// Where a batch leads to.
pub(crate) fn after(batch: &SinkBatch) -> SinkPosition {
    SinkPosition { seq: batch.seq, inputs: batch.inputs.clone(), counters: batch.counters.clone() }
}

/// The table, sorted.
pub(crate) async fn rows(client: &Client) -> Vec<Row> {
    let sql = "SELECT merchant_id, window_start_ms, window_end_ms, payment_count, amount_minor FROM merchant_stats";
    let found = client.query(sql, &[]).await.unwrap();
    let mut rows: Vec<Row> = found
        .iter()
        .map(|r| Row { merchant: r.get(0), start: r.get(1), end: r.get(2), count: r.get(3), amount: r.get(4) })
        .collect();
    rows.sort();
    rows
}
