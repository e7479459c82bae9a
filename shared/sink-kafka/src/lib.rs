//! Topics of Kafka, exactly once: a batch and the position it leads to are one transaction.
//!
//! Each task of a sink stage has a producer with a transactional id of its own, and its position is the committed offset
//! of a group of the same name (`position`). The first thing that an executor does is to register the id: the broker
//! then ends what an earlier executor had open, and never lets that one commit again. Only after that the position is
//! read, so it is the last. Nothing prepared has to survive anything; a transaction lives for one batch, and one whose
//! executor died is ended by the next, or by the broker after [`TRANSACTION_TIMEOUT`].
//!
//! Whatever goes wrong, the producer is given up: the next call registers anew and reads where the task really stands.

mod failure;
mod position;
mod writer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use payguard_engine::store::{Sink, SinkBatch, SinkObserver, SinkPosition, SinkReply};
use payguard_engine::{StoreError, StoreErrorKind, TaskId};
use payguard_kafka::KafkaClients;

use writer::Writer;

/// After this long the broker ends a transaction whose executor is gone. Readers of committed records wait no longer
/// than this for what comes after it.
pub const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Where records go, and under which names.
#[derive(Clone, Debug)]
pub struct KafkaSinkOptions {
    /// Begins the transactional id and the group of each task. No two pipelines may share it: they would stop each other.
    pub transactional_id_prefix: String,
    /// The topics by the names that the stage has for them; a name that is not there is the topic's own.
    pub topics: BTreeMap<String, String>,
    /// The topic that positions are committed for; any that is there to stay, with as many partitions as a position has
    /// parts: one for about a hundred inputs.
    pub position_topic: String,
}

/// Topics of a Kafka cluster.
pub struct KafkaSink {
    clients: KafkaClients,
    options: Arc<KafkaSinkOptions>,
    observer: Option<Arc<dyn SinkObserver>>,
    tasks: Mutex<BTreeMap<TaskId, Slot>>,
}

/// The producer of a task, if it is warm; locked while it writes.
type Slot = Arc<tokio::sync::Mutex<Option<Writer>>>;

impl KafkaSink {
    /// A sink that has connected to nothing yet.
    #[must_use]
    pub fn new(clients: KafkaClients, options: KafkaSinkOptions, observer: Option<Arc<dyn SinkObserver>>) -> KafkaSink {
        KafkaSink { clients, options: Arc::new(options), observer, tasks: Mutex::default() }
    }

    /// Works with the producer of a task on a thread that may block. It is given up when that fails, and when the future
    /// is dropped meanwhile: the work comes to its end all the same, but nobody has seen how.
    async fn with_writer<T: Send + 'static>(
        &self,
        task: &TaskId,
        writer: Option<Writer>,
        work: impl FnOnce(&mut Writer) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<(Writer, T), StoreError> {
        let (clients, options, name) = (self.clients.clone(), self.options.clone(), task.to_string());
        let done = tokio::task::spawn_blocking(move || {
            let mut writer = match writer {
                Some(writer) => writer,
                None => Writer::open(&clients, &options, &name)?,
            };
            work(&mut writer).map(|done| (writer, done))
        });
        done.await
            .map_err(|e| StoreError::new(StoreErrorKind::Unavailable, "write", task.to_string(), e.to_string()))?
    }

    fn slot(&self, task: &TaskId) -> Slot {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.entry(task.clone()).or_default().clone()
    }
}

#[async_trait]
impl Sink for KafkaSink {
    /// Registers anew, so that from here on no other executor can write for the task.
    async fn position(&self, task: &TaskId) -> Result<SinkPosition, StoreError> {
        let slot = self.slot(task);
        let mut slot = slot.lock().await;
        *slot = None;
        let (writer, position) = self.with_writer(task, None, |writer| Ok(writer.position().clone())).await?;
        *slot = Some(writer);
        Ok(position)
    }

    async fn write(&self, task: &TaskId, batch: &SinkBatch) -> Result<SinkReply, StoreError> {
        let slot = self.slot(task);
        let mut slot = slot.lock().await;
        let shared = Arc::new(batch.clone());
        let writing = shared.clone();
        let (writer, reply) = self.with_writer(task, slot.take(), move |writer| writer.write(&writing)).await?;
        *slot = Some(writer);
        if let (SinkReply::Written, Some(observer)) = (&reply, &self.observer) {
            for record in &shared.records {
                observer.on_record(record.topic, &record.value);
            }
        }
        Ok(reply)
    }

    /// Committed offsets expire, and a broker can lose them.
    fn can_forget(&self) -> bool {
        true
    }
}
