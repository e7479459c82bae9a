//! Reading topics as a member of a consumer group.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use payguard_aws::event::{KafkaRecord, NO_TIMESTAMP};
use payguard_kafka::rdkafka::client::{ClientContext, OAuthToken};
use payguard_kafka::rdkafka::config::RDKafkaLogLevel;
use payguard_kafka::rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use payguard_kafka::rdkafka::error::{KafkaError, KafkaResult};
use payguard_kafka::rdkafka::message::{BorrowedMessage, Headers, Message};
use payguard_kafka::rdkafka::{Offset, Timestamp, TopicPartitionList};
use payguard_kafka::{KafkaClients, KafkaContext};
use tokio::sync::mpsc::UnboundedSender;

use crate::core::Partition;
use crate::run::MappingOptions;

/// Where a group begins in partitions that it has committed nothing of. Afterwards its commits alone count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartPosition {
    /// With the oldest record.
    Earliest,
    /// With the first record after the start.
    Latest,
    /// With the first record whose timestamp, in milliseconds since the Unix epoch, is not before this.
    Timestamp(i64),
}

/// How long brokers may take to answer a question.
const ASK: Duration = Duration::from_secs(30);
/// How often a reader without records looks whether it should end.
const LOOK: Duration = Duration::from_millis(50);

/// What a reader tells.
pub(crate) enum Read {
    Assigned(Vec<Partition>),
    Revoked(Vec<Partition>),
    Record(KafkaRecord),
    NotCommitted,
    Error(KafkaError),
}

/// A member of a consumer group.
pub(crate) struct Reader {
    consumer: Arc<BaseConsumer<ReaderContext>>,
    topics: Vec<String>,
    end: Arc<AtomicBool>,
}

pub(crate) struct ReaderContext {
    kafka: KafkaContext,
    events: UnboundedSender<Read>,
}

impl Reader {
    /// Joins the group and reads; blocks while it asks where to begin.
    pub(crate) fn start(
        clients: &KafkaClients,
        options: &MappingOptions,
        events: UnboundedSender<Read>,
    ) -> KafkaResult<Reader> {
        let mut config = clients.config();
        config
            .set("group.id", &options.group)
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed")
            // A partition that appears later is read from its beginning.
            .set("auto.offset.reset", "earliest")
            .set("session.timeout.ms", "10000")
            .set("queued.max.messages.kbytes", "16384");
        if options.start != StartPosition::Earliest {
            let consumer: BaseConsumer = config.create()?;
            begin(&consumer, &options.topics, options.start)?;
        }
        if let Some(instance) = &options.instance {
            config.set("group.instance.id", instance);
        }
        let context = ReaderContext { kafka: clients.context(), events: events.clone() };
        let consumer: Arc<BaseConsumer<ReaderContext>> = Arc::new(config.create_with_context(context)?);
        let reader = Reader { consumer, topics: options.topics.clone(), end: Arc::default() };
        reader.subscribe()?;
        let (consumer, end) = (reader.consumer.clone(), reader.end.clone());
        std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let event = match consumer.poll(LOOK) {
                    None => continue,
                    Some(Ok(message)) => Read::Record(record(&message)),
                    Some(Err(error)) => Read::Error(error),
                };
                if events.send(event).is_err() {
                    break;
                }
            }
        });
        Ok(reader)
    }

    pub(crate) fn context(&self) -> &KafkaContext {
        &self.consumer.context().kafka
    }

    /// Stores positions: without waiting, unless it is `last`.
    pub(crate) fn commit(&self, positions: &[(Partition, i64)], last: bool) -> KafkaResult<()> {
        let mut list = TopicPartitionList::new();
        for (partition, position) in positions {
            list.add_partition_offset(&partition.topic, partition.number, Offset::Offset(*position))?;
        }
        self.consumer.commit(&list, if last { CommitMode::Sync } else { CommitMode::Async })
    }

    /// Stops or goes on with fetching a partition; what was fetched already still comes.
    pub(crate) fn pause(&self, partition: &Partition, pause: bool) -> KafkaResult<()> {
        let mut list = TopicPartitionList::new();
        list.add_partition(&partition.topic, partition.number);
        if pause { self.consumer.pause(&list) } else { self.consumer.resume(&list) }
    }

    /// Gives everything back and joins the group anew: librdkafka does so for every subscription. Leaving first, with
    /// `unsubscribe`, is done later and may undo the subscription that follows.
    pub(crate) fn rebalance(&self) -> KafkaResult<()> {
        self.subscribe()
    }

    fn subscribe(&self) -> KafkaResult<()> {
        self.consumer.subscribe(&self.topics.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

/// Commits the beginning of every partition of which the group has committed nothing, before it has members.
fn begin(consumer: &BaseConsumer, topics: &[String], start: StartPosition) -> KafkaResult<()> {
    let mut all = TopicPartitionList::new();
    for topic in topics {
        let metadata = consumer.fetch_metadata(Some(topic), ASK)?;
        for partition in metadata.topics().iter().flat_map(|topic| topic.partitions()) {
            all.add_partition(topic, partition.id());
        }
    }
    let committed = consumer.committed_offsets(all, ASK)?;
    let mut wanted = TopicPartitionList::new();
    for fresh in committed.elements().iter().filter(|element| element.offset() == Offset::Invalid) {
        let at = match start {
            StartPosition::Timestamp(at) => Offset::Offset(at),
            StartPosition::Earliest => Offset::Beginning,
            StartPosition::Latest => Offset::End,
        };
        wanted.add_partition_offset(fresh.topic(), fresh.partition(), at)?;
    }
    if matches!(start, StartPosition::Timestamp(_)) && wanted.count() > 0 {
        wanted = consumer.offsets_for_times(wanted, ASK)?;
    }
    let mut positions = TopicPartitionList::new();
    for element in wanted.elements() {
        let position = match element.offset() {
            Offset::Offset(offset) => offset,
            other => {
                let (low, high) = consumer.fetch_watermarks(element.topic(), element.partition(), ASK)?;
                if other == Offset::Beginning { low } else { high }
            }
        };
        positions.add_partition_offset(element.topic(), element.partition(), Offset::Offset(position))?;
    }
    if positions.count() > 0 { consumer.commit(&positions, CommitMode::Sync) } else { Ok(()) }
}

fn record(message: &BorrowedMessage<'_>) -> KafkaRecord {
    let (timestamp, timestamp_type) = match message.timestamp() {
        Timestamp::NotAvailable => (NO_TIMESTAMP, None),
        Timestamp::CreateTime(at) => (at, Some("CREATE_TIME".to_owned())),
        Timestamp::LogAppendTime(at) => (at, Some("LOG_APPEND_TIME".to_owned())),
    };
    let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
    KafkaRecord {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        timestamp,
        timestamp_type,
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers: headers.map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect(),
    }
}

impl ReaderContext {
    /// Nobody listens any more when the mapping ends.
    fn tell(&self, event: Read) {
        let _ = self.events.send(event);
    }
}

fn partitions(list: &TopicPartitionList) -> Vec<Partition> {
    let named = |(topic, number): (String, i32)| Partition { topic, number };
    list.to_topic_map().into_keys().map(named).collect()
}

impl ConsumerContext for ReaderContext {
    fn pre_rebalance(&self, _: &BaseConsumer<ReaderContext>, rebalance: &Rebalance<'_>) {
        match rebalance {
            // Told before records can come.
            Rebalance::Assign(list) => self.tell(Read::Assigned(partitions(list))),
            Rebalance::Revoke(list) => self.tell(Read::Revoked(partitions(list))),
            Rebalance::Error(error) => self.tell(Read::Error(error.clone())),
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::warn!(%error, "positions were not committed");
            self.tell(Read::NotCommitted);
        }
    }
}

impl ClientContext for ReaderContext {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = KafkaContext::ENABLE_REFRESH_OAUTH_TOKEN;

    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        self.kafka.log(level, fac, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.kafka.error(error, reason);
    }

    fn generate_oauth_token(&self, config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.kafka.generate_oauth_token(config)
    }
}
