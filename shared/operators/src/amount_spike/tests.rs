use super::*;
use crate::testing::{Harness, payment};

/// Payments p1, p2, … of card c1, limit 1,000; (alert id, detail) of the alerts.
fn alerts(payments: &[(i64, i64)]) -> Vec<(String, String)> {
    let mut harness = Harness::new(AmountSpikeRule { limit: 1_000, language: DetailLanguage::Ru });
    for (n, &(amount, t)) in payments.iter().enumerate() {
        harness.process("c1", &payment(&format!("p{}", n + 1), "c1", "m1", amount, t));
    }
    harness.take_outputs().into_iter().map(|alert| (alert.alert_id, alert.detail)).collect()
}

#[test]
fn lesson_7_alert_table() {
    let second = ("amount-spike:p2", "потрачено 1200 за 10 минут");
    let table: &[(&str, &[(i64, i64)], &[(&str, &str)])] = &[
        ("one payment", &[(600, 1_000)], &[]),
        ("5 minutes apart", &[(600, 1_000), (600, 300_000)], &[second]),
        ("more than 10 minutes apart", &[(600, 1_000), (600, 700_000)], &[]),
        ("counted at 659,999", &[(600, 1_000), (600, 659_999)], &[second]),
        ("not counted at 660,000", &[(600, 1_000), (600, 660_000)], &[]),
        ("exactly the limit", &[(500, 1_000), (500, 2_000)], &[]),
        ("one above the limit", &[(1_001, 1_000)], &[("amount-spike:p1", "потрачено 1001 за 10 минут")]),
        ("silent up to 599,999 ms", &[(600, 1_000), (600, 2_000), (600, 601_999)], &[second]),
        (
            "again at 600,000 ms",
            &[(600, 1_000), (600, 2_000), (600, 602_000)],
            &[second, ("amount-spike:p3", "потрачено 1800 за 10 минут")],
        ),
    ];
    for &(name, payments, expected) in table {
        let found = alerts(payments);
        let found: Vec<(&str, &str)> = found.iter().map(|(id, detail)| (id.as_str(), detail.as_str())).collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn lesson_7_at_most_one_timer_per_bucket_and_eleven_buckets() {
    let mut harness = Harness::new(AmountSpikeRule { limit: i64::MAX, language: DetailLanguage::En });
    for second in 0..3_600 {
        let t = second * 1_000;
        harness.process("c1", &payment("p", "c1", "m1", 1, t));
        harness.advance_watermark(EventTime(t));
        let buckets = harness.state("c1").unwrap().buckets.len();
        assert!(buckets <= 11, "{buckets} buckets at {t}");
        assert_eq!(harness.timer_count(TimerDomain::EventTime), buckets);
    }
}

#[test]
fn sums_saturate() {
    let mut harness = Harness::new(AmountSpikeRule { limit: 1_000, language: DetailLanguage::En });
    harness.process("c1", &payment("p1", "c1", "m1", i64::MAX, i64::MAX));
    harness.process("c1", &payment("p2", "c1", "m1", i64::MAX, i64::MAX));
    assert_eq!(harness.outputs()[0].1.detail, "9223372036854775807 spent within 10 minutes");
    assert_eq!(harness.outputs().len(), 1);
    harness.advance_watermark(EventTime::MAX);
    assert_eq!(harness.timer_count(TimerDomain::EventTime), 0);
}
