//! Payments and confirmations as two files, merged by watermark, against the same as they came.
//!
//! The files' third one tells how far the payments were when a confirmation came, so no confirmation is taken too
//! early. How far the confirmations were when a payment came is not told: those behind the payment's watermark are
//! taken first. That shows only where the confirmations' watermark was behind and the payment was late: as it came it
//! was held to the smaller watermark, from files it is held to its own. With disorder within the bound no payment is
//! late, and the two are equal.
#![allow(missing_docs)]

use std::collections::BTreeSet;

use payguard_model::{EventTime, FraudAlert};
use payguard_sim::SimWorld;
use payguard_sim::reference::RawRecord;
use payguard_tests::data::{Confirmation, NOW_MS, START_MS, confirmation_json, payment_json};
use payguard_tests::{Feed, Outputs, Pipeline, Setup, Shape, are_chosen, seeds, undisturbed};
use payguard_topology::config::AlignmentMode;

async fn as_it_came(feed: &Feed) -> Outputs {
    let mut setup = Setup::full();
    setup.config.engine.alignment = AlignmentMode::Off;
    let world = SimWorld::new(NOW_MS);
    let mut pipeline = Pipeline::new(&world, &setup, 1);
    pipeline.drive_as_it_came(feed).await.expect("no fault");
    payguard_tests::account(&world, feed.len()).expect("every record is accounted for");
    Outputs::of(&world)
}

async fn as_files(feed: &Feed) -> Outputs {
    undisturbed(&Setup::full(), feed).await.1
}

/// Records of a topic; alerts of one rule only.
fn of(outputs: &Outputs, topic: &str, rule: Option<&str>) -> BTreeSet<String> {
    let records = outputs.publish.iter().filter(|r| r.topic == topic);
    let is_wanted = |value: &[u8]| {
        rule.is_none_or(|rule| serde_json::from_slice::<FraudAlert>(value).expect("an alert").rule_id == rule)
    };
    records.filter(|r| is_wanted(&r.value)).map(|r| String::from_utf8_lossy(&r.value).into_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn with_disorder_within_the_bound_two_files_give_what_came() {
    let mut pairs = 0;
    for seed in seeds(60) {
        let feed = Feed::drawn(seed, 100, Shape::TIDY, 23);
        let (live, files) = (as_it_came(&feed).await.sets(), as_files(&feed).await.sets());
        assert_eq!(files, live, "SIM_SEEDS={seed}");
        pairs += live.get(payguard_publish::CONFIRMED_TOPIC).map_or(0, Vec::len);
    }
    assert!(are_chosen() || pairs > 2_000, "{pairs}");
}

#[tokio::test(start_paused = true)]
async fn with_late_payments_files_lose_only_pairs_that_came_while_confirmations_were_behind() {
    let (mut lost, mut all) = (0, 0);
    for seed in seeds(60) {
        let feed = Feed::drawn(seed, 100, Shape::DIRTY, 23);
        let (live, files) = (as_it_came(&feed).await, as_files(&feed).await);
        let (mut other_live, mut other_files) = (live.sets(), files.sets());
        for sets in [&mut other_live, &mut other_files] {
            sets.remove(payguard_publish::CONFIRMED_TOPIC);
            sets.remove(payguard_publish::ALERTS_TOPIC);
        }
        assert_eq!(other_files, other_live, "SIM_SEEDS={seed}");
        let pairs = |outputs| of(outputs, payguard_publish::CONFIRMED_TOPIC, None);
        assert!(pairs(&files).is_subset(&pairs(&live)), "SIM_SEEDS={seed}: no pair is new");
        let unconfirmed = |outputs| of(outputs, payguard_publish::ALERTS_TOPIC, Some("unconfirmed"));
        assert!(unconfirmed(&live).is_subset(&unconfirmed(&files)), "SIM_SEEDS={seed}: no alert is lost");
        for rule in ["velocity", "amount-spike", "blocked-country", "card-testing", "impossible-travel"] {
            let alerts = |outputs| of(outputs, payguard_publish::ALERTS_TOPIC, Some(rule));
            assert_eq!(alerts(&files), alerts(&live), "SIM_SEEDS={seed} {rule}");
        }
        lost += pairs(&live).len() - pairs(&files).len();
        all += pairs(&live).len();
    }
    assert!(are_chosen() || lost > 0 && lost * 50 < all, "{lost} of {all} pairs");
}

/// A payment that comes after `first`, whose confirmation comes last; `early` confirms something else before both.
fn small(first: i64, payment: i64, confirmation: i64, early: Option<i64>) -> Feed {
    let record = |offset, json: String| RawRecord { offset, timestamp: None, value: Some(json.into_bytes()) };
    let pay = |offset, id, time: i64| record(offset, payment_json(id, "c-0001", "m-0001", 5, START_MS + time));
    let payments = [pay(0, "first", first), pay(1, "p", payment)];
    let bound = EventTime(START_MS + first - 10_001);
    let confirm = |id, time: i64| confirmation_json(id, START_MS + time);
    let early = early.map(|time| (confirm("other", time), bound, 1));
    let last = (confirm("p", confirmation), bound, 2);
    let arrivals = (0..).zip(early.into_iter().chain([last]));
    let confirmations =
        arrivals.map(|(offset, (json, bound, after))| Confirmation { record: record(offset, json), bound, after });
    Feed::one(&payments, 9).confirmed(confirmations.collect())
}

#[tokio::test(start_paused = true)]
async fn the_smallest_cases_in_which_files_differ() {
    let pairs = |outputs: &Outputs| of(outputs, payguard_publish::CONFIRMED_TOPIC, None).len();
    let unconfirmed = |outputs: &Outputs| {
        let alerts = of(outputs, payguard_publish::ALERTS_TOPIC, Some("unconfirmed"));
        alerts.iter().filter(|alert| alert.contains(r#""paymentId":"p""#)).count()
    };
    // (first, payment, confirmation, another confirmation before) and (pairs, alerts) as they came and as files.
    let cases = [
        // No confirmation has come yet, so nothing is late for the join; from files the payment is late by 1 ms.
        (small(10_001, -1, 0, None), (1, 0), (0, 0)),
        // Not late by that millisecond: equal.
        (small(10_001, 0, 1, None), (1, 0), (1, 0)),
        // The confirmation, taken first, is at the watermark of its payment and forgotten there.
        (small(10_001, 0, 0, None), (1, 0), (0, 0)),
        // A confirmation had come, and was behind the payments by a minute.
        (small(90_000, 60_000, 60_500, Some(30_000)), (1, 0), (0, 0)),
        // It was not behind: late for both.
        (small(90_000, 60_000, 60_500, Some(90_500)), (0, 0), (0, 0)),
        // So far behind that the confirmation, taken first, is forgotten before its payment comes: an alert too many.
        (small(510_001, 1_000, 2_000, Some(11_001)), (1, 0), (0, 1)),
    ];
    for (number, (feed, live, files)) in cases.into_iter().enumerate() {
        let (came, merged) = (as_it_came(&feed).await, as_files(&feed).await);
        assert_eq!((pairs(&came), unconfirmed(&came)), live, "as it came: case {number}");
        assert_eq!((pairs(&merged), unconfirmed(&merged)), files, "as files: case {number}");
    }
}
