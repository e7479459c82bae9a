//! The directory in PostgreSQL, against a real server.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use payguard_directory::{Enrichment, Limits, MerchantDirectory, PostgresDirectory, Risks, SeededDirectory};
use payguard_postgres::Migration;
use payguard_postgres::testing::{PASSWORD, Server};

/// What makes the table, and the merchants of the demonstration in it.
const SCRIPTS: [&str; 2] = [Migration::TABLES[0].sql, Migration::DEMO_MERCHANTS.sql];

const TIMEOUT: Duration = Duration::from_secs(2);

fn texts(risks: &Risks) -> Vec<&str> {
    risks.risks.iter().map(|risk| &**risk).collect()
}

fn directory(server: &Server, database: &str) -> PostgresDirectory {
    PostgresDirectory::new(&server.settings(database, PASSWORD), TIMEOUT).unwrap()
}

#[tokio::test]
async fn a_real_server_answers() {
    let mut server = Server::create();
    server.start().await;
    // Applied twice, as a migration may be; a level that was changed in between stays.
    server.database("payguard", &SCRIPTS.concat()).await;
    let test = server.connect("payguard").await;
    test.batch_execute("INSERT INTO merchants VALUES ('m-x', 'HIGH'), ('m-0044', 'x') ON CONFLICT DO NOTHING")
        .await
        .unwrap();
    test.batch_execute(&SCRIPTS.concat()).await.unwrap();
    let sql = "SELECT risk_level, count(*) FROM merchants WHERE merchant_id <> 'm-x' GROUP BY 1 ORDER BY 1";
    let counts: Vec<(String, i64)> = test.query(sql, &[]).await.unwrap().iter().map(|r| (r.get(0), r.get(1))).collect();
    assert_eq!(counts, [("HIGH", 5), ("LOW", 30), ("MEDIUM", 15)].map(|(level, n)| (level.to_owned(), n)));

    let directory = directory(&server, "payguard");
    for (merchant, level) in SeededDirectory::merchants() {
        assert_eq!(directory.risk_level(&merchant).await.unwrap().as_deref(), Some(level), "{merchant}");
    }
    for absent in ["m-0050", "", "M-0001", "m-0001' OR '1'='1", "m\0x", "продавец"] {
        assert_eq!(directory.risk_level(absent).await.unwrap(), None, "{absent:?}");
    }
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'payguard'";
    assert_eq!(test.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 1, "one connection did it all");

    pool_has_eight_connections(&server).await;
    dropped_questions_hold_no_one_up(&server).await;
    sessions_are_read_only(&server).await;
    refusals_do_not_show_the_password(&server).await;
}

async fn pool_has_eight_connections(server: &Server) {
    let view = "CREATE VIEW merchants AS SELECT 'm'::text AS merchant_id, 'LOW'::text AS risk_level FROM pg_sleep(0.1)";
    server.database("slow", view).await;
    let directory = directory(server, "slow");
    let answers = join_all((0..50).map(|_| directory.risk_level("m"))).await;
    assert!(answers.into_iter().all(|level| level.unwrap().as_deref() == Some("LOW")));
    let test = server.connect("slow").await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'payguard' AND datname = 'slow'";
    assert_eq!(test.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), PostgresDirectory::CONNECTIONS as i64);
}

/// Eight questions that take a minute, dropped; the ninth is answered while the server is still busy with them.
async fn dropped_questions_hold_no_one_up(server: &Server) {
    let script = "CREATE FUNCTION slowly() RETURNS TEXT LANGUAGE sql VOLATILE AS 'SELECT ''LOW'' FROM pg_sleep(60)';
        CREATE VIEW merchants AS SELECT 'quick'::text AS merchant_id, 'LOW'::text AS risk_level
            UNION ALL SELECT 'slow', slowly()";
    server.database("stuck", script).await;
    let directory = PostgresDirectory::new(&server.settings("stuck", PASSWORD), Duration::from_secs(600)).unwrap();
    let test = server.connect("stuck").await;
    let busy = async || {
        let sql = "SELECT count(*) FROM pg_stat_activity
            WHERE application_name = 'payguard' AND datname = 'stuck' AND wait_event = 'PgSleep'";
        test.query_one(sql, &[]).await.unwrap().get::<_, i64>(0)
    };
    let all_busy = async { while busy().await < 8 {} };
    tokio::select! {
        _ = join_all((0..8).map(|_| directory.risk_level("slow"))) => panic!("answered"),
        () = all_busy => {}
    }
    assert_eq!(directory.risk_level("quick").await.unwrap().as_deref(), Some("LOW"));
    assert_eq!(busy().await, 8);
}

/// A view that would write when it is read.
async fn sessions_are_read_only(server: &Server) {
    let script = "CREATE TABLE written (x TEXT);
        CREATE FUNCTION write(x TEXT) RETURNS TEXT LANGUAGE sql VOLATILE AS 'INSERT INTO written VALUES (x) RETURNING x';
        CREATE VIEW merchants AS SELECT 'm'::text AS merchant_id, write('LOW') AS risk_level";
    server.database("writes", script).await;
    let error = directory(server, "writes").risk_level("m").await.unwrap_err();
    assert!(error.detail.contains("read-only transaction"), "{error}");
}

async fn refusals_do_not_show_the_password(server: &Server) {
    let (settings, secret) = (server.settings("payguard", "s3cret"), "s3cret");
    let error = PostgresDirectory::new(&settings, TIMEOUT).unwrap().risk_level("m-0001").await.unwrap_err();
    assert!(error.detail.contains("password authentication failed"), "{error}");
    assert!(!format!("{error} {error:?} {settings:?}").contains(secret));
    let error = directory(server, "nowhere").risk_level("m-0001").await.unwrap_err();
    assert!(error.detail.contains("database \"nowhere\" does not exist"), "{error}");
    server.database("empty", "").await;
    let error = directory(server, "empty").risk_level("m-0001").await.unwrap_err();
    assert!(error.detail.contains("relation \"merchants\" does not exist"), "{error}");
}

#[tokio::test]
async fn outages_cost_answers_and_heal() {
    let mut server = Server::create();
    let settings = server.settings("payguard", PASSWORD);
    let directory = Arc::new(PostgresDirectory::new(&settings, TIMEOUT).unwrap());
    let enrichment = Enrichment::new(directory.clone(), Limits { timeout: TIMEOUT, ..Limits::default() });

    let down = enrichment.risks(&["m-0000", "m-0001", "m-0000"]).await;
    assert_eq!((texts(&down), down.failures), (vec!["UNKNOWN"; 3], 3), "down at the start");
    server.start().await;
    server.database("payguard", &SCRIPTS.concat()).await;
    let up = enrichment.risks(&["m-0000", "m-0001", "m-9999"]).await;
    assert_eq!((texts(&up), up.failures, up.cache_hits), (vec!["HIGH", "LOW", "UNKNOWN"], 0, 0));

    server.stop();
    let down = enrichment.risks(&["m-0000", "m-0001", "m-9999", "m-0003", "m-0006"]).await;
    assert_eq!(texts(&down), ["HIGH", "LOW", "UNKNOWN", "UNKNOWN", "UNKNOWN"]);
    assert_eq!((down.failures, down.cache_hits), (2, 3), "what is remembered stays");
    server.start().await;
    let merchants: Vec<String> = SeededDirectory::merchants().map(|(merchant, _)| merchant).collect();
    let merchants: Vec<&str> = merchants.iter().map(String::as_str).collect();
    let up = enrichment.risks(&merchants).await;
    assert_eq!(texts(&up), SeededDirectory::merchants().map(|(_, level)| level).collect::<Vec<_>>());
    assert_eq!((up.failures, up.cache_hits), (0, 2));

    restarts_are_not_noticed(&mut server, &directory).await;
    hanging_questions_are_given_up(&server, directory).await;
}

/// All connections of the pool are broken, and nobody has looked at them since.
async fn restarts_are_not_noticed(server: &mut Server, directory: &PostgresDirectory) {
    server
        .connect("payguard")
        .await
        .batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'payguard'")
        .await
        .unwrap();
    let answers = join_all((0..50).map(|_| directory.risk_level("m-0000"))).await;
    assert!(answers.into_iter().all(|level| level.unwrap().as_deref() == Some("HIGH")));
    server.stop();
    server.start().await;
    assert_eq!(directory.risk_level("m-0000").await.unwrap().as_deref(), Some("HIGH"));
}

/// A lock keeps every question waiting. Their connections are closed, not used again.
async fn hanging_questions_are_given_up(server: &Server, directory: Arc<PostgresDirectory>) {
    let limits = Limits { timeout: Duration::from_millis(300), ..Limits::default() };
    let enrichment = Enrichment::new(directory, limits);
    let test = server.connect("payguard").await;
    test.batch_execute("BEGIN; LOCK TABLE merchants IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let merchants: Vec<String> = (0..50).map(|n| format!("m-{n:04}")).collect();
    let merchants: Vec<&str> = merchants.iter().map(String::as_str).collect();
    let hanging = enrichment.risks(&merchants).await;
    assert_eq!((texts(&hanging), hanging.failures), (vec!["UNKNOWN"; 50], 50));
    test.batch_execute("COMMIT").await.unwrap();
    let up = enrichment.risks(&merchants).await;
    assert_eq!(texts(&up), SeededDirectory::merchants().map(|(_, level)| level).collect::<Vec<_>>());
    assert_eq!((up.failures, up.cache_hits), (0, 0));
}
