use payguard_model::RISK_NOT_LOADED;

use super::*;
use crate::testing::{Harness, payment_on_card};

fn rule(limit: i64) -> Harness<VelocityRule> {
    Harness::new(VelocityRule { limit, language: DetailLanguage::Ru })
}

/// Payments p1, p2, … of card c1 at these times; the ids of the alerts.
fn alerts(limit: i64, times: &[i64]) -> Vec<String> {
    let mut harness = rule(limit);
    for (n, &t) in times.iter().enumerate() {
        harness.process("c1", &payment_on_card(&format!("p{}", n + 1), "c1", t));
    }
    harness.take_outputs().into_iter().map(|alert| alert.alert_id).collect()
}

#[test]
fn lesson_7_alert_table() {
    let burst: Vec<i64> = (1_000..1_025).collect();
    let eleven = [&[2_000; 6][..], &[65_000; 5][..]].concat();
    let table: &[(&str, i64, &[i64], &[&str])] = &[
        ("three payments at limit 3", 3, &[1_000, 2_000, 3_000], &[]),
        ("the fourth alerts", 3, &[1_000, 2_000, 3_000, 4_000], &["velocity:p4"]),
        ("one alert a minute", 3, &[1_000, 2_000, 3_000, 4_000, 5_000, 6_000], &["velocity:p4"]),
        ("burst of 25", 10, &burst, &["velocity:p11"]),
        ("6 at 2 s, 5 at 65 s", 10, &eleven, &["velocity:p11"]),
        ("bucket counted at 69,999", 1, &[0, 69_999], &["velocity:p2"]),
        ("bucket not counted at 70,000", 1, &[0, 70_000], &[]),
        ("late payment counts newer buckets", 3, &[61_000, 62_000, 63_000, 30_000], &["velocity:p4"]),
        ("silent up to 59,999 ms", 1, &[1_000, 2_000, 61_999], &["velocity:p2"]),
        ("again at 60,000 ms", 1, &[1_000, 2_000, 61_000, 62_000], &["velocity:p2", "velocity:p4"]),
        ("late, before the last alert", 1, &[11_000, 12_000, 5_000], &["velocity:p2"]),
        ("limit 0 alerts on the first", 0, &[1_000], &["velocity:p1"]),
    ];
    for &(name, limit, times, expected) in table {
        assert_eq!(alerts(limit, times), expected, "{name}");
    }
}

#[test]
fn lesson_7_the_alert_tells_the_payment_that_triggered_it() {
    let mut harness = rule(3);
    for (id, t) in [("p1", 61_000), ("p2", 62_000), ("p3", 63_000), ("p4", 30_000)] {
        harness.process("c1", &payment_on_card(id, "c1", t));
    }
    let alert = FraudAlert {
        alert_id: "velocity:p4".to_owned(),
        rule_id: "velocity".to_owned(),
        card_id: "c1".to_owned(),
        merchant_id: "m1".to_owned(),
        payment_id: "p4".to_owned(),
        detail: "4 платежей за минуту".to_owned(),
        event_time_ms: 30_000,
        merchant_risk: RISK_NOT_LOADED.to_owned(),
        decision: None,
    }
    .with_fact("payments", 4)
    .with_fact("limit", 3);
    assert_eq!(harness.outputs(), [(EventTime(30_000), alert)]);
}

#[test]
fn lesson_7_detail_is_in_the_configured_language() {
    for (language, detail) in
        [(DetailLanguage::Ru, "2 платежей за минуту"), (DetailLanguage::En, "2 payments within a minute")]
    {
        let mut harness = Harness::new(VelocityRule { limit: 1, language });
        harness.process("c1", &payment_on_card("p1", "c1", 1_000));
        harness.process("c1", &payment_on_card("p2", "c1", 1_000));
        assert_eq!(harness.outputs()[0].1.detail, detail);
    }
}

#[test]
fn lesson_7_cards_are_separate() {
    let mut harness = rule(3);
    for (id, card, t) in [("p1", "c1", 1_000), ("p2", "c1", 2_000), ("p3", "c2", 3_000), ("p4", "c2", 4_000)] {
        harness.process(card, &payment_on_card(id, card, t));
    }
    assert!(harness.outputs().is_empty());
    assert_eq!(harness.key_count(), 2);
}

#[test]
fn lesson_7_buckets_are_evicted_by_one_timer_of_event_time() {
    let mut harness = rule(3);
    for (id, t) in [("p1", 1_000), ("p2", 2_000), ("p3", 3_000)] {
        harness.process("c1", &payment_on_card(id, "c1", t));
    }
    assert_eq!(harness.timers("c1").unwrap().event[..], [70_000]);
    harness.advance_watermark(EventTime(69_999));
    assert_eq!(harness.timer_count(TimerDomain::EventTime), 1);
    harness.advance_watermark(EventTime(200_000));
    assert_eq!(harness.timer_count(TimerDomain::EventTime), 0);
    assert_eq!(harness.key_count(), 0, "nothing is left of the card");
    harness.process("c1", &payment_on_card("p4", "c1", 201_000));
    assert!(harness.outputs().is_empty());
}

#[test]
fn lesson_7_a_timer_evicts_its_own_bucket_only() {
    let mut harness = rule(2);
    for (id, t) in [("p1", 1_000), ("p2", 12_000)] {
        harness.process("c1", &payment_on_card(id, "c1", t));
    }
    harness.advance_watermark(EventTime(70_000));
    harness.process("c1", &payment_on_card("p3", "c1", 71_000));
    assert!(harness.outputs().is_empty(), "two of three are left");
    harness.process("c1", &payment_on_card("p4", "c1", 71_000));
    assert_eq!(harness.outputs().len(), 1);
}

#[test]
fn lesson_7_a_timer_in_the_past_fires_with_the_next_watermark() {
    let mut harness = rule(1);
    harness.advance_watermark(EventTime(500_000));
    harness.process("c1", &payment_on_card("p1", "c1", 1_000));
    assert_eq!(harness.timer_count(TimerDomain::EventTime), 1);
    harness.process("c1", &payment_on_card("p2", "c1", 1_000));
    assert_eq!(harness.take_outputs().len(), 1, "late payments are not dropped");
    harness.advance_watermark(EventTime(500_001));
    assert_eq!(harness.timer_count(TimerDomain::EventTime), 0);
}

#[test]
fn lesson_7_the_last_alert_is_not_forgotten() {
    let mut harness = rule(1);
    harness.process("c1", &payment_on_card("p1", "c1", 1_000));
    harness.process("c1", &payment_on_card("p2", "c1", 2_000));
    harness.advance_watermark(EventTime(1_000_000));
    assert_eq!(harness.key_count(), 1);
    // Two payments, older than the alert by event time and far too late: still silent, as in the course.
    harness.process("c1", &payment_on_card("p3", "c1", 1_500));
    harness.process("c1", &payment_on_card("p4", "c1", 1_500));
    assert_eq!(harness.outputs().len(), 1);
}

#[test]
fn the_ends_of_the_scale_do_not_overflow() {
    let mut harness = rule(1);
    for t in [i64::MAX, i64::MAX - 1, i64::MIN, i64::MIN, 1, i64::MAX - 60_000] {
        harness.process("c1", &payment_on_card("p", "c1", t));
    }
    harness.advance_watermark(EventTime::MAX);
    assert_eq!(harness.timer_count(TimerDomain::EventTime), 0);
    assert!(harness.state("c1").is_some_and(|state| state.buckets.is_empty()));
}
