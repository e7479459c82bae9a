//! What cannot work says why, and what to do.

use payguard_engine::StoreErrorKind;
use payguard_engine::store::{Sink, SinkReply};
use payguard_postgres::testing::{PASSWORD, Server, TLS};

use crate::fixture::{batch, row, sink, task};

#[tokio::test]
async fn a_database_that_cannot_be_used_is_told_and_not_waited_for() {
    let mut server = Server::create();
    let authority = server.make_certificate("127.0.0.1");
    server.start().await;
    server.database("empty", "").await;
    let latin = "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'";
    server.connect("postgres").await.batch_execute(latin).await.unwrap();
    let other = "CREATE TABLE payguard_positions (pipeline TEXT); CREATE TABLE merchant_stats (merchant_id TEXT)";
    server.database("other", other).await;
    let with_tls = format!("postgresql://127.0.0.1:{}/empty?sslmode=require", server.port());
    for (settings, reason) in [
        (server.settings("empty", "s3cret"), "password authentication failed"),
        (server.settings("nowhere", PASSWORD), "database \"nowhere\" does not exist"),
        (server.settings("empty", PASSWORD), "make the tables with `payguard migrate`"),
        (server.settings("other", PASSWORD), "make the tables with `payguard migrate`"),
        (server.settings("latin", PASSWORD), "the database has encoding LATIN1"),
        (server.settings_of(&with_tls, PASSWORD, None), "server does not support TLS"),
    ] {
        let sink = sink(&settings);
        let write = sink.write(&task(), &batch(1, 1, &[row("m", 0, 1, 1)])).await.unwrap_err();
        let position = sink.position(&task()).await.unwrap_err();
        for error in [write, position] {
            assert_eq!(error.kind, StoreErrorKind::Invalid, "{error}");
            let text = error.to_string();
            assert!(text.contains(reason) && text.contains("totals/0 in 127.0.0.1:"), "{text}");
            assert!(!format!("{text} {error:?}").contains("s3cret"));
        }
    }

    server.stop();
    server.start_with(&[TLS]).await;
    let unknown = format!("{with_tls}&sslmode=verify-full");
    let error = sink(&server.settings_of(&unknown, PASSWORD, None)).position(&task()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Invalid);
    assert!(error.detail.contains("UnknownIssuer"), "{error}");
    let settings = server.migrated("secure").await;
    assert_eq!(sink(&settings).write(&task(), &batch(1, 1, &[])).await.unwrap(), SinkReply::Written);
    let known = unknown.replace("/empty", "/secure");
    let position = sink(&server.settings_of(&known, PASSWORD, Some(&authority))).position(&task()).await.unwrap();
    assert_eq!(position.seq.0, 1);
}

#[tokio::test]
async fn what_is_no_total_is_refused_and_changes_nothing() {
    let mut server = Server::create();
    server.start().await;
    let settings = server.migrated("mistakes").await;
    let sink = sink(&settings);
    let mut other = batch(1, 1, &[row("m", 0, 1, 1)]);
    other.records[0].topic = "fraud.alerts";
    let error = sink.write(&task(), &other).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Invalid);
    assert!(error.detail.contains("fraud.alerts has no table"), "{error}");
    assert_eq!(sink.position(&task()).await.unwrap().seq.0, 0);
}
