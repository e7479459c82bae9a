//! The pipeline against the naive model, and against itself with other batches and shards.
#![allow(missing_docs)]

use payguard_sim::reference::Published;
use payguard_tests::{Feed, Outputs, Setup, Shape, are_chosen, assert_same, records, seeds, undisturbed};

const SHAPES: [Shape; 3] = [Shape::TIDY, Shape::DIRTY, Shape::COARSE];

#[tokio::test(start_paused = true)]
async fn the_pipeline_publishes_what_the_naive_model_publishes_record_by_record_in_order() {
    let mut seen = Published::new();
    for seed in seeds(40) {
        for shape in SHAPES.map(Shape::attacked) {
            let data = records(seed, 200, shape);
            let (setup, feed) = (Setup::full(), Feed::full(seed, &data, 23));
            let (_, outputs) = undisturbed(&setup, &feed).await;
            let (found, expected) = (outputs.by_topic(), setup.reference_of(&feed));
            for topic in found.keys().chain(expected.keys()) {
                assert_eq!(found.get(topic), expected.get(topic), "SIM_SEEDS={seed} {shape:?} {topic}");
            }
            for (topic, records) in expected {
                seen.entry(topic).or_default().extend(records);
            }
        }
    }
    if are_chosen() {
        return;
    }
    assert_eq!(seen.len(), 8, "every topic and the table were used: {:?}", seen.keys());
    let alerts = seen[payguard_publish::ALERTS_TOPIC].iter().map(|r| String::from_utf8_lossy(&r.value));
    let alerts: Vec<_> = alerts.collect();
    for rule in ["velocity", "amount-spike", "blocked-country", "card-testing", "impossible-travel", "unconfirmed"] {
        let of_rule = alerts.iter().filter(|alert| alert.contains(&format!(r#""ruleId":"{rule}""#))).count();
        assert!(of_rule > 50, "{rule}: {of_rule}");
    }
}

#[tokio::test(start_paused = true)]
async fn neither_the_size_of_commits_nor_of_batches_changes_anything_not_even_the_order() {
    for seed in seeds(15) {
        for shape in SHAPES {
            let data = records(seed, 120, shape);
            let expected = run(&data, 1000, 1000, 1).await;
            for (records_per_commit, batch) in [(1, 120), (2, 9), (7, 1), (1000, 13)] {
                let outputs = run(&data, records_per_commit, batch, 1).await;
                assert_same(
                    &Ok(outputs),
                    &expected,
                    &format!("SIM_SEEDS={seed} {shape:?} commits of {records_per_commit}, batches of {batch}"),
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn with_several_shards_batches_change_nothing_either() {
    for seed in seeds(10) {
        for shape in SHAPES {
            for shards in [2, 4] {
                let data = records(seed, 120, shape);
                let expected = run(&data, 1000, 1000, shards).await;
                for (records_per_commit, batch) in [(1, 120), (2, 9), (7, 1)] {
                    let outputs = run(&data, records_per_commit, batch, shards).await;
                    assert_same(
                        &Ok(outputs),
                        &expected,
                        &format!("SIM_SEEDS={seed} {shape:?} {shards} shards, commits of {records_per_commit}"),
                    );
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_number_of_shards_does_not_change_what_is_published() {
    for seed in seeds(25) {
        for shape in SHAPES {
            let data = records(seed, 200, shape);
            let one = run(&data, 16, 23, 1).await;
            for shards in [2, 4] {
                let many = run(&data, 16, 23, shards).await;
                assert_eq!(many.final_totals(), one.final_totals(), "SIM_SEEDS={seed} {shape:?} {shards} shards");
                let (one, many) = (one.sets(), many.sets());
                for topic in ["payments.dlq", "payments.late"] {
                    assert_eq!(many.get(topic), one.get(topic), "SIM_SEEDS={seed} {shape:?} {shards} shards {topic}");
                }
                // Payments that came at the same watermark change places between shards; without late payments no
                // window and no session can tell.
                if shape == Shape::TIDY {
                    for topic in ["card.sessions", "merchant_stats"] {
                        assert_eq!(many.get(topic), one.get(topic), "SIM_SEEDS={seed} {shards} shards {topic}");
                    }
                }
            }
        }
    }
}

async fn run(
    data: &[payguard_sim::reference::RawRecord],
    records_per_commit: usize,
    batch: usize,
    shards: u32,
) -> Outputs {
    let setup = Setup::default().with_shards(shards).with(|s| s.records_per_commit = records_per_commit);
    undisturbed(&setup, &Feed::one(data, batch)).await.1
}
