//! The sink on a real broker.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::cell::Cell;
use std::time::Duration;

use payguard_engine::store::{Sink, SinkPosition, SinkReply};
use payguard_engine::{Seq, StoreErrorKind};
use payguard_kafka::rdkafka::ClientConfig;
use payguard_kafka::rdkafka::admin::{AdminClient, AdminOptions};
use payguard_kafka::rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use payguard_kafka::testing::{Broker, BrokerOptions};
use payguard_kafka::{Extent, Isolation, read_topic};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use support::{batch, committed, prefix, read, sink, task};

/// A producer of somebody who has the same transactional id.
fn executor(broker: &Broker, topic: &str) -> BaseProducer {
    let id = format!("{}-publish-0", prefix(topic));
    let config: ClientConfig = broker.clients().config();
    let producer: BaseProducer = config.clone().set("transactional.id", id).create().unwrap();
    producer.init_transactions(Duration::from_secs(30)).unwrap();
    producer
}

fn flush(producer: &BaseProducer) {
    producer.flush(Duration::from_secs(30)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_and_its_position_are_there_together_for_whoever_comes_next() {
    let (broker, topic) = (Broker::shared(), "together");
    broker.create_topic(topic, 4, &[]);
    let first = sink(broker, topic);
    assert_eq!(first.position(&task()).await.unwrap(), SinkPosition::default());
    assert_eq!(first.write(&task(), &batch(1, 0..50)).await.unwrap(), SinkReply::Written);
    assert_eq!(first.write(&task(), &batch(2, [])).await.unwrap(), SinkReply::Written);
    assert_eq!(first.write(&task(), &batch(3, 50..60)).await.unwrap(), SinkReply::Written);
    let second = sink(broker, topic);
    assert_eq!(second.position(&task()).await.unwrap(), SinkPosition::after(&batch(3, [])));
    // What was written is not written again, and nothing is left out.
    for wrong in [1, 3, 5] {
        let reply = second.write(&task(), &batch(wrong, 900..910)).await.unwrap();
        assert_eq!(reply, SinkReply::Elsewhere(SinkPosition::after(&batch(3, []))), "batch {wrong}");
    }
    assert_eq!(committed(broker, topic), (0..60).collect::<Vec<_>>());
    for (key, value) in read(broker, topic, Isolation::Committed) {
        assert_eq!(key, format!("card-{}", value.parse::<u64>().unwrap() % 5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_wakes_up_after_another_has_taken_over_commits_nothing() {
    let (broker, topic) = (Broker::shared(), "fenced");
    broker.create_topic(topic, 2, &[]);
    let (old, new) = (sink(broker, topic), sink(broker, topic));
    old.position(&task()).await.unwrap();
    old.write(&task(), &batch(1, 0..3)).await.unwrap();
    new.position(&task()).await.unwrap();
    let error = old.write(&task(), &batch(2, 100..103)).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("another executor has taken over"), "{error}");
    new.write(&task(), &batch(2, 3..6)).await.unwrap();
    // It tries again, as the engine does: it registers, sees that its batch is somebody else's, and writes nothing.
    let reply = old.write(&task(), &batch(2, 100..103)).await.unwrap();
    assert_eq!(reply, SinkReply::Elsewhere(SinkPosition::after(&batch(2, []))));
    assert_eq!(committed(broker, topic), (0..6).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_was_left_open_is_ended_and_its_producer_cannot_commit_it_any_more() {
    let (broker, topic) = (Broker::shared(), "left-open");
    broker.create_topic(topic, 1, &[]);
    // An executor is frozen in the midst of its transaction.
    let frozen = executor(broker, topic);
    frozen.begin_transaction().unwrap();
    frozen.send(BaseRecord::to(topic).key("card-0").payload("100")).unwrap();
    flush(&frozen);
    let extent = read_topic(&broker.clients(), topic, Isolation::Committed, |_| panic!("nothing is committed"));
    assert_eq!(extent.unwrap(), Extent { records: 0, held_back: 1 });
    // Its successor does not wait for a timeout, and neither do readers.
    let sink = sink(broker, topic);
    assert_eq!(sink.position(&task()).await.unwrap(), SinkPosition::default());
    sink.write(&task(), &batch(1, 0..3)).await.unwrap();
    assert_eq!(committed(broker, topic), [0, 1, 2]);
    let error = frozen.commit_transaction(Duration::from_secs(30)).unwrap_err();
    let code = error.rdkafka_error_code();
    assert!(error.to_string().contains("fenced") || error.to_string().contains("Fenced"), "{code:?} {error}");
    // Readers that do not ask for committed records only may see what was never committed.
    let seen = read(broker, topic, Isolation::Uncommitted);
    assert_eq!(seen.iter().filter(|(_, value)| value == "100").count(), 1);
    assert_eq!(committed(broker, topic), [0, 1, 2]);
}

/// What an executor does.
#[derive(Clone, Debug)]
enum Step {
    /// Writes the next batch, of so many records, with what it remembers.
    Write(usize, usize),
    /// Looks where it stands, as after an error.
    Look(usize),
    /// Dies, and another takes its place.
    Die(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let executor = 0..3usize;
    let step = prop_oneof![
        6 => (executor.clone(), 0..40usize).prop_map(|(who, records)| Step::Write(who, records)),
        2 => executor.clone().prop_map(Step::Look),
        1 => executor.prop_map(Step::Die),
    ];
    prop::collection::vec(step, 1..25)
}

/// Every record that an executor was told to be written is there once, and no other.
#[test]
fn whatever_three_executors_do_every_batch_is_written_once() {
    let broker = Broker::shared();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let runs = Cell::new(0);
    let mut runner = TestRunner::new(Config { cases: 12, failure_persistence: None, ..Config::default() });
    runner
        .run(&steps(), |steps| {
            runs.set(runs.get() + 1);
            let topic = format!("executors-{}", runs.get());
            broker.create_topic(&topic, 3, &[]);
            let (expected, next) = runtime.block_on(act(broker, &topic, steps));
            assert_eq!(committed(broker, &topic), expected);
            let position = runtime.block_on(sink(broker, &topic).position(&task())).unwrap();
            assert_eq!(position.seq.next(), next);
            Ok(())
        })
        .unwrap();
}

/// Returns the numbers that were written, and the next batch.
async fn act(broker: &Broker, topic: &str, steps: Vec<Step>) -> (Vec<u64>, Seq) {
    let mut sinks: Vec<_> = (0..3).map(|_| sink(broker, topic)).collect();
    // Where each thinks that its task stands.
    let mut at = [None; 3];
    let (mut expected, mut number, mut newest) = (Vec::new(), 0, 0);
    for step in steps {
        match step {
            Step::Die(who) => (sinks[who], at[who]) = (sink(broker, topic), None),
            Step::Look(who) => at[who] = Some(sinks[who].position(&task()).await.unwrap().seq.0),
            Step::Write(who, records) => {
                let seq = at[who].unwrap_or(0) + 1;
                let numbers: Vec<u64> = (number..).take(records).collect();
                number += records as u64;
                match sinks[who].write(&task(), &batch(seq, numbers.clone())).await {
                    Ok(SinkReply::Written) => {
                        assert!(seq == newest + 1 || records == 0 && seq > newest, "{seq} after {newest}");
                        newest = seq;
                        expected.extend(numbers);
                        at[who] = Some(seq);
                    }
                    Ok(SinkReply::Elsewhere(position)) => {
                        assert_eq!(position.seq.0, newest);
                        at[who] = Some(newest);
                    }
                    Err(error) => {
                        assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
                        assert!(error.to_string().contains("another executor"), "{error}");
                    }
                }
            }
        }
    }
    (expected, Seq(newest + 1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_is_gone_is_told_anew() {
    let (broker, topic) = (Broker::shared(), "forgotten");
    broker.create_topic(topic, 1, &[]);
    let first = sink(broker, topic);
    first.position(&task()).await.unwrap();
    for seq in 1..=3 {
        first.write(&task(), &batch(seq, seq * 10..seq * 10 + 2)).await.unwrap();
    }
    let clients = broker.clients();
    let admin: AdminClient<_> = clients.config().create_with_context(clients.context()).unwrap();
    let group = format!("{}-publish-0", prefix(topic));
    admin.delete_groups(&[&group], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let sink = sink(broker, topic);
    assert!(sink.can_forget());
    assert_eq!(sink.position(&task()).await.unwrap(), SinkPosition::default());
    let reply = sink.write(&task(), &batch(4, 40..42)).await.unwrap();
    assert_eq!(reply, SinkReply::Elsewhere(SinkPosition::default()), "records need a position before them");
    assert_eq!(sink.write(&task(), &batch(3, [])).await.unwrap(), SinkReply::Written);
    assert_eq!(sink.write(&task(), &batch(4, 40..42)).await.unwrap(), SinkReply::Written);
    assert_eq!(committed(broker, topic), [10, 11, 20, 21, 30, 31, 40, 41]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_repeating_cannot_mend_says_what_to_do() {
    let (broker, topic) = (Broker::shared(), "too-small");
    broker.create_topic(topic, 1, &[("max.message.bytes", "2000")]);
    let sink_of = sink(broker, topic);
    sink_of.position(&task()).await.unwrap();
    let mut large = batch(1, 0..2);
    // What does not compress.
    let mut noise = 1u64;
    large.records[1].value = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (noise >> 56) as u8
    })
    .take(9_000)
    .collect();
    let error = sink_of.write(&task(), &large).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Invalid);
    assert!(error.to_string().contains("max.message.bytes"), "{error}");
    assert_eq!(committed(broker, topic), Vec::<u64>::new(), "the batch is written whole or not at all");
    assert_eq!(sink_of.write(&task(), &batch(1, 0..2)).await.unwrap(), SinkReply::Written);

    let error = sink(broker, "nowhere").position(&task()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Invalid);
    assert!(error.to_string().contains("make the topic"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_loses_nothing_and_repeats_nothing() {
    let mut broker = tokio::task::spawn_blocking(|| Broker::start(BrokerOptions::default())).await.unwrap();
    let topic = "away";
    broker.create_topic(topic, 2, &[]);
    let sink = sink(&broker, topic);
    sink.position(&task()).await.unwrap();
    sink.write(&task(), &batch(1, 0..20)).await.unwrap();
    // Its marks are there before the broker goes: a node that is killed before may never write them (docs/kafka.md).
    while committed(&broker, topic).len() < 20 {}
    tokio::task::block_in_place(|| broker.stop());
    let error = sink.write(&task(), &batch(2, 20..40)).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    tokio::task::block_in_place(|| broker.restart());
    loop {
        match sink.write(&task(), &batch(2, 20..40)).await {
            Ok(reply) => break assert_eq!(reply, SinkReply::Written),
            Err(error) => assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}"),
        }
    }
    while committed(&broker, topic).len() < 40 {}
    assert_eq!(committed(&broker, topic), (0..40).collect::<Vec<_>>());
}
