use payguard_model::{EventTime, FraudAlert};

use super::*;
use crate::detail::DetailLanguage;
use crate::matching::{MatchEvent, PaymentMatching};
use crate::testing::{Harness, payment};

const RULE: PaymentMatching = PaymentMatching { join: false, unconfirmed: true, language: DetailLanguage::Ru };

/// What arrives for payment p1.
#[derive(Clone, Copy)]
enum Step {
    /// The payment, at this event time.
    Pay(i64),
    /// A confirmation, at this event time.
    Confirm(i64),
    /// The smaller of the two watermarks.
    Watermark(i64),
}
use Step::{Confirm, Pay, Watermark};

fn run(steps: &[Step]) -> Harness<PaymentMatching> {
    let mut harness = Harness::new(RULE);
    for &step in steps {
        match step {
            Pay(t) => harness.process("p1", &MatchEvent::Payment(payment("p1", "c1", "m1", 100, t))),
            Confirm(t) => harness.process("p1", &MatchEvent::Confirmation(confirmation(t))),
            Watermark(ms) => harness.advance_watermark(EventTime(ms)),
        }
        harness.restart();
    }
    harness
}

fn confirmation(t: i64) -> PaymentConfirmation {
    PaymentConfirmation { payment_id: "p1".to_owned(), status: Some("OK".to_owned()), event_time_ms: t }
}

/// How many alerts.
fn alerts(steps: &[Step]) -> usize {
    run(steps).outputs().len()
}

#[test]
fn lesson_9_alerts_when_the_confirmation_never_arrives() {
    let trigger = Payment { source_partition: 1, source_offset: 9, ..payment("p1", "c1", "m1", 100, 1_000) };
    let mut harness = Harness::new(RULE);
    harness.process("p1", &MatchEvent::Payment(trigger.clone()));
    harness.advance_watermark(EventTime(301_000));
    let alert = FraudAlert::of("unconfirmed", &trigger, "нет подтверждения за 300 секунд".to_owned());
    let alert = MatchOutput::Alert(alert.with_fact("timeout_ms", 300_000));
    assert_eq!(harness.outputs(), [(EventTime(301_000), alert)]);
    assert_eq!((harness.key_count(), harness.timer_count(TimerDomain::EventTime)), (0, 0));
}

#[test]
fn lesson_9_a_confirmation_in_time_leaves_nothing() {
    let harness = run(&[Pay(1_000), Confirm(5_000)]);
    assert_eq!((harness.key_count(), harness.timer_count(TimerDomain::EventTime)), (0, 0));
    assert_eq!(alerts(&[Pay(1_000), Confirm(5_000), Watermark(301_000)]), 0);
}

#[test]
fn lesson_9_unconfirmed_table() {
    let table: &[(&str, &[Step], usize)] = &[
        ("a confirmation before the payment counts", &[Confirm(900), Pay(1_000), Watermark(3_000_000)], 0),
        ("not until the slower input catches up", &[Pay(1_000), Watermark(1_000)], 0),
        ("not before the payment's time + 300 s", &[Pay(1_000), Watermark(300_999)], 0),
        ("a confirmation of any time counts", &[Pay(1_000), Confirm(900_000), Watermark(301_000)], 0),
        ("one behind the watermark, too", &[Pay(1_000), Watermark(200_000), Confirm(1), Watermark(301_000)], 0),
        ("after the alert it does not", &[Pay(1_000), Watermark(301_000), Confirm(2_000)], 1),
        (
            "an orphan is kept until its time + 300 s",
            &[Confirm(900), Watermark(300_899), Pay(1_000), Watermark(400_000)],
            0,
        ),
        ("and removed then", &[Confirm(900), Watermark(300_900), Pay(1_000), Watermark(400_000)], 1),
        ("past its deadline, when the watermark moves", &[Watermark(500_000), Pay(1_000), Watermark(500_001)], 1),
        ("and not before it moves", &[Watermark(500_000), Pay(1_000)], 0),
        ("the end of the input", &[Pay(1_000), Watermark(i64::MAX)], 1),
        ("at the end of the scale", &[Pay(i64::MAX), Watermark(i64::MAX)], 1),
        (
            "the first payment uses it up, and its timer ends the next one's wait",
            &[Confirm(900), Pay(1_000), Pay(2_000), Watermark(300_900)],
            1,
        ),
        (
            "a payment that replaces another is told of when the first one's time comes",
            &[Pay(1_000), Pay(2_000), Watermark(301_000)],
            1,
        ),
        ("and the timer of its own finds nothing", &[Pay(1_000), Pay(2_000), Watermark(900_000)], 1),
        (
            "but ends the wait of a third",
            &[Pay(1_000), Pay(2_000), Watermark(301_000), Pay(3_000), Watermark(302_000)],
            2,
        ),
        ("a second confirmation changes nothing", &[Pay(1_000), Confirm(2_000), Confirm(3_000), Watermark(900_000)], 0),
    ];
    for &(name, steps, expected) in table {
        assert_eq!(alerts(steps), expected, "{name}");
        let steps: Vec<Step> = steps.iter().copied().chain([Watermark(i64::MAX - 1), Watermark(i64::MAX)]).collect();
        assert_eq!(run(&steps).key_count(), 0, "{name}: nothing is left");
    }
}

#[test]
fn lesson_9_an_orphaned_confirmation_is_forgotten() {
    let mut harness = run(&[Pay(1_000), Confirm(2_000), Confirm(3_000)]);
    assert_eq!(harness.key_count(), 1);
    harness.advance_watermark(EventTime(302_999));
    assert_eq!(harness.key_count(), 1);
    harness.advance_watermark(EventTime(303_000));
    assert_eq!((harness.key_count(), harness.outputs().len()), (0, 0));
}
