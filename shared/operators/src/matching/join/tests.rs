use super::*;
use crate::detail::DetailLanguage;
use crate::matching::{MatchEvent, PaymentMatching};
use crate::testing::{Harness, payment};

const JOIN: PaymentMatching = PaymentMatching { join: true, unconfirmed: false, language: DetailLanguage::En };

/// What arrives for payment p1.
enum Step {
    /// A payment of merchant m1: amount, event time.
    Pay(i64, i64),
    /// A confirmation: status, event time.
    Confirm(&'static str, i64),
    /// The smaller of the two watermarks.
    Watermark(i64),
}
use Step::{Confirm, Pay, Watermark};

fn pay(amount: i64, t: i64) -> MatchEvent {
    MatchEvent::Payment(payment("p1", "c1", "m1", amount, t))
}

fn confirm(status: &str, t: i64) -> MatchEvent {
    let status = Some(status.to_owned());
    MatchEvent::Confirmation(PaymentConfirmation { payment_id: "p1".to_owned(), status, event_time_ms: t })
}

fn run(steps: &[Step]) -> Harness<PaymentMatching> {
    let mut harness = Harness::new(JOIN);
    for step in steps {
        match *step {
            Pay(amount, t) => harness.process("p1", &pay(amount, t)),
            Confirm(status, t) => harness.process("p1", &confirm(status, t)),
            Watermark(ms) => harness.advance_watermark(EventTime(ms)),
        }
        harness.restart();
    }
    harness
}

/// (Amount, status, delay) of the pairs.
fn pairs(steps: &[Step]) -> Vec<(i64, String, i64)> {
    let found = run(steps).take_outputs().into_iter().map(|output| {
        let MatchOutput::Confirmed(pair) = output else { panic!("{output:?}") };
        (pair.amount_minor, pair.status.unwrap(), pair.confirmation_delay_ms)
    });
    found.collect()
}

#[test]
fn lesson_9_joins_only_confirmations_inside_the_interval() {
    let mut harness = Harness::new(JOIN);
    let confirmation = |id: &str, t| {
        let status = Some("OK".to_owned());
        MatchEvent::Confirmation(PaymentConfirmation { payment_id: id.to_owned(), status, event_time_ms: t })
    };
    harness.process("p1", &MatchEvent::Payment(payment("p1", "c1", "m1", 100, 1_000)));
    harness.process("p2", &MatchEvent::Payment(payment("p2", "c1", "m1", 200, 2_000)));
    harness.process("p1", &confirmation("p1", 3_000));
    harness.process("p2", &confirmation("p2", 1_000_000));
    let pair = ConfirmedPayment {
        payment_id: "p1".to_owned(),
        merchant_id: "m1".to_owned(),
        amount_minor: 100,
        status: Some("OK".to_owned()),
        confirmation_delay_ms: 2_000,
    };
    let pair = MatchOutput::Confirmed(pair);
    assert_eq!(harness.outputs(), [(EventTime(3_000), pair)], "with the later of the two times");
    harness.advance_watermark(EventTime::MAX);
    assert_eq!((harness.key_count(), harness.timer_count(TimerDomain::EventTime)), (0, 0));
}

#[test]
fn lesson_9_join_table() {
    let table: &[(&str, &[Step], &[(i64, &str, i64)])] = &[
        ("at the payment's time", &[Pay(100, 1_000), Confirm("OK", 1_000)], &[(100, "OK", 0)]),
        ("300,000 ms later", &[Pay(100, 1_000), Confirm("OK", 301_000)], &[(100, "OK", 300_000)]),
        ("300,001 ms later", &[Pay(100, 1_000), Confirm("OK", 301_001)], &[]),
        ("1 ms earlier", &[Pay(100, 1_000), Confirm("OK", 999)], &[]),
        (
            "two confirmations, two pairs",
            &[Pay(100, 1_000), Confirm("OK", 2_000), Confirm("NO", 3_000)],
            &[(100, "OK", 1_000), (100, "NO", 2_000)],
        ),
        ("the confirmation first", &[Confirm("OK", 3_000), Pay(100, 1_000)], &[(100, "OK", 2_000)]),
        (
            "several confirmations first, by time",
            &[Confirm("b", 3_000), Confirm("a", 2_000), Confirm("c", 3_000), Pay(100, 1_000)],
            &[(100, "a", 1_000), (100, "b", 2_000), (100, "c", 2_000)],
        ),
        (
            "several payments first, by time",
            &[Pay(1, 2_000), Pay(2, 1_000), Pay(3, 2_000), Confirm("OK", 2_500)],
            &[(2, "OK", 1_500), (1, "OK", 500), (3, "OK", 500)],
        ),
        ("a payment below the watermark", &[Watermark(1_001), Pay(100, 1_000), Confirm("OK", 2_000)], &[]),
        ("a payment at it", &[Watermark(1_000), Pay(100, 1_000), Confirm("OK", 2_000)], &[(100, "OK", 1_000)]),
        ("a confirmation below the watermark", &[Pay(100, 1_000), Watermark(2_001), Confirm("OK", 2_000)], &[]),
        ("a confirmation at it", &[Pay(100, 1_000), Watermark(2_000), Confirm("OK", 2_000)], &[(100, "OK", 1_000)]),
        ("a payment is removed at 300,000", &[Pay(100, 1_000), Watermark(301_000), Confirm("OK", 301_000)], &[]),
        ("and not before", &[Pay(100, 1_000), Watermark(300_999), Confirm("OK", 301_000)], &[(100, "OK", 300_000)]),
        ("a confirmation is removed at its time", &[Confirm("OK", 5_000), Watermark(5_000), Pay(100, 5_000)], &[]),
        ("and not before that", &[Confirm("OK", 5_000), Watermark(4_999), Pay(100, 5_000)], &[(100, "OK", 0)]),
    ];
    for &(name, steps, expected) in table {
        let found = pairs(steps);
        let found: Vec<(i64, &str, i64)> =
            found.iter().map(|(amount, status, t)| (*amount, status.as_str(), *t)).collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn lesson_9_what_is_dropped_is_counted() {
    let harness = run(&[Watermark(5_000), Pay(1, 4_999), Pay(1, 5_000), Confirm("OK", 4_999), Confirm("OK", 0)]);
    assert_eq!((harness.counter(LATE_PAYMENTS), harness.counter(LATE_CONFIRMATIONS)), (1, 2));
}

#[test]
fn lesson_9_a_status_is_passed_on_as_it_is() {
    for status in [None, Some(""), Some("DECLINED")] {
        let mut harness = Harness::new(JOIN);
        let confirmation = PaymentConfirmation {
            payment_id: "p1".to_owned(),
            status: status.map(str::to_owned),
            event_time_ms: 1_000,
        };
        harness.process("p1", &MatchEvent::Confirmation(confirmation));
        harness.process("p1", &pay(1, 1_000));
        let [(_, MatchOutput::Confirmed(pair))] = harness.outputs() else { panic!("{:?}", harness.outputs()) };
        assert_eq!(pair.status.as_deref(), status);
    }
}
