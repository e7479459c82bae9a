use super::*;
use crate::files::{AFTER_FILE, CONFIRMATIONS_FILE, PAYMENTS_FILE, write_files};
use payguard_model::{ParsePolicy, Payment, ProcessingTime, parse_payment};
use proptest::prelude::*;
use std::collections::HashSet;
use std::path::Path;

const NOW: i64 = 1_794_084_709_909;

/// Java hashes of 5000 records and of their confirmations, made before there were attacks.
const GOLDEN_HASHES: [i32; 2] = [2_121_701_283, -235_324_292];

/// The lesson's fixture: seed 42, nothing late.
fn clean() -> GeneratorConfig {
    GeneratorConfig { late: 0.0, ..GeneratorConfig::default() }
}

fn source(config: &GeneratorConfig) -> PaymentSource {
    PaymentSource::new(config).expect("a valid configuration")
}

fn payment(line: &str) -> Payment {
    parse_payment(line.as_bytes(), ProcessingTime(NOW), &ParsePolicy::default()).expect("a valid payment")
}

fn country(payment: &Payment) -> &str {
    payment.country.as_deref().expect("a country")
}

fn is_at_home(payment: &Payment) -> bool {
    country(payment) == home_country(&payment.card_id)
}

/// Payment id and event time of a confirmation, whose text must be the wire form.
fn confirmation(text: &str) -> (String, i64) {
    let json: serde_json::Value = serde_json::from_str(text).expect("a confirmation");
    let id = json["paymentId"].as_str().expect("an id").to_owned();
    let time = json["eventTimeMs"].as_i64().expect("a time");
    assert_eq!(text, format!(r#"{{"paymentId":"{id}","status":"APPROVED","eventTimeMs":{time}}}"#));
    (id, time)
}

/// Whether these are payments of one card with ids of their own, a millisecond apart from `start_ms` on.
fn is_series(payments: &[Payment], start_ms: i64) -> bool {
    let ids: HashSet<_> = payments.iter().map(|payment| &payment.payment_id).collect();
    ids.len() == payments.len()
        && (start_ms..)
            .zip(payments)
            .all(|(time, payment)| payment.card_id == payments[0].card_id && payment.event_time_ms == time)
}

fn is_card_testing(payments: &[Payment]) -> bool {
    let [probes @ .., cash_out] = payments else { return false };
    payments.len() == 6
        && payments.iter().all(is_at_home)
        && probes.iter().all(|probe| (100..400).contains(&probe.amount_minor))
        && (50_000..100_000).contains(&cash_out.amount_minor)
}

fn is_journey(payments: &[Payment]) -> bool {
    let [first, second] = payments else { return false };
    is_at_home(first) && country(second) == "XX" && payments.iter().all(|payment| payment.amount_minor == 5000)
}

#[test]
fn lesson_10_card_testing_attack_ends_with_large_payment() {
    let mut source = source(&GeneratorConfig { card_testing: 1.0, ..clean() });
    let amounts: Vec<_> = (0..6).map(|_| payment(source.next(NOW)).amount_minor).collect();
    assert!(amounts[0] < 500 && amounts[5] > 30_000, "{amounts:?}");
}

#[test]
fn lesson_10_shape_of_the_attacks() {
    let dirt = GeneratorConfig { late: 1.0, bad: 1.0, dup: 1.0, ..clean() };
    type Shape = fn(&[Payment]) -> bool;
    let table: [(&str, GeneratorConfig, usize, Shape); 2] = [
        ("card testing", GeneratorConfig { card_testing: 1.0, ..dirt.clone() }, 6, is_card_testing),
        ("travel", GeneratorConfig { travel: 1.0, ..dirt }, 2, is_journey),
    ];
    for (name, config, size, is_intact) in table {
        let mut source = source(&config);
        let (mut cards, mut merchants) = (HashSet::new(), HashSet::new());
        for attack in 0..100 {
            // The clock goes on while an attack is handed out; its event times do not follow it.
            let start = NOW + attack * 1000;
            let payments: Vec<_> = (0..).take(size).map(|i| payment(source.next(start + 10 * i))).collect();
            assert!(is_series(&payments, start) && is_intact(&payments), "{name}: {payments:?}");
            cards.insert(payments[0].card_id.to_string());
            merchants.extend(payments.into_iter().map(|payment| payment.merchant_id.to_string()));
        }
        assert!(cards.len() > 90, "{name}: a random card each time");
        assert!(merchants.len() > 40, "{name}: random merchants");
    }
}

#[test]
fn lesson_10_amounts_use_their_whole_range() {
    let mut source = source(&GeneratorConfig { card_testing: 1.0, ..clean() });
    let amounts: Vec<_> = (0..30_000).map(|_| payment(source.next(NOW)).amount_minor).collect();
    let (large, small): (Vec<_>, Vec<_>) = amounts.into_iter().partition(|&amount| amount >= 50_000);
    assert_eq!((small.iter().min(), small.iter().max()), (Some(&100), Some(&399)));
    assert!(large.iter().any(|&amount| amount < 50_100) && large.iter().any(|&amount| amount > 99_900));
}

#[test]
fn lesson_10_order_of_the_draws() {
    let all = GeneratorConfig { burst: 1.0, card_testing: 1.0, travel: 1.0, bad: 1.0, dup: 1.0, ..clean() };
    let no_burst = GeneratorConfig { burst: 0.0, ..all.clone() };
    let no_testing = GeneratorConfig { card_testing: 0.0, ..no_burst.clone() };
    let no_travel = GeneratorConfig { travel: 0.0, ..no_testing.clone() };
    let no_bad = GeneratorConfig { bad: 0.0, ..no_travel.clone() };
    let made = |records| Summary { records, ..Summary::default() };
    // As many records as the first choice takes, and one more: what has begun is finished before anything else.
    let table = [
        (all, 26, Summary { bursts: 2, ..made(26) }),
        (no_burst, 7, Summary { card_testing: 2, ..made(7) }),
        (no_testing, 3, Summary { travel: 2, ..made(3) }),
        (no_travel, 2, Summary { bad: 2, ..made(2) }),
        (no_bad, 2, Summary { duplicates: 1, ..made(2) }),
    ];
    for (config, records, expected) in table {
        let mut source = source(&config);
        for _ in 0..records {
            source.next(NOW);
        }
        assert_eq!(source.summary(), expected);
    }
}

#[test]
fn lesson_10_attacks_leave_the_rate_unchanged() {
    let mut source = source(&GeneratorConfig { card_testing: 0.004, travel: 0.006, ..clean() });
    for _ in 0..50_000 {
        source.next(NOW);
    }
    let summary = source.summary();
    assert_eq!(summary.records, 50_000);
    // Each attack takes the place of ordinary payments: 50,000 records are about 48,700 draws.
    assert!((150..240).contains(&summary.card_testing), "{summary:?}");
    assert!((235..350).contains(&summary.travel), "{summary:?}");
}

#[test]
fn lesson_10_the_last_payment_of_an_attack_can_be_repeated() {
    let mut source = source(&GeneratorConfig { travel: 0.5, dup: 1.0, ..clean() });
    let lines: Vec<_> = (0..100).map(|_| source.next(NOW).to_owned()).collect();
    assert!(lines.windows(2).any(|pair| pair[0] == pair[1] && pair[0].contains(r#""country":"XX""#)));
}

#[test]
fn lesson_10_without_travel_nobody_pays_abroad() {
    let config = GeneratorConfig { burst: 0.01, card_testing: 0.05, dup: 0.05, ..GeneratorConfig::default() };
    let mut source = source(&config);
    for _ in 0..20_000 {
        let payment = payment(source.next(NOW));
        assert!(is_at_home(&payment), "{payment:?}");
    }
}

#[test]
fn streams_without_attacks_are_what_they_were_before_there_were_any() {
    let config = GeneratorConfig { dup: 0.02, bad: 0.01, burst: 0.002, ..GeneratorConfig::default() };
    let mut source = source(&config);
    let mut text = [String::new(), String::new()];
    for index in 0..5000 {
        let record = source.next_record(config.created_at(index));
        text[0] += record.line;
        text[1].extend(record.confirmation);
    }
    assert_eq!(text.map(|text| java_string_hash(&text)), GOLDEN_HASHES);
}

#[test]
fn lesson_09_confirmations_come_with_their_payments() {
    let mut source = source(&GeneratorConfig { dup: 0.5, confirm: 1.0, ..clean() });
    let mut delays = HashSet::new();
    let (mut repeats, mut differ, mut previous) = (0, 0, None);
    for _ in 0..20_000 {
        let record = source.next_record(NOW);
        let payment = payment(record.line);
        let current = confirmation(record.confirmation.expect("everything is confirmed"));
        assert_eq!(current.0, payment.payment_id);
        delays.insert(current.1 - payment.event_time_ms);
        if let Some((id, time)) = previous.replace(current.clone())
            && id == current.0
        {
            repeats += 1;
            differ += u32::from(time != current.1);
        }
    }
    assert_eq!((delays.iter().min(), delays.iter().max()), (Some(&0), Some(&2999)));
    assert!(repeats > 9000 && differ > repeats - 20, "a repeat draws a delay of its own: {differ} of {repeats}");
}

#[test]
fn lesson_09_share_of_confirmed_payments() {
    for (confirm, expected) in [(0.0, 0..1), (0.5, 9700..10_300), (0.95, 18_800..19_200), (1.0, 20_000..20_001)] {
        let mut source = source(&GeneratorConfig { confirm, ..clean() });
        let confirmed = (0..20_000).filter(|_| source.next_record(NOW).confirmation.is_some()).count();
        assert!(expected.contains(&confirmed), "{confirm}: {confirmed}");
        assert_eq!(source.summary().confirmations, confirmed as u64);
    }
}

/// Reads a stream back from its text alone: where each series begins and ends, and what lies between them.
fn read_back(config: &GeneratorConfig, lines: &[String]) -> Summary {
    let payments: Vec<_> = lines.iter().map(|line| (line != BROKEN_RECORD).then(|| payment(line))).collect();
    let mut found = Summary { records: lines.len() as u64, ..Summary::default() };
    let (mut at, mut previous) = (0, None);
    while let Some(line) = lines.get(at) {
        let series = |size: usize| -> Option<Vec<Payment>> {
            let payments: Vec<_> = payments.get(at..at + size)?.iter().cloned().collect::<Option<_>>()?;
            is_series(&payments, config.created_at(at as u64)).then_some(payments)
        };
        let size = if series(25).is_some_and(|payments| payments.iter().all(is_at_home)) {
            found.bursts += 1;
            25
        } else if series(6).is_some_and(|payments| is_card_testing(&payments)) {
            found.card_testing += 1;
            6
        } else if series(2).is_some_and(|payments| is_journey(&payments)) {
            found.travel += 1;
            2
        } else if line == BROKEN_RECORD {
            found.bad += 1;
            1
        } else if previous == Some(line) {
            found.duplicates += 1;
            1
        } else {
            let single = payment(line);
            assert!(is_at_home(&single) && single.amount_minor < 50_100, "a part of an attack: {line}");
            1
        };
        at += size;
        previous = lines.get(at - 1).filter(|line| *line != BROKEN_RECORD).or(previous);
    }
    found
}

fn file(dir: &Path, name: &str) -> Vec<String> {
    std::fs::read_to_string(dir.join(name)).expect("a file").lines().map(str::to_owned).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_attack_is_intact_in_the_written_stream(
        seed in any::<u64>(),
        rate in prop_oneof![Just(10u32), Just(200), Just(1000), Just(20_000)],
        records in 0u64..1500,
        (late, dup, bad) in (0.0..0.5, 0.0..0.3, 0.0..0.3),
        (burst, card_testing, travel) in (0.0..0.05, 0.0..0.3, 0.0..0.3),
    ) {
        let config = GeneratorConfig {
            seed, rate, records, late, dup, bad, burst, card_testing, travel, ..GeneratorConfig::default()
        };
        let dir = tempfile::tempdir().expect("a folder");
        let made = write_files(&config, dir.path(), |_| {}).expect("written");
        let lines = file(dir.path(), PAYMENTS_FILE);
        let found = read_back(&config, &lines);
        let unfinished = [
            made.bursts - found.bursts,
            made.card_testing - found.card_testing,
            made.travel - found.travel,
        ];
        prop_assert!(unfinished.iter().sum::<u64>() <= 1, "only the last can be cut off: {made:?}, {found:?}");
        let expected = Summary {
            bursts: found.bursts,
            card_testing: found.card_testing,
            travel: found.travel,
            confirmations: 0,
            ..made
        };
        prop_assert_eq!(found, expected);

        let confirmations = file(dir.path(), CONFIRMATIONS_FILE);
        let after = file(dir.path(), AFTER_FILE);
        prop_assert_eq!(confirmations.len(), after.len());
        let mut last = 0;
        for (text, after) in confirmations.iter().zip(after) {
            let after: usize = after.parse().expect("a number");
            prop_assert!(after > last, "at most one for each line, in order");
            last = after;
            let (id, time) = confirmation(text);
            let payment = payment(&lines[after - 1]);
            prop_assert_eq!(&id, &payment.payment_id);
            prop_assert!((0..3000).contains(&(time - payment.event_time_ms)));
        }
    }
}
