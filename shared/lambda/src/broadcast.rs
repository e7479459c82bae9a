//! The function whose one task is given all partitions of a topic of settings.
//!
//! An event's partitions are decided about one after the other, record by record; concurrent invocations are put in
//! one order by the task's log. What is answered acknowledges exactly the records at or below the committed positions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use payguard_aws::event::{BatchResponse, KafkaEvent, StageEvent};
use payguard_engine::logic::BroadcastLogic;
use payguard_engine::task::Env;
use payguard_engine::task::broadcast::BroadcastTask;
use payguard_engine::{StageId, TaskId};
use payguard_topology::{StageKind, Topology};
use tokio::time::Instant;

use crate::error::HostError;
use crate::function::Host;
use crate::guard::{within, working_time};
use crate::kafka::{answer, deliveries};

/// Gives messages to the task that decides a broadcast value.
pub struct BroadcastHost {
    stage: StageId,
    topology: Arc<Topology>,
    env: Env,
    logic: Arc<dyn BroadcastLogic>,
    report_batch_item_failures: bool,
}

impl BroadcastHost {
    /// The host of the task of `stage`; it fails as a whole when a partition fails.
    #[must_use]
    pub fn new(topology: Arc<Topology>, env: Env, stage: &str, logic: Arc<dyn BroadcastLogic>) -> BroadcastHost {
        BroadcastHost { stage: StageId::new(stage), topology, env, logic, report_batch_item_failures: false }
    }

    /// The same, answering with the records that were not processed when `report` is set.
    #[must_use]
    pub fn report_batch_item_failures(self, report: bool) -> BroadcastHost {
        BroadcastHost { report_batch_item_failures: report, ..self }
    }

    async fn records(&self, event: &KafkaEvent, left: Duration) -> Result<BatchResponse, HostError> {
        let until = Instant::now() + working_time(left);
        let deliveries = deliveries(event, &self.topics()).map_err(|detail| self.wrong(detail))?;
        let task = self.task()?;
        let mut unprocessed = Vec::new();
        for delivery in deliveries {
            let partition = delivery.partition.to_owned();
            let work = async {
                task.ingest(&partition, &delivery.records).await?;
                task.position(&partition).await
            };
            let ended = within(until.saturating_duration_since(Instant::now()), work).await;
            if let Ok(position) = ended {
                tracing::info!(partition, records = delivery.records.len(), position, "worked");
            }
            unprocessed.extend(delivery.unprocessed(ended, task.position(&partition)).await);
        }
        answer(unprocessed, self.report_batch_item_failures)
    }

    /// The task keeps nothing between two events: what it decides by is the head.
    fn task(&self) -> Result<BroadcastTask, HostError> {
        let id = TaskId::shard(&self.stage, 0);
        let plan = self.topology.plan(&id).ok_or_else(|| self.wrong(format!("it has no task {id}")))?;
        Ok(BroadcastTask::new(self.env.clone(), plan, self.logic.clone()))
    }

    fn topics(&self) -> BTreeSet<&str> {
        match self.topology.stage(&self.stage).map(|s| &s.kind) {
            Some(StageKind::Broadcast { topic }) => BTreeSet::from([topic.as_str()]),
            _ => BTreeSet::new(),
        }
    }

    fn wrong(&self, detail: String) -> HostError {
        HostError::WrongEvent { stage: self.stage.to_string(), detail }
    }
}

#[async_trait]
impl Host for BroadcastHost {
    type Answer = BatchResponse;

    async fn handle(&self, event: StageEvent, left: Duration) -> Result<BatchResponse, HostError> {
        match &event {
            StageEvent::Kafka(event) => self.records(event, left).await,
            StageEvent::Wake(_) | StageEvent::Heartbeat(_) | StageEvent::Schedule(_) => {
                Err(HostError::wrong(&self.stage.0, &event))
            }
        }
    }
}

#[cfg(test)]
mod tests;
