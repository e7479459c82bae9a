use super::*;
use crate::testing::{Harness, payment};

enum Step {
    Pay(i64, i64),
    Watermark(i64),
}
use Step::{Pay, Watermark};

/// Emissions for merchant `m`: (window start, count, amount); a payment no window accepted is (time, 0, amount).
fn emissions(steps: &[Step]) -> Vec<(i64, i64, i64)> {
    run(steps).take_outputs().into_iter().map(short).collect()
}

fn run(steps: &[Step]) -> Harness<MerchantStatsWindow> {
    let mut harness = Harness::new(MerchantStatsWindow);
    for step in steps {
        match *step {
            Pay(amount, t) => harness.process("m", &payment("p", "c1", "m", amount, t)),
            Watermark(ms) => harness.advance_watermark(EventTime(ms)),
        }
    }
    harness
}

fn short(output: Output) -> (i64, i64, i64) {
    match output {
        Output::Stats(stats) => (stats.window_start_ms, stats.payment_count, stats.amount_minor),
        Output::TooLate(payment) => (payment.event_time_ms, 0, payment.amount_minor),
    }
}

#[test]
fn lesson_6_sums_payments_per_merchant_per_minute() {
    let mut harness = Harness::new(MerchantStatsWindow);
    for (id, card, merchant, amount, t) in [
        ("p1", "c1", "m1", 100, 1_000),
        ("p2", "c2", "m1", 200, 59_000),
        ("p3", "c3", "m2", 300, 10_000),
        ("p4", "c4", "m1", 400, 61_000),
    ] {
        harness.process(merchant, &payment(id, card, merchant, amount, t));
    }
    harness.advance_watermark(EventTime::MAX);
    let stats = |merchant: &str, start, payment_count, amount_minor| {
        let record = MerchantStats {
            merchant_id: merchant.to_owned(),
            window_start_ms: start,
            window_end_ms: start + 60_000,
            payment_count,
            amount_minor,
        };
        (EventTime(start + 59_999), Output::Stats(record))
    };
    assert_eq!(harness.outputs(), [stats("m1", 0, 2, 300), stats("m2", 0, 1, 300), stats("m1", 60_000, 1, 400)]);
    assert_eq!(harness.key_count(), 0);
}

#[test]
fn lesson_6_windows_are_aligned_to_the_epoch() {
    let table = [(1_794_085_549_065, 1_794_085_500_000), (0, 0), (59_999, 0), (60_000, 60_000), (-1, -60_000)];
    for (t, start) in table {
        assert_eq!(emissions(&[Pay(1, t), Watermark(i64::MAX)]), [(start, 1, 1)], "payment at {t}");
    }
}

#[test]
fn lesson_6_firing_table() {
    let first = (0, 1, 100);
    let late = (0, 2, 150);
    let table: &[(&str, &[Step], &[(i64, i64, i64)])] = &[
        ("nothing before the last ms", &[Pay(100, 1_000), Watermark(59_998)], &[]),
        ("at the last ms", &[Pay(100, 1_000), Watermark(59_999)], &[first]),
        ("once only", &[Pay(100, 1_000), Watermark(59_999), Watermark(60_000), Watermark(i64::MAX)], &[first]),
        ("late firing", &[Pay(100, 1_000), Watermark(60_000), Pay(50, 30_000)], &[first, late]),
        ("late firing at the last ms", &[Watermark(59_999), Pay(50, 30_000), Watermark(i64::MAX)], &[(0, 1, 50)]),
        (
            "too late at cleanup time",
            &[Pay(100, 1_000), Watermark(60_000), Pay(50, 30_000), Watermark(119_999), Pay(7, 59_000)],
            &[first, late, (59_000, 0, 7)],
        ),
        (
            "accepted 1 ms before",
            &[Pay(100, 1_000), Watermark(60_000), Pay(50, 30_000), Watermark(119_998), Pay(7, 59_000)],
            &[first, late, (0, 3, 157)],
        ),
        ("unseen window fires at once", &[Watermark(60_000), Pay(50, 30_000)], &[(0, 1, 50)]),
        (
            "unseen window fires once",
            &[Watermark(60_000), Pay(50, 30_000), Watermark(119_998), Watermark(i64::MAX)],
            &[(0, 1, 50)],
        ),
        ("late by less than the watermark", &[Pay(100, 30_000), Watermark(40_000), Pay(50, 1_000)], &[]),
        (
            "cleanup of one window is the firing of the next",
            &[Pay(100, 1_000), Pay(30, 61_000), Watermark(119_999), Watermark(i64::MAX)],
            &[first, (60_000, 1, 30)],
        ),
        (
            "late window, then the next one on time",
            &[Watermark(60_000), Pay(50, 30_000), Pay(30, 61_000), Watermark(119_999), Watermark(179_999)],
            &[(0, 1, 50), (60_000, 1, 30)],
        ),
    ];
    for (name, steps, expected) in table {
        assert_eq!(&emissions(steps), expected, "{name}");
    }
}

#[test]
fn lesson_6_a_payment_70_s_behind_may_be_accepted_and_130_s_may_not() {
    // The watermark is 10,001 ms behind the newest payment.
    let lag = |t: i64, behind: i64| emissions(&[Watermark(t + behind - 10_001), Pay(1, t)])[0].1;
    assert_eq!((lag(59_999, 70_000), lag(59_999, 70_001)), (1, 0), "last ms of the minute");
    assert_eq!((lag(0, 129_999), lag(0, 130_000)), (1, 0), "first ms of the minute");
}

#[test]
fn lesson_6_two_timers_a_window_and_state_until_cleanup() {
    let mut harness = run(&[Pay(1, 1_000), Pay(2, 2_000)]);
    assert_eq!(harness.timers("m").unwrap().event[..], [59_999, 119_999]);
    harness.advance_watermark(EventTime(119_998));
    assert_eq!(harness.timers("m").unwrap().event[..], [119_999]);
    assert_eq!(harness.key_count(), 1);
    harness.advance_watermark(EventTime(119_999));
    assert_eq!(harness.key_count(), 0);
}

#[test]
fn lesson_6_neighbour_windows_share_a_timer() {
    let harness = run(&[Pay(1, 1_000), Pay(2, 61_000)]);
    assert_eq!(harness.timers("m").unwrap().event[..], [59_999, 119_999, 179_999]);
}

#[test]
fn what_comes_late_is_counted() {
    let harness = run(&[Watermark(60_000), Pay(1, 1), Pay(1, 2), Watermark(119_999), Pay(1, 3)]);
    assert_eq!((harness.counter(LATE_FIRINGS), harness.counter(TOO_LATE)), (2, 1));
}

#[test]
fn the_ends_of_the_scale_do_not_overflow() {
    let steps = [Pay(i64::MAX, i64::MAX), Pay(i64::MAX, i64::MAX), Pay(1, i64::MIN), Pay(5, i64::MAX - 60_000)];
    let mut harness = run(&steps);
    harness.advance_watermark(EventTime::MAX);
    assert_eq!(harness.key_count(), 0);
    let emissions: Vec<_> = harness.take_outputs().into_iter().map(short).collect();
    let last_start = i64::MAX - i64::MAX % 60_000;
    assert_eq!(emissions, [(i64::MIN, 1, 1), (last_start - 60_000, 1, 5), (last_start, 2, i64::MAX)]);
    harness.process("m", &payment("p", "c1", "m", 1, i64::MAX));
    assert_eq!(harness.counter(TOO_LATE), 1, "nothing is accepted after the end");
}
