use super::*;
use crate::testing::{Harness, payment};

fn profile(payment_count: i64, total_amount_minor: i64, country: Option<&str>) -> CardProfile {
    CardProfile { payment_count, total_amount_minor, last_country: country.map(str::to_owned) }
}

#[test]
fn lesson_13_accumulates_per_card() {
    let mut harness = Harness::new(CardProfiles);
    harness.process("c1", &payment("p1", "c1", "m1", 100, 1_000));
    harness.process("c2", &payment("p3", "c2", "m1", 7, 1_500));
    harness.process("c1", &payment("p2", "c1", "m1", 200, 2_000));
    let expected = [
        (EventTime(1_000), profile(1, 100, Some("DE"))),
        (EventTime(1_500), profile(1, 7, Some("DE"))),
        (EventTime(2_000), profile(2, 300, Some("DE"))),
    ];
    assert_eq!(harness.outputs(), expected);
}

#[test]
fn lesson_13_the_country_is_that_of_the_payment_handled_last() {
    let mut harness = Harness::new(CardProfiles);
    harness.advance_watermark(EventTime(1_000_000));
    for (country, t) in [(Some("FR"), 900_000), (Some("DE"), 1_000), (None, 2_000)] {
        let payment = Payment { country: country.map(str::to_owned), ..payment("p", "c1", "m1", 10, t) };
        harness.process("c1", &payment);
        harness.restart();
    }
    let expected = [profile(1, 10, Some("FR")), profile(2, 20, Some("DE")), profile(3, 30, None)];
    assert_eq!(harness.take_outputs(), expected, "late payments count");
}

#[test]
fn lesson_13_a_profile_has_no_timer_and_is_kept() {
    let mut harness = Harness::new(CardProfiles);
    harness.process("c1", &payment("p1", "c1", "m1", 100, 1_000));
    assert!(harness.timers("c1").is_some_and(crate::Timers::is_empty));
    harness.advance_watermark(EventTime::MAX);
    assert_eq!(harness.state("c1"), Some(&profile(1, 100, Some("DE"))));
}
