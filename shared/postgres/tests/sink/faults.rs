//! Servers that die, hang or stay away; answers that are lost; executors that were given up.

use std::sync::Arc;
use std::time::Duration;

use payguard_engine::StoreErrorKind;
use payguard_engine::store::{Sink, SinkReply};
use payguard_postgres::testing::{PASSWORD, Server};
use payguard_postgres::{Patience, PostgresSink};
use tokio_postgres::Client;

use crate::fixture::{PIPELINE, after, batch, row, rows, sink, task};
use crate::proxy::Proxy;

/// Whoever writes the row `held` has moved the position by then, and waits until this is undone.
const HOLD: &str = "BEGIN; INSERT INTO merchant_stats VALUES ('held', 0, 60000, 0, 0)";

/// Waits until so many writers wait for a lock. Asks outside of a transaction, which would see one moment all the time.
async fn until_waiting(test: &Client, writers: i64) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'payguard' AND wait_event_type = 'Lock'";
    while test.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) < writers {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_server_that_dies_before_or_in_a_batch_has_none_of_it() {
    let mut server = Server::create();
    server.start().await;
    let settings = server.migrated("dies").await;
    let sink = Arc::new(sink(&settings));
    let first = batch(1, 1, &[row("m", 0, 1, 10)]);
    sink.write(&task(), &first).await.unwrap();

    server.crash();
    let second = batch(2, 2, &[row("held", 0, 1, 1), row("m", 0, 2, 20)]);
    let error = sink.write(&task(), &second).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    let error = sink.position(&task()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");

    server.start().await;
    let (holder, test) = (server.connect("dies").await, server.connect("dies").await);
    holder.batch_execute(HOLD).await.unwrap();
    let writer = (sink.clone(), second.clone());
    let writing = tokio::spawn(async move { writer.0.write(&task(), &writer.1).await });
    until_waiting(&test, 1).await;
    server.crash();
    let error = writing.await.unwrap().unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");

    server.start().await;
    assert_eq!(sink.position(&task()).await.unwrap(), after(&first));
    let test = server.connect("dies").await;
    assert_eq!(rows(&test).await, [row("m", 0, 1, 10)]);
    assert_eq!(sink.write(&task(), &second).await.unwrap(), SinkReply::Written);
    assert_eq!(rows(&test).await, [row("held", 0, 1, 1), row("m", 0, 2, 20)]);
}

#[tokio::test]
async fn a_batch_whose_answer_was_lost_is_there_once_and_the_position_tells() {
    let mut server = Server::create();
    server.start().await;
    let settings = server.migrated("lost").await;
    let test = server.connect("lost").await;
    let proxy = Proxy::before(server.port()).await;
    let url = format!("postgresql://127.0.0.1:{}/lost", proxy.port);
    let beyond = Arc::new(sink(&server.settings_of(&url, PASSWORD, None)));
    // The first batch of all, and a later one: two statements.
    for seq in [1, 2] {
        assert_eq!(beyond.position(&task()).await.unwrap().seq.0, seq - 1, "connected");
        proxy.lose_answers();
        let count = i64::try_from(seq).unwrap();
        let own = batch(seq, 10 + count, &[row("m", 0, count, count)]);
        let writer = (beyond.clone(), own.clone());
        let writing = tokio::spawn(async move { writer.0.write(&task(), &writer.1).await });
        let direct = sink(&settings);
        while direct.position(&task()).await.unwrap() != after(&own) {
            tokio::task::yield_now().await;
        }
        proxy.break_connections();
        let error = writing.await.unwrap().unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
        assert_eq!(beyond.write(&task(), &own).await.unwrap(), SinkReply::Elsewhere(after(&own)));
        assert_eq!(beyond.position(&task()).await.unwrap(), after(&own));
        assert_eq!(rows(&test).await, [row("m", 0, count, count)]);
    }
}

/// An executor is gone, its statement is not: it still waits in the server and will be committed.
#[tokio::test]
async fn a_statement_that_nobody_waits_for_any_more_fences_the_next_writer() {
    let mut server = Server::create();
    server.start().await;
    let settings = server.migrated("zombie").await;
    let holder = server.connect("zombie").await;
    let test = server.connect("zombie").await;
    for seq in [1, 2] {
        test.batch_execute("DELETE FROM merchant_stats").await.unwrap();
        holder.batch_execute(HOLD).await.unwrap();
        let (zombie, theirs) = (sink(&settings), batch(seq, 100, &[row("held", 0, 1, 1)]));
        let expected = after(&theirs);
        let writing = tokio::spawn(async move { zombie.write(&task(), &theirs).await });
        until_waiting(&test, 1).await;
        writing.abort();
        assert!(writing.await.unwrap_err().is_cancelled());

        let next = Arc::new(sink(&settings));
        assert_eq!(next.position(&task()).await.unwrap().seq.0, seq - 1, "not committed yet");
        let writer = (next.clone(), batch(seq, 200, &[row("held", 0, 2, 2), row("ours", 0, 1, 1)]));
        let writing = tokio::spawn(async move { writer.0.write(&task(), &writer.1).await });
        until_waiting(&test, 2).await;
        holder.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(writing.await.unwrap().unwrap(), SinkReply::Elsewhere(expected.clone()));
        assert_eq!(next.position(&task()).await.unwrap(), expected);
        assert_eq!(rows(&test).await, [row("held", 0, 1, 1)]);
    }
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut server = Server::create();
    let url = format!("postgresql://127.0.0.1:{}/payguard", listener.local_addr().unwrap().port());
    let brief = Patience { connect: Duration::from_millis(200), answer: Duration::from_millis(200) };
    let hung = PostgresSink::new(&server.settings_of(&url, PASSWORD, None), PIPELINE, brief);
    let error = hung.write(&task(), &batch(1, 1, &[])).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "it takes the connection and says nothing: {error}");

    server.start().await;
    let settings = server.migrated("hangs").await;
    let (holder, test) = (server.connect("hangs").await, server.connect("hangs").await);
    holder.batch_execute(HOLD).await.unwrap();
    let patience = Patience { connect: Duration::from_mins(1), ..brief };
    let waiting = PostgresSink::new(&settings, PIPELINE, patience);
    let error = waiting.write(&task(), &batch(1, 1, &[row("held", 0, 1, 1)])).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "somebody holds a row: {error}");
    // The server has given it up too, although the row is still held.
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'payguard'";
    while test.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0 {
        tokio::task::yield_now().await;
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
    let sink = sink(&settings);
    assert_eq!(sink.position(&task()).await.unwrap().seq.0, 0);
    assert_eq!(sink.write(&task(), &batch(1, 1, &[row("m", 0, 1, 1)])).await.unwrap(), SinkReply::Written);
}

#[tokio::test]
async fn a_server_that_has_become_a_standby_is_waited_for() {
    let mut server = Server::create();
    server.start().await;
    let settings = server.migrated("standby").await;
    let sink = sink(&settings);
    sink.write(&task(), &batch(1, 1, &[])).await.unwrap();
    let test = server.connect("standby").await;
    test.batch_execute(
        "ALTER DATABASE standby SET default_transaction_read_only = on;
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'payguard'",
    )
    .await
    .unwrap();
    // At most one try meets the connection that has just been ended.
    let mut errors = Vec::new();
    for _ in 0..2 {
        errors.push(sink.write(&task(), &batch(2, 2, &[])).await.unwrap_err());
    }
    assert!(errors.iter().all(|error| error.kind == StoreErrorKind::Unavailable), "{errors:?}");
    assert!(errors[1].detail.contains("read-only transaction"), "{}", errors[1]);
    test.batch_execute("ALTER DATABASE standby SET default_transaction_read_only = off").await.unwrap();
    assert_eq!(sink.write(&task(), &batch(2, 2, &[])).await.unwrap(), SinkReply::Written);
}
