use proptest::prelude::*;

use super::*;

const NOON: i64 = 43_200_000;

fn after(times: &[i64]) -> EventTime {
    let mut generator = BoundedOutOfOrderness::default();
    times.iter().for_each(|&t| generator.observe(EventTime(t)));
    generator.watermark()
}

#[test]
fn lesson_5_no_watermark_before_the_first_record() {
    assert_eq!(after(&[]), EventTime::MIN);
    assert_eq!(BoundedOutOfOrderness::restore(None).watermark(), EventTime::MIN);
}

#[test]
fn lesson_5_watermark_is_the_newest_event_less_10_s_and_1_ms() {
    let (five, twelve, nine) = (NOON + 5_000, NOON + 12_000, NOON + 9_000);
    assert_eq!(after(&[five]), EventTime(NOON - 5_001));
    assert_eq!(after(&[five, twelve]), EventTime(NOON + 1_999), "12:00:01.999");
    assert!(EventTime(nine) > after(&[five, twelve]), "12:00:09 is out of order but not late");
    assert_eq!(after(&[five, twelve, nine]), EventTime(NOON + 1_999), "an older event changes nothing");
    assert!(EventTime(NOON + 1_000) <= after(&[five, twelve, nine]), "12:00:01 is late");
    assert!(EventTime(NOON + 2_000) > after(&[five, twelve, nine]), "12:00:02 is not");
}

#[test]
fn lesson_5_a_restored_generator_continues() {
    let mut generator = BoundedOutOfOrderness::default();
    generator.observe(EventTime(50_000));
    let mut restored = BoundedOutOfOrderness::restore(generator.max_event_time());
    restored.observe(EventTime(40_000));
    assert_eq!(restored, generator);
}

#[test]
fn lesson_5_combination_table() {
    let (active, idle) = (false, true);
    let table: &[(&str, &[(i64, bool)], (i64, bool))] = &[
        ("no inputs", &[], (i64::MIN, false)),
        ("minimum of the active", &[(100, active), (50, active)], (50, false)),
        ("an idle input does not hold back", &[(100, active), (50, idle)], (100, false)),
        ("an idle input does not push", &[(100, active), (500, idle)], (100, false)),
        ("an input without a record holds back", &[(100, active), (i64::MIN, active)], (i64::MIN, false)),
        ("all idle, 5 first", &[(5, idle), (4, idle)], (5, true)),
        ("all idle, 4 first", &[(4, idle), (5, idle)], (5, true)),
        ("back with old events", &[(100, idle), (20, active)], (20, false)),
        ("one that never had a record, idle", &[(i64::MIN, idle)], (i64::MIN, true)),
        ("ended", &[(i64::MAX, active), (7, active)], (7, false)),
    ];
    for &(name, inputs, (watermark, is_idle)) in table {
        let inputs = inputs.iter().map(|&(watermark, idle)| (EventTime(watermark), idle));
        assert_eq!(combine(inputs), (EventTime(watermark), is_idle), "{name}");
    }
}

proptest! {
    #[test]
    fn a_watermark_never_goes_back(times in prop::collection::vec(any::<i64>(), 0..20)) {
        let mut generator = BoundedOutOfOrderness::default();
        for (seen, &t) in times.iter().enumerate() {
            let before = generator.watermark();
            generator.observe(EventTime(t));
            prop_assert!(generator.watermark() >= before);
            let newest = times[..=seen].iter().max().copied().unwrap_or(i64::MIN);
            prop_assert_eq!(generator.watermark().0, newest.saturating_sub(10_001));
        }
    }

    #[test]
    fn combination_does_not_depend_on_the_order_of_inputs(
        inputs in prop::collection::vec((any::<i64>(), any::<bool>()), 0..6),
    ) {
        let forward = combine(inputs.iter().map(|&(watermark, idle)| (EventTime(watermark), idle)));
        let backward = combine(inputs.iter().rev().map(|&(watermark, idle)| (EventTime(watermark), idle)));
        prop_assert_eq!(forward, backward);
    }
}
