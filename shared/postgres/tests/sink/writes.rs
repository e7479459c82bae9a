//! What is written when nothing fails, and who writes it.

use std::collections::BTreeMap;

use payguard_engine::store::{Sink, SinkPosition, SinkReply};
use payguard_postgres::testing::{PASSWORD, Server};
use payguard_postgres::{Migration, Patience, PostgresSink, migrate};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::fixture::{PIPELINE, Row, after, batch, row, rows, sink, task};

/// What somebody tries.
#[derive(Clone, Debug)]
enum Step {
    /// The next batch.
    Next(Vec<Row>),
    /// A batch that is there, with other rows.
    Again(Vec<Row>),
    /// A batch too early.
    Early(Vec<Row>),
    /// The next batch of another pipeline that writes the same table.
    Other(Vec<Row>),
    /// The process is another now.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = prop_oneof![Just(i64::MIN), Just(i64::MAX), -3..3_i64];
    let merchant = prop_oneof![Just("a"), Just("b'"), Just("\"c\\"), Just(""), Just("é")];
    let row =
        (merchant, 0..2_i64, 0..3_i64, number.clone(), number).prop_map(|(merchant, start, end, count, amount)| Row {
            merchant: merchant.to_owned(),
            start,
            end,
            count,
            amount,
        });
    let rows = prop::collection::vec(row, 0..8);
    let step = prop_oneof![
        6 => rows.clone().prop_map(Step::Next),
        1 => rows.clone().prop_map(Step::Again),
        1 => rows.clone().prop_map(Step::Early),
        2 => rows.prop_map(Step::Other),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..12)
}

/// The table, written row by row.
#[derive(Default)]
struct Model(BTreeMap<(String, i64), Row>);

impl Model {
    fn write(&mut self, rows: &[Row]) {
        for row in rows {
            let stored = self.0.entry((row.merchant.clone(), row.start)).or_insert_with(|| row.clone());
            (stored.count, stored.amount) = (row.count, row.amount);
        }
    }
}

async fn check(server: &Server, steps: Vec<Step>) {
    let test = server.connect("model").await;
    test.batch_execute("TRUNCATE merchant_stats, payguard_positions").await.unwrap();
    let settings = server.settings("model", PASSWORD);
    let other = PostgresSink::new(&settings, "other", Patience::default());
    let (mut own, mut model) = (sink(&settings), Model::default());
    let (mut position, mut others) = (SinkPosition::default(), SinkPosition::default());
    for (at, step) in (0..).zip(steps) {
        let seq = position.seq.0;
        match step {
            Step::Next(rows) => {
                let next = batch(seq + 1, at, &rows);
                assert_eq!(own.write(&task(), &next).await.unwrap(), SinkReply::Written);
                model.write(&rows);
                position = after(&next);
            }
            Step::Again(rows) if seq > 0 => {
                let reply = own.write(&task(), &batch(seq, at, &rows)).await.unwrap();
                assert_eq!(reply, SinkReply::Elsewhere(position.clone()));
            }
            Step::Again(_) => {}
            Step::Early(rows) => {
                let reply = own.write(&task(), &batch(seq + 2, at, &rows)).await.unwrap();
                assert_eq!(reply, SinkReply::Elsewhere(position.clone()));
            }
            Step::Other(rows) => {
                let next = batch(others.seq.0 + 1, at, &rows);
                assert_eq!(other.write(&task(), &next).await.unwrap(), SinkReply::Written);
                model.write(&rows);
                others = after(&next);
            }
            Step::Restart => own = sink(&settings),
        }
        assert_eq!(own.position(&task()).await.unwrap(), position);
        assert_eq!(other.position(&task()).await.unwrap(), others);
        assert_eq!(rows(&test).await, model.0.values().cloned().collect::<Vec<_>>());
    }
}

#[test]
fn batches_leave_what_writing_row_by_row_would() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut server = Server::create();
    runtime.block_on(async {
        server.start().await;
        server.migrated("model").await;
    });
    let mut runner = TestRunner::new(Config { cases: 32, failure_persistence: None, ..Config::default() });
    let result = runner.run(&steps(), |steps| {
        runtime.block_on(check(&server, steps));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_executors_that_write_one_batch_one_wins_and_the_rows_are_its() {
    let mut server = Server::create();
    server.start().await;
    let settings = server.migrated("race").await;
    let test = server.connect("race").await;
    for seq in 1..=25 {
        let attempt = |who: i64| {
            let sink = sink(&settings);
            let batch = batch(seq, who, &[row("a", 0, who, who), row(&format!("of-{who}-{seq}"), 0, who, who)]);
            tokio::spawn(async move { (sink.write(&task(), &batch).await.unwrap(), batch) })
        };
        let attempts: Vec<_> = (1..=4).map(attempt).collect();
        let (mut winners, mut losers) = (Vec::new(), Vec::new());
        for attempt in attempts {
            match attempt.await.unwrap() {
                (SinkReply::Written, batch) => winners.push(batch),
                (SinkReply::Elsewhere(position), _) => losers.push(position),
            }
        }
        assert_eq!((winners.len(), losers.len()), (1, 3), "batch {seq}");
        assert!(losers.iter().all(|position| *position == after(&winners[0])), "batch {seq}");
        let winner = winners[0].inputs["window/0"].position.at;
        let mut found = rows(&test).await;
        let shared = found.iter().find(|row| row.merchant == "a").unwrap();
        assert_eq!((shared.count, shared.amount), (winner, winner), "batch {seq}");
        found.retain(|row| row.merchant.ends_with(&format!("-{seq}")));
        assert_eq!(found, [row(&format!("of-{winner}-{seq}"), 0, winner, winner)], "batch {seq}");
    }
}

#[tokio::test]
async fn an_update_moves_the_time_and_leaves_the_end_of_the_window() {
    let mut server = Server::create();
    server.start().await;
    let settings = server.migrated("times").await;
    let (sink, test) = (sink(&settings), server.connect("times").await);
    let time = async || {
        let row = test.query_one("SELECT updated_at::text, window_end_ms FROM merchant_stats", &[]).await.unwrap();
        (row.get::<_, String>(0), row.get::<_, i64>(1))
    };
    sink.write(&task(), &batch(1, 1, &[row("m", 0, 3, 30)])).await.unwrap();
    let first = time().await;
    let late = Row { end: 7, ..row("m", 0, 4, 41) };
    sink.write(&task(), &batch(2, 2, &[late])).await.unwrap();
    let second = time().await;
    assert!(second.0 > first.0, "{first:?} {second:?}");
    assert_eq!(second.1, 60_000);
    assert_eq!(rows(&test).await, [row("m", 0, 4, 41)]);
}

/// Ids come from outside and are any text. None may be lost, be taken for another, or hold up the stage.
#[tokio::test]
async fn every_id_and_every_number_finds_its_row() {
    let mut server = Server::create();
    server.start().await;
    let settings = server.migrated("texts").await;
    let (sink, test) = (sink(&settings), server.connect("texts").await);
    let mut state = 1_u64;
    let mut noise = |length: usize| -> String {
        // Nothing that an index could compress.
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'!' + u8::try_from((state >> 33) % 94).unwrap())
        };
        (0..length).map(|_| next()).collect()
    };
    let (fits, long) = (noise(2_000), noise(100_000));
    let ids = ["m'; DROP TABLE merchant_stats; --", "\"{}\\,NULL", "NULL", "a\0b", "a\\u0000b", "\u{1f600}\u{10ffff}"];
    let ids: Vec<&str> = ids.into_iter().chain([&*fits, &long, &long[..99_999]]).collect();
    let all: Vec<Row> = ids.iter().map(|id| row(id, i64::MAX, i64::MAX, i64::MIN)).collect();
    assert_eq!(sink.write(&task(), &batch(1, 1, &all)).await.unwrap(), SinkReply::Written);
    let again: Vec<Row> = ids.iter().map(|id| row(id, i64::MAX, 1, 2)).collect();
    assert_eq!(sink.write(&task(), &batch(2, 2, &again)).await.unwrap(), SinkReply::Written);
    let found = rows(&test).await;
    assert_eq!(found.len(), ids.len());
    assert!(found.iter().all(|row| (row.start, row.end, row.count, row.amount) == (i64::MAX, i64::MAX, 1, 2)));
    for id in ids.iter().filter(|id| !id.contains('\0') && id.len() <= 2_000) {
        assert!(found.iter().any(|row| row.merchant == *id), "{id}");
    }
    assert!(found.iter().any(|row| row.merchant == "json:\"a\\u0000b\""));
}

#[tokio::test]
async fn what_the_database_would_do_otherwise_does_not_weaken_a_transaction() {
    let mut server = Server::create();
    server.start().await;
    let settings = server.migrated("weak").await;
    let test = server.connect("weak").await;
    test.batch_execute(
        "ALTER DATABASE weak SET synchronous_commit = off;
         ALTER DATABASE weak SET default_transaction_isolation = serializable;
         CREATE TABLE seen (setting TEXT);
         CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO seen VALUES (current_setting('synchronous_commit')), (current_setting('transaction_isolation'));
             RETURN NULL;
         END $$;
         CREATE TRIGGER look AFTER INSERT ON merchant_stats EXECUTE FUNCTION look()",
    )
    .await
    .unwrap();
    let sink = PostgresSink::new(&settings, PIPELINE, Patience::default());
    sink.write(&task(), &batch(1, 1, &[row("m", 0, 1, 1)])).await.unwrap();
    let seen: Vec<String> =
        test.query("SELECT setting FROM seen", &[]).await.unwrap().iter().map(|r| r.get(0)).collect();
    assert_eq!(seen, ["on", "read committed"]);
}

/// A reprocessing beside the pipeline, under the same name.
#[tokio::test]
async fn another_schema_has_tables_and_positions_of_its_own() {
    let mut server = Server::create();
    server.start().await;
    let settings = server.migrated("schemas").await;
    let test = server.connect("schemas").await;
    test.batch_execute("CREATE SCHEMA replay").await.unwrap();
    let url = format!("postgresql://127.0.0.1:{}/schemas?options=-csearch_path%3Dreplay", server.port());
    let replay = server.settings_of(&url, PASSWORD, None);
    migrate(&replay, &Migration::TABLES).await.unwrap();
    let (own, other) = (batch(1, 1, &[row("m", 0, 2, 20)]), batch(1, 2, &[row("m", 0, 1, 10)]));
    assert_eq!(sink(&settings).write(&task(), &own).await.unwrap(), SinkReply::Written);
    assert_eq!(sink(&replay).write(&task(), &other).await.unwrap(), SinkReply::Written);
    assert_eq!(sink(&settings).position(&task()).await.unwrap(), after(&own));
    assert_eq!(sink(&replay).position(&task()).await.unwrap(), after(&other));
    assert_eq!(rows(&test).await, [row("m", 0, 2, 20)]);
    test.batch_execute("SET search_path TO replay").await.unwrap();
    assert_eq!(rows(&test).await, [row("m", 0, 1, 10)]);
}
