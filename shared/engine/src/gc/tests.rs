use bytes::Bytes;

use super::*;
use crate::ids::{Attempt, StageId};
use crate::page::PageAddress;
use crate::segment::object_key;

fn at(at: i64) -> Position {
    Position { at, within: 0 }
}

#[test]
fn a_row_stays_until_everybody_has_passed_it() {
    let head = |seq, flushed_seq| Head { seq, flushed_seq, ..Head::empty() };
    let cases: [(&str, Head, bool, &[Position], u64); 10] = [
        ("no commit", head(0, 0), false, &[], 0),
        ("the newest row stays", head(1, 0), false, &[at(1)], 0),
        ("nobody reads it", head(9, 0), false, &[], 8),
        ("all have read it", head(9, 0), false, &[at(9), at(9)], 8),
        ("the slowest counts", head(9, 0), false, &[at(9), at(4), at(7)], 4),
        ("one has not begun", head(9, 0), false, &[at(9), Position::default()], 0),
        ("a row half read is not passed", head(9, 0), false, &[Position { at: 3, within: 100 }], 3),
        ("recovery needs what is not flushed", head(9, 5), true, &[at(9)], 5),
        ("flushed and read", head(9, 9), true, &[at(7)], 7),
        ("nothing is flushed", head(9, 0), true, &[at(9)], 0),
    ];
    for (what, head, has_state, positions, through) in cases {
        assert_eq!(collectable_through(&head, has_state, positions.iter().copied()), Seq(through), "{what}");
    }
}

#[test]
fn rows_go_once_they_are_old_and_never_over_one_that_stays() {
    let row = |(seq, now_ms)| CommitRow { seq, now_ms, ..CommitRow::default() };
    let rows: Vec<CommitRow> = [(3, 100), (4, 200), (6, 150), (7, 300)].map(row).to_vec();
    let count =
        |through, now, retention_ms| collectable_rows(&rows, Seq(through), ProcessingTime(now), retention_ms).len();
    assert_eq!(count(99, 1_000, 0), 4);
    assert_eq!(count(5, 1_000, 0), 2, "up to the last that nobody needs");
    assert_eq!(count(2, 1_000, 0), 0);
    assert_eq!(count(99, 1_000, 900), 1, "exactly as old as it must be");
    assert_eq!(count(99, 1_000, 850), 1, "a clock that went back hides nothing behind a younger row");
    assert_eq!(count(99, 1_000, 800), 3);
    assert_eq!(count(99, 50, 0), 0, "rows of the future stay");
    assert_eq!(count(99, i64::MAX, i64::MAX), 0);
}

#[test]
fn objects_go_with_their_rows_whoever_made_them() {
    let task = TaskId::shard(&StageId::new("dedup"), 0);
    let key = |(seq, attempt): (u64, &str)| object_key(&task, seq, &Attempt(attempt.to_owned()));
    let keys: Vec<String> = [(1, "a"), (1, "b"), (3, "a"), (10, "z")].map(key).to_vec();
    let count = |through| collectable_objects(&task, &keys, Seq(through)).len();
    assert_eq!([0, 1, 2, 3, 9, 10].map(count), [0, 2, 2, 3, 3, 4]);
    let strange = ["dedup/0/notes".to_owned(), keys[3].clone()];
    assert!(collectable_objects(&task, &strange, Seq(99)).is_empty(), "what is no segment is not touched");
}

#[test]
fn pages_go_long_after_they_expired_and_never_without_an_expiry() {
    let page = |name: &str, expires_at_s| {
        let address = PageAddress { stage: StageId::new("s"), group: 1, operator: "ids".into(), page: name.to_owned() };
        Page { address, version: 1, body: Bytes::new(), expires_at_s }
    };
    let pages = [page("a", Some(1_000)), page("b", Some(2_000)), page("0-0", None), page("c", Some(i64::MAX))];
    let names = |now_s: i64| {
        let pages = collectable_pages(&pages, ProcessingTime(now_s * 1000));
        pages.iter().map(|p| p.address.page.clone()).collect::<Vec<_>>()
    };
    assert!(names(1_000 + EXPIRED_MARGIN_S - 1).is_empty());
    assert_eq!(names(1_000 + EXPIRED_MARGIN_S), ["a"]);
    assert_eq!(names(2_000 + EXPIRED_MARGIN_S), ["a", "b"]);
    assert_eq!(names(i64::MAX / 1000), ["a", "b"]);
}
