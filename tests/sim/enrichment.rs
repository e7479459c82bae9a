//! The directory of merchants is down, slow, comes and goes: alerts lose nothing but the risk.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use payguard_directory::{LookupError, MerchantDirectory, SeededDirectory};
use payguard_model::FraudAlert;
use payguard_sim::{FaultPlan, Rng, SimWorld};
use payguard_tests::data::NOW_MS;
use payguard_tests::{
    Feed, Outputs, Pipeline, Restart, Setup, Shape, are_chosen, assert_same, records, run_to_end, seeds, undisturbed,
};

/// What becomes of the `n`-th question.
type Mood = fn(n: u64) -> Answer;

#[derive(Clone, Copy)]
enum Answer {
    After(u64),
    Error,
    Never,
}

/// The seeded directory behind a bad line.
struct Moody {
    mood: Mood,
    asked: AtomicU64,
}

#[async_trait]
impl MerchantDirectory for Moody {
    async fn risk_level(&self, merchant_id: &str) -> Result<Option<String>, LookupError> {
        match (self.mood)(self.asked.fetch_add(1, Ordering::Relaxed)) {
            Answer::After(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Answer::Error => return Err(LookupError::new(merchant_id, "down")),
            Answer::Never => std::future::pending().await,
        }
        SeededDirectory.risk_level(merchant_id).await
    }
}

fn with(mood: Mood) -> (Setup, Arc<Moody>) {
    let moody = Arc::new(Moody { mood, asked: AtomicU64::new(0) });
    (Setup { directory: moody.clone(), ..Setup::full() }, moody)
}

fn feed(seed: u64) -> Feed {
    let data = records(seed, 120, Shape { merchants: 12, ..Shape::DIRTY.attacked() });
    Feed::full(seed, &data, 17)
}

/// The outputs with every risk blanked, and the risks of all alerts in order.
fn without_risks(outputs: &Outputs) -> (Outputs, Vec<String>) {
    let (mut outputs, mut risks) = (outputs.clone(), Vec::new());
    for record in outputs.publish.iter_mut().filter(|r| r.topic == payguard_publish::ALERTS_TOPIC) {
        let mut alert: FraudAlert = serde_json::from_slice(&record.value).expect("an alert");
        risks.push(std::mem::take(&mut alert.merchant_risk));
        record.value = payguard_model::json::to_json(&alert);
    }
    (outputs, risks)
}

fn counters(world: &SimWorld) -> BTreeMap<String, u64> {
    let world = world.lock();
    let enrich = "enrich/0".parse().expect("a task");
    world.logs[&enrich].head.as_ref().expect("a head").counters.clone()
}

fn count(counters: &BTreeMap<String, u64>, name: &str) -> u64 {
    counters.get(&format!("enrich-alerts.{name}")).copied().unwrap_or(0)
}

/// Every alert is there once whatever becomes of the directory, with the true risk or with `UNKNOWN`, and nothing else
/// changes. Gives the number of alerts, of those without their risk, and the counters.
async fn check(name: &str, seed: u64, mood: Mood) -> (u64, u64, BTreeMap<String, u64>) {
    let feed = feed(seed);
    let (_, calm) = undisturbed(&Setup::full(), &feed).await;
    let (expected, true_risks) = without_risks(&calm);
    let (setup, _) = with(mood);
    let (world, outputs) = undisturbed(&setup, &feed).await;
    let (found, risks) = without_risks(&outputs);
    let context = format!("{name} SIM_SEEDS={seed}");
    assert_same(&Ok(found), &expected, &context);
    let mut unknown = 0;
    for (risk, truth) in risks.iter().zip(&true_risks) {
        assert!(risk == truth || risk == "UNKNOWN", "{context}: {risk} is not {truth}");
        unknown += u64::from(risk != truth);
    }
    let counters = counters(&world);
    // A look-up shared by several alerts fails for each of them.
    assert!(count(&counters, "lookup_failures") >= unknown, "{context}: {counters:?}");
    let (alerts, all) = (risks.len() as u64, count(&counters, "lookups") + count(&counters, "cache_hits"));
    assert!(all <= alerts && alerts > 0, "{context}: {counters:?} of {alerts}");
    (alerts, unknown, counters)
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_down_costs_risks_and_nothing_else() {
    for seed in seeds(4) {
        for (name, mood) in [("errors", (|_| Answer::Error) as Mood), ("silent", |_| Answer::Never)] {
            let (alerts, unknown, counters) = check(name, seed, mood).await;
            assert_eq!(unknown, alerts, "{name} SIM_SEEDS={seed}");
            assert_eq!(count(&counters, "lookup_failures"), alerts, "{name} SIM_SEEDS={seed}");
            assert_eq!(count(&counters, "cache_hits"), 0, "{name} SIM_SEEDS={seed}: a failure is not remembered");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_directory_is_waited_for_up_to_two_seconds() {
    for seed in seeds(4) {
        let (_, unknown, counters) = check("slow", seed, |_| Answer::After(900)).await;
        assert_eq!((unknown, count(&counters, "lookup_failures")), (0, 0), "SIM_SEEDS={seed}");
        let (alerts, unknown, _) = check("too slow", seed, |_| Answer::After(2_100)).await;
        assert_eq!(unknown, alerts, "SIM_SEEDS={seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_comes_and_goes_loses_some_risks_and_is_asked_again() {
    let mut known = 0;
    for seed in seeds(8) {
        let flapping: Mood = |n| match n % 7 {
            0 | 1 => Answer::Error,
            2 => Answer::Never,
            3 => Answer::After(1_500),
            _ => Answer::After(3),
        };
        let (alerts, unknown, _) = check("flapping", seed, flapping).await;
        assert!(0 < unknown && unknown < alerts, "SIM_SEEDS={seed}: {unknown} of {alerts}");
        // Down at first, then for good: what was not known is asked again.
        let back: Mood = |n| if n < 5 { Answer::Error } else { Answer::After(1) };
        let (alerts, unknown, counters) = check("back", seed, back).await;
        assert!(0 < unknown && unknown < alerts, "SIM_SEEDS={seed}: {unknown} of {alerts}");
        known += count(&counters, "cache_hits");
    }
    assert!(are_chosen() || known > 100, "{known}");
}

#[tokio::test(start_paused = true)]
async fn crashes_while_the_directory_is_asked_lose_no_alert_and_double_none() {
    for seed in seeds(60) {
        let feed = feed(seed);
        let (_, calm) = undisturbed(&Setup::full(), &feed).await;
        let (expected, true_risks) = without_risks(&calm);
        let flapping: Mood = |n| match n % 5 {
            0 => Answer::Error,
            1 => Answer::Never,
            _ => Answer::After(40),
        };
        let (setup, _) = with(flapping);
        let world = SimWorld::new(NOW_MS);
        world.plan(FaultPlan::random(seed, 8, true).with_latency(seed, 30));
        let restart = if seed % 2 == 0 { Restart::Fresh } else { Restart::Warm };
        // `run_to_end` checks that as many alerts leave the stage as enter it.
        let outputs = run_to_end(&world, &setup, &feed, restart).await.expect("an end");
        let (found, risks) = without_risks(&outputs);
        assert_same(&Ok(found), &expected, &format!("SIM_SEEDS={seed}"));
        for (risk, truth) in risks.iter().zip(&true_risks) {
            assert!(risk == truth || risk == "UNKNOWN", "SIM_SEEDS={seed}: {risk} is not {truth}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_processes_with_different_answers_publish_one_of_them() {
    for seed in seeds(30) {
        let mut rng = Rng::new(seed);
        let mut feed = feed(seed);
        let (_, calm) = undisturbed(&Setup::full(), &feed).await;
        let (expected, _) = without_risks(&calm);
        let world = SimWorld::new(NOW_MS);
        let setups = [Setup::full(), with(|_| Answer::Error).0];
        let mut processes = [Pipeline::new(&world, &setups[0], 1), Pipeline::new(&world, &setups[1], 1)];
        processes[0].begin(&feed).await.expect("no fault");
        while feed.has_more() {
            let process = &mut processes[usize::try_from(rng.below(2)).expect("small")];
            process.deliver_all(&mut feed).await.expect("no fault");
            process.run_consumers().await.expect("no fault");
        }
        processes[1].finish().await.expect("no fault");
        payguard_tests::account(&world, feed.len()).unwrap_or_else(|e| panic!("SIM_SEEDS={seed}: {e}"));
        let (found, _) = without_risks(&Outputs::of(&world));
        assert_same(&Ok(found), &expected, &format!("SIM_SEEDS={seed}"));
    }
}
