//! The function whose tasks are given records of Kafka.
//!
//! Every partition of an event commits alone. What is answered acknowledges exactly the records at or below the
//! committed positions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use payguard_aws::event::{
    BatchItemFailure, BatchResponse, HeartbeatEvent, KafkaEvent, KafkaRecord, NO_TIMESTAMP, StageEvent,
};
use payguard_engine::logic::SourceRecord;
use payguard_engine::task::Env;
use payguard_engine::task::source::{Backlog, MakeSource, SourceTask};
use payguard_engine::{StageId, TaskId};
use payguard_model::EventTime;
use payguard_topology::{StageKind, Topology};

use crate::error::{Failure, HostError};
use crate::function::Host;
use crate::guard::{Warm, guarded, working_time};

/// A failed partition's position is asked for this long at most.
const POSITION_TIME: Duration = Duration::from_secs(2);

/// Gives records to the tasks of a source stage.
pub struct SourceHost {
    stage: StageId,
    topology: Arc<Topology>,
    env: Env,
    make: MakeSource,
    report_batch_item_failures: bool,
    warm: Warm<SourceTask>,
}

/// The records of one partition.
struct Delivery<'a> {
    /// Its name in the event.
    partition: &'a str,
    task: TaskId,
    /// Ascending by offset, each once.
    records: Vec<SourceRecord<'a>>,
}

/// A partition whose records were not all processed.
struct Unprocessed {
    failure: Failure,
    /// Every offset above the committed position.
    offsets: Vec<i64>,
}

impl SourceHost {
    /// The host of the tasks of `stage`; it fails as a whole when a partition fails.
    #[must_use]
    pub fn new(topology: Arc<Topology>, env: Env, stage: &str, make: MakeSource) -> SourceHost {
        let stage = StageId::new(stage);
        SourceHost { stage, topology, env, make, report_batch_item_failures: false, warm: Warm::default() }
    }

    /// The same, answering with the records that were not processed when `report` is set.
    #[must_use]
    pub fn report_batch_item_failures(self, report: bool) -> SourceHost {
        SourceHost { report_batch_item_failures: report, ..self }
    }

    async fn records(&self, event: &KafkaEvent, left: Duration) -> Result<BatchResponse, HostError> {
        let deliveries = self.deliveries(event)?;
        self.register(&deliveries).await?;
        let time = working_time(left);
        let runs = deliveries.iter().map(|delivery| self.deliver(delivery, time));
        let unprocessed: Vec<(&str, Unprocessed)> = join_all(runs).await.into_iter().flatten().collect();
        if !self.report_batch_item_failures && !unprocessed.is_empty() {
            return Err(HostError::Partitions(unprocessed.into_iter().map(|(_, u)| u.failure).collect()));
        }
        let mut response = BatchResponse::default();
        for (partition, Unprocessed { failure, offsets }) in unprocessed {
            tracing::error!(partition, cause = failure.cause, records = offsets.len(), "records are to be repeated");
            let failures = offsets.into_iter().map(|offset| (partition.to_owned(), offset));
            response
                .batch_item_failures
                .extend(failures.map(|(partition, offset)| BatchItemFailure { partition, offset }));
        }
        Ok(response)
    }

    /// Makes all partitions of the event known before the first of them commits: no consumer may think that it has
    /// seen every input.
    async fn register(&self, deliveries: &[Delivery<'_>]) -> Result<(), HostError> {
        let failed = |name: &str, cause: String| HostError::Partitions(vec![Failure { name: name.to_owned(), cause }]);
        for Delivery { partition, task, .. } in deliveries {
            if !self.warm.has(task) {
                self.env.ledger.register(task).await.map_err(|e| failed(partition, e.to_string()))?;
                self.warm.keep(task.clone(), self.fresh(task)?);
            }
        }
        Ok(())
    }

    /// Gives a partition's records to its task; tells what is not committed afterwards.
    async fn deliver<'a>(&self, delivery: &Delivery<'a>, time: Duration) -> Option<(&'a str, Unprocessed)> {
        let Delivery { partition, task: id, records } = delivery;
        let last = records.last()?.offset;
        let cause = match self.ingest(id, records, time).await {
            Ok(position) if position >= last => return None,
            Ok(position) => format!("the task says that it is done but stands at offset {position}, not at {last}"),
            Err(cause) => cause,
        };
        let position = self.position(id).await.unwrap_or(-1);
        let offsets = records.iter().map(|r| r.offset).filter(|offset| *offset > position).collect();
        Some((partition, Unprocessed { failure: Failure { name: (*partition).to_owned(), cause }, offsets }))
    }

    /// Returns the committed position.
    async fn ingest(&self, id: &TaskId, records: &[SourceRecord<'_>], time: Duration) -> Result<i64, String> {
        let mut task = match self.warm.take(id) {
            Some(task) => task,
            None => self.fresh(id).map_err(|e| e.to_string())?,
        };
        let work = async {
            let report = task.ingest(records).await?;
            tracing::info!(task = %id, commits = report.commits, records = report.records, lost = report.lost, "worked");
            task.position().await
        };
        let position = match tokio::time::timeout(time, guarded(work)).await {
            Ok(outcome) => outcome?,
            Err(_) => return Err(format!("not done after {time:?}")),
        };
        self.warm.keep(id.clone(), task);
        Ok(position)
    }

    /// The committed position as the ledger has it; `None` when it cannot be told.
    async fn position(&self, id: &TaskId) -> Option<i64> {
        let mut task = self.fresh(id).ok()?;
        let position = tokio::time::timeout(POSITION_TIME, guarded(task.position())).await;
        position.ok().and_then(|outcome| {
            outcome.map_err(|error| tracing::warn!(task = %id, error, "the position cannot be read")).ok()
        })
    }

    async fn heartbeat(&self, event: &HeartbeatEvent) -> Result<BatchResponse, HostError> {
        let mut failures = Vec::new();
        for name in &event.heartbeat {
            let id: TaskId = name.parse().map_err(|e: payguard_engine::ids::BadTaskId| self.wrong(e.to_string()))?;
            let mut task = self.fresh(&id)?;
            match guarded(task.heartbeat(Backlog::None)).await {
                Ok(idle) => tracing::info!(task = %id, idle, "heartbeat"),
                Err(cause) => failures.push(Failure { name: name.clone(), cause }),
            }
        }
        if failures.is_empty() { Ok(BatchResponse::default()) } else { Err(HostError::Tasks(failures)) }
    }

    fn fresh(&self, id: &TaskId) -> Result<SourceTask, HostError> {
        let plan = self.topology.plan(id).filter(|_| id.stage == self.stage);
        let plan = plan.ok_or_else(|| self.wrong(format!("it has no task {id}")))?;
        Ok(SourceTask::new(self.env.clone(), plan, &self.make))
    }

    fn deliveries<'a>(&self, event: &'a KafkaEvent) -> Result<Vec<Delivery<'a>>, HostError> {
        event
            .records
            .iter()
            .filter(|(_, records)| !records.is_empty())
            .map(|(name, records)| self.delivery(name, records))
            .collect()
    }

    fn delivery<'a>(&self, partition: &'a str, records: &'a [KafkaRecord]) -> Result<Delivery<'a>, HostError> {
        let first = &records[0];
        let task = TaskId::partition(&self.stage, &first.topic, first.partition);
        if *task.instance != *partition
            || records.iter().any(|r| (&r.topic, r.partition) != (&first.topic, first.partition))
        {
            return Err(self.wrong(format!("records under `{partition}` are of another partition")));
        }
        if !self.topics().contains(first.topic.as_str()) {
            return Err(self.wrong(format!("records of the topic {}, which is none of its sources", first.topic)));
        }
        let mut by_offset = BTreeMap::new();
        for record in records {
            if record.offset < 0 {
                return Err(self.wrong(format!("offset {} in {partition}", record.offset)));
            }
            by_offset.entry(record.offset).or_insert(record);
        }
        Ok(Delivery { partition, task, records: by_offset.into_values().map(as_source).collect() })
    }

    fn topics(&self) -> BTreeSet<&str> {
        match self.topology.stage(&self.stage).map(|s| &s.kind) {
            Some(StageKind::Source { topics }) => topics.iter().map(|t| t.partitions.topic.as_str()).collect(),
            _ => BTreeSet::new(),
        }
    }

    fn wrong(&self, detail: String) -> HostError {
        HostError::WrongEvent { stage: self.stage.to_string(), detail }
    }
}

fn as_source(record: &KafkaRecord) -> SourceRecord<'_> {
    SourceRecord {
        offset: record.offset,
        timestamp: (record.timestamp != NO_TIMESTAMP).then_some(EventTime(record.timestamp)),
        value: record.value.as_deref(),
        watermark_bound: None,
    }
}

#[async_trait]
impl Host for SourceHost {
    type Answer = BatchResponse;

    async fn handle(&self, event: StageEvent, left: Duration) -> Result<BatchResponse, HostError> {
        match &event {
            StageEvent::Kafka(event) => self.records(event, left).await,
            StageEvent::Heartbeat(event) => self.heartbeat(event).await,
            StageEvent::Wake(_) | StageEvent::Schedule(_) => Err(HostError::wrong(&self.stage.0, &event)),
        }
    }
}

#[cfg(test)]
mod tests;
