//! The stores on the embedded stack: what every store has to do, what only real ones can get wrong, and what survives.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use bytes::Bytes;
use payguard_aws::{DynamoLedger, DynamoStateTable, S3Files, S3Segments, Usage, embedded_clients, tables};
use payguard_engine::page::{Page, PageAddress};
use payguard_engine::row::SegmentLocation;
use payguard_engine::store::{CommitReply, FileStore, Ledger, PutReply, RowLimits, SegmentStore, StateTable};
use payguard_engine::{CommitRow, Head, Seq, StageId, StoreErrorKind, TaskId};
use payguard_local::dir_files::DirFiles;
use payguard_local::embedded::{EmbeddedStack, StackError, StackOptions};
use payguard_local::endpoints::Endpoints;
use payguard_local::stores::{Connection, serve};
use payguard_sim::conformance::{file_conformance, ledger_conformance, segment_conformance, state_conformance};
use payguard_topology::Config;

/// Environment variable that turns the test `child_commits_until_killed` into the child of the kill test.
const CHILD_DIR: &str = "PAYGUARD_TEST_CHILD_DIR";

async fn start(dir: Option<&Path>) -> EmbeddedStack {
    let options = StackOptions { dir: dir.map(Path::to_owned), ..StackOptions::default() };
    EmbeddedStack::start(options).await.expect("the embedded stack starts")
}

fn stores(stack: &EmbeddedStack, pipeline: &str, usage: &Arc<Usage>) -> (DynamoLedger, DynamoStateTable, S3Segments) {
    let clients = stack.clients();
    (
        DynamoLedger::new(clients.dynamodb.clone(), stack.tables(), pipeline, Arc::clone(usage)),
        DynamoStateTable::new(clients.dynamodb.clone(), stack.tables(), pipeline, Arc::clone(usage)),
        S3Segments::new(clients, stack.bucket(), pipeline, Arc::clone(usage)),
    )
}

fn task() -> TaskId {
    TaskId::shard(&StageId::new("dedup"), 0)
}

fn commit(seq: u64, attempt: &str, bytes: usize) -> (Head, CommitRow) {
    let head = Head { seq, attempt: attempt.to_owned(), ..Head::default() };
    let segment = Some(SegmentLocation::Inline(Bytes::from(vec![1; bytes])));
    let row = CommitRow { seq, attempt: attempt.to_owned(), segment, ..CommitRow::default() };
    (head, row)
}

fn page(bytes: usize) -> Page {
    let address =
        PageAddress { stage: StageId::new("dedup"), group: 1, operator: "first-seen".to_owned(), page: "0".to_owned() };
    Page { address, version: 1, body: Bytes::from(vec![1; bytes]), expires_at_s: None }
}

async fn conform(dir: Option<&Path>) {
    let stack = start(dir).await;
    let (ledger, state, segments) = stores(&stack, "payguard", &Arc::default());
    ledger_conformance(&ledger).await;
    state_conformance(&state).await;
    segment_conformance(&segments).await;
    file_conformance(&S3Files::new(stack.clients(), stack.bucket(), "savepoints/of test/")).await;
    stack.stop().await;
}

#[tokio::test]
async fn a_folder_is_a_store_of_files() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let files = DirFiles::new(&dir.path().join("savepoints"));
    file_conformance(&files).await;
    for file in files.list_files("").await.expect("list") {
        files.delete_file(&file.path).await.expect("deleted");
    }
    let left = std::fs::read_dir(dir.path().join("savepoints")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "no empty folders are left");
}

#[tokio::test]
async fn the_stores_conform_in_memory() {
    conform(None).await;
}

#[tokio::test]
async fn the_stores_conform_on_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    conform(Some(dir.path())).await;
}

#[tokio::test]
async fn pipelines_on_the_same_tables_are_apart() {
    let stack = start(None).await;
    let (ledger, state, segments) = stores(&stack, "payguard", &Arc::default());
    let (head, row) = commit(1, "a", 10);
    ledger.commit(&task(), &head, &row).await.expect("commit");
    ledger.register(&task()).await.expect("register");
    state.put_page(&page(10)).await.expect("put");
    segments.put("k", Bytes::from_static(b"x")).await.expect("put");
    let (ledger, state, segments) = stores(&stack, "payguard-b", &Arc::default());
    assert_eq!(ledger.load_head(&task()).await.expect("load head"), None);
    assert!(ledger.load_rows(&task(), Seq(0), RowLimits { rows: 9 }).await.expect("load rows").is_empty());
    assert!(ledger.tasks(&task().stage).await.expect("tasks").is_empty());
    let address = page(10).address;
    assert!(state.load_pages(&address.stage, address.key_group()).await.expect("load pages").is_empty());
    segments.get("k", 0, 1).await.expect_err("the other pipeline's object");
}

#[tokio::test]
async fn creating_what_exists_changes_nothing() {
    let stack = start(None).await;
    let (ledger, ..) = stores(&stack, "p", &Arc::default());
    let (head, row) = commit(1, "a", 10);
    ledger.commit(&task(), &head, &row).await.expect("commit");
    tables::create_tables(&stack.clients().dynamodb, stack.tables()).await.expect("tables again");
    tables::create_bucket(stack.clients(), stack.bucket()).await.expect("bucket again");
    assert_eq!(ledger.load_head(&task()).await.expect("load head"), Some(head));
}

#[tokio::test]
async fn an_attempt_that_is_used_for_something_else_is_an_error() {
    let stack = start(None).await;
    let (ledger, ..) = stores(&stack, "p", &Arc::default());
    let (head, row) = commit(1, "a", 10);
    ledger.commit(&task(), &head, &row).await.expect("commit");
    let (head, row) = commit(2, "a", 10);
    let refused = ledger.commit(&task(), &head, &row).await.expect_err("the token was used");
    assert_eq!(refused.kind, StoreErrorKind::Invalid);
    assert!(refused.to_string().contains("IdempotentParameterMismatch"), "{refused}");
}

#[tokio::test]
async fn what_no_item_can_hold_is_refused_and_leaves_nothing() {
    let stack = start(None).await;
    let (ledger, state, _) = stores(&stack, "p", &Arc::default());
    let (head, row) = commit(1, "a", 409_600);
    let refused = ledger.commit(&task(), &head, &row).await.expect_err("too large");
    assert_eq!(refused.kind, StoreErrorKind::Invalid);
    assert!(refused.to_string().contains("an item may have 409600"), "{refused}");
    assert_eq!(ledger.load_head(&task()).await.expect("load head"), None);
    let refused = state.put_page(&page(409_600)).await.expect_err("too large");
    assert_eq!(refused.kind, StoreErrorKind::Invalid);
    let (head, row) = commit(1, "a", 409_300);
    assert_eq!(ledger.commit(&task(), &head, &row).await.expect("just fits"), CommitReply::Committed);
}

#[tokio::test]
async fn a_damaged_row_names_its_task_and_seq() {
    let stack = start(None).await;
    let (ledger, ..) = stores(&stack, "p", &Arc::default());
    for seq in 1..=3 {
        let (head, row) = commit(seq, &format!("a{seq}"), 10);
        ledger.commit(&task(), &head, &row).await.expect("commit");
    }
    let raw = |row: &str| {
        let update = stack.clients().dynamodb.update_item().table_name(&stack.tables().ledger);
        update.key("task", AttributeValue::S("p#dedup/0".into())).key("row", AttributeValue::S(row.into()))
    };
    let garbage = AttributeValue::B(vec![0xff; 20].into());
    for row in ["log#00000000000000000002", "head"] {
        let update = raw(row).update_expression("SET body = :b").expression_attribute_values(":b", garbage.clone());
        update.send().await.expect("damaged");
    }
    let limits = RowLimits { rows: 10 };
    let found = ledger.load_rows(&task(), Seq(0), limits).await.expect_err("row 2 is damaged");
    assert_eq!(found.kind, StoreErrorKind::Corrupt);
    assert!(found.to_string().contains("task dedup/0 seq 2"), "{found}");
    assert_eq!(ledger.load_rows(&task(), Seq(2), limits).await.expect("the others are read").len(), 1);
    let found = ledger.load_head(&task()).await.expect_err("the head is damaged");
    assert_eq!(found.kind, StoreErrorKind::Corrupt);
}

#[tokio::test]
async fn a_missing_row_is_not_skipped() {
    let stack = start(None).await;
    let (ledger, ..) = stores(&stack, "p", &Arc::default());
    for seq in 1..=3 {
        let (head, row) = commit(seq, &format!("a{seq}"), 10);
        ledger.commit(&task(), &head, &row).await.expect("commit");
    }
    let delete = stack.clients().dynamodb.delete_item().table_name(&stack.tables().ledger);
    let delete = delete.key("task", AttributeValue::S("p#dedup/0".into()));
    delete.key("row", AttributeValue::S("log#00000000000000000002".into())).send().await.expect("deleted");
    for after in [0, 1] {
        let found = ledger.load_rows(&task(), Seq(after), RowLimits { rows: 10 }).await.expect_err("a gap");
        assert_eq!(found.kind, StoreErrorKind::Missing);
        assert!(found.to_string().contains("seq 2 is missing"), "{found}");
    }
    assert_eq!(ledger.load_rows(&task(), Seq(0), RowLimits { rows: 1 }).await.expect("before the gap").len(), 1);
}

#[tokio::test]
async fn usage_is_what_the_service_bills() {
    let stack = start(None).await;
    let usage = Arc::new(Usage::default());
    let (ledger, state, segments) = stores(&stack, "p", &usage);
    let (head, row) = commit(1, "a", 1_500);
    ledger.commit(&task(), &head, &row).await.expect("commit");
    let first = usage.snapshot();
    assert_eq!(first.write_units, 6.0, "head 1 unit, row 2 units, twice for the transaction");
    ledger.commit(&task(), &head, &row).await.expect("commit again");
    let again = usage.snapshot().since(&first);
    assert_eq!((again.write_units, again.read_units > 0.0), (0.0, true), "answered by its token");
    let before = usage.snapshot();
    let (head, row) = commit(1, "b", 1_500);
    assert_eq!(ledger.commit(&task(), &head, &row).await.expect("refused"), CommitReply::Refused);
    assert_eq!(usage.snapshot().since(&before).write_units, 6.0, "a cancelled transaction is billed");
    let before = usage.snapshot();
    state.put_page(&page(10_000)).await.expect("put");
    assert_eq!(state.put_page(&page(10_000)).await.expect("put"), PutReply::Stale);
    assert_eq!(usage.snapshot().since(&before).write_units, 20.0, "a refused put is billed");
    segments.put("k", Bytes::from_static(b"12345")).await.expect("put");
    segments.get("k", 1, 2).await.expect("get");
    let snapshot = usage.snapshot();
    assert_eq!((snapshot.s3_puts, snapshot.s3_gets, snapshot.s3_put_bytes, snapshot.s3_get_bytes), (1, 1, 5, 2));
    let before = usage.snapshot();
    ledger.delete_rows(&task(), &[Seq(1)]).await.expect("remove");
    assert_eq!(usage.snapshot().since(&before).write_units, 2.0, "a removal is billed as the row's size");
    segments.list("", 9).await.expect("list");
    assert_eq!(usage.snapshot().since(&before).s3_lists, 1);
}

#[tokio::test]
async fn an_unreachable_store_is_unavailable_and_a_missing_table_is_invalid() {
    let stack = start(None).await;
    let missing = payguard_aws::Tables { ledger: "nowhere".into(), state: "nowhere".into() };
    let ledger = DynamoLedger::new(stack.clients().dynamodb.clone(), &missing, "p", Arc::default());
    let (head, row) = commit(1, "a", 10);
    let found = ledger.load_head(&task()).await.expect_err("no table");
    assert_eq!(found.kind, StoreErrorKind::Invalid, "{found}");
    let found = ledger.commit(&task(), &head, &row).await.expect_err("no table");
    assert_eq!(found.kind, StoreErrorKind::Invalid, "{found}");
    let segments = S3Segments::new(stack.clients(), "nowhere-bucket", "p", Arc::default());
    let found = segments.get("k", 0, 1).await.expect_err("no bucket");
    assert_eq!(found.kind, StoreErrorKind::Invalid, "{found}");

    let nobody = embedded_clients("http://127.0.0.1:9", "http://127.0.0.1:9");
    let ledger = DynamoLedger::new(nobody.dynamodb.clone(), stack.tables(), "p", Arc::default());
    let found = ledger.load_head(&task()).await.expect_err("nobody listens");
    assert_eq!(found.kind, StoreErrorKind::Unavailable, "{found}");
    let reply = ledger.commit(&task(), &head, &row).await.expect("an outcome, not an error");
    assert!(matches!(&reply, CommitReply::Unknown(text) if text.contains("onnect")), "{reply:?}");
    let segments = S3Segments::new(&nobody, "bucket", "p", Arc::default());
    let found = segments.put("k", Bytes::from_static(b"x")).await.expect_err("nobody listens");
    assert_eq!(found.kind, StoreErrorKind::Unavailable, "{found}");
}

#[tokio::test]
async fn a_directory_serves_one_stack_at_a_time_and_keeps_its_data() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let stack = start(Some(dir.path())).await;
    let (ledger, _, segments) = stores(&stack, "p", &Arc::default());
    let (head, row) = commit(1, "a", 10);
    ledger.commit(&task(), &head, &row).await.expect("commit");
    segments.put("k", Bytes::from_static(b"kept")).await.expect("put");
    let options = StackOptions { dir: Some(dir.path().to_owned()), ..StackOptions::default() };
    let refused = EmbeddedStack::start(options).await.expect_err("in use");
    assert!(matches!(refused, StackError::InUse { .. }), "{refused}");
    drop(stack);
    let stack = start(Some(dir.path())).await;
    let (ledger, _, segments) = stores(&stack, "p", &Arc::default());
    assert_eq!(ledger.load_head(&task()).await.expect("load head"), Some(head));
    assert_eq!(segments.get("k", 0, 10).await.expect("get").as_ref(), b"kept");
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("its address").port();
    let options = StackOptions { s3_port: port, ..StackOptions::default() };
    let refused = EmbeddedStack::start(options).await.expect_err("the port is taken");
    assert!(refused.to_string().contains(&format!("the s3 server cannot listen on 127.0.0.1:{port}")), "{refused}");
}

/// Not a test of its own: the child of the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_commits_until_killed() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let stack = start(Some(Path::new(&dir))).await;
    let (ledger, _, segments) = stores(&stack, "p", &Arc::default());
    let first = ledger.load_head(&task()).await.expect("load head").map_or(1, |head| head.seq + 1);
    for seq in first.. {
        let object = format!("{}/{seq}", task());
        segments.put(&object, Bytes::from(vec![seq as u8; 1_000_000])).await.expect("put");
        let (head, mut row) = commit(seq, &format!("a{seq}"), 0);
        row.segment = Some(SegmentLocation::Object(object));
        assert_eq!(ledger.commit(&task(), &head, &row).await.expect("commit"), CommitReply::Committed);
        println!("committed {seq}");
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for round in 1..=3u64 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child_commits_until_killed", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut acknowledged = 0;
        let mut seen = 0;
        while seen < 15 * round {
            let line = lines.next().expect("the child goes on").expect("a line");
            if let Some((_, seq)) = line.split_once("committed ") {
                acknowledged = seq.trim().parse().expect("a seq");
                seen += 1;
            }
        }
        child.kill().expect("killed");
        child.wait().expect("gone");
        check_after_kill(dir.path(), acknowledged).await;
    }
}

async fn check_after_kill(dir: &Path, acknowledged: u64) {
    let stack = start(Some(dir)).await;
    let (ledger, _, segments) = stores(&stack, "p", &Arc::default());
    let head = ledger.load_head(&task()).await.expect("load head").expect("it has committed");
    assert!(head.seq >= acknowledged, "commit {acknowledged} was acknowledged, the head is at {}", head.seq);
    let rows = ledger.load_rows(&task(), Seq(0), RowLimits { rows: 100_000 }).await.expect("rows without a gap");
    assert_eq!(rows.len() as u64, head.seq);
    for row in &rows {
        let Some(SegmentLocation::Object(key)) = &row.segment else { panic!("row {} has no object", row.seq) };
        let bytes = segments.get(key, 0, 2_000_000).await.expect("a committed object");
        assert!(bytes.len() == 1_000_000 && bytes.iter().all(|byte| *byte == row.seq as u8), "object {key}");
    }
    // Whatever can be listed is whole, also the object of a commit that was not made any more.
    let mut pages = stack.clients().s3.list_objects_v2().bucket(stack.bucket()).into_paginator().send();
    while let Some(listed) = pages.next().await {
        for object in listed.expect("a listing").contents() {
            assert_eq!(object.size(), Some(1_000_000), "{object:?}");
        }
    }
    stack.stop().await;
}

#[tokio::test]
async fn a_process_that_begins_waits_for_a_command_but_not_for_another_that_goes_on() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let command = Connection::open(dir.path(), &Config::default()).await.expect("it opens");
    assert!(command.is_alone());
    let beginning = serve(Some(dir.path()));
    let looking = async {
        let refused = EmbeddedStack::start(StackOptions { dir: Some(dir.path().into()), ..StackOptions::default() });
        assert!(matches!(refused.await, Err(StackError::InUse { .. })), "the command has the folder");
        command.close().await;
    };
    let (stack, ()) = tokio::join!(beginning, looking);
    let stack = stack.expect("it begins once the command has ended");
    Endpoints::listening(dir.path()).await.expect("others are told");
    let second = serve(Some(dir.path())).await.expect_err("the first goes on");
    assert!(matches!(second, StackError::InUse { .. }), "{second}");
    stack.stop().await;
}

#[tokio::test]
async fn a_folder_that_a_process_has_just_opened_is_used_once_its_stores_listen() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    // What a process that was killed has left: nobody listens there any more.
    let before = start(Some(dir.path())).await;
    Endpoints::of(&before).write(dir.path()).expect("written");
    before.stop().await;
    let stack = start(Some(dir.path())).await;
    let (head, row) = commit(1, "a", 10);
    let (ledger, ..) = stores(&stack, "payguard", &Arc::default());
    assert_eq!(ledger.commit(&task(), &head, &row).await.expect("a reply"), CommitReply::Committed);
    let config = Config::default();
    let opening = async {
        let connection = Connection::open(dir.path(), &config).await.expect("it opens");
        let head = connection.env.ledger.load_head(&task()).await.expect("a head");
        connection.close().await;
        head
    };
    let beginning = async {
        assert!(Endpoints::listening(dir.path()).await.is_err(), "what the file says is of no process");
        tokio::task::yield_now().await;
        Endpoints::of(&stack).write(dir.path()).expect("written");
    };
    let (head, ()) = tokio::join!(opening, beginning);
    assert_eq!(head.map(|head| head.attempt), Some("a".to_owned()));
    stack.stop().await;
}
