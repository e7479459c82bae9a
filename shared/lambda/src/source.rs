//! The function whose tasks are given records of Kafka.
//!
//! Every partition of an event commits alone. What is answered acknowledges exactly the records at or below the
//! committed positions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use payguard_aws::event::{BatchResponse, HeartbeatEvent, KafkaEvent, StageEvent};
use payguard_engine::logic::SourceRecord;
use payguard_engine::task::Env;
use payguard_engine::task::source::{Backlog, MakeSource, SourceTask};
use payguard_engine::{EngineError, StageId, TaskId};
use payguard_topology::{StageKind, Topology};

use crate::error::{Failure, HostError};
use crate::function::Host;
use crate::guard::{Warm, guarded, within, working_time};
use crate::kafka::{Delivery, Unprocessed, answer, deliveries};

/// Gives records to the tasks of a source stage.
pub struct SourceHost {
    stage: StageId,
    topology: Arc<Topology>,
    env: Env,
    make: MakeSource,
    report_batch_item_failures: bool,
    warm: Warm<SourceTask>,
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
        let deliveries = deliveries(event, &self.topics()).map_err(|detail| self.wrong(detail))?;
        self.register(&deliveries).await?;
        let time = working_time(left);
        let runs = deliveries.iter().map(|delivery| self.deliver(delivery, time));
        let unprocessed = join_all(runs).await.into_iter().flatten().collect();
        answer(unprocessed, self.report_batch_item_failures)
    }

    /// Makes all partitions of the event known before the first of them commits: no consumer may think that it has
    /// seen every input.
    async fn register(&self, deliveries: &[Delivery<'_>]) -> Result<(), HostError> {
        let failed = |name: &str, cause: String| HostError::Partitions(vec![Failure { name: name.to_owned(), cause }]);
        for delivery in deliveries {
            let task = self.task(delivery);
            if !self.warm.has(&task) {
                self.env.ledger.register(&task).await.map_err(|e| failed(delivery.partition, e.to_string()))?;
                let fresh = self.fresh(&task)?;
                self.warm.keep(task, fresh);
            }
        }
        Ok(())
    }

    /// Gives a partition's records to its task; tells what is not committed afterwards.
    async fn deliver(&self, delivery: &Delivery<'_>, time: Duration) -> Option<Unprocessed> {
        let id = self.task(delivery);
        let ended = self.ingest(&id, &delivery.records, time).await;
        delivery.unprocessed(ended, self.committed(&id)).await
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
        let position = within(time, work).await?;
        self.warm.keep(id.clone(), task);
        Ok(position)
    }

    /// The committed position as the ledger has it, -1 for a task that the topology does not have.
    async fn committed(&self, id: &TaskId) -> Result<i64, EngineError> {
        match self.fresh(id) {
            Ok(mut task) => task.position().await,
            Err(_) => Ok(-1),
        }
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

    fn task(&self, delivery: &Delivery<'_>) -> TaskId {
        TaskId::partition(&self.stage, delivery.topic, delivery.number)
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
