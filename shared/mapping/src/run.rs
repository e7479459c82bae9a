//! The mapping at work.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use payguard_kafka::rdkafka::error::KafkaError;
use payguard_kafka::{ConnectError, KafkaClients, Refusal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::core::{Action, Batch, Core, Limits, Outcome, Partition, Reason, Ticket};
use crate::failure::FailureDestination;
use crate::faults::{Dice, Faults, Faulty};
use crate::invoker::Invoker;
use crate::reader::{Read, Reader, StartPosition};

/// What a mapping reads and how.
#[derive(Clone, Debug)]
pub struct MappingOptions {
    /// The topics; they must exist.
    pub topics: Vec<String>,
    /// The consumer group.
    pub group: String,
    /// The name of this member, if it is the only one that has it: after a crash it has its partitions back at once, and
    /// not only when brokers have missed it for ten seconds.
    pub instance: Option<String>,
    /// Where the group begins.
    pub start: StartPosition,
    /// Batches, retries and pollers.
    pub limits: Limits,
    /// What goes wrong on purpose.
    pub faults: Option<Faults>,
    /// How long to wait for brokers at the start.
    pub patience: Duration,
}

/// What a mapping has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Invocations that ended.
    pub invocations: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Records in all batches that were delivered, repetitions included.
    pub delivered: u64,
    /// Records that were given up.
    pub discarded: u64,
}

/// A mapping ended that should not.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The cluster cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The cluster has refused us later.
    #[error(transparent)]
    Refused(Refusal),
    /// A topic is missing.
    #[error("Kafka has no topic {0}: make it first")]
    NoTopic(String),
    /// The group cannot be joined.
    #[error("the topics cannot be read: {0}")]
    Kafka(#[from] KafkaError),
}

/// An event source mapping.
pub struct Mapping;

impl Mapping {
    /// Reads the topics and invokes the function until `shutdown`; then waits for the invocations that go on, commits and
    /// leaves the group.
    ///
    /// # Errors
    /// See [`MappingError`]. Brokers that go away are no error: they are waited for.
    pub async fn run(
        clients: &KafkaClients,
        options: MappingOptions,
        invoker: Arc<dyn Invoker>,
        failures: Arc<dyn FailureDestination>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Summary, MappingError> {
        let topics = clients.check(options.patience).await?;
        if let Some(missing) = options.topics.iter().find(|topic| !topics.contains_key(*topic)) {
            return Err(MappingError::NoTopic(missing.clone()));
        }
        let (events, read) = unbounded_channel();
        let started = {
            let (clients, options) = (clients.clone(), options.clone());
            tokio::task::spawn_blocking(move || Reader::start(&clients, &options, events)).await
        };
        let reader = started.map_err(|err| ConnectError::Configuration(err.to_string()))??;
        let work = Work::new(clients.settings().bootstrap(), options, reader, invoker, failures);
        let (reader, positions, ended) = work.run(read, shutdown).await;
        // Both ask brokers and wait for them.
        let left = tokio::task::spawn_blocking(move || {
            let committed = if positions.is_empty() { Ok(()) } else { reader.commit(&positions, true) };
            drop(reader);
            committed
        });
        if let Ok(Err(error)) = left.await {
            tracing::warn!(%error, "the last positions were not committed: their records will come again");
        }
        ended
    }
}

/// How often the mapping looks around although nothing happens.
const TICK: Duration = Duration::from_secs(1);

enum Done {
    Answered(Ticket, Outcome),
    Discarded(Ticket),
}

struct Work {
    core: Core,
    limits: Limits,
    bootstrap: String,
    reader: Reader,
    invoker: Arc<dyn Invoker>,
    failures: Arc<dyn FailureDestination>,
    faults: Option<(Faults, Arc<Dice>)>,
    paused: BTreeSet<Partition>,
    /// Some commit has failed.
    uncommitted: bool,
    done: UnboundedSender<Done>,
    finished: UnboundedReceiver<Done>,
    summary: Summary,
}

impl Work {
    fn new(
        bootstrap: &str,
        options: MappingOptions,
        reader: Reader,
        invoker: Arc<dyn Invoker>,
        failures: Arc<dyn FailureDestination>,
    ) -> Work {
        let faults = options.faults.map(|faults| (faults.clone(), Arc::new(Dice::new(faults.seed))));
        let invoker = match &faults {
            None => invoker,
            Some((faults, dice)) => Arc::new(Faulty { faults: faults.clone(), dice: dice.clone(), invoker }),
        };
        let (done, finished) = unbounded_channel();
        Work {
            core: Core::new(options.limits.clone()),
            limits: options.limits,
            bootstrap: bootstrap.to_owned(),
            reader,
            invoker,
            failures,
            faults,
            paused: BTreeSet::new(),
            uncommitted: false,
            done,
            finished,
            summary: Summary::default(),
        }
    }

    async fn run(
        mut self,
        mut read: UnboundedReceiver<Read>,
        shutdown: impl Future<Output = ()>,
    ) -> (Reader, Vec<(Partition, i64)>, Result<Summary, MappingError>) {
        let mut shutdown = pin!(shutdown);
        let mut events = Vec::new();
        let mut ending = None;
        loop {
            let wake = self.core.wake_at().map(|at| u64::try_from(at.saturating_sub(now_ms())).unwrap_or(0));
            tokio::select! {
                () = &mut shutdown, if ending.is_none() => ending = Some(Ok(())),
                _ = read.recv_many(&mut events, 1_000) => {
                    for event in events.drain(..) {
                        if let Err(error) = self.heard(event) {
                            ending = Some(Err(error));
                        }
                    }
                }
                Some(done) = self.finished.recv() => self.ended(done),
                () = tokio::time::sleep(wake.map_or(TICK, Duration::from_millis).min(TICK)) => self.recommit(),
            }
            if ending.is_some() {
                self.core.drain();
            }
            self.act();
            if let Some(ended) = ending.take_if(|_| !self.core.is_working()) {
                return (self.reader, self.core.positions(), ended.map(|()| self.summary));
            }
        }
    }

    fn heard(&mut self, event: Read) -> Result<(), MappingError> {
        match event {
            Read::Record(record) => {
                self.core.arrive(record, now_ms());
                self.reader.context().accepted();
            }
            Read::Assigned(partitions) => {
                tracing::info!(?partitions, "assigned");
                partitions.into_iter().for_each(|partition| self.core.assign(partition));
            }
            Read::Revoked(partitions) => {
                tracing::info!(?partitions, "revoked");
                for partition in &partitions {
                    self.core.revoke(partition);
                    // librdkafka would still have it paused when it comes back.
                    if self.paused.remove(partition)
                        && let Err(error) = self.reader.pause(partition, false)
                    {
                        tracing::warn!(%error, "a partition stays paused");
                    }
                }
            }
            Read::NotCommitted => self.uncommitted = true,
            Read::Error(error) => {
                if let Some(refusal) = self.reader.context().refusal() {
                    return Err(MappingError::Refused(refusal));
                }
                if matches!(error, KafkaError::MessageConsumptionFatal(_)) {
                    return Err(error.into());
                }
                tracing::warn!(%error, "reading goes on");
            }
        }
        Ok(())
    }

    fn ended(&mut self, done: Done) {
        match done {
            Done::Answered(ticket, outcome) => {
                self.summary.invocations += 1;
                self.summary.failed += u64::from(outcome == Outcome::Failed);
                self.core.answered(ticket, &outcome, now_ms());
                if self.faults.as_ref().is_some_and(|(faults, dice)| dice.happens(faults.rebalance)) {
                    tracing::info!("fault: the group is rebalanced");
                    if let Err(error) = self.reader.rebalance() {
                        tracing::warn!(%error, "the group was not rebalanced");
                    }
                }
            }
            Done::Discarded(ticket) => self.core.discarded(ticket),
        }
    }

    /// Positions that could not be committed are committed when nothing else does it.
    fn recommit(&mut self) {
        if std::mem::take(&mut self.uncommitted) {
            let positions = self.core.positions();
            self.commit(&positions);
        }
    }

    fn commit(&mut self, positions: &[(Partition, i64)]) {
        if !positions.is_empty()
            && let Err(error) = self.reader.commit(positions, false)
        {
            tracing::warn!(%error, "positions were not committed");
            self.uncommitted = true;
        }
    }

    fn act(&mut self) {
        let mut positions = Vec::new();
        for action in self.core.next(now_ms()) {
            match action {
                Action::Invoke(ticket, batch) => self.invoke(ticket, &batch),
                Action::Discard(ticket, batch, reason) => self.discard(ticket, batch, reason),
                Action::Commit(partition, position) => positions.push((partition, position)),
            }
        }
        self.commit(&positions);
        self.hold_back();
    }

    fn invoke(&mut self, ticket: Ticket, batch: &Batch) {
        self.summary.delivered += batch.len() as u64;
        let (event, invoker, done) = (batch.event(&self.bootstrap), self.invoker.clone(), self.done.clone());
        tokio::spawn(async move {
            // In a task of its own, a function that panics has failed like any other.
            let invoked = tokio::spawn(async move { invoker.invoke(event).await }).await;
            let _ = done.send(Done::Answered(ticket, invoked.unwrap_or(Outcome::Failed)));
        });
    }

    fn discard(&mut self, ticket: Ticket, batch: Batch, reason: Reason) {
        self.summary.discarded += batch.len() as u64;
        let (failures, done, bootstrap) = (self.failures.clone(), self.done.clone(), self.bootstrap.clone());
        tracing::error!(records = batch.len(), ?reason, "records are given up");
        tokio::spawn(async move {
            while let Err(error) = failures.keep(&batch, reason, &bootstrap).await {
                tracing::error!(%error, "the failure destination does not take records; it is asked again");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let _ = done.send(Done::Discarded(ticket));
        });
    }

    /// Stops fetching partitions that have two batches waiting, and goes on when less than one is.
    fn hold_back(&mut self) {
        let partitions: Vec<Partition> = self.core.partitions().cloned().collect();
        for partition in partitions {
            let (records, bytes) = self.core.waiting(&partition);
            let full = |batches: usize| {
                records >= batches * self.limits.batch_size || bytes >= batches * self.limits.payload_bytes
            };
            let pause = if self.paused.contains(&partition) { full(1) } else { full(2) };
            if pause == self.paused.contains(&partition) {
                continue;
            }
            match self.reader.pause(&partition, pause) {
                Ok(()) if pause => drop(self.paused.insert(partition)),
                Ok(()) => drop(self.paused.remove(&partition)),
                // Between two assignments there is nothing to pause or to resume: the next tick tries again.
                Err(error) => tracing::debug!(%error, pause, "a partition was not paused or resumed"),
            }
        }
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
