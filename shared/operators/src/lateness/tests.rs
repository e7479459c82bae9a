use super::*;

#[test]
fn lesson_5_late_events_are_counted_and_measured() {
    let mut probe = LatenessProbe::default();
    assert_eq!(probe.observe(EventTime(5_000), EventTime::MIN), None, "nothing is late before the first watermark");
    assert_eq!(probe.observe(EventTime(4_000), EventTime(10_000)), Some(6_000));
    assert_eq!(probe.late_events(), 1);
    assert_eq!(probe.percentile(99.0), Some(6_000.0));
}

#[test]
fn lesson_5_an_event_at_the_watermark_is_late() {
    let mut probe = LatenessProbe::default();
    assert_eq!(probe.observe(EventTime(10_001), EventTime(10_000)), None);
    assert_eq!(probe.observe(EventTime(10_000), EventTime(10_000)), Some(0));
    assert_eq!(probe.late_events(), 1);
}

#[test]
fn nothing_late_has_no_percentile() {
    assert_eq!(LatenessProbe::default().percentile(50.0), None);
}

#[test]
fn percentiles_are_interpolated_between_the_values() {
    let mut probe = LatenessProbe::default();
    for behind in [40, 10, 30, 20] {
        probe.observe(EventTime(100 - behind), EventTime(100));
    }
    let table = [(0.0, 10.0), (19.9, 10.0), (20.0, 10.0), (50.0, 25.0), (75.0, 37.5), (80.0, 40.0), (100.0, 40.0)];
    for (p, expected) in table {
        assert_eq!(probe.percentile(p), Some(expected), "p{p}");
    }
}

#[test]
fn lesson_5_only_the_last_10_000_values_count() {
    let mut probe = LatenessProbe::default();
    for behind in 0..15_000 {
        probe.observe(EventTime(-behind), EventTime(0));
    }
    assert_eq!(probe.late_events(), 15_000);
    assert_eq!(probe.percentile(0.0), Some(5_000.0));
    assert_eq!(probe.percentile(100.0), Some(14_999.0));
    assert_eq!(probe.percentile(50.0), Some(9_999.5));
}

#[test]
fn the_ends_of_the_scale_do_not_overflow() {
    let mut probe = LatenessProbe::default();
    assert_eq!(probe.observe(EventTime::MIN, EventTime::MAX), Some(i64::MAX));
    assert_eq!(probe.observe(EventTime::MAX, EventTime::MIN), None);
}
