//! Nothing is lost, whatever happens.

use std::time::Duration;

use payguard_aws::event::KafkaRecord;
use payguard_kafka::rdkafka::Offset;
use payguard_kafka::testing::{Broker, BrokerOptions};
use payguard_mapping::core::Limits;
use payguard_mapping::{Faults, MappingError, MappingOptions, StartPosition};

use crate::function::{Function, Refusal};
use crate::world::{Running, committed, options, produce};

const NOWHERE: &str = "/nowhere";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_arrive_as_they_are_and_a_restart_goes_on_behind_them() {
    let broker = Broker::shared();
    broker.create_topic("as-they-are", 4, &[]);
    produce(broker, "as-they-are", 4, 0, 100);
    let function = Function::new(|_, _| Refusal::No);
    let limits = Limits { pollers: 1, ..options("").limits };
    let running = Running::start(broker, MappingOptions { limits, ..options("as-they-are") }, &function, NOWHERE);
    function.processed(400).await;
    let summary = running.stop().await;
    assert_eq!((summary.failed, summary.delivered, summary.discarded), (0, 400, 0));
    assert_eq!(committed(broker, "as-they-are", 4), [Offset::Offset(100); 4]);
    function.look(|seen| {
        assert_eq!(seen.overlaps, 0);
        assert!(seen.most_partitions > 1, "several partitions in one event");
        for ((partition, offset), record) in &seen.records {
            let value = (offset % 5 != 4).then(|| format!("{partition}:{offset}").into_bytes());
            let (key, headers) = (Some(format!("card-{offset}").into_bytes()), headers(*offset));
            let expected = KafkaRecord {
                topic: "as-they-are".to_owned(),
                partition: *partition,
                offset: *offset,
                timestamp: 1_000 + offset,
                timestamp_type: Some("CREATE_TIME".to_owned()),
                key,
                value,
                headers,
            };
            assert_eq!(*record, expected);
        }
    });

    produce(broker, "as-they-are", 4, 100, 10);
    let running = Running::start(broker, options("as-they-are"), &function, NOWHERE);
    function.processed(440).await;
    assert_eq!(running.stop().await.delivered, 40, "what was committed is not read again");
}

fn headers(offset: i64) -> Vec<(String, Option<Vec<u8>>)> {
    if offset % 3 != 0 {
        return Vec::new();
    }
    vec![("trace".to_owned(), Some(vec![0, 127, 128, 255])), ("none".to_owned(), None)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_is_processed_whatever_goes_wrong() {
    let mut broker = Broker::start(BrokerOptions::default());
    broker.create_topic("wrong", 4, &[]);
    produce(&broker, "wrong", 4, 0, 500);
    let function = Function::new(|record, count| match (record.offset % 50, count) {
        (7, ..=2) => Refusal::Listed,
        (31, 1) => Refusal::Fails,
        _ => Refusal::No,
    });
    let faults = Faults {
        seed: 1,
        duplicate: 0.2,
        timeout: 0.1,
        pause: 0.1,
        longest_pause: Duration::from_millis(30),
        rebalance: 0.02,
    };
    let limits = Limits { pollers: 2, bisect: true, ..options("").limits };
    let with_faults = MappingOptions { faults: Some(faults), limits, ..options("wrong") };
    let running = Running::start(&broker, with_faults.clone(), &function, NOWHERE);
    function.processed(500).await;
    running.crash().await;

    let running = Running::start(&broker, with_faults, &function, NOWHERE);
    function.processed(1_000).await;
    // Blocks; the mapping goes on without a broker, on the other thread.
    tokio::task::block_in_place(|| {
        broker.kill();
        broker.restart();
        produce(&broker, "wrong", 4, 500, 100);
    });
    function.processed(2_400).await;
    running.stop().await;
    function.look(|seen| {
        assert!(seen.processed.values().all(|offsets| offsets.iter().copied().eq(0..600)));
        assert!(seen.deliveries.values().flat_map(|offsets| offsets.values()).any(|count| *count > 1));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_nobody_can_process_is_kept_and_does_not_block_its_partition() {
    let broker = Broker::shared();
    broker.create_topic("poison", 1, &[]);
    produce(broker, "poison", 1, 0, 40);
    let folder = tempfile::tempdir().unwrap();
    let failures = folder.path().join("failures");
    let function = Function::new(|record, _| if record.offset == 13 { Refusal::Fails } else { Refusal::No });
    let limits = Limits { bisect: true, maximum_retries: Some(2), ..options("").limits };
    let options = MappingOptions { limits, ..options("poison") };
    let running = Running::start(broker, options, &function, failures.to_str().unwrap());
    function.processed(39).await;
    let summary = running.stop().await;
    assert_eq!(summary.discarded, 1);
    assert_eq!(function.look(|seen| seen.deliveries[&0][&13]), 9, "cut 6 times, then alone three times");
    assert_eq!(committed(broker, "poison", 1), [Offset::Offset(40)]);
    let kept = std::fs::read_to_string(failures.join("poison-0.13-13.1.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(kept["requestContext"]["condition"], "RetryAttemptsExhausted");
    assert_eq!(kept["requestContext"]["approximateInvokeCount"], 3);
    assert_eq!(kept["payload"]["records"]["poison-0"][0]["offset"], 13);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_group_begins_where_it_is_told_and_an_old_one_where_it_was() {
    let broker = Broker::shared();
    for (topic, start, expected) in [
        ("from-earliest", StartPosition::Earliest, 0),
        ("from-latest", StartPosition::Latest, 20),
        ("from-time", StartPosition::Timestamp(1_015), 15),
        ("from-future", StartPosition::Timestamp(1_000_000), 20),
    ] {
        broker.create_topic(topic, 1, &[("retention.ms", "-1")]);
        produce(broker, topic, 1, 0, 20);
        let function = Function::new(|_, _| Refusal::No);
        let options = MappingOptions { start, ..options(topic) };
        let running = Running::start(broker, options.clone(), &function, NOWHERE);
        if start == StartPosition::Earliest || start == StartPosition::Timestamp(1_015) {
            function.processed(usize::try_from(20 - expected).unwrap()).await;
        }
        while committed(broker, topic, 1) == [Offset::Invalid] {
            tokio::task::yield_now().await;
        }
        produce(broker, topic, 1, 20, 5);
        function.processed(usize::try_from(25 - expected).unwrap()).await;
        running.stop().await;
        function.look(|seen| assert!(seen.processed[&0].iter().copied().eq(expected..25), "{topic}"));

        produce(broker, topic, 1, 25, 5);
        let running = Running::start(broker, options, &function, NOWHERE);
        function.processed(usize::try_from(30 - expected).unwrap()).await;
        running.stop().await;
        function.look(|seen| assert!(seen.processed[&0].iter().copied().eq(expected..30), "{topic}"));
    }
}

#[tokio::test]
async fn a_topic_that_is_missing_is_named() {
    let broker = Broker::shared();
    let function = Function::new(|_, _| Refusal::No);
    let error = Running::start(broker, options("nowhere"), &function, NOWHERE).ended().await;
    assert!(matches!(&error, MappingError::NoTopic(topic) if topic == "nowhere"), "{error}");
}
