use std::collections::{BTreeMap, BTreeSet};

use payguard_model::{ConnectionEvent, ConnectionReason, parse_connection_into};

use super::*;

fn lines(config: &ConnectionConfig, count: usize) -> Vec<String> {
    let mut source = ConnectionSource::new(config).expect("a valid configuration");
    (0..count).map(|_| source.next_record().to_owned()).collect()
}

fn event(line: &str) -> Result<ConnectionEvent, ConnectionReason> {
    let mut event = ConnectionEvent::default();
    parse_connection_into(line.as_bytes(), &mut event).map(|()| event)
}

fn whole() -> ConnectionConfig {
    ConnectionConfig { bad: 0.0, late: 0.0, ..ConnectionConfig::default() }
}

#[test]
fn equal_seeds_give_equal_lines_and_others_others() {
    let config = ConnectionConfig::default();
    assert_eq!(lines(&config, 3_000), lines(&config, 3_000));
    assert_ne!(lines(&config, 100), lines(&ConnectionConfig { seed: 43, ..config }, 100));
}

#[test]
fn broken_records_are_broken_in_every_way() {
    let config = ConnectionConfig { bad: 0.05, ..ConnectionConfig::default() };
    let reasons: Vec<_> = lines(&config, 20_000).iter().filter_map(|line| event(line).err()).collect();
    assert_eq!(BTreeSet::from_iter(reasons.iter().copied()), BTreeSet::from(ConnectionReason::ALL));
    assert!((900..1_100).contains(&reasons.len()), "{}", reasons.len());
}

#[test]
fn disorder_is_within_ten_seconds_of_the_newest_event_and_lateness_is_not() {
    let behind = |config: &ConnectionConfig| {
        let (mut newest, mut behind) = (0, Vec::new());
        for line in lines(config, 50_000) {
            let time = event(&line).expect("an event").event_time_ms;
            newest = newest.max(time);
            behind.push(newest - time);
        }
        behind
    };
    let config = ConnectionConfig { out_of_order: 0.3, burst: 0.0, rate: 200, ..whole() };
    let disorder = behind(&config);
    assert!(disorder.iter().all(|ms| *ms <= 10_000) && disorder.iter().any(|ms| *ms > 8_000));
    let late = behind(&ConnectionConfig { late: 0.01, ..config });
    let count = late.iter().filter(|ms| **ms > 10_000).count();
    assert!((300..700).contains(&count) && late.iter().all(|ms| *ms < 60_000), "{count}");
}

#[test]
fn a_session_takes_its_steps_in_order_and_fails_where_it_ends() {
    let config = ConnectionConfig { failures: 0.2, out_of_order: 0.0, burst: 0.0, ..whole() };
    let mut sessions: BTreeMap<String, Vec<ConnectionEvent>> = BTreeMap::new();
    for line in lines(&config, 40_000) {
        let event = event(&line).expect("an event");
        sessions.entry(event.session_id.clone()).or_default().push(event);
    }
    // The last ones are not complete.
    let complete = sessions.values_mut().take(5_000);
    let (mut through, mut failed, mut retried) = (0, 0, 0);
    for events in complete {
        events.sort_by_key(|e| e.event_time_ms);
        assert!(events.is_sorted_by_key(|e| e.step));
        let last = events.last().expect("an event");
        assert!(last.ok != (last.reason.is_some()));
        assert!(!last.ok || last.step == 3);
        (through, failed) = (through + u32::from(last.ok), failed + u32::from(!last.ok));
        retried += u32::from(last.ok && events.len() > 4);
    }
    assert!(through > 3_000 && failed > 500 && retried > 500, "{through} {failed} {retried}");
}

#[test]
fn the_rate_is_that_of_event_time_and_a_burst_is_twenty_times_as_much() {
    let seconds = |config: &ConnectionConfig| {
        let mut seconds: BTreeMap<i64, u32> = BTreeMap::new();
        for line in lines(config, 60_000) {
            *seconds.entry(event(&line).expect("an event").event_time_ms / 1_000).or_default() += 1;
        }
        seconds.into_values().collect::<Vec<_>>()
    };
    let even = seconds(&ConnectionConfig { burst: 0.0, ..whole() });
    assert!(even[5..25].iter().all(|count| (1_700..2_300).contains(count)), "{even:?}");
    let bursts = seconds(&ConnectionConfig { burst: 1.0, ..whole() });
    assert!(bursts.iter().max() > Some(&30_000), "{bursts:?}");
}

#[test]
fn what_arrives_by_and_by_is_what_arrives_at_once() {
    let config = ConnectionConfig::default();
    let mut source = ConnectionSource::new(&config).expect("a valid configuration");
    let mut arrived = Vec::new();
    for tick in 0..100 {
        while let Some(line) = source.next_until(config.start_ms + tick * 100) {
            arrived.push(event(line).ok());
        }
    }
    assert!(arrived.len() > 10_000);
    assert!(arrived.iter().flatten().all(|e| e.event_time_ms <= config.start_ms + 9_900));
}

#[test]
fn impossible_options_are_refused() {
    let message = |config: ConnectionConfig| ConnectionSource::new(&config).err().expect("refused").to_string();
    assert_eq!(
        message(ConnectionConfig { retries: 1.5, ..ConnectionConfig::default() }),
        "--retries must be between 0 and 1, got 1.5"
    );
    assert!(message(ConnectionConfig { rate: 0, ..ConnectionConfig::default() }).contains("--rate"));
    assert!(message(ConnectionConfig { late_max_ms: -1, ..ConnectionConfig::default() }).contains("--late-max-ms"));
}
