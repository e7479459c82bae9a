//! A topic from its beginning to the end it has now, or from there on, for people and for checks. Blocks.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::{Message, Offset, TopicPartitionList};

use crate::{KafkaClients, KafkaContext, Refusal};

/// What a reader sees of transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Isolation {
    /// Only what was committed, up to the first open transaction.
    Committed,
    /// Everything, aborted records too.
    Uncommitted,
}

impl Isolation {
    /// The word of Kafka's clients.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Isolation::Committed => "read_committed",
            Isolation::Uncommitted => "read_uncommitted",
        }
    }
}

/// How much of a topic there was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extent {
    /// Records that were read.
    pub records: u64,
    /// Offsets behind the first open transaction: nobody who asks for committed records sees them yet.
    pub held_back: u64,
}

/// A topic cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no such topic.
    #[error("there is no topic {0}")]
    NoTopic(String),
    /// Brokers refuse us.
    #[error(transparent)]
    Refused(Refusal),
    /// No answer, or an error of the client.
    #[error("topic {topic} cannot be read: {error}")]
    Failed {
        /// The topic.
        topic: String,
        /// Why.
        error: KafkaError,
    },
    /// The brokers have stopped sending.
    #[error("topic {topic} cannot be read to its end: nothing has come for {} s", PATIENCE.as_secs())]
    Silent {
        /// The topic.
        topic: String,
    },
}

/// How long nothing may come.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long is waited at once.
const POLL: Duration = Duration::from_millis(100);

/// Gives every record of a topic, in the order of each partition, up to the end that the topic has when it begins.
///
/// # Errors
/// When there is no such topic, it cannot be read, or brokers refuse us.
pub fn read_topic(
    clients: &KafkaClients,
    topic: &str,
    isolation: Isolation,
    mut record: impl FnMut(&BorrowedMessage<'_>),
) -> Result<Extent, ReadError> {
    let context = clients.context();
    let failed = |error: KafkaError| failed(&context, topic, error);
    let consumer = consumer(clients, context.clone(), isolation).map_err(failed)?;
    let seen = bounds(&consumer, topic).map_err(failed)?;
    let mut extent = Extent::default();
    if isolation == Isolation::Committed {
        let of_all = self::consumer(clients, context.clone(), Isolation::Uncommitted).map_err(failed)?;
        let all = bounds(&of_all, topic).map_err(failed)?;
        let held_back = all.iter().zip(&seen).map(|(all, seen)| all.1 - seen.1);
        extent.held_back = held_back.map(|offsets| u64::try_from(offsets).unwrap_or(0)).sum();
    }
    // The end of every partition that is not read to its end.
    let mut left: Vec<Option<i64>> = seen.into_iter().map(|(low, high)| (low < high).then_some(high)).collect();
    let mut all = TopicPartitionList::new();
    for (partition, _) in left.iter().enumerate().filter(|(_, end)| end.is_some()) {
        all.add_partition_offset(topic, number(partition), Offset::Beginning).map_err(failed)?;
    }
    consumer.assign(&all).map_err(failed)?;
    let mut heard = Instant::now();
    while left.iter().any(Option::is_some) {
        let event = consumer.poll(POLL);
        if event.is_some() {
            heard = Instant::now();
        }
        match event {
            Some(Ok(message)) => {
                let end = left.get_mut(message.partition().unsigned_abs() as usize);
                let Some((slot, end)) = end.and_then(|slot| slot.map(|end| (slot, end))) else { continue };
                if message.offset() < end {
                    extent.records += 1;
                    record(&message);
                }
                if message.offset() + 1 >= end {
                    *slot = None;
                }
            }
            // The last offsets may be marks of transactions, which nobody is given.
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                if let Some(slot) = left.get_mut(partition.unsigned_abs() as usize) {
                    *slot = None;
                }
            }
            Some(Err(error)) if context.refusal().is_some() => return Err(failed(error)),
            // Brokers that are down for a moment come back.
            Some(Err(_)) | None if heard.elapsed() < PATIENCE => {}
            Some(Err(error)) => return Err(failed(error)),
            None => return Err(ReadError::Silent { topic: topic.to_owned() }),
        }
    }
    Ok(extent)
}

/// Gives every record that comes into a topic from now on, in the order of each partition, for as long as `goes_on` says
/// so, which is asked several times a second. Brokers that are away are waited for.
///
/// # Errors
/// When there is no such topic, brokers refuse us, or the topic cannot be found out about at the start.
pub fn follow_topic(
    clients: &KafkaClients,
    topic: &str,
    isolation: Isolation,
    goes_on: impl Fn() -> bool,
    mut record: impl FnMut(&BorrowedMessage<'_>),
) -> Result<(), ReadError> {
    let context = clients.context();
    let failed = |error: KafkaError| failed(&context, topic, error);
    let consumer = consumer(clients, context.clone(), isolation).map_err(failed)?;
    let mut from = TopicPartitionList::new();
    for (partition, (_, end)) in bounds(&consumer, topic).map_err(failed)?.into_iter().enumerate() {
        from.add_partition_offset(topic, number(partition), Offset::Offset(end)).map_err(failed)?;
    }
    consumer.assign(&from).map_err(failed)?;
    while goes_on() {
        match consumer.poll(POLL) {
            Some(Ok(message)) => record(&message),
            Some(Err(error)) if context.refusal().is_some() => return Err(failed(error)),
            Some(Err(_)) | None => {}
        }
    }
    Ok(())
}

/// What an error of the client means, in the light of what brokers have said meanwhile.
fn failed(context: &KafkaContext, topic: &str, error: KafkaError) -> ReadError {
    match (context.refusal(), error.rdkafka_error_code()) {
        (Some(refusal), _) => ReadError::Refused(refusal),
        (None, Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic)) => {
            ReadError::NoTopic(topic.to_owned())
        }
        _ => ReadError::Failed { topic: topic.to_owned(), error },
    }
}

fn consumer(
    clients: &KafkaClients,
    context: KafkaContext,
    isolation: Isolation,
) -> Result<BaseConsumer<KafkaContext>, KafkaError> {
    clients
        .config()
        // Nothing is committed: the name only has to be one.
        .set("group.id", "payguard-reader")
        .set("enable.auto.commit", "false")
        // What has been removed meanwhile is passed over, not everything up to the end.
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", isolation.word())
        .set("enable.partition.eof", "true")
        .create_with_context(context)
}

/// The first offset of every partition and the one after its last, as the consumer's isolation sees it.
fn bounds(consumer: &BaseConsumer<KafkaContext>, topic: &str) -> Result<Vec<(i64, i64)>, KafkaError> {
    let all = 0..partitions(consumer, topic)?;
    all.map(|partition| consumer.fetch_watermarks(topic, partition, PATIENCE)).collect()
}

/// How many partitions a topic has.
fn partitions(consumer: &BaseConsumer<KafkaContext>, topic: &str) -> Result<i32, KafkaError> {
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
    match metadata.topics().first().map_or(0, |topic| topic.partitions().len()) {
        0 => Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition)),
        count => Ok(number(count)),
    }
}

fn number(partition: usize) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}

/// Whether a reader of committed records would be given one at or behind `offset`. Marks of transactions, which nobody is
/// given, do not count; nor does what an open transaction holds back. A partition that the topic does not have, has none.
///
/// # Errors
/// When it cannot be found out.
pub fn has_more(clients: &KafkaClients, topic: &str, partition: i32, offset: i64) -> Result<bool, ReadError> {
    let context = clients.context();
    let failed = |error: KafkaError| failed(&context, topic, error);
    let consumer = consumer(clients, context.clone(), Isolation::Committed).map_err(failed)?;
    if partition >= partitions(&consumer, topic).map_err(failed)? {
        return Ok(false);
    }
    let (low, high) = consumer.fetch_watermarks(topic, partition, PATIENCE).map_err(failed)?;
    // A topic that was made anew ends before an old position.
    if offset >= high {
        return Ok(false);
    }
    let mut from = TopicPartitionList::new();
    from.add_partition_offset(topic, partition, Offset::Offset(offset.max(low))).map_err(failed)?;
    consumer.assign(&from).map_err(failed)?;
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        match consumer.poll(POLL) {
            Some(Ok(_)) => return Ok(true),
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(false),
            Some(Err(error)) if context.refusal().is_some() => return Err(failed(error)),
            Some(Err(_)) | None => {}
        }
    }
    Err(ReadError::Silent { topic: topic.to_owned() })
}
