//! The producer of one task. Everything here blocks.

use std::time::{Duration, Instant};

use payguard_engine::store::{SinkBatch, SinkPosition, SinkRecord, SinkReply};
use payguard_engine::{StoreError, StoreErrorKind};
use payguard_kafka::rdkafka::consumer::{BaseConsumer, Consumer};
use payguard_kafka::rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use payguard_kafka::rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use payguard_kafka::rdkafka::{Offset, TopicPartitionList};
use payguard_kafka::{Deliveries, KafkaClients, KafkaContext};

use crate::failure::{Class, class, failed};
use crate::position::{Part, PositionError, from_parts, to_parts};
use crate::{KafkaSinkOptions, TRANSACTION_TIMEOUT};

/// The longest that one step of a transaction may take; less than [`TRANSACTION_TIMEOUT`], in which it must end.
const STEP: Duration = Duration::from_secs(15);
/// The longest that one call of it may take, before events are looked at: tokens to be made, refusals.
const CALL: Duration = Duration::from_secs(1);
/// A record that is not acknowledged after this long has failed.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long events are waited for at once.
const POLL: Duration = Duration::from_millis(1);
/// A client's share of memory for records on their way, KB.
const QUEUE_KB: &str = "262144";

/// A registered producer, and where its task stands.
pub(crate) struct Writer {
    /// The task.
    name: String,
    producer: BaseProducer<Deliveries>,
    /// Of the group that has the position.
    group: BaseConsumer<KafkaContext>,
    position: SinkPosition,
    partitions: usize,
    options: KafkaSinkOptions,
}

impl Writer {
    /// Registers the task's transactional id, which ends the transactions of whoever had it before, and reads where the
    /// task stands.
    pub(crate) fn open(clients: &KafkaClients, options: &KafkaSinkOptions, name: &str) -> Result<Writer, StoreError> {
        let id = format!("{}-{}", options.transactional_id_prefix, name.replace('/', "-"));
        let context = Deliveries::new(clients.context());
        let producer: BaseProducer<Deliveries> = clients
            .config()
            .set("transactional.id", &id)
            .set("transaction.timeout.ms", TRANSACTION_TIMEOUT.as_millis().to_string())
            .set("message.timeout.ms", DELIVERY_TIMEOUT.as_millis().to_string())
            .set("linger.ms", "0")
            // While the markers of the transaction before are written the coordinator answers "not yet": ask again soon.
            .set("retry.backoff.ms", "5")
            .set("compression.type", "lz4")
            // As the producers in Java place keys.
            .set("partitioner", "murmur2_random")
            // A topic may take more than the usual megabyte; its own limit counts.
            .set("message.max.bytes", "100000000")
            .set("queue.buffering.max.kbytes", QUEUE_KB)
            .create_with_context(context)
            .map_err(|e| invalid("make producer", &id, &e.to_string()))?;
        let context = &producer.context().context;
        // A token, where one is needed.
        producer.poll(POLL);
        repeatedly(context, || producer.init_transactions(CALL), || producer.poll(POLL))
            .map_err(|e| failed("register", &id, &e, context))?;
        let group: BaseConsumer<KafkaContext> = clients
            .config()
            .set("group.id", &id)
            .set("isolation.level", "read_committed")
            .create_with_context(clients.context())
            .map_err(|e| invalid("make consumer", &id, &e.to_string()))?;
        let (position, partitions) = read_position(&group, &options.position_topic, name)?;
        tracing::info!(task = name, transactional_id = id, batch = %position.seq, "registered");
        let (name, options) = (name.to_owned(), options.clone());
        Ok(Writer { name, producer, group, position, partitions, options })
    }

    /// Where the task stands.
    pub(crate) fn position(&self) -> &SinkPosition {
        &self.position
    }

    /// Writes a batch and the position after it in one transaction.
    pub(crate) fn write(&mut self, batch: &SinkBatch) -> Result<SinkReply, StoreError> {
        let is_told_anew = batch.records.is_empty() && self.position.seq < batch.seq;
        if self.position.seq.next() != batch.seq && !is_told_anew {
            return Ok(SinkReply::Elsewhere(self.position.clone()));
        }
        let position = SinkPosition::after(batch);
        let parts = to_parts(&position, self.partitions).map_err(|e| self.unusable(&e))?;
        if let Err((operation, error)) = self.transact(&batch.records, &parts) {
            // Records that were purged do not tell that it was because of another executor.
            let fatal = self.producer.client().fatal_error();
            let error = fatal.map_or(error, |(code, _)| KafkaError::Global(code));
            if !matches!(class(&error), Class::Fenced | Class::Fatal)
                && let Err(error) = self.producer.abort_transaction(STEP)
            {
                tracing::warn!(task = self.name, %error, "a transaction could not be aborted, the next executor will");
            }
            return Err(failed(operation, &self.name, &error, &self.producer.context().context));
        }
        self.position = position;
        Ok(SinkReply::Written)
    }

    fn transact(&self, records: &[SinkRecord], parts: &[Part]) -> Result<(), (&'static str, KafkaError)> {
        let producer = &self.producer;
        // What was refused while nothing was written counts no more; what is refused now will be told anew.
        producer.poll(POLL);
        producer.context().context.accepted();
        producer.begin_transaction().map_err(|e| ("begin transaction", e))?;
        for record in records {
            self.send(record).map_err(|e| ("produce", e))?;
        }
        self.wait_for_deliveries().map_err(|e| ("produce", e))?;
        let mut offsets = TopicPartitionList::new();
        for (partition, part) in (0..).zip(parts) {
            let mut offset = offsets.add_partition(&self.options.position_topic, partition);
            offset.set_offset(Offset::Offset(part.offset)).map_err(|e| ("store position", e))?;
            offset.set_metadata(&part.text);
        }
        let group = self.group.group_metadata();
        let group = group.ok_or(("store position", KafkaError::Global(RDKafkaErrorCode::UnknownGroup)))?;
        let context = &producer.context().context;
        let poll = || producer.poll(POLL);
        repeatedly(context, || producer.send_offsets_to_transaction(&offsets, &group, CALL), poll)
            .map_err(|e| ("store position", e))?;
        repeatedly(context, || producer.commit_transaction(CALL), poll).map_err(|e| ("commit transaction", e))
    }

    fn send(&self, record: &SinkRecord) -> KafkaResult<()> {
        let topic = self.options.topics.get(record.topic).map_or(record.topic, String::as_str);
        let mut sending = BaseRecord::<str, [u8]>::to(topic).key(&record.key).payload(&record.value);
        loop {
            match self.producer.send(sending) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    sending = back;
                    self.producer.poll(POLL);
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// Waits until every record is acknowledged. They all come to an end: by [`DELIVERY_TIMEOUT`].
    fn wait_for_deliveries(&self) -> KafkaResult<()> {
        let context = self.producer.context();
        while self.producer.in_flight_count() > 0 {
            self.producer.poll(POLL);
            if context.context.refusal().is_some() {
                return Err(KafkaError::MessageProduction(RDKafkaErrorCode::MessageTimedOut));
            }
        }
        context.take_failure().map_or(Ok(()), Err)
    }

    fn unusable(&self, error: &PositionError) -> StoreError {
        let target = format!("{} in {}", self.name, self.options.position_topic);
        invalid("store position", &target, &error.to_string())
    }
}

/// The position that is committed for the group, and the partitions of its topic.
fn read_position(
    group: &BaseConsumer<KafkaContext>,
    topic: &str,
    name: &str,
) -> Result<(SinkPosition, usize), StoreError> {
    let target = format!("{name} in {topic}");
    let context = group.context();
    let poll = || drop(group.poll(POLL));
    let read = |error: KafkaError| failed("read position", &target, &error, context);
    let metadata = repeatedly(context, || group.fetch_metadata(Some(topic), CALL), poll).map_err(read)?;
    let partitions = metadata.topics().first().map_or(0, |topic| topic.partitions().len());
    if partitions == 0 {
        return Err(read(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopic)));
    }
    let mut asked = TopicPartitionList::new();
    for partition in (0..).take(partitions) {
        asked.add_partition(topic, partition);
    }
    let committed = || {
        let committed = group.committed_offsets(asked.clone(), CALL)?;
        committed.elements().iter().try_for_each(|element| element.error())?;
        Ok(committed)
    };
    let committed = repeatedly(context, committed, poll).map_err(read)?;
    let mut parts = vec![None; partitions];
    for element in committed.elements() {
        let number = usize::try_from(element.partition()).unwrap_or(usize::MAX);
        if let (Offset::Offset(offset), Some(part)) = (element.offset(), parts.get_mut(number)) {
            *part = Some(Part { offset, text: element.metadata().to_owned() });
        }
    }
    let position = from_parts(&parts).map_err(|e| invalid("read position", &target, &e.to_string()))?;
    Ok((position, partitions))
}

/// Repeats a call for as long as a step may take, while its error says that this may help and nobody refuses us.
fn repeatedly<T>(
    context: &KafkaContext,
    mut call: impl FnMut() -> KafkaResult<T>,
    poll: impl Fn(),
) -> Result<T, KafkaError> {
    let began = Instant::now();
    loop {
        let result = call();
        poll();
        match result {
            Err(error)
                if class(&error) == Class::Retriable && began.elapsed() < STEP && context.refusal().is_none() =>
            {
                tracing::debug!(%error, "trying again");
            }
            result => {
                if result.is_ok() {
                    context.accepted();
                }
                return result;
            }
        }
    }
}

fn invalid(operation: &'static str, target: &str, detail: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, operation, target, detail)
}
