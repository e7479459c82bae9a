//! What the tests have in common: sinks and consumers of a broker.

use std::collections::BTreeMap;

use payguard_engine::store::{SinkBatch, SinkRecord};
use payguard_engine::{InputState, Position, Seq, StageId, TaskId};
use payguard_kafka::rdkafka::Message;
use payguard_kafka::testing::Broker;
use payguard_kafka::{Isolation, read_topic};
use payguard_sink_kafka::{KafkaSink, KafkaSinkOptions};

/// A topic's records: key and value.
pub(crate) type Records = Vec<(String, String)>;

pub(crate) fn task() -> TaskId {
    TaskId::shard(&StageId::new("publish"), 0)
}

/// A process that writes `alerts` to a topic of this name, and positions too.
pub(crate) fn sink(broker: &Broker, topic: &str) -> KafkaSink {
    let options = KafkaSinkOptions {
        transactional_id_prefix: prefix(topic),
        topics: BTreeMap::from([("alerts".to_owned(), topic.to_owned())]),
        position_topic: topic.to_owned(),
    };
    KafkaSink::new(broker.clients(), options, None)
}

pub(crate) fn prefix(topic: &str) -> String {
    format!("test-{topic}")
}

pub(crate) fn record(number: u64) -> SinkRecord {
    SinkRecord { topic: "alerts", key: format!("card-{}", number % 5), value: number.to_string().into_bytes() }
}

/// Batch `seq` with records of these numbers.
pub(crate) fn batch(seq: u64, numbers: impl IntoIterator<Item = u64>) -> SinkBatch {
    let position = Position { at: seq as i64, within: 0 };
    SinkBatch {
        seq: Seq(seq),
        inputs: BTreeMap::from([("enrich/0".to_owned(), InputState { position, watermark_ms: -1, idle: false })]),
        counters: BTreeMap::from([("in.alerts".to_owned(), seq)]),
        records: numbers.into_iter().map(record).collect(),
    }
}

/// What a consumer reads from the beginning to the end that there is now.
pub(crate) fn read(broker: &Broker, topic: &str, isolation: Isolation) -> Records {
    let mut records = Records::new();
    let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
    let extent = read_topic(&broker.clients(), topic, isolation, |message| {
        records.push((text(message.key()), text(message.payload())));
    });
    assert_eq!(extent.unwrap().records, records.len() as u64);
    records
}

/// The numbers that readers of committed records see, sorted.
pub(crate) fn committed(broker: &Broker, topic: &str) -> Vec<u64> {
    let mut numbers: Vec<u64> =
        read(broker, topic, Isolation::Committed).into_iter().map(|(_, value)| value.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}
