//! Topics with records, and mappings that read them.

use std::sync::Arc;
use std::time::Duration;

use payguard_kafka::KafkaContext;
use payguard_kafka::rdkafka::consumer::{BaseConsumer, Consumer};
use payguard_kafka::rdkafka::message::{Header, OwnedHeaders};
use payguard_kafka::rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use payguard_kafka::rdkafka::{Offset, TopicPartitionList};
use payguard_kafka::testing::Broker;
use payguard_mapping::core::{Limits, PAYLOAD_BYTES};
use payguard_mapping::{FailureFolder, Mapping, MappingError, MappingOptions, StartPosition, Summary};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::function::Function;

pub(crate) const ASK: Duration = Duration::from_secs(60);

/// Writes `count` records to each partition: values `partition:number`, from `from` on. Every fifth is a tombstone with a
/// key, every third has headers.
pub(crate) fn produce(broker: &Broker, topic: &str, partitions: i32, from: i64, count: i64) {
    let producer: ThreadedProducer<DefaultProducerContext> = broker.clients().config().create().unwrap();
    for number in from..from + count {
        for partition in 0..partitions {
            let (key, value) = (format!("card-{number}"), format!("{partition}:{number}"));
            let mut record = BaseRecord::to(topic).partition(partition).key(&key).timestamp(1_000 + number);
            if number % 5 != 4 {
                record = record.payload(&value);
            }
            if number % 3 == 0 {
                let bytes: &[u8] = &[0, 127, 128, 255];
                let headers = OwnedHeaders::new().insert(Header { key: "trace", value: Some(bytes) });
                record = record.headers(headers.insert(Header { key: "none", value: None::<&[u8]> }));
            }
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
    }
    producer.flush(ASK).unwrap();
}

pub(crate) fn options(topic: &str) -> MappingOptions {
    MappingOptions {
        topics: vec![topic.to_owned()],
        group: format!("{topic}-group"),
        instance: Some("only".to_owned()),
        start: StartPosition::Earliest,
        limits: Limits {
            batch_size: 40,
            window_ms: 20,
            payload_bytes: PAYLOAD_BYTES,
            pollers: 4,
            maximum_retries: None,
            maximum_age_ms: None,
            bisect: false,
            backoff_ms: 1,
        },
        faults: None,
        patience: ASK,
    }
}

/// A mapping that runs.
pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Summary, MappingError>>,
}

impl Running {
    pub(crate) fn start(broker: &Broker, options: MappingOptions, function: &Arc<Function>, failures: &str) -> Running {
        let (stop, stopped) = oneshot::channel::<()>();
        let (clients, invoker) = (broker.clients(), function.invoker());
        let failures = Arc::new(FailureFolder::new(failures.into()));
        let task = tokio::spawn(async move {
            Mapping::run(&clients, options, invoker, failures, async { drop(stopped.await) }).await
        });
        Running { stop, task }
    }

    /// As an operator stops it.
    pub(crate) async fn stop(self) -> Summary {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap()
    }

    /// As a crash ends it: nothing is committed any more.
    pub(crate) async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }

    /// Its end, which nobody asked for.
    pub(crate) async fn ended(self) -> MappingError {
        self.task.await.unwrap().unwrap_err()
    }
}

/// What the group has committed, by partition.
pub(crate) fn committed(broker: &Broker, topic: &str, partitions: i32) -> Vec<Offset> {
    let clients = broker.clients();
    let mut config = clients.config();
    config.set("group.id", format!("{topic}-group"));
    let consumer: BaseConsumer<KafkaContext> = config.create_with_context(clients.context()).unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition(topic, partition);
    }
    let committed = consumer.committed_offsets(list, ASK).unwrap();
    (0..partitions).map(|partition| committed.find_partition(topic, partition).unwrap().offset()).collect()
}
