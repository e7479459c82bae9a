//! The number of shards changes nothing: a task merges the tasks of a stage by watermark and arrival, and so meets the
//! payments of a card in the order of their arrival, however many tasks have shared them out. What is published is the
//! same, record by record; only the order in which alerts of different merchants stand in the topic may differ.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use payguard_model::{CardProfile, FraudAlert};
use payguard_sim::reference::RawRecord;
use payguard_tests::data::confirmations;
use payguard_tests::{Feed, Order, Outputs, Setup, Shape, are_chosen, records, seeds, undisturbed};

const MINUTE: i64 = 60_000;
/// No payment is late at all.
const ORDERED: Shape = Shape { late_permille: 0, ..Shape::TIDY };

/// Velocity alerts by card and minute.
fn by_minute(outputs: &Outputs) -> BTreeMap<(String, i64), usize> {
    let mut found = BTreeMap::new();
    for record in outputs.publish.iter().filter(|r| r.topic == payguard_publish::ALERTS_TOPIC) {
        let alert: FraudAlert = serde_json::from_slice(&record.value).expect("an alert");
        if alert.rule_id == payguard_operators::velocity::RULE_ID {
            *found.entry((alert.card_id, alert.event_time_ms.div_euclid(MINUTE))).or_default() += 1;
        }
    }
    found
}

/// Profiles of each card in the order they were published.
fn profiles(outputs: &Outputs) -> BTreeMap<String, Vec<CardProfile>> {
    let mut found: BTreeMap<String, Vec<CardProfile>> = BTreeMap::new();
    for record in outputs.publish.iter().filter(|r| r.topic == payguard_publish::PROFILES_TOPIC) {
        found.entry(record.key.clone()).or_default().push(serde_json::from_slice(&record.value).expect("a profile"));
    }
    found
}

async fn run(setup: &Setup, feed: &Feed, shards: u32, records_per_commit: usize, batch: usize) -> Outputs {
    let setup = setup.clone().with_shards(shards).with(|s| s.records_per_commit = records_per_commit);
    undisturbed(&setup, &feed.in_batches(batch)).await.1
}

/// Every stage, fed by one partition of payments; or all but those for confirmations, fed by three partitions.
fn pipeline(seed: u64, data: &[RawRecord]) -> (Setup, Feed) {
    let blocked = [r#"{"blockedCountries":["PL"]}"#];
    if !seed.is_multiple_of(3) {
        return (Setup::full(), Feed::one(data, 1).confirmed(confirmations(seed, data)).ruled(&blocked));
    }
    let mut setup = Setup::default();
    setup.config.source.partitions = 3;
    let third = |n: usize| data.iter().skip(n).step_by(3).cloned().collect();
    (setup, Feed::many((0..3).map(third).collect(), 1, Order::InTurn).ruled(&blocked))
}

#[tokio::test(start_paused = true)]
async fn shards_and_batches_change_nothing() {
    let (mut minutes, mut published) = (0, 0);
    for seed in seeds(20) {
        for shape in [ORDERED, Shape::TIDY, Shape::DIRTY, Shape::COARSE].map(Shape::attacked) {
            // Few cards for many payments at one watermark, or many.
            let data = records(seed, 240, Shape { cards: if seed % 2 == 0 { 6 } else { 25 }, ..shape });
            let (setup, feed) = pipeline(seed, &data);
            let one = run(&setup, &feed, 1, 1_000, 1_000).await;
            for (shards, records_per_commit, batch) in [(1, 5, 7), (2, 1_000, 40), (2, 3, 11), (4, 16, 23), (4, 1, 60)]
            {
                let context = format!("SIM_SEEDS={seed} {shape:?} {shards} shards, commits of {records_per_commit}");
                let many = run(&setup, &feed, shards, records_per_commit, batch).await;
                assert_eq!(many.sets(), one.sets(), "{context}");
                assert_eq!(many.final_totals(), one.final_totals(), "{context}");
                assert_eq!(by_minute(&many), by_minute(&one), "{context}");
                assert_eq!(profiles(&many), profiles(&one), "{context}");
                if shards == 1 {
                    assert_eq!(many.by_topic(), one.by_topic(), "{context}");
                }
            }
            minutes += by_minute(&one).len();
            published += profiles(&one).values().map(Vec::len).sum::<usize>();
        }
    }
    assert!(are_chosen() || minutes > 100, "{minutes} minutes with velocity alerts");
    assert!(are_chosen() || published > 5_000, "{published} profiles");
}
