//! Both variants against the naive model, and what holds of `b` whatever the arrival.

use std::collections::BTreeMap;

use payguard_model::{ConnectionEvent, EventTime, ProcessingTime, Step};
use proptest::prelude::*;

use super::model::Model;
use super::{ArrivalOrder, EventTimeOrder, ReorderOutput, SILENCE_MS, SessionLimits, counter};
use crate::testing::Harness;
use crate::watermark::BoundedOutOfOrderness;
use crate::{KeyedOperator, TimerDomain};

#[derive(Clone, Debug)]
enum Input {
    Event(ConnectionEvent),
    /// Moves the watermark by so much.
    Watermark(i64),
    /// Moves the clock by so much.
    Clock(i64),
    Restart,
}

const LIMITS: SessionLimits = SessionLimits { gap_ms: 30_000, max_events: 6 };
const START: i64 = 1_000_000;

fn event() -> impl Strategy<Value = ConnectionEvent> {
    let time = prop_oneof![4 => 0i64..40_000, 2 => 0i64..400_000, 1 => Just(20_000i64)];
    ("[ab]", 0u8..3, 0u32..4, any::<bool>(), prop::option::of("[xy]"), time).prop_map(
        |(session_id, client, step, ok, reason, time)| ConnectionEvent {
            session_id,
            client_id: format!("c-{client}"),
            step,
            ok,
            reason: reason.filter(|_| !ok),
            event_time_ms: START + time,
        },
    )
}

fn input() -> impl Strategy<Value = Input> {
    let step = prop_oneof![0i64..20_000, Just(30_000), Just(180_000), 0i64..250_000];
    prop_oneof![
        10 => event().prop_map(Input::Event),
        3 => step.clone().prop_map(Input::Watermark),
        1 => step.prop_map(Input::Clock),
        1 => Just(Input::Restart),
    ]
}

/// Runs both and compares every output, in order.
fn compare<O>(operator: O, variant: &'static str, inputs: &[Input]) -> Result<(), TestCaseError>
where
    O: KeyedOperator<Event = ConnectionEvent, Output = ReorderOutput>,
{
    let (mut harness, mut model) = (Harness::new(operator), Model::new(variant, LIMITS));
    let mut watermark = START;
    for input in inputs {
        match input {
            Input::Event(event) => {
                harness.process(&event.session_id, event);
                model.event(event);
            }
            Input::Watermark(by) => {
                watermark += by;
                harness.advance_watermark(EventTime(watermark));
                if *by > 0 || model.watermark() == i64::MIN {
                    model.advance_watermark(watermark);
                }
            }
            Input::Clock(by) => {
                let now = model.now() + by;
                harness.advance_processing_time(ProcessingTime(now));
                if *by > 0 {
                    model.advance_processing_time(now);
                }
            }
            Input::Restart => harness.restart(),
        }
        let found: Vec<_> = harness.outputs().iter().map(|(_, output)| output.clone()).collect();
        prop_assert_eq!(&found, &model.outputs);
        prop_assert_eq!(harness.key_count(), model.sessions());
        prop_assert_eq!(harness.timer_count(TimerDomain::ProcessingTime), model.sessions());
    }
    let events = inputs.iter().filter(|input| matches!(input, Input::Event(_))).count() as u64;
    prop_assert_eq!(harness.counter(counter::EVENTS) + harness.counter(counter::TOO_LATE), events);
    let late = model.outputs.iter().filter(|output| matches!(output, ReorderOutput::Late(_))).count() as u64;
    prop_assert_eq!(harness.counter(counter::TOO_LATE), late);
    let outcomes = [counter::SUCCESS, counter::FAILED, counter::INCOMPLETE].map(|name| harness.counter(name));
    prop_assert_eq!(outcomes.iter().sum::<u64>() + late, model.outputs.len() as u64);
    Ok(())
}

/// Sessions without a pause beyond the gap, no two events of one equal in time and step.
fn sessions() -> impl Strategy<Value = Vec<ConnectionEvent>> {
    let one = prop::collection::vec((0u32..4, any::<bool>(), 0i64..=30_000), 1..10);
    prop::collection::vec((one, 0i64..60_000), 1..6).prop_map(|sessions| {
        let mut events = Vec::new();
        for (number, (steps, from)) in sessions.into_iter().enumerate() {
            let mut time = START + from;
            for (step, ok, pause) in steps {
                time += pause.max(1);
                let reason = (!ok).then(|| format!("{}-{time}", Step::of(step).name()));
                let (session_id, client_id) = (format!("s-{number}"), format!("c-{number}"));
                events.push(ConnectionEvent { session_id, client_id, step, ok, reason, event_time_ms: time });
            }
        }
        events
    })
}

/// Feeds events in an order of arrival as a source does, and ends the input; the verdicts by session.
fn verdicts(arrivals: &[ConnectionEvent]) -> BTreeMap<String, Vec<ReorderOutput>> {
    let mut harness = Harness::new(EventTimeOrder::default());
    let mut watermark = BoundedOutOfOrderness::default();
    for event in arrivals {
        harness.process(&event.session_id, event);
        watermark.observe(EventTime(event.event_time_ms));
        harness.advance_watermark(watermark.watermark());
    }
    harness.advance_watermark(EventTime::MAX);
    assert_eq!(harness.key_count(), 0, "nothing is remembered at the end");
    let mut by_session: BTreeMap<String, Vec<ReorderOutput>> = BTreeMap::new();
    for output in harness.take_outputs() {
        let ReorderOutput::Verdict(verdict) = &output else { panic!("nothing is late: {output:?}") };
        by_session.entry(verdict.session_id.clone()).or_default().push(output.clone());
    }
    by_session
}

proptest! {
    #[test]
    fn by_event_time_equals_the_model(inputs in prop::collection::vec(input(), 0..60)) {
        compare(EventTimeOrder { limits: LIMITS }, "b", &inputs)?;
    }

    #[test]
    fn by_arrival_equals_the_model(inputs in prop::collection::vec(input(), 0..60)) {
        compare(ArrivalOrder { limits: LIMITS }, "a", &inputs)?;
    }

    #[test]
    fn disorder_within_the_bound_changes_nothing_and_every_session_gets_one_verdict(
        mut events in sessions(),
        delays in prop::collection::vec(0i64..=10_000, 60),
    ) {
        events.sort_by_key(|e| (e.event_time_ms, e.session_id.clone()));
        let in_order = verdicts(&events);
        let mut arrivals: Vec<_> = events.iter().zip(&delays).collect();
        arrivals.sort_by_key(|(event, delay)| event.event_time_ms + **delay);
        let arrivals: Vec<_> = arrivals.into_iter().map(|(event, _)| event.clone()).collect();
        prop_assert_eq!(&verdicts(&arrivals), &in_order);
        let mut ids: Vec<_> = events.iter().map(|e| e.session_id.clone()).collect();
        ids.sort();
        ids.dedup();
        prop_assert!(in_order.values().all(|of| of.len() == 1));
        prop_assert_eq!(in_order.into_keys().collect::<Vec<_>>(), ids);
    }

    #[test]
    fn the_earliest_timer_leads_to_the_session_that_was_silent_the_longest(
        steps in prop::collection::vec((0u8..8, 0i64..50_000), 1..60),
        most in 1usize..6,
    ) {
        let mut harness = Harness::new(EventTimeOrder::default());
        let (mut now, mut seen) = (1, BTreeMap::new());
        for (session, pause) in steps {
            // Never so long that somebody is silent for three minutes.
            now += pause.min(SILENCE_MS / 60 - 1);
            harness.advance_processing_time(ProcessingTime(now));
            let id = format!("s-{session}");
            let event = ConnectionEvent { session_id: id.clone(), event_time_ms: START, ..ConnectionEvent::default() };
            harness.process(&id, &event);
            seen.insert(id, now);
            while harness.key_count() > most {
                prop_assert!(harness.fire_earliest());
                if harness.key_count() < seen.len() {
                    let given_up = harness.take_outputs();
                    let [ReorderOutput::Verdict(verdict)] = &given_up[..] else { panic!("one is given up") };
                    prop_assert!(verdict.evicted);
                    let was_seen = seen.remove(&verdict.session_id);
                    prop_assert_eq!(was_seen.as_ref(), seen.values().chain(&was_seen).min());
                }
            }
        }
    }
}
