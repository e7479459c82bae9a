//! `payguard local` between a real Kafka and a real PostgreSQL: the real command, killed, restarted, redelivered to.
#![allow(clippy::unwrap_used, missing_docs)]

mod stand;

use std::collections::BTreeMap;
use std::time::Duration;

use payguard_generator::{GeneratorConfig, PaymentSource};
use payguard_kafka::testing::BrokerOptions;
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
    for (reason, sent) in [(Some("missing-id"), 0), (Some("bad-json"), 1), (Some("bad-json"), 0), (None, 0)] {
        let flags = reason.map_or(vec![], |reason| vec!["--reason", reason]);
        let said = stand.payguard(&[vec!["dlq", "replay"], flags].concat()).stdout;
        assert!(said.contains(&format!("{sent} dead letters sent")), "{reason:?}: {said}");
    }
    let mut local = stand.start(&[]);
    let again = stand.wait_for(&mut local, "payments.dlq", |letter| letter["replays"] == 1).await;
    assert_eq!(again["raw"], "not-json");
    local.end();
    let said = stand.payguard(&["dlq", "replay"]).stdout;
    assert!(said.contains("0 dead letters sent") && said.contains("1 stay"), "it does not go round: {said}");
    // A run over files reads to the end of all input, which this pipeline must never see.
    let said = stand.payguard(&["run", "--payments", "log", "--state", "state", "--out", "run-out"]);
    assert!(!said.success() && said.stdout.contains("writes to topics of a Kafka cluster"), "{}", said.stdout);
}

/// Payments on one card: from the eleventh on they are too many, which is one alert.
fn spree(stand: &Stand, name: &str, count: i64) {
    let now = stand::now_ms();
    for n in 0..count {
        let payment = payment(&format!("{name}-{n}"), &format!("c-{name}"), "m-1", now - count * 100 + n * 100);
        stand.produce(&stand.topic("payments.raw"), i32::try_from(n % 4).unwrap(), &payment);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn between_brokers_that_ask_for_a_login_and_tls_the_pipeline_works_and_others_are_told_why_not() {
    let options = BrokerOptions { sasl: true, tls: true, ..BrokerOptions::default() };
    let stand = Stand::at(options, "secured", "drift").await;
    let said = stand.refused(&[("PAYGUARD_KAFKA_PASSWORD", Some("wrong"))]);
    assert!(said.contains("Kafka refuses the login") && !said.contains("wrong"), "{said}");
    let nobody = ["PAYGUARD_KAFKA_USER", "PAYGUARD_KAFKA_PASSWORD", "PAYGUARD_KAFKA_SASL_MECHANISM"];
    let said = stand.refused(&nobody.map(|name| (name, None)));
    assert!(said.contains("does it ask for a login (PAYGUARD_KAFKA_USER)"), "{said}");
    let mut local = stand.start(&[]);
    spree(&stand, "secured", 12);
    stand.wait_for(&mut local, "fraud.alerts", |alert| alert["cardId"] == "c-secured").await;
    local.end();
    assert!(stand.verify("fraud.alerts", "alertId", &[]).success());
}

/// What a broker that has lost its log of transactions has to be given: how the log's folders are called.
const TRANSACTION_LOG: &str = "__transaction_state-";

#[tokio::test(flavor = "multi_thread")]
async fn when_the_log_of_transactions_is_lost_the_pipeline_goes_on_and_writes_nothing_twice() {
    let mut stand = Stand::at(BrokerOptions::default(), "wiped", "drift").await;
    let mut local = stand.start(&[]);
    spree(&stand, "before", 14);
    stand.until(&mut local, "fraud.alerts", |alerts| alerts.len() == 1).await;
    // The one process stays, with its producers; the broker does not know them any more.
    stand.restarted(|data| {
        let folders = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
        let lost: Vec<_> = folders.filter(|path| path.to_string_lossy().contains(TRANSACTION_LOG)).collect();
        assert!(!lost.is_empty(), "there was a log of transactions");
        lost.iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
    });
    spree(&stand, "after", 14);
    stand.until(&mut local, "fraud.alerts", |alerts| alerts.len() == 2).await;
    // And so does a new one.
    local.kill();
    let mut local = stand.start(&[]);
    spree(&stand, "restarted", 14);
    stand.until(&mut local, "fraud.alerts", |alerts| alerts.len() == 3).await;
    local.end();
    assert!(stand.verify("fraud.alerts", "alertId", &[]).success());
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
