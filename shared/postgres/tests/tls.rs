//! TLS as `sslmode` asks for it, against real servers with and without it.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;

use payguard_postgres::testing::{PASSWORD, Server, TLS};
use payguard_postgres::{DatabaseSettings, reasons};

/// What a connection is like, or why there is none.
async fn connection(settings: &DatabaseSettings) -> Result<&'static str, String> {
    let connected = settings.connect().await.map_err(|error| reasons(&error))?;
    let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let row = connected.client.query_one(sql, &[]).await.unwrap();
    Ok(if row.get(0) { "tls" } else { "plain" })
}

fn settings(server: &Server, host: &str, mode: &str, roots: Option<&Path>) -> DatabaseSettings {
    let url = format!("postgresql://{host}:{}/postgres?{mode}", server.port());
    server.settings_of(&url, PASSWORD, roots)
}

#[tokio::test]
async fn a_server_without_tls_is_used_only_by_modes_that_can_do_without() {
    let mut server = Server::create();
    let authority = server.make_certificate("127.0.0.1");
    server.start().await;
    for mode in ["", "sslmode=disable", "sslmode=allow", "sslmode=prefer", "ssl=false"] {
        assert_eq!(connection(&settings(&server, "127.0.0.1", mode, None)).await, Ok("plain"), "{mode}");
    }
    for mode in ["sslmode=require", "sslmode=verify-ca", "sslmode=verify-full", "ssl=true"] {
        let error = connection(&settings(&server, "127.0.0.1", mode, Some(&authority))).await.unwrap_err();
        assert!(error.contains("server does not support TLS"), "{mode}: {error}");
    }
}

#[tokio::test]
async fn a_certificate_is_checked_as_far_as_the_mode_says() {
    let mut server = Server::create();
    let other = server.make_certificate("other.example");
    let authority = server.make_certificate("127.0.0.1");
    server.start_with(&[TLS]).await;
    let (own, other) = (Some(authority.as_path()), Some(other.as_path()));
    let unknown = Err("UnknownIssuer");
    let cases = [
        ("127.0.0.1", "sslmode=disable", None, Ok("plain")),
        ("127.0.0.1", "sslmode=allow", None, Ok("plain")),
        ("127.0.0.1", "sslmode=prefer", None, Ok("tls")),
        ("127.0.0.1", "", None, Ok("tls")),
        ("127.0.0.1", "sslmode=require", None, Ok("tls")),
        // The system's authorities do not know it.
        ("127.0.0.1", "sslmode=verify-full", None, unknown),
        ("127.0.0.1", "ssl=true", None, unknown),
        ("127.0.0.1", "sslmode=require", own, Ok("tls")),
        ("127.0.0.1", "sslmode=verify-ca", own, Ok("tls")),
        ("127.0.0.1", "sslmode=verify-full", own, Ok("tls")),
        ("127.0.0.1", "ssl=true", own, Ok("tls")),
        ("127.0.0.1", "sslmode=require", other, unknown),
        ("127.0.0.1", "sslmode=verify-ca", other, unknown),
        ("127.0.0.1", "sslmode=verify-full", other, unknown),
        // By its name of the machine the certificate does not know it.
        ("localhost", "sslmode=verify-ca", own, Ok("tls")),
        ("localhost", "sslmode=verify-full", own, Err("not valid for name")),
        ("127.0.0.1", "sslmode=verify-full&channel_binding=require", own, Ok("tls")),
    ];
    for (host, mode, roots, expected) in cases {
        match (connection(&settings(&server, host, mode, roots)).await, expected) {
            (Ok(kind), Ok(expected)) => assert_eq!(kind, expected, "{host} {mode}"),
            (Err(error), Err(reason)) => assert!(error.contains(reason), "{host} {mode}: {error}"),
            (result, _) => panic!("{host} {mode}: {result:?}"),
        }
    }
}

#[tokio::test]
async fn what_the_server_refuses_one_way_is_tried_the_other_way() {
    let mut server = Server::create();
    server.make_certificate("127.0.0.1");
    for (line, expected) in [
        ("hostssl all all 127.0.0.1/32 scram-sha-256", [Ok("tls"), Ok("tls"), Ok("tls"), Err("no encryption")]),
        ("hostnossl all all 127.0.0.1/32 scram-sha-256", [Ok("plain"), Ok("plain"), Err("no pg_hba"), Ok("plain")]),
    ] {
        server.admit(&format!("local all all scram-sha-256\n{line}\n"));
        server.start_with(&[TLS]).await;
        for (mode, expected) in ["allow", "prefer", "require", "disable"].into_iter().zip(expected) {
            let mode = format!("sslmode={mode}");
            match (connection(&settings(&server, "127.0.0.1", &mode, None)).await, expected) {
                (Ok(kind), Ok(expected)) => assert_eq!(kind, expected, "{line} {mode}"),
                (Err(error), Err(reason)) => assert!(error.contains(reason), "{line} {mode}: {error}"),
                (result, _) => panic!("{line} {mode}: {result:?}"),
            }
        }
        server.stop();
    }
}

#[tokio::test]
async fn a_wrong_password_is_told_whatever_else_was_tried() {
    let mut server = Server::create();
    server.make_certificate("127.0.0.1");
    server.admit("local all all scram-sha-256\nhostssl all all 127.0.0.1/32 scram-sha-256\n");
    server.start_with(&[TLS]).await;
    for mode in ["allow", "prefer", "require"] {
        let url = format!("postgresql://127.0.0.1:{}/postgres?sslmode={mode}", server.port());
        let settings = server.settings_of(&url, "s3cret", None);
        let error = settings.connect().await.err().unwrap();
        let text = reasons(&error);
        assert!(text.contains("password authentication failed"), "{mode}: {text}");
        assert!(!format!("{text} {error:?} {settings:?}").contains("s3cret"));
    }
}
