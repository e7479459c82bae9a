//! What every implementation of the stores has to do, as checks that run against any of them.
//!
//! A store in memory that disagrees with the real ones is a bug of the tests. Each check uses stages of its own, but a
//! store must not have been checked before, nor another pipeline in the same tables (attempts are unique in a service,
//! not in a pipeline). They panic with what was found.

use bytes::Bytes;
use payguard_engine::gc::Collected;
use payguard_engine::page::{Page, PageAddress};
use payguard_engine::row::SegmentLocation;
use payguard_engine::store::{
    CommitReply, FileStore, LeaseReply, Ledger, PutReply, RowLimits, SegmentStore, StateTable,
};
use payguard_engine::{CommitRow, Head, InputState, Position, Seq, StageId, StoreErrorKind, TaskId};
use payguard_model::ProcessingTime;

/// Rounds of two racers for the same commit.
const RACES: u64 = 100;

/// Checks a ledger.
pub async fn ledger_conformance(ledger: &dyn Ledger) {
    empty_task(ledger).await;
    commits_step_by_one(ledger).await;
    a_repeated_attempt_is_applied_once(ledger).await;
    rows_come_back_as_written(ledger).await;
    rows_are_read_in_order(ledger).await;
    racers_have_one_winner(ledger).await;
    lease_has_one_holder(ledger).await;
    lease_and_head_are_independent(ledger).await;
    registry_keeps_each_task_once(ledger).await;
    restored_logs_begin_with_their_heads(ledger).await;
    rows_can_be_removed(ledger).await;
    removals_are_added_up(ledger).await;
}

/// Checks a state table.
pub async fn state_conformance(state: &dyn StateTable) {
    only_younger_pages_replace(state).await;
    deletes_spare_younger_pages(state).await;
    groups_are_loaded_whole_and_apart(state).await;
    large_groups_are_loaded_whole(state).await;
}

/// Checks a store of files.
pub async fn file_conformance(files: &dyn FileStore) {
    let put = |path: &'static str, text: &'static str| files.put_file(path, Bytes::from_static(text.as_bytes()));
    let names = async |prefix: &str| -> Vec<(String, u64)> {
        let found = files.list_files(prefix).await.expect("list");
        found.into_iter().map(|file| (file.path, file.bytes)).collect()
    };
    assert_eq!(files.get_file("a/b").await.expect("get"), None);
    assert!(names("").await.is_empty() && names("a/").await.is_empty());
    for (path, text) in [("a/b", "one"), ("a/c/d", "three"), ("ab", ""), ("a/b", "two")] {
        put(path, text).await.expect("put");
    }
    assert_eq!(files.get_file("a/b").await.expect("get").as_deref(), Some(&b"two"[..]), "replaced whole");
    assert_eq!(files.get_file("ab").await.expect("get").as_deref(), Some(&b""[..]));
    let all = [("a/b".to_owned(), 3), ("a/c/d".to_owned(), 5), ("ab".to_owned(), 0)];
    assert_eq!(names("").await, all);
    assert_eq!(names("a/").await, all[..2]);
    assert_eq!(names("a/c").await, all[1..2]);
    for _ in 0..2 {
        files.delete_file("a/c/d").await.expect("deleting twice");
    }
    assert_eq!(names("a").await, [all[0].clone(), all[2].clone()]);
    assert_eq!(files.get_file("a/c/d").await.expect("get"), None);
    assert!(!files.location().is_empty());
}

/// Checks a segment store.
pub async fn segment_conformance(segments: &dyn SegmentStore) {
    let bytes: Bytes = (0..300_000u32).map(|i| (i % 251) as u8).collect::<Vec<u8>>().into();
    segments.put("conformance/0/1-a", bytes.clone()).await.expect("put");
    segments.put("conformance/0", Bytes::from_static(b"short")).await.expect("a key that another one starts with");
    for (offset, len, from, to) in [
        (0, 300_000, 0, 300_000),
        (0, 1, 0, 1),
        (299_999, 1, 299_999, 300_000),
        (100_000, 50_000, 100_000, 150_000),
        (299_000, 5_000, 299_000, 300_000),
        (300_000, 10, 300_000, 300_000),
        (400_000, 10, 300_000, 300_000),
        (7, 0, 7, 7),
    ] {
        let got = segments.get("conformance/0/1-a", offset, len).await.expect("get");
        assert!(got == bytes.slice(from..to), "{len} bytes from {offset}: got {}", got.len());
    }
    assert_eq!(segments.get("conformance/0", 0, 100).await.expect("get").as_ref(), b"short");
    segments.put("conformance/empty", Bytes::new()).await.expect("put nothing");
    assert!(segments.get("conformance/empty", 0, 10).await.expect("get nothing").is_empty());
    let missing = segments.get("conformance/none", 0, 10).await.expect_err("an object that does not exist");
    assert_eq!(missing.kind, StoreErrorKind::Missing, "{missing}");
    assert!(missing.to_string().contains("conformance/none"), "the key is named: {missing}");
    objects_are_listed_and_removed(segments).await;
}

async fn objects_are_listed_and_removed(segments: &dyn SegmentStore) {
    let key = |number: u32| format!("collect/1/{number:020}-a");
    let mut keys: Vec<String> = (0..1_100).map(key).collect();
    for key in keys.iter().rev().map(String::as_str).chain(["collect/10/x", "collect/1", "collec"]) {
        segments.put(key, Bytes::from_static(b"x")).await.expect("put");
    }
    let list = async |limit| segments.list("collect/1/", limit).await.expect("list");
    assert_eq!(list(3).await, keys[..3], "the first ones in order");
    assert_eq!(list(1_000).await, keys[..1_000]);
    assert_eq!(segments.list("collect/2/", 9).await.expect("list"), Vec::<String>::new());
    segments.delete(&keys[..1_000]).await.expect("delete");
    segments.delete(&keys[998..1_002]).await.expect("deleting what is gone in part");
    segments.delete(&[]).await.expect("deleting nothing");
    keys.drain(..1_002);
    assert_eq!(list(1_000).await, keys, "the others are left");
    let gone = segments.get(&key(0), 0, 1).await.expect_err("removed");
    assert_eq!(gone.kind, StoreErrorKind::Missing, "{gone}");
    assert_eq!(segments.list("collect/10/", 9).await.expect("list"), ["collect/10/x"], "prefixes are apart");
    assert_eq!(segments.get("collect/1", 0, 1).await.expect("get").as_ref(), b"x");
}

fn task(stage: &str) -> TaskId {
    TaskId::shard(&StageId::new(stage), 0)
}

/// Commit `seq` of `attempt`, told from others by its content.
fn commit(seq: u64, attempt: &str) -> (Head, CommitRow) {
    let position = |seq: u64| match seq {
        0 => Position { at: -1, within: 0 },
        _ => Position { at: seq as i64 * 10, within: 3 },
    };
    let name = "parse/payments.raw-0".to_owned();
    let input = InputState { position: position(seq), watermark_ms: -5, idle: false };
    let head = Head {
        seq,
        attempt: attempt.to_owned(),
        watermark_ms: i64::MIN,
        inputs: [(name.clone(), input)].into(),
        committed_at_ms: 1_764_000_000_000 + seq as i64,
        ..Head::default()
    };
    let row = CommitRow {
        seq,
        attempt: attempt.to_owned(),
        from: [(name.clone(), position(seq - 1))].into(),
        to: [(name, input)].into(),
        watermark_ms: i64::MIN,
        segment: Some(SegmentLocation::Inline(Bytes::from(format!("segment of {attempt}")))),
        ..CommitRow::default()
    };
    (head, row)
}

async fn try_commit(ledger: &dyn Ledger, task: &TaskId, seq: u64, attempt: &str) -> CommitReply {
    let (head, row) = commit(seq, attempt);
    ledger.commit(task, &head, &row).await.expect("commit")
}

async fn must_commit(ledger: &dyn Ledger, task: &TaskId, seq: u64, attempt: &str) {
    assert_eq!(try_commit(ledger, task, seq, attempt).await, CommitReply::Committed, "{task} {seq} {attempt}");
}

async fn head_attempt(ledger: &dyn Ledger, task: &TaskId) -> Option<String> {
    ledger.load_head(task).await.expect("load head").map(|head| head.attempt)
}

async fn rows(ledger: &dyn Ledger, task: &TaskId, after: u64, limit: u32) -> Vec<u64> {
    let rows = ledger.load_rows(task, Seq(after), RowLimits { rows: limit }).await.expect("load rows");
    rows.iter().map(|row| row.seq).collect()
}

async fn restored_logs_begin_with_their_heads(ledger: &dyn Ledger) {
    let (a, b) = (task("c-installed"), task("c-installed-too"));
    for seq in [1, 2, 3, 2] {
        let reply = ledger.install_row(&a, &commit(seq, "i1").1).await.expect("install row");
        assert_eq!(reply, CommitReply::Committed, "a row may be written again");
    }
    assert_eq!(ledger.install_row(&a, &commit(2, "other").1).await.expect("install row"), CommitReply::Refused);
    assert_eq!(ledger.load_head(&a).await.expect("load head"), None, "rows alone are no head");
    assert_eq!(take(ledger, &b, "a", 1_000, 2_000).await, LeaseReply::Acquired, "a lease is no head either");
    let heads = [(a.clone(), commit(3, "i1").0), (b.clone(), commit(1, "i1").0)];
    assert_eq!(ledger.install_heads(&heads).await.expect("install heads"), CommitReply::Committed);
    assert_eq!(ledger.load_head(&a).await.expect("load head"), Some(heads[0].1.clone()));
    assert_eq!(head_attempt(ledger, &b).await.as_deref(), Some("i1"));
    assert_eq!(rows(ledger, &a, 0, 10).await, [1, 2, 3]);
    let fresh = task("c-installed-not");
    let mixed = [(fresh.clone(), commit(1, "i2").0), (a.clone(), commit(3, "i2").0)];
    assert_eq!(ledger.install_heads(&mixed).await.expect("install heads"), CommitReply::Refused, "all or none");
    assert_eq!(ledger.load_head(&fresh).await.expect("load head"), None);
    must_commit(ledger, &a, 4, "after-restore").await;
    assert_eq!(rows(ledger, &a, 2, 10).await, [3, 4]);
}

async fn empty_task(ledger: &dyn Ledger) {
    let task = task("c-empty");
    assert_eq!(ledger.load_head(&task).await.expect("load head"), None);
    assert_eq!(ledger.load_row(&task, Seq(1)).await.expect("load row"), None);
    assert!(rows(ledger, &task, 0, 10).await.is_empty());
    assert!(ledger.tasks(&task.stage).await.expect("tasks").is_empty());
}

async fn commits_step_by_one(ledger: &dyn Ledger) {
    let task = task("c-step");
    assert_eq!(try_commit(ledger, &task, 2, "too-early").await, CommitReply::Refused, "the head is at 0");
    assert_eq!(head_attempt(ledger, &task).await, None, "a refused commit leaves nothing");
    must_commit(ledger, &task, 1, "a1").await;
    assert_eq!(try_commit(ledger, &task, 1, "b1").await, CommitReply::Refused, "seq 1 is taken");
    assert_eq!(try_commit(ledger, &task, 3, "b3").await, CommitReply::Refused, "seq 2 is missing");
    must_commit(ledger, &task, 2, "a2").await;
    assert_eq!(try_commit(ledger, &task, 2, "b2").await, CommitReply::Refused, "seq 2 is taken");
    assert_eq!(try_commit(ledger, &task, 1, "b1-again").await, CommitReply::Refused, "seq 1 is past");
    assert_eq!(head_attempt(ledger, &task).await.as_deref(), Some("a2"));
    assert_eq!(rows(ledger, &task, 0, 10).await, [1, 2], "refused commits left no rows");
    let other = TaskId::shard(&task.stage, 1);
    assert_eq!(ledger.load_head(&other).await.expect("load head"), None, "tasks are apart");
}

async fn a_repeated_attempt_is_applied_once(ledger: &dyn Ledger) {
    let task = task("c-repeat");
    must_commit(ledger, &task, 1, "r1").await;
    for _ in 0..2 {
        let again = try_commit(ledger, &task, 1, "r1").await;
        assert!(matches!(again, CommitReply::Committed | CommitReply::Refused), "{again:?}");
    }
    must_commit(ledger, &task, 2, "r2").await;
    // The store may remember that it made this commit, but must not go back to it.
    let late = try_commit(ledger, &task, 1, "r1").await;
    assert!(matches!(late, CommitReply::Committed | CommitReply::Refused), "{late:?}");
    assert_eq!(head_attempt(ledger, &task).await.as_deref(), Some("r2"));
    assert_eq!(rows(ledger, &task, 0, 10).await, [1, 2]);
}

async fn rows_come_back_as_written(ledger: &dyn Ledger) {
    let task = TaskId::partition(&StageId::new("c-whole"), "payments.raw", 3);
    let (head, row) = commit(1, "w1");
    assert_eq!(ledger.commit(&task, &head, &row).await.expect("commit"), CommitReply::Committed);
    assert_eq!(ledger.load_head(&task).await.expect("load head"), Some(head));
    assert_eq!(ledger.load_row(&task, Seq(1)).await.expect("load row"), Some(row.clone()));
    assert_eq!(ledger.load_rows(&task, Seq(0), RowLimits { rows: 1 }).await.expect("load rows"), [row]);
}

async fn rows_are_read_in_order(ledger: &dyn Ledger) {
    let task = task("c-order");
    for seq in 1..=12 {
        must_commit(ledger, &task, seq, &format!("o{seq}")).await;
    }
    assert_eq!(rows(ledger, &task, 0, 100).await, (1..=12).collect::<Vec<u64>>());
    assert_eq!(rows(ledger, &task, 8, 100).await, [9, 10, 11, 12], "9 sorts before 10");
    assert_eq!(rows(ledger, &task, 8, 2).await, [9, 10]);
    assert!(rows(ledger, &task, 12, 5).await.is_empty());
    assert!(rows(ledger, &task, 500, 5).await.is_empty());
    assert!(rows(ledger, &task, 0, 0).await.is_empty());
}

async fn racers_have_one_winner(ledger: &dyn Ledger) {
    let task = task("c-race");
    for seq in 1..=RACES {
        let (left, right) = (format!("left-{seq}"), format!("right-{seq}"));
        let (l, r) = tokio::join!(try_commit(ledger, &task, seq, &left), try_commit(ledger, &task, seq, &right));
        let winner = match (&l, &r) {
            (CommitReply::Committed, CommitReply::Refused) => left,
            (CommitReply::Refused, CommitReply::Committed) => right,
            _ => panic!("round {seq}: {l:?} and {r:?}"),
        };
        assert_eq!(head_attempt(ledger, &task).await, Some(winner.clone()), "round {seq}");
        let row = ledger.load_row(&task, Seq(seq)).await.expect("load row").expect("the winner's row");
        assert_eq!(row.attempt, winner, "round {seq}");
    }
    assert_eq!(rows(ledger, &task, 0, 1_000).await, (1..=RACES).collect::<Vec<u64>>());
}

async fn take(ledger: &dyn Ledger, task: &TaskId, owner: &str, now: i64, until: i64) -> LeaseReply {
    ledger.acquire_lease(task, owner, ProcessingTime(now), ProcessingTime(until)).await.expect("acquire lease")
}

async fn lease_has_one_holder(ledger: &dyn Ledger) {
    let task = task("c-lease");
    let held = |until| LeaseReply::Held { until: ProcessingTime(until) };
    assert_eq!(take(ledger, &task, "a", 1_000, 2_000).await, LeaseReply::Acquired);
    assert_eq!(take(ledger, &task, "b", 1_500, 2_500).await, held(2_000));
    assert_eq!(take(ledger, &task, "a", 1_600, 3_000).await, LeaseReply::Acquired, "prolonged by its holder");
    assert_eq!(take(ledger, &task, "b", 2_999, 4_000).await, held(3_000));
    assert_eq!(take(ledger, &task, "b", 3_000, 4_000).await, LeaseReply::Acquired, "it has expired");
    ledger.release_lease(&task, "a").await.expect("a release by somebody else does nothing");
    assert_eq!(take(ledger, &task, "a", 3_100, 5_000).await, held(4_000));
    ledger.release_lease(&task, "b").await.expect("release");
    ledger.release_lease(&task, "b").await.expect("releasing twice");
    assert_eq!(take(ledger, &task, "a", 3_200, 5_000).await, LeaseReply::Acquired, "it is free");
    let other = TaskId::shard(&task.stage, 1);
    ledger.release_lease(&other, "a").await.expect("a lease nobody ever had");
    assert_eq!(take(ledger, &other, "b", 3_200, 5_000).await, LeaseReply::Acquired, "tasks are apart");
}

async fn lease_and_head_are_independent(ledger: &dyn Ledger) {
    let task = task("c-both");
    assert_eq!(take(ledger, &task, "a", 1_000, 9_000).await, LeaseReply::Acquired);
    assert_eq!(ledger.load_head(&task).await.expect("load head"), None, "a lease is no commit");
    must_commit(ledger, &task, 1, "i1").await;
    assert_eq!(take(ledger, &task, "b", 2_000, 9_500).await, LeaseReply::Held { until: ProcessingTime(9_000) });
    ledger.release_lease(&task, "a").await.expect("release");
    assert_eq!(head_attempt(ledger, &task).await.as_deref(), Some("i1"), "a release leaves the head");
    must_commit(ledger, &task, 2, "i2").await;
    assert_eq!(take(ledger, &task, "b", 2_000, 9_500).await, LeaseReply::Acquired);
    must_commit(ledger, &task, 3, "i3").await;
    assert_eq!(rows(ledger, &task, 0, 10).await, [1, 2, 3]);
}

async fn registry_keeps_each_task_once(ledger: &dyn Ledger) {
    let stage = StageId::new("c-tasks");
    let (a, b) = (TaskId::partition(&stage, "payments.raw", 0), TaskId::partition(&stage, "payments.raw", 1));
    for task in [&b, &a, &b] {
        ledger.register(task).await.expect("register");
    }
    assert_eq!(ledger.tasks(&stage).await.expect("tasks"), [a, b]);
    assert!(ledger.tasks(&StageId::new("c-task")).await.expect("tasks").is_empty(), "stages are apart");
}

async fn rows_can_be_removed(ledger: &dyn Ledger) {
    let (task, other) = (task("c-remove"), TaskId::shard(&StageId::new("c-remove"), 1));
    for seq in 1..=60 {
        must_commit(ledger, &task, seq, &format!("d{seq}")).await;
    }
    must_commit(ledger, &other, 1, "d1-of-1").await;
    let remaining = async |after, rows| {
        let rows = ledger.remaining_rows(&task, Seq(after), RowLimits { rows }).await.expect("remaining rows");
        rows.iter().map(|row| row.seq).collect::<Vec<u64>>()
    };
    assert_eq!(remaining(0, 3).await, [1, 2, 3]);
    let seqs = |seqs: &[u64]| seqs.iter().copied().map(Seq).collect::<Vec<Seq>>();
    ledger.delete_rows(&task, &[]).await.expect("removing nothing");
    // More than one request of a table takes, out of order and with a hole.
    let gone: Vec<u64> = (2..=50).rev().filter(|seq| *seq != 9).collect();
    ledger.delete_rows(&task, &seqs(&gone)).await.expect("remove rows");
    ledger.delete_rows(&task, &seqs(&[7, 1])).await.expect("removing what is gone in part");
    assert_eq!(remaining(0, 3).await, [9, 51, 52], "what is gone is passed over");
    assert_eq!(remaining(9, 100).await, (51..=60).collect::<Vec<u64>>());
    assert!(remaining(60, 100).await.is_empty());
    assert_eq!(ledger.load_row(&task, Seq(7)).await.expect("load row"), None);
    assert_eq!(rows(ledger, &task, 50, 100).await, (51..=60).collect::<Vec<u64>>());
    for after in [0, 8, 9, 30, 49] {
        let limits = RowLimits { rows: 100 };
        let missing = ledger.load_rows(&task, Seq(after), limits).await.expect_err("rows are missing");
        assert_eq!(missing.kind, StoreErrorKind::Missing, "after {after}: {missing}");
        assert!(missing.to_string().contains("c-remove/0"), "the task is named: {missing}");
    }
    assert_eq!(head_attempt(ledger, &task).await.as_deref(), Some("d60"), "the head stays");
    assert_eq!(try_commit(ledger, &task, 7, "late").await, CommitReply::Refused, "what is gone is not free again");
    assert_eq!(ledger.load_row(&task, Seq(7)).await.expect("load row"), None, "a refused commit left no row");
    must_commit(ledger, &task, 61, "d61").await;
    assert_eq!(rows(ledger, &other, 0, 10).await, [1], "tasks are apart");
}

async fn removals_are_added_up(ledger: &dyn Ledger) {
    assert_eq!(ledger.collected().await.expect("collected"), Collected::default());
    let first = Collected { rows: 5, objects: 4, orphans: 3, pages: 2, groups: 1 };
    for _ in 0..2 {
        ledger.add_collected(&first).await.expect("add");
    }
    ledger.add_collected(&Collected { groups: 10, ..Collected::default() }).await.expect("add");
    let sum = Collected { rows: 10, objects: 8, orphans: 6, pages: 4, groups: 12 };
    assert_eq!(ledger.collected().await.expect("collected"), sum);
}

fn page(stage: &str, group: u32, page: &str, version: u64) -> Page {
    let address =
        PageAddress { stage: StageId::new(stage), group, operator: "first-seen".to_owned(), page: page.to_owned() };
    Page { address, version, body: Bytes::from(format!("{page} at {version}")), expires_at_s: None }
}

async fn load(state: &dyn StateTable, stage: &str, group: u32) -> Vec<Page> {
    let address = page(stage, group, "", 0).address;
    let mut pages = state.load_pages(&address.stage, address.key_group()).await.expect("load pages");
    pages.sort_by(|a, b| a.address.cmp(&b.address));
    pages
}

async fn only_younger_pages_replace(state: &dyn StateTable) {
    let old = page("c-put", 7, "p#1", 5);
    assert!(load(state, "c-put", 7).await.is_empty());
    assert_eq!(state.put_page(&old).await.expect("put"), PutReply::Written);
    assert_eq!(load(state, "c-put", 7).await, std::slice::from_ref(&old));
    for version in [5, 4, 0] {
        let stale = Page { body: Bytes::from_static(b"stale"), version, ..old.clone() };
        assert_eq!(state.put_page(&stale).await.expect("put"), PutReply::Stale, "version {version}");
    }
    assert_eq!(load(state, "c-put", 7).await, [old], "a stale put changes nothing");
    let young = Page { expires_at_s: Some(4_000_000_000), ..page("c-put", 7, "p#1", (3 << 40) | 1) };
    assert_eq!(state.put_page(&young).await.expect("put"), PutReply::Written);
    assert_eq!(load(state, "c-put", 7).await, std::slice::from_ref(&young));
    let kept = Page { expires_at_s: None, version: young.version + 1, body: Bytes::new(), ..young };
    assert_eq!(state.put_page(&kept).await.expect("put"), PutReply::Written);
    assert_eq!(load(state, "c-put", 7).await, [kept], "no longer expires; an empty body is a body");
}

async fn deletes_spare_younger_pages(state: &dyn StateTable) {
    let kept = page("c-delete", 0, "a", 9);
    state.put_page(&kept).await.expect("put");
    state.delete_page(&kept.address, 8).await.expect("an older delete is no error");
    assert_eq!(load(state, "c-delete", 0).await, std::slice::from_ref(&kept));
    state.delete_page(&kept.address, 9).await.expect("delete");
    assert!(load(state, "c-delete", 0).await.is_empty());
    state.delete_page(&kept.address, 9).await.expect("deleting twice");
    assert!(load(state, "c-delete", 0).await.is_empty());
}

async fn groups_are_loaded_whole_and_apart(state: &dyn StateTable) {
    let mine = [page("c-group", 1, "a", 1), page("c-group", 1, "b", 2)];
    let others = [page("c-group", 11, "a", 1), page("c-group", 12, "a", 1), page("c-group1", 1, "a", 1)];
    for page in mine.iter().chain(&others) {
        assert_eq!(state.put_page(page).await.expect("put"), PutReply::Written);
    }
    assert_eq!(load(state, "c-group", 1).await, mine);
    assert_eq!(load(state, "c-group", 11).await, [others[0].clone()]);
    assert!(load(state, "c-group", 2).await.is_empty());
}

/// More than one answer of a query holds.
async fn large_groups_are_loaded_whole(state: &dyn StateTable) {
    for number in 10..20u64 {
        let body = Bytes::from(vec![number as u8; 300_000]);
        let page = Page { body, ..page("c-large", 3, &format!("p{number}"), number) };
        assert_eq!(state.put_page(&page).await.expect("put"), PutReply::Written);
    }
    let pages = load(state, "c-large", 3).await;
    assert_eq!(pages.iter().map(|page| page.version).collect::<Vec<u64>>(), (10..20).collect::<Vec<u64>>());
    assert!(pages.iter().all(|page| page.body.len() == 300_000));
}
