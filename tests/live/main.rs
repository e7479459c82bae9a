//! `payguard local` between a real Kafka and a real PostgreSQL: the real command, killed, restarted, redelivered to.
#![allow(clippy::unwrap_used, missing_docs)]

mod stand;

use std::collections::BTreeMap;
use std::time::Duration;

use payguard_generator::{GeneratorConfig, PaymentSource};
use serde_json::Value;

use stand::{Stand, payment};

#[tokio::test(flavor = "multi_thread")]
async fn lesson_16_twelve_payments_on_one_card_raise_an_alert_with_the_merchants_risk() {
    let stand = Stand::new("lesson-16", "drift").await;
    stand.merchant("m-high", "HIGH").await;
    let mut local = stand.start(&[]);
    let now = stand::now_ms();
    let payments = (0..12).map(|n| payment(&format!("p-{n}"), "c-1", "m-high", now - 12_000 + n * 1_000));
    for (n, payment) in (0..).zip(payments.chain(["not-json".to_owned()])) {
        stand.produce(&stand.topic("payments.raw"), n % 4, &payment);
    }
    let alert = stand.wait_for(&mut local, "fraud.alerts", |alert| alert["ruleId"] == "velocity").await;
    assert_eq!((&alert["cardId"], &alert["merchantRisk"]), (&Value::from("c-1"), &Value::from("HIGH")));
    let letter = stand.wait_for(&mut local, "payments.dlq", |letter| letter["raw"] == "not-json").await;
    assert_eq!(letter["reason"], "bad-json");
    local.end();
    // Nothing is there twice, and what was once refused can be sent back, once.
    assert!(stand.verify("fraud.alerts", "alertId", &[]).success());
    assert!(stand.payguard(&["dlq", "list"]).stdout.contains("bad-json"));
    assert!(stand.payguard(&["dlq", "replay"]).stdout.contains("1 dead letters sent"));
    assert!(stand.payguard(&["dlq", "replay"]).stdout.contains("0 dead letters sent"));
    let mut local = stand.start(&[]);
    let again = stand.wait_for(&mut local, "payments.dlq", |letter| letter["replays"] == 1).await;
    assert_eq!(again["raw"], "not-json");
    local.end();
    let said = stand.payguard(&["dlq", "replay"]).stdout;
    assert!(said.contains("0 dead letters sent") && said.contains("1 stay"), "it does not go round: {said}");
}

/// Generated payments for four partitions, in the order of their numbers.
fn load(records: u64) -> Vec<Vec<String>> {
    let config = GeneratorConfig {
        records,
        seed: 7,
        confirm: 0.0,
        dup: 0.02,
        bad: 0.01,
        burst: 0.004,
        ..GeneratorConfig::default()
    };
    let mut source = PaymentSource::new(&config).unwrap();
    let mut partitions = vec![Vec::new(); 4];
    let begin = stand::now_ms() - 60_000;
    for number in 0..records {
        let line = source.next_record(begin + i64::try_from(number * 5).unwrap()).line.to_owned();
        partitions[usize::try_from(number % 4).unwrap()].push(line);
    }
    partitions
}

/// What every output topic must hold, by what tells its records apart: from a run over the same partitions.
const TOPICS: [(&str, &str); 4] =
    [("fraud.alerts", "alertId"), ("payments.dlq", "raw"), ("payments.late", "paymentId"), ("card.profiles", "@value")];

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_killed_and_delivered_again_every_topic_has_every_record_once() {
    let stand = Stand::new("killed", "strict").await;
    let partitions = load(3_000);
    let expected = stand.reference(&partitions);
    // The order of alignment makes the outcome one of the input alone; faults of the mapping all the while.
    let faults =
        ["--fault-duplicate", "0.3", "--fault-timeout", "0.2", "--fault-rebalance", "0.05", "--batch-size", "40"];
    let mut local = stand.start(&faults);
    for (number, chunk) in (0..).zip(0..10) {
        for (partition, lines) in (0..).zip(&partitions) {
            for line in lines.iter().skip(chunk * 75).take(75) {
                stand.produce(&stand.topic("payments.raw"), partition, line);
            }
        }
        tokio::time::sleep(Duration::from_millis(300 + 70 * number)).await;
        local.kill();
        local = stand.start(&faults);
    }
    // Partitions fall idle a minute after their last record; what is held back until then is the last to come. Sessions
    // would need the end of time, which a topic does not have.
    for topic in TOPICS.map(|(topic, _)| topic) {
        stand.until(&mut local, topic, |records| records.len() >= expected[topic].len()).await;
    }
    local.end();
    let mut sizes = BTreeMap::new();
    for (topic, id) in TOPICS {
        let file = stand.expected_file(topic, &expected);
        let verdict = stand.verify(topic, id, &["--expect", file.to_str().unwrap()]);
        assert!(verdict.success(), "{topic}: {}", verdict.stdout);
        sizes.insert(topic, expected[topic].len());
    }
    assert!(sizes["fraud.alerts"] > 10 && sizes["payments.dlq"] > 10 && sizes["card.profiles"] > 1_000, "{sizes:?}");
}
