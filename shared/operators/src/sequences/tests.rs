use super::*;
use crate::testing::{Harness, payment};

const BOTH: SequenceRules = SequenceRules { card_testing: true, impossible_travel: true, language: DetailLanguage::Ru };

/// A payment of card c1: id, amount, event time.
type Paid = (&'static str, i64, i64);

/// A payment of 1,000 of card c1: id, country, event time.
type Travelled = (&'static str, &'static str, i64);

/// The ids of the alerts after these payments and the end of the input.
fn alerts(payments: impl IntoIterator<Item = Payment>) -> Vec<String> {
    let mut harness = Harness::new(BOTH);
    for payment in payments {
        harness.process(&payment.card_id, &payment);
        harness.restart();
    }
    harness.advance_watermark(EventTime::MAX);
    assert_eq!(harness.key_count(), 0, "an idle card leaves nothing");
    harness.take_outputs().into_iter().map(|alert| alert.alert_id).collect()
}

fn paid(&(id, amount, t): &Paid) -> Payment {
    payment(id, "c1", "m1", amount, t)
}

fn travelled(&(id, country, t): &Travelled) -> Payment {
    Payment { country: (!country.is_empty()).then(|| country.to_owned()), ..payment(id, "c1", "m1", 1_000, t) }
}

#[test]
fn lesson_10_card_testing_table() {
    let alert: &[&str] = &["card-testing:p4"];
    let series = |amounts: [i64; 4], last: i64| -> Vec<Paid> {
        [("p1", 1_000), ("p2", 2_000), ("p3", 3_000), ("p4", last)]
            .into_iter()
            .zip(amounts)
            .map(|((id, t), amount)| (id, amount, t))
            .collect()
    };
    let table: &[(&str, Vec<Paid>, &[&str])] = &[
        ("small payments, then a large one", series([100, 100, 100, 90_000], 4_000), alert),
        ("6 minutes", series([100, 100, 100, 90_000], 361_000), &[]),
        ("299,999 ms", series([100, 100, 100, 90_000], 300_999), alert),
        ("300,000 ms", series([100, 100, 100, 90_000], 301_000), &[]),
        ("499 is small", series([499, 499, 499, 90_000], 4_000), alert),
        ("500 is not small", series([500, 100, 100, 90_000], 4_000), &[]),
        ("30,001 is large", series([100, 100, 100, 30_001], 4_000), alert),
        ("30,000 is not large", series([100, 100, 100, 30_000], 4_000), &[]),
        ("two small ones are too few", series([5_000, 100, 100, 90_000], 4_000), &[]),
        (
            "a broken series",
            vec![
                ("p1", 100, 1_000),
                ("p2", 100, 2_000),
                ("p3", 5_000, 3_000),
                ("p4", 100, 4_000),
                ("p5", 90_000, 5_000),
            ],
            &[],
        ),
        (
            "a large one too early breaks it",
            vec![
                ("p1", 100, 1_000),
                ("p2", 100, 2_000),
                ("p3", 90_000, 3_000),
                ("p4", 100, 4_000),
                ("p5", 90_000, 5_000),
            ],
            &[],
        ),
        (
            "a second large one begins nothing",
            vec![
                ("p1", 100, 1_000),
                ("p2", 100, 2_000),
                ("p3", 100, 3_000),
                ("p4", 90_000, 4_000),
                ("p5", 90_000, 5_000),
            ],
            alert,
        ),
        (
            "the last three decide the time",
            vec![
                ("p1", 100, 0),
                ("p2", 100, 299_000),
                ("p3", 100, 299_500),
                ("p4", 100, 299_900),
                ("p5", 90_000, 300_500),
            ],
            &["card-testing:p5"],
        ),
        (
            "disorder is sorted",
            vec![("p1", 100, 1_000), ("p2", 100, 2_000), ("p4", 90_000, 4_000), ("p3", 100, 3_000)],
            alert,
        ),
        (
            "equal times keep the order of arrival",
            vec![("p1", 100, 1_000), ("p2", 100, 1_000), ("p3", 100, 1_000), ("p4", 90_000, 1_000)],
            alert,
        ),
        (
            "equal times, the large one first",
            vec![("p4", 90_000, 1_000), ("p1", 100, 1_000), ("p2", 100, 1_000), ("p3", 100, 1_000)],
            &[],
        ),
    ];
    for (name, payments, expected) in table {
        assert_eq!(alerts(payments.iter().map(paid)), *expected, "{name}");
    }
}

#[test]
fn lesson_10_impossible_travel_table() {
    let table: &[(&str, &[Travelled], &[&str])] = &[
        ("country changes", &[("p1", "DE", 1_000), ("p2", "DE", 2_000), ("p3", "ES", 3_000)], &["p3"]),
        ("11 minutes", &[("p1", "DE", 1_000), ("p2", "ES", 661_000)], &[]),
        ("599,999 ms", &[("p1", "DE", 1_000), ("p2", "ES", 600_999)], &["p2"]),
        ("600,000 ms", &[("p1", "DE", 1_000), ("p2", "ES", 601_000)], &[]),
        (
            "too long ago, but the next fits",
            &[("p1", "DE", 1_000), ("p2", "ES", 601_000), ("p3", "DE", 602_000)],
            &["p3"],
        ),
        ("three countries", &[("p1", "DE", 1_000), ("p2", "ES", 2_000), ("p3", "FR", 3_000)], &["p2"]),
        ("there and back", &[("p1", "DE", 1_000), ("p2", "ES", 2_000), ("p3", "DE", 3_000)], &["p2"]),
        (
            "four countries",
            &[("p1", "DE", 1_000), ("p2", "ES", 2_000), ("p3", "FR", 3_000), ("p4", "NL", 4_000)],
            &["p2", "p4"],
        ),
        ("disorder is sorted", &[("p1", "DE", 1_000), ("p3", "ES", 3_000), ("p2", "ES", 2_000)], &["p2"]),
        ("no country differs from one", &[("p1", "", 1_000), ("p2", "DE", 2_000)], &["p2"]),
        ("no country equals none", &[("p1", "", 1_000), ("p2", "", 2_000)], &[]),
    ];
    for (name, payments, expected) in table {
        let expected: Vec<String> = expected.iter().map(|id| format!("impossible-travel:{id}")).collect();
        assert_eq!(alerts(payments.iter().map(travelled)), expected, "{name}");
    }
}

#[test]
fn lesson_10_payments_of_other_cards_do_not_matter() {
    let own = [("p1", 100, 1_000), ("p2", 100, 2_000), ("p3", 100, 3_000), ("p4", 90_000, 4_000)].map(|p| paid(&p));
    let other = payment("x", "c2", "m1", 5_000, 2_500);
    let [p1, p2, p3, p4] = own;
    assert_eq!(alerts([p1, p2, other, p3, p4]), ["card-testing:p4"]);
}

#[test]
fn lesson_10_one_alert_an_attack_with_the_whole_series() {
    let mut harness = Harness::new(BOTH);
    for n in 1..=5 {
        harness.process("c1", &payment(&format!("p{n}"), "c1", "m1", 100, n * 1_000));
    }
    let trigger = Payment { source_partition: 2, source_offset: 7, ..payment("p6", "c1", "m9", 90_000, 6_000) };
    harness.process("c1", &trigger);
    harness.advance_watermark(EventTime(6_000));
    let ids = ["p1", "p2", "p3", "p4", "p5", "p6"].map(str::to_owned).to_vec();
    let alert = FraudAlert::of("card-testing", &trigger, "мелкие платежи и сразу крупный".to_owned())
        .with_fact("span_ms", 5_000)
        .with_fact("window_ms", 300_000)
        .with_payments(ids);
    assert_eq!(harness.outputs(), [(EventTime(6_000), alert)]);
}

#[test]
fn lesson_10_travel_names_both_payments() {
    let mut harness = Harness::new(BOTH);
    let (first, second) = (travelled(&("p1", "DE", 1_000)), travelled(&("p2", "ES", 1_500)));
    harness.process("c1", &second);
    harness.process("c1", &first);
    harness.advance_watermark(EventTime(1_500));
    let alert = FraudAlert::of("impossible-travel", &second, "платежи из разных стран за 10 минут".to_owned())
        .with_fact("span_ms", 500)
        .with_fact("window_ms", 600_000)
        .with_payments(vec!["p1".to_owned(), "p2".to_owned()]);
    assert_eq!(harness.outputs(), [(EventTime(1_500), alert)]);
}

#[test]
fn lesson_10_a_payment_may_end_both_patterns() {
    let mut payments: Vec<Payment> =
        [("p1", 100, 1_000), ("p2", 100, 2_000), ("p3", 100, 3_000), ("p4", 90_000, 4_000)].iter().map(paid).collect();
    payments[3].country = Some("ES".to_owned());
    assert_eq!(alerts(payments), ["card-testing:p4", "impossible-travel:p4"]);
}

#[test]
fn lesson_10_an_alert_comes_when_the_watermark_passes_the_last_payment() {
    let mut harness = Harness::new(BOTH);
    for paid_one in [("p1", 100, 1_000), ("p2", 100, 2_000), ("p3", 100, 3_000), ("p4", 90_000, 4_000)] {
        harness.process("c1", &paid(&paid_one));
    }
    assert_eq!(harness.outputs().len(), 0, "a silent stream emits nothing");
    harness.advance_watermark(EventTime(3_999));
    assert_eq!(harness.outputs().len(), 0);
    harness.advance_watermark(EventTime(4_000));
    assert_eq!(harness.outputs().len(), 1);
}

#[test]
fn lesson_10_late_payments_are_dropped_and_counted_for_each_rule() {
    for (card_testing, impossible_travel) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut harness = Harness::new(SequenceRules { card_testing, impossible_travel, ..BOTH });
        harness.advance_watermark(EventTime(2_000));
        for paid_one in [("p1", 100, 1_999), ("p2", 100, 2_000), ("p3", 100, 2_001)] {
            harness.process("c1", &paid(&paid_one));
        }
        assert_eq!(harness.counter(CARD_TESTING_LATE), if card_testing { 2 } else { 0 });
        assert_eq!(harness.counter(IMPOSSIBLE_TRAVEL_LATE), if impossible_travel { 2 } else { 0 });
        assert_eq!(harness.key_count(), usize::from(card_testing || impossible_travel));
    }
}

#[test]
fn a_rule_that_is_off_does_not_alert() {
    for (card_testing, impossible_travel, expected) in
        [(true, false, "card-testing:p4"), (false, true, "impossible-travel:p4")]
    {
        let mut harness = Harness::new(SequenceRules { card_testing, impossible_travel, ..BOTH });
        for (n, (country, amount)) in [("DE", 100), ("DE", 100), ("DE", 100), ("ES", 90_000)].into_iter().enumerate() {
            let id = format!("p{}", n + 1);
            let paid_one = payment(&id, "c1", "m1", amount, 1_000);
            harness.process("c1", &Payment { country: Some(country.to_owned()), ..paid_one });
        }
        harness.advance_watermark(EventTime(1_000));
        let ids: Vec<String> = harness.take_outputs().into_iter().map(|alert| alert.alert_id).collect();
        assert_eq!(ids, [expected]);
    }
}

#[test]
fn lesson_10_a_card_keeps_one_timer_and_is_forgotten_ten_minutes_after_its_last_payment() {
    let mut harness = Harness::new(BOTH);
    for minute in 0..60 {
        let t = minute * 60_000;
        harness.process("c1", &payment("p", "c1", "m1", 100, t));
        assert!(harness.timer_count(TimerDomain::EventTime) <= 2, "its own and the one that forgets");
        harness.advance_watermark(EventTime(t));
        assert_eq!(harness.timer_count(TimerDomain::EventTime), 1);
        assert!(harness.state("c1").unwrap().probes.over_at().is_some());
    }
    let last = 59 * 60_000;
    harness.advance_watermark(EventTime(last + 599_999));
    assert_eq!(harness.key_count(), 1);
    harness.advance_watermark(EventTime(last + 600_000));
    assert_eq!((harness.key_count(), harness.timer_count(TimerDomain::EventTime)), (0, 0));
}

#[test]
fn a_very_long_series_is_cut_at_its_beginning() {
    let mut harness = Harness::new(BOTH);
    for n in 0..1_000 {
        harness.process("c1", &payment(&format!("p{n}"), "c1", "m1", 100, n));
    }
    harness.process("c1", &payment("large", "c1", "m1", 90_000, 1_000));
    harness.advance_watermark(EventTime(1_000));
    let decision = harness.outputs()[0].1.decision.clone().unwrap();
    assert_eq!(decision.payments.len(), card_testing::MAX_PROBES + 1);
    assert_eq!((decision.payments[0].as_str(), decision.payments[20].as_str()), ("p980", "large"));
}
