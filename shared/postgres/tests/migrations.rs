//! The tables that are shipped, on a real server.
#![allow(clippy::unwrap_used, missing_docs)]

use payguard_postgres::testing::{PASSWORD, Server};
use payguard_postgres::{Migration, migrate};

#[tokio::test]
async fn migrations_make_the_tables_once_and_lose_nothing_when_applied_again() {
    let mut server = Server::create();
    server.start().await;
    server.database("payguard", "").await;
    let settings = server.settings("payguard", PASSWORD);
    let all: Vec<Migration> = Migration::TABLES.into_iter().chain([Migration::DEMO_MERCHANTS]).collect();
    // Four at a time: none of them sees half of what another does.
    let (a, b, c, d) = tokio::join!(
        migrate(&settings, &all),
        migrate(&settings, &all),
        migrate(&settings, &all),
        migrate(&settings, &all)
    );
    for result in [a, b, c, d] {
        result.unwrap();
    }
    let test = server.connect("payguard").await;
    test.batch_execute(
        "INSERT INTO merchant_stats VALUES ('m', 0, 60000, 1, 10);
         INSERT INTO payguard_positions VALUES ('p', 'totals/0', 1, '{}', '{}');
         UPDATE merchants SET risk_level = 'LOW' WHERE merchant_id = 'm-0000'",
    )
    .await
    .unwrap();
    migrate(&settings, &all).await.unwrap();
    let sql = "SELECT (SELECT count(*) FROM merchant_stats), (SELECT count(*) FROM payguard_positions),
        (SELECT count(*) FROM merchants), (SELECT risk_level FROM merchants WHERE merchant_id = 'm-0000')";
    let row = test.query_one(sql, &[]).await.unwrap();
    assert_eq!([0, 1, 2].map(|at| row.get::<_, i64>(at)), [1, 1, 50]);
    assert_eq!(row.get::<_, &str>(3), "LOW");
}

#[tokio::test]
async fn migrations_are_applied_whole_or_not_at_all() {
    let mut server = Server::create();
    let down = migrate(&server.settings("payguard", PASSWORD), &Migration::TABLES).await.unwrap_err().to_string();
    assert!(down.contains("cannot connect to 127.0.0.1") && down.contains("refused"), "{down}");
    server.start().await;
    server.database("payguard", "CREATE SEQUENCE merchant_stats").await;
    let settings = server.settings("payguard", PASSWORD);
    // Something else has the name; the file does not see that, what comes after it does.
    let broken = Migration { name: "last.sql", sql: "INSERT INTO merchant_stats VALUES ('m', 0, 1, 1, 1)" };
    let all: Vec<Migration> = Migration::TABLES.into_iter().chain([broken]).collect();
    let error = migrate(&settings, &all).await.unwrap_err().to_string();
    assert!(error.contains("cannot apply last.sql") && error.contains("nothing was changed"), "{error}");
    let sql = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(server.connect("payguard").await.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0);
    let wrong = migrate(&server.settings("payguard", "s3cret"), &[]).await.unwrap_err();
    assert!(wrong.to_string().contains("password authentication failed"), "{wrong}");
    assert!(!format!("{wrong} {wrong:?}").contains("s3cret"));
}
