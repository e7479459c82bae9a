use super::*;
use crate::testing::{Harness, payment};

enum Step {
    Pay(i64, i64),
    Watermark(i64),
}
use Step::{Pay, Watermark};

fn run(steps: &[Step]) -> Harness<CardSessionWindow> {
    let mut harness = Harness::new(CardSessionWindow);
    for step in steps {
        match *step {
            Pay(amount, t) => harness.process("c1", &payment("p", "c1", "m1", amount, t)),
            Watermark(ms) => harness.advance_watermark(EventTime(ms)),
        }
    }
    harness
}

/// Sessions of card `c1`: (start, end, count, amount).
fn sessions(harness: &Harness<CardSessionWindow>) -> Vec<(i64, i64, i64, i64)> {
    let tuple = |s: &CardSession| (s.session_start_ms, s.session_end_ms, s.payment_count, s.amount_minor);
    harness.outputs().iter().map(|(_, session)| tuple(session)).collect()
}

#[test]
fn lesson_6_a_pause_longer_than_the_gap_starts_a_new_session() {
    let harness = run(&[Pay(100, 1_000), Pay(200, 20_000), Pay(400, 100_000), Watermark(i64::MAX)]);
    let session = |start, end, payment_count, amount_minor| CardSession {
        card_id: "c1".to_owned(),
        session_start_ms: start,
        session_end_ms: end,
        payment_count,
        amount_minor,
    };
    let first = (EventTime(49_999), session(1_000, 50_000, 2, 300));
    assert_eq!(harness.outputs(), [first, (EventTime(129_999), session(100_000, 130_000, 1, 400))]);
    assert_eq!(harness.key_count(), 0);
}

#[test]
fn lesson_6_session_table() {
    let end = Watermark(i64::MAX);
    let table: &[(&str, &[Step], &[(i64, i64, i64, i64)])] = &[
        ("a single payment lasts one gap", &[Pay(1, 5_000), end], &[(5_000, 35_000, 1, 1)]),
        ("pause of exactly 30 s", &[Pay(1, 1_000), Pay(2, 31_000), Watermark(i64::MAX)], &[(1_000, 61_000, 2, 3)]),
        (
            "pause of 30,001 ms",
            &[Pay(1, 1_000), Pay(2, 31_001), Watermark(i64::MAX)],
            &[(1_000, 31_000, 1, 1), (31_001, 61_001, 1, 2)],
        ),
        (
            "earlier payment touches from the left",
            &[Pay(1, 31_000), Pay(2, 1_000), Watermark(i64::MAX)],
            &[(1_000, 61_000, 2, 3)],
        ),
        (
            "bridging payment",
            &[Pay(1, 1_000), Pay(2, 50_000), Pay(4, 25_000), Watermark(i64::MAX)],
            &[(1_000, 80_000, 3, 7)],
        ),
        (
            "bridging payment of the vectors",
            &[Pay(1, 1_000), Pay(2, 40_000), Pay(4, 25_000), Watermark(i64::MAX)],
            &[(1_000, 70_000, 3, 7)],
        ),
        ("not before the last ms", &[Pay(1, 1_000), Watermark(30_998)], &[]),
        ("at the last ms", &[Pay(1, 1_000), Watermark(30_999)], &[(1_000, 31_000, 1, 1)]),
        (
            "late payment opens a second, overlapping session",
            &[Pay(1, 1_000), Watermark(30_999), Pay(2, 20_000), Watermark(49_999)],
            &[(1_000, 31_000, 1, 1), (20_000, 50_000, 1, 2)],
        ),
        ("dropped at t + 29,999 <= watermark", &[Watermark(30_999), Pay(1, 1_000), Watermark(i64::MAX)], &[]),
        ("kept 1 ms earlier", &[Watermark(30_998), Pay(1, 1_000), Watermark(i64::MAX)], &[(1_000, 31_000, 1, 1)]),
        (
            "late but joins a live session",
            &[Pay(1, 40_000), Watermark(60_000), Pay(2, 10_000), Watermark(i64::MAX)],
            &[(10_000, 70_000, 2, 3)],
        ),
    ];
    for (name, steps, expected) in table {
        assert_eq!(&sessions(&run(steps)), expected, "{name}");
    }
}

#[test]
fn lesson_6_a_payment_late_for_its_session_is_counted() {
    assert_eq!(run(&[Watermark(30_999), Pay(1, 1_000)]).counter(LATE_DROPPED), 1);
    assert_eq!(run(&[Watermark(30_998), Pay(1, 1_000)]).counter(LATE_DROPPED), 0);
    let joins = run(&[Pay(1, 40_000), Watermark(60_000), Pay(2, 10_000)]);
    assert_eq!(joins.counter(LATE_DROPPED), 0, "t + 29,999 <= watermark, but the merged session lives");
    assert_eq!(run(&[Watermark(30_999), Pay(1, 1_000)]).key_count(), 0, "a dropped payment leaves nothing");
}

#[test]
fn lesson_6_timers_of_merged_sessions_are_deleted() {
    let mut harness = run(&[Pay(1, 1_000), Pay(2, 50_000)]);
    assert_eq!(harness.timers("c1").unwrap().event[..], [30_999, 79_999]);
    harness.process("c1", &payment("p", "c1", "m1", 4, 25_000));
    assert_eq!(harness.timers("c1").unwrap().event[..], [79_999], "the bridged sessions leave one timer");
    harness.process("c1", &payment("p", "c1", "m1", 8, 60_000));
    assert_eq!(harness.timers("c1").unwrap().event[..], [89_999], "the timer moves with the last payment");
    harness.process("c1", &payment("p", "c1", "m1", 16, 60_000));
    assert_eq!(harness.timers("c1").unwrap().event[..], [89_999]);
}

#[test]
fn the_ends_of_the_scale_do_not_overflow() {
    let (late, early) = (i64::MAX - 30_001, i64::MIN + 30_001);
    let mut harness = run(&[
        Pay(i64::MAX, i64::MAX),
        Pay(i64::MAX, i64::MAX),
        Pay(1, late),
        Pay(2, i64::MIN),
        Pay(3, early),
        Watermark(i64::MAX),
    ]);
    let expected = [
        (i64::MIN, i64::MIN + 30_000, 1, 2),
        (early, early + 30_000, 1, 3),
        (late, i64::MAX - 1, 1, 1),
        (i64::MAX, i64::MAX, 2, i64::MAX),
    ];
    assert_eq!(sessions(&harness), expected);
    assert_eq!(harness.key_count(), 0);
    harness.process("c1", &payment("p", "c1", "m1", 1, i64::MAX));
    assert_eq!(harness.counter(LATE_DROPPED), 1, "nothing is accepted after the end");
}
