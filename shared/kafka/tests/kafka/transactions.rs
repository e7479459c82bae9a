//! That the broker of the tests keeps Kafka's promises, which stand-ins do not: what exactly-once rests on.

use std::time::{Duration, Instant};

use payguard_kafka::KafkaContext;
use payguard_kafka::rdkafka::config::ClientConfig;
use payguard_kafka::rdkafka::consumer::{BaseConsumer, Consumer};
use payguard_kafka::rdkafka::error::{KafkaError, RDKafkaErrorCode};
use payguard_kafka::rdkafka::message::Message;
use payguard_kafka::rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use payguard_kafka::rdkafka::{Offset, TopicPartitionList};
use payguard_kafka::testing::{Broker, BrokerOptions};

const ASK: Duration = Duration::from_secs(60);

type Transactional = ThreadedProducer<DefaultProducerContext>;

fn producer(broker: &Broker, id: &str) -> Transactional {
    let mut config = broker.clients().config();
    config.set("transactional.id", id).set("transaction.timeout.ms", "60000").set("linger.ms", "0");
    let producer: Transactional = config.create().unwrap();
    producer.init_transactions(ASK).unwrap();
    producer
}

fn consumer(broker: &Broker, group: &str, isolation: &str) -> BaseConsumer<KafkaContext> {
    let clients = broker.clients();
    let mut config: ClientConfig = clients.config();
    config.set("group.id", group).set("isolation.level", isolation).set("enable.auto.commit", "false");
    config.set("enable.partition.eof", "true").set("auto.offset.reset", "earliest");
    config.create_with_context(clients.context()).unwrap()
}

fn send(producer: &Transactional, topic: &str, value: &str) {
    let record: BaseRecord<'_, str, str> = BaseRecord::to(topic).partition(0).payload(value);
    producer.send(record).map_err(|(error, _)| error).unwrap();
}

/// Waits until everything is delivered. The client's own flush looks every 100 ms only.
fn delivered(producer: &Transactional) {
    while producer.in_flight_count() > 0 {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// All values that a reader of the topic sees up to its end.
fn values(broker: &Broker, topic: &str, isolation: &str) -> Vec<String> {
    let consumer = consumer(broker, "reader", isolation);
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&partitions).unwrap();
    let mut values = Vec::new();
    loop {
        match consumer.poll(ASK).expect("the end is told") {
            Ok(message) => values.push(message.payload_view::<str>().unwrap().unwrap().to_owned()),
            Err(KafkaError::PartitionEOF(_)) => return values,
            Err(error) => panic!("{error}"),
        }
    }
}

fn committed(broker: &Broker, group: &str, topic: &str) -> Offset {
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition(topic, 0);
    let consumer = consumer(broker, group, "read_committed");
    let positions = consumer.committed_offsets(partitions, ASK).unwrap();
    positions.find_partition(topic, 0).unwrap().offset()
}

fn position(topic: &str, offset: i64) -> TopicPartitionList {
    let mut positions = TopicPartitionList::new();
    positions.add_partition_offset(topic, 0, Offset::Offset(offset)).unwrap();
    positions
}

#[test]
fn records_and_position_are_seen_together_or_not_at_all() {
    let broker = Broker::shared();
    broker.create_topic("together", 1, &[]);
    let producer = producer(broker, "together");
    let group = consumer(broker, "together", "read_committed");
    for (value, offset, commit) in [("a", 1, true), ("b", 2, false), ("c", 3, true)] {
        producer.begin_transaction().unwrap();
        send(&producer, "together", value);
        let positions = position("together", offset);
        producer.send_offsets_to_transaction(&positions, &group.group_metadata().unwrap(), ASK).unwrap();
        if commit {
            producer.commit_transaction(ASK).unwrap();
        } else {
            producer.flush(ASK).unwrap();
            producer.abort_transaction(ASK).unwrap();
            assert_eq!(committed(broker, "together", "together"), Offset::Offset(1));
        }
    }
    assert_eq!(values(broker, "together", "read_committed"), ["a", "c"]);
    assert_eq!(values(broker, "together", "read_uncommitted"), ["a", "b", "c"]);
    assert_eq!(committed(broker, "together", "together"), Offset::Offset(3));
}

#[test]
fn a_producer_that_was_replaced_cannot_commit() {
    let broker = Broker::shared();
    broker.create_topic("replaced", 1, &[]);
    let old = producer(broker, "replaced");
    old.begin_transaction().unwrap();
    send(&old, "replaced", "old");
    old.flush(ASK).unwrap();

    let new = producer(broker, "replaced");
    new.begin_transaction().unwrap();
    send(&new, "replaced", "new");
    new.commit_transaction(ASK).unwrap();

    let error = old.commit_transaction(ASK).unwrap_err();
    assert!(
        matches!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::Fenced | RDKafkaErrorCode::ProducerFenced)),
        "{error}"
    );
    assert_eq!(values(broker, "replaced", "read_committed"), ["new"]);
}

#[test]
fn a_broker_has_its_records_after_a_stop_and_after_a_kill() {
    let mut broker = Broker::start(BrokerOptions::default());
    broker.create_topic("kept", 1, &[("retention.ms", "-1")]);
    let bootstrap = broker.bootstrap();
    let mut expected = Vec::new();
    for (at, kill) in [("a", false), ("b", true)] {
        let producer = producer(&broker, "kept");
        producer.begin_transaction().unwrap();
        send(&producer, "kept", at);
        producer.commit_transaction(ASK).unwrap();
        expected.push(at);
        if kill {
            broker.kill()
        } else {
            broker.stop()
        }
        broker.restart();
        // A broker that was killed knows of the last records a moment after it answers, and of commits when their marks are in
        // the partitions.
        let mut found = values(&broker, "kept", "read_committed");
        while found != expected {
            assert!(expected.starts_with(&found.iter().map(String::as_str).collect::<Vec<_>>()), "{found:?}");
            found = values(&broker, "kept", "read_committed");
        }
    }
    assert_eq!(broker.bootstrap(), bootstrap);
}

/// Not a limit: a figure to look at, printed with `--nocapture`.
#[test]
fn a_transaction_of_one_record_and_a_position_passes() {
    let broker = Broker::shared();
    broker.create_topic("latency", 1, &[]);
    let began = Instant::now();
    let producer = producer(broker, "latency");
    let initialised = began.elapsed();
    let group = consumer(broker, "latency", "read_committed");
    let mut took: Vec<Duration> = (1..=100)
        .map(|offset| {
            let began = Instant::now();
            producer.begin_transaction().unwrap();
            send(&producer, "latency", "value");
            delivered(&producer);
            let positions = position("latency", offset);
            producer.send_offsets_to_transaction(&positions, &group.group_metadata().unwrap(), ASK).unwrap();
            producer.commit_transaction(ASK).unwrap();
            began.elapsed()
        })
        .collect();
    assert_eq!(values(broker, "latency", "read_committed").len(), 100);
    let first = took[0];
    took.sort();
    println!("init {initialised:?}, first {first:?}, p50 {:?}, p99 {:?}", took[49], took[98]);
}
