//! The number of shards: what it changes, and what it does not.
//!
//! With several shards, payments that met the same watermark may change places between two tasks: a task merges its
//! inputs by watermark, and ties by input. Joins, patterns, windows, sessions of payments on time, totals, late and
//! refused records and unconfirmed payments do not depend on the order of payments at one watermark and are identical.
//! What answers in the order of arrival does: velocity, amount and the way (not the end) of a profile. It is identical
//! too for every card without two payments at the same watermark; two of them are there when the first of them was not
//! the newest payment of its partition. Of such a card a counting rule may name the other payment; the silence after
//! the alert then begins elsewhere, and the alert counts for another minute. That is seldom, and nothing else differs.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

use payguard_model::{CardProfile, FraudAlert, ParsePolicy, ProcessingTime, parse_payment};
use payguard_sim::reference::RawRecord;
use payguard_tests::data::{NOW_MS, confirmations};
use payguard_tests::{Feed, Outputs, Setup, Shape, records, seeds, undisturbed};

const MINUTE: i64 = 60_000;
/// No payment is late at all.
const ORDERED: Shape = Shape { late_permille: 0, ..Shape::TIDY };
/// Alerts that do not depend on the order of payments at one watermark.
const ORDERLY: [&str; 4] = ["card-testing", "impossible-travel", "blocked-country", "unconfirmed"];

fn alerts(outputs: &Outputs) -> Vec<FraudAlert> {
    let records = outputs.publish.iter().filter(|r| r.topic == payguard_publish::ALERTS_TOPIC);
    records.map(|r| serde_json::from_slice(&r.value).expect("an alert")).collect()
}

fn orderly(outputs: &Outputs) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for alert in alerts(outputs).into_iter().filter(|a| ORDERLY.contains(&a.rule_id.as_str())) {
        let text = String::from_utf8(payguard_model::json::to_json(&alert)).expect("JSON");
        *found.entry(text).or_default() += 1;
    }
    found
}

/// Cards that have two payments which met the same watermark.
fn with_ties(data: &[RawRecord]) -> BTreeSet<String> {
    let (mut newest, mut ids, mut met, mut ties) = (i64::MIN, BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for record in data {
        let Some(raw) = &record.value else { continue };
        let time = match parse_payment(raw, ProcessingTime(NOW_MS), &ParsePolicy::default()) {
            Ok(payment) => {
                let is_first = ids.insert(payment.payment_id.clone());
                if is_first && !met.insert((payment.card_id.clone(), newest)) {
                    ties.insert(payment.card_id.clone());
                }
                Some(payment.event_time_ms)
            }
            Err(_) => record.timestamp,
        };
        newest = newest.max(time.unwrap_or(i64::MIN));
    }
    ties
}

/// Alert ids of the rules that count and profiles, of these cards, in order.
fn in_order(outputs: &Outputs, ties: &BTreeSet<String>) -> (Vec<String>, BTreeMap<String, Vec<CardProfile>>) {
    let mut alerts = alerts(outputs);
    alerts.retain(|a| !ORDERLY.contains(&a.rule_id.as_str()) && !ties.contains(&a.card_id));
    alerts.sort_by(|a, b| (&a.card_id, a.event_time_ms).cmp(&(&b.card_id, b.event_time_ms)));
    let mut profiles = profiles(outputs);
    profiles.retain(|card, _| !ties.contains(card));
    (alerts.into_iter().map(|a| format!("{} {}", a.alert_id, a.detail)).collect(), profiles)
}

/// Velocity alerts by card and minute.
fn by_minute(outputs: &Outputs) -> BTreeMap<(String, i64), usize> {
    let mut found = BTreeMap::new();
    for alert in alerts(outputs).into_iter().filter(|a| a.rule_id == payguard_operators::velocity::RULE_ID) {
        *found.entry((alert.card_id, alert.event_time_ms.div_euclid(MINUTE))).or_default() += 1;
    }
    found
}

/// Profiles of each card in the order they were published.
fn profiles(outputs: &Outputs) -> BTreeMap<String, Vec<CardProfile>> {
    let mut found: BTreeMap<String, Vec<CardProfile>> = BTreeMap::new();
    for record in outputs.publish.iter().filter(|r| r.topic == payguard_publish::PROFILES_TOPIC) {
        let profile = serde_json::from_slice(&record.value).expect("a profile");
        found.entry(record.key.clone()).or_default().push(profile);
    }
    found
}

async fn run(setup: &Setup, feed: &Feed, shards: u32, records_per_commit: usize, batch: usize) -> Outputs {
    let setup = setup.clone().with_shards(shards).with(|s| s.records_per_commit = records_per_commit);
    undisturbed(&setup, &feed.in_batches(batch)).await.1
}

fn feed(seed: u64, data: &[RawRecord]) -> Feed {
    Feed::one(data, 1).confirmed(confirmations(seed, data)).ruled(&[r#"{"blockedCountries":["PL"]}"#])
}

#[tokio::test(start_paused = true)]
async fn shards_and_batches_change_nothing_but_which_payment_of_a_burst_a_counting_rule_names() {
    let (mut minutes, mut other_minutes, mut untied) = (0, 0, 0);
    for seed in seeds(20) {
        for shape in [ORDERED, Shape::TIDY, Shape::DIRTY, Shape::COARSE].map(Shape::attacked) {
            // Many cards for few ties, or few for many alerts.
            let data = records(seed, 240, Shape { cards: if seed % 2 == 0 { 6 } else { 25 }, ..shape });
            let (setup, feed, ties) = (Setup::full(), feed(seed, &data), with_ties(&data));
            let one = run(&setup, &feed, 1, 1_000, 1_000).await;
            for (shards, records_per_commit, batch) in [(1, 5, 7), (2, 1_000, 40), (2, 3, 11), (4, 16, 23), (4, 1, 60)]
            {
                let context = format!("SIM_SEEDS={seed} {shape:?} {shards} shards, commits of {records_per_commit}");
                let many = run(&setup, &feed, shards, records_per_commit, batch).await;
                assert_eq!(orderly(&many), orderly(&one), "{context}");
                assert_eq!(many.final_totals(), one.final_totals(), "{context}");
                let (many_sets, one_sets) = (many.sets(), one.sets());
                for topic in ["payments.confirmed", "payments.dlq", "payments.late", "rules.rejected", "card.sessions"]
                {
                    // Of late payments at one watermark the first decides what a session takes in.
                    if topic != "card.sessions" || shape.late_ms <= 10_000 {
                        assert_eq!(many_sets.get(topic), one_sets.get(topic), "{context} {topic}");
                    }
                }
                let (of_many, of_one) = (profiles(&many), profiles(&one));
                for (card, profiles) in &of_one {
                    assert_eq!(of_many[card].len(), profiles.len(), "{context} {card}");
                    let total = |p: &[CardProfile]| p.last().map(|p| (p.payment_count, p.total_amount_minor));
                    assert_eq!(total(&of_many[card]), total(profiles), "{context} {card}");
                    assert!(
                        of_many[card].iter().map(|p| p.payment_count).eq(1..=profiles.len() as i64),
                        "{context} {card}"
                    );
                }
                if shards == 1 {
                    assert_eq!(many.by_topic(), one.by_topic(), "{context}");
                }
                let (found, expected) = (in_order(&many, &ties), in_order(&one, &ties));
                assert_eq!(found, expected, "{context}");
                untied += expected.0.len();
                let (of_many, of_one) = (by_minute(&many), by_minute(&one));
                minutes += of_one.len();
                other_minutes += of_one.iter().filter(|(key, n)| of_many.get(*key) != Some(*n)).count();
            }
        }
    }
    assert!(untied > 500, "{untied} alerts of cards without ties");
    assert!(other_minutes * 100 < minutes, "{other_minutes} of {minutes} minutes with velocity alerts differ");
}
