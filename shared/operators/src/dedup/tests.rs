use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct Seen(HashMap<String, ProcessingTime>);

impl SeenIds for Seen {
    fn written_at(&self, id: &str) -> Option<ProcessingTime> {
        self.0.get(id).copied()
    }

    fn write(&mut self, id: &str, at: ProcessingTime) {
        self.0.insert(id.to_owned(), at);
    }
}

fn arrivals(steps: &[(&str, i64)]) -> Vec<Arrival> {
    let mut seen = Seen::default();
    steps.iter().map(|&(id, now)| first_arrival(&mut seen, id, ProcessingTime(now))).collect()
}

#[test]
fn lesson_7_repeats_are_dropped() {
    use Arrival::{Duplicate, First};
    assert_eq!(arrivals(&[("p1", 0), ("p1", 0), ("p2", 0)]), [First, Duplicate, First]);
}

#[test]
fn lesson_7_a_payment_is_forgotten_after_the_ttl() {
    use Arrival::{Duplicate, First};
    let table = [
        ("1 ms before", REMEMBER_FOR_MS - 1, Duplicate),
        ("exactly an hour later", REMEMBER_FOR_MS, First),
        ("the lesson's test", REMEMBER_FOR_MS + 1, First),
        ("the clock was set back", -5, Duplicate),
    ];
    for (name, now, expected) in table {
        assert_eq!(arrivals(&[("p1", 0), ("p1", now)])[1], expected, "{name}");
    }
}

#[test]
fn lesson_7_a_repeat_does_not_prolong_the_ttl() {
    use Arrival::{Duplicate, First};
    assert_eq!(arrivals(&[("p1", 0), ("p1", 3_000_000), ("p1", 3_600_000)]), [First, Duplicate, First]);
}

#[test]
fn lesson_7_ttl_runs_by_processing_time() {
    use Arrival::{Duplicate, First};
    // A backlog of two hours of event time passes in minutes of processing time: its repeats are still caught.
    assert_eq!(arrivals(&[("p1", 0), ("p1", 300_000)]), [First, Duplicate]);
    // A repeat 61 minutes later by the clock passes, however near it is by event time.
    assert_eq!(arrivals(&[("p1", 0), ("p1", 61 * 60_000)]), [First, First]);
}

#[test]
fn the_ends_of_the_scale_do_not_overflow() {
    assert!(!is_expired(ProcessingTime(i64::MAX - 1), ProcessingTime(0)));
    assert!(is_expired(ProcessingTime(i64::MIN), ProcessingTime(i64::MAX)));
}

proptest! {
    /// An arrival is first exactly when no first arrival of its id lies within the hour before.
    #[test]
    fn agrees_with_the_list_of_first_arrivals(
        steps in prop::collection::vec((0..3_usize, 0..2_000_000_i64), 0..40),
    ) {
        let mut seen = Seen::default();
        let mut firsts: Vec<(usize, i64)> = Vec::new();
        let mut now = 0;
        for (id, later) in steps {
            now += later;
            let is_known = firsts.iter().any(|&(other, at)| other == id && at > now - REMEMBER_FOR_MS);
            let arrival = first_arrival(&mut seen, &id.to_string(), ProcessingTime(now));
            prop_assert_eq!(arrival == Arrival::Duplicate, is_known);
            if !is_known {
                firsts.push((id, now));
            }
        }
    }
}
