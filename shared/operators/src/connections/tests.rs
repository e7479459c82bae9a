//! The statements of the specification, one by one.

use payguard_model::{ConnectionEvent, ConnectionVerdict, EventTime, Outcome, ProcessingTime, Step};

use super::{ArrivalOrder, ChainEvent, EventTimeOrder, ReorderOutput, SessionLimits, counter, judge};
use crate::testing::Harness;
use crate::{KeyedOperator, TimerDomain};

const START: i64 = 1_000_000;
const GAP: i64 = 30_000;

/// Events as text: `auth:ok@0 assoc:fail@5`, milliseconds after [`START`].
fn events(text: &str) -> Vec<ConnectionEvent> {
    let event = |word: &str| {
        let (step, rest) = word.split_once(':').unwrap();
        let (status, at) = rest.split_once('@').unwrap();
        let ok = status == "ok";
        ConnectionEvent {
            session_id: "s".to_owned(),
            client_id: "c".to_owned(),
            step: Step::named(step).unwrap().number(),
            ok,
            reason: (!ok).then(|| format!("{step} at {at}")),
            event_time_ms: START + at.parse::<i64>().unwrap(),
        }
    };
    text.split_whitespace().map(event).collect()
}

fn chain(text: &str) -> Vec<ChainEvent> {
    let link = |e: &ConnectionEvent| ChainEvent::new(e.event_time_ms - START, e.step(), e.ok, u32::from(!e.ok));
    events(text).iter().map(link).collect()
}

fn harness() -> Harness<EventTimeOrder> {
    at_start(EventTimeOrder::default())
}

fn at_start<O: KeyedOperator>(operator: O) -> Harness<O> {
    let mut harness = Harness::new(operator);
    harness.advance_watermark(EventTime(START - 10_000));
    harness
}

fn feed<O>(harness: &mut Harness<O>, text: &str)
where
    O: KeyedOperator<Event = ConnectionEvent, Output = ReorderOutput>,
{
    for event in events(text) {
        harness.process(&event.session_id, &event);
    }
}

/// Moves the watermark to so many milliseconds after [`START`]; the verdicts that come.
fn watermark<O>(harness: &mut Harness<O>, after: i64) -> Vec<ConnectionVerdict>
where
    O: KeyedOperator<Event = ConnectionEvent, Output = ReorderOutput>,
{
    harness.advance_watermark(EventTime(START + after));
    let verdict = |output| match output {
        ReorderOutput::Verdict(verdict) => verdict,
        ReorderOutput::Late(event) => panic!("{event:?} is late"),
    };
    harness.take_outputs().into_iter().map(verdict).collect()
}

fn steps(verdict: &ConnectionVerdict) -> Vec<u8> {
    verdict.steps.clone()
}

fn codes(text: &str) -> Vec<u8> {
    events(text).iter().map(|e| ConnectionVerdict::code(e.step(), e.ok)).collect()
}

#[test]
fn a_chain_is_read_as_it_is_written() {
    use Outcome::{Failed, Incomplete, Success};
    let cases = [
        ("", Incomplete, None),
        ("auth:ok@0 assoc:ok@1 dhcp:ok@2 dns:ok@3", Success, None),
        ("auth:ok@0 assoc:ok@0 dhcp:ok@0 dns:ok@0", Success, None),
        ("auth:ok@0 assoc:ok@1 dhcp:ok@2", Incomplete, None),
        ("assoc:ok@1 dhcp:ok@2 dns:ok@3", Incomplete, None),
        // The last event decides its step.
        ("auth:ok@0 auth:fail@1", Failed, Some(Step::Auth)),
        ("auth:fail@0 auth:ok@1 assoc:ok@2 dhcp:ok@3 dns:ok@4", Success, None),
        ("auth:fail@0 auth:fail@1 auth:ok@2 assoc:ok@3 dhcp:ok@4 dns:ok@5", Success, None),
        // A retry after a later step succeeded heals nothing.
        ("auth:fail@0 assoc:ok@1 auth:ok@2 dhcp:ok@3 dns:ok@4", Failed, Some(Step::Auth)),
        ("auth:ok@0 assoc:ok@1 dhcp:fail@2 dns:ok@3 dhcp:ok@4", Failed, Some(Step::Dhcp)),
        ("auth:fail@0 assoc:fail@1 auth:ok@2 assoc:ok@3 dhcp:ok@4 dns:ok@5", Success, None),
        // Healed once, another success of the step does no harm.
        ("auth:fail@0 auth:ok@1 assoc:ok@2 auth:ok@2 dhcp:ok@3 dns:ok@4", Success, None),
        // The first failed step in the order of steps, not of time.
        ("dns:fail@0 assoc:fail@1", Failed, Some(Step::Assoc)),
        // All four, but one before the step that it follows.
        ("auth:ok@0 dhcp:ok@1 assoc:ok@2 dns:ok@3", Incomplete, None),
        ("auth:ok@0 assoc:ok@1 dhcp:ok@2 dns:ok@3 auth:ok@9", Incomplete, None),
        ("auth:ok@0 assoc:ok@1 dhcp:ok@2 dns:ok@3 dns:ok@9", Success, None),
    ];
    for (text, outcome, failed) in cases {
        let judgement = judge(&chain(text));
        assert_eq!((judgement.outcome, judgement.failed), (outcome, failed), "{text}");
        assert_eq!(judgement.reason, u32::from(failed.is_some()), "{text}");
    }
}

#[test]
fn a_session_closes_when_the_watermark_passes_its_newest_event_by_the_gap() {
    let mut harness = harness();
    feed(&mut harness, "auth:ok@0 assoc:ok@10 dhcp:ok@20 dns:ok@500");
    assert_eq!(harness.timer_count(TimerDomain::EventTime), 1, "one timer, however many events");
    assert_eq!(watermark(&mut harness, 500 + GAP - 1), []);
    let verdicts = watermark(&mut harness, 500 + GAP);
    let [verdict] = &verdicts[..] else { panic!("{verdicts:?}") };
    let expected = ConnectionVerdict {
        session_id: "s".to_owned(),
        client_id: "c".to_owned(),
        variant: "b".to_owned(),
        outcome: Outcome::Success.number(),
        steps: codes("auth:ok@0 assoc:ok@0 dhcp:ok@0 dns:ok@0"),
        started_at_ms: START,
        duration_ms: 500,
        ..ConnectionVerdict::default()
    };
    assert_eq!(*verdict, expected);
}

#[test]
fn events_are_read_by_time_then_step_then_arrival() {
    let mut harness = harness();
    feed(&mut harness, "dns:ok@9 dhcp:ok@9 auth:ok@1 assoc:fail@5 assoc:ok@5 assoc:ok@2 auth:fail@0");
    let verdict = watermark(&mut harness, 9 + GAP).remove(0);
    let read = "auth:fail@0 auth:ok@1 assoc:ok@2 assoc:fail@5 assoc:ok@5 dhcp:ok@9 dns:ok@9";
    assert_eq!((steps(&verdict), verdict.outcome()), (codes(read), Outcome::Success));
}

#[test]
fn the_reason_of_the_failed_step_is_told() {
    let mut harness = harness();
    feed(&mut harness, "auth:ok@0 assoc:fail@2 assoc:fail@1");
    let verdict = watermark(&mut harness, 2 + GAP).remove(0);
    assert_eq!(verdict.failed_step, Some(Step::Assoc.number()));
    assert_eq!(verdict.reason.as_deref(), Some("assoc at 2"));
}

#[test]
fn read_by_arrival_a_retry_that_overtakes_its_failure_is_a_false_failure() {
    let text = "auth:ok@100 auth:fail@0 assoc:ok@200 dhcp:ok@300 dns:ok@400";
    let mut by_arrival = at_start(ArrivalOrder::default());
    feed(&mut by_arrival, text);
    assert_eq!(by_arrival.timer_count(TimerDomain::EventTime), 5, "a timer for every event");
    let verdict = watermark(&mut by_arrival, 400 + GAP).remove(0);
    assert_eq!((verdict.outcome(), &*verdict.variant, steps(&verdict)), (Outcome::Failed, "a", codes(text)));
    let mut by_time = harness();
    feed(&mut by_time, text);
    assert_eq!(watermark(&mut by_time, 400 + GAP).remove(0).outcome(), Outcome::Success);
}

#[test]
fn a_late_event_takes_its_place_while_the_session_is_open() {
    let mut harness = harness();
    feed(&mut harness, "auth:ok@0 dhcp:ok@2000 dns:ok@20000");
    assert_eq!(watermark(&mut harness, 25_000), []);
    feed(&mut harness, "assoc:ok@1000");
    let verdict = watermark(&mut harness, 20_000 + GAP).remove(0);
    assert_eq!((verdict.outcome(), verdict.late_events, verdict.revision), (Outcome::Success, 1, 0));
}

#[test]
fn an_event_within_three_minutes_changes_the_verdict_and_one_that_changes_nothing_is_silent() {
    let mut harness = harness();
    feed(&mut harness, "auth:ok@0 assoc:ok@1 dns:ok@3");
    assert_eq!(watermark(&mut harness, 3 + GAP)[0].outcome(), Outcome::Incomplete);
    feed(&mut harness, "auth:ok@0");
    assert_eq!(watermark(&mut harness, 4 + GAP), [], "as incomplete as before");
    feed(&mut harness, "dhcp:ok@2");
    let verdicts = watermark(&mut harness, 5 + GAP);
    let [verdict] = &verdicts[..] else { panic!("{verdicts:?}") };
    assert_eq!((verdict.outcome(), verdict.revision, verdict.late_events), (Outcome::Success, 1, 2));
    feed(&mut harness, "dns:fail@4");
    assert_eq!(watermark(&mut harness, 6 + GAP)[0].revision, 2);
    assert_eq!([counter::REOPENED, counter::REVISIONS].map(|name| harness.counter(name)), [3, 2]);
}

#[test]
fn a_session_is_remembered_for_three_minutes_and_what_comes_later_is_late() {
    let mut harness = harness();
    feed(&mut harness, "auth:ok@0");
    watermark(&mut harness, GAP);
    watermark(&mut harness, GAP + 179_999);
    assert_eq!(harness.key_count(), 1);
    watermark(&mut harness, GAP + 180_000);
    assert_eq!(harness.key_count(), 0, "nothing is kept");
    assert_eq!(harness.timer_count(TimerDomain::ProcessingTime), 0);
    let late = events("assoc:ok@0");
    feed(&mut harness, "assoc:ok@0");
    assert_eq!(harness.take_outputs(), [ReorderOutput::Late(late[0].clone())]);
    assert_eq!((harness.key_count(), harness.counter(counter::TOO_LATE)), (0, 1));
    feed(&mut harness, "assoc:ok@1");
    assert_eq!(watermark(&mut harness, GAP + 180_001).len(), 1, "in time by a millisecond, although nobody knows it");
}

#[test]
fn a_session_silent_for_three_minutes_of_processing_time_is_closed_with_what_it_has() {
    let mut harness = harness();
    feed(&mut harness, "auth:ok@0");
    harness.advance_processing_time(ProcessingTime(100_000));
    feed(&mut harness, "assoc:ok@1");
    assert_eq!(harness.timer_count(TimerDomain::ProcessingTime), 1, "one timer, however many events");
    harness.advance_processing_time(ProcessingTime(279_999));
    assert_eq!(harness.take_outputs(), []);
    harness.advance_processing_time(ProcessingTime(280_000));
    let outputs = harness.take_outputs();
    let [ReorderOutput::Verdict(verdict)] = &outputs[..] else { panic!("{outputs:?}") };
    assert!(verdict.evicted);
    assert_eq!((verdict.outcome(), harness.counter(counter::EVICTED_SILENT)), (Outcome::Incomplete, 1));
    // It comes back.
    feed(&mut harness, "dhcp:ok@2 dns:ok@3");
    let verdict = watermark(&mut harness, 3 + GAP).remove(0);
    assert_eq!((verdict.outcome(), verdict.evicted, verdict.revision), (Outcome::Success, false, 1));
    // And is forgotten after six minutes although the watermark stands still.
    harness.advance_processing_time(ProcessingTime(280_000 + 360_000));
    assert_eq!((harness.key_count(), harness.counter(counter::FORGOTTEN_EARLY)), (0, 1));
}

#[test]
fn of_too_many_events_the_oldest_are_kept_and_the_others_counted() {
    let limits = SessionLimits { max_events: 3, ..SessionLimits::default() };
    for text in ["auth:ok@0 assoc:ok@1 dhcp:ok@2 dns:ok@9", "dns:ok@9 dhcp:ok@2 assoc:ok@1 auth:ok@0"] {
        let mut harness = at_start(EventTimeOrder { limits });
        feed(&mut harness, text);
        assert_eq!(harness.counter(counter::EVENTS_DROPPED), 1);
        assert_eq!(watermark(&mut harness, 8 + GAP), [], "its end is that of its newest event");
        let verdict = watermark(&mut harness, 9 + GAP).remove(0);
        assert_eq!((steps(&verdict), verdict.duration_ms), (codes("auth:ok@0 assoc:ok@1 dhcp:ok@2"), 9), "{text}");
    }
}

#[test]
fn of_too_many_sessions_the_longest_silent_one_is_given_up() {
    let mut harness = harness();
    let send = |harness: &mut Harness<EventTimeOrder>, id: &str, now: i64| {
        harness.advance_processing_time(ProcessingTime(now));
        let event = ConnectionEvent { session_id: id.to_owned(), ..events("auth:ok@0").remove(0) };
        harness.process(id, &event);
    };
    for (id, now) in [("x", 10), ("y", 20), ("z", 30), ("x", 40)] {
        send(&mut harness, id, now);
    }
    while harness.key_count() > 2 {
        assert!(harness.fire_earliest());
    }
    let outputs = harness.take_outputs();
    let [ReorderOutput::Verdict(verdict)] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((&*verdict.session_id, verdict.evicted), ("y", true));
    assert_eq!(harness.counter(counter::EVICTED_FULL), 1);
    // Closed ones were silent the longest and go without a word.
    watermark(&mut harness, GAP);
    send(&mut harness, "w", 50);
    while harness.key_count() > 1 {
        assert!(harness.fire_earliest());
    }
    assert_eq!((harness.take_outputs(), harness.counter(counter::FORGOTTEN_EARLY)), (Vec::new(), 2));
    assert!(harness.state("w").is_some());
}
