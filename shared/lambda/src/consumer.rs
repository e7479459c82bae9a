//! Functions whose tasks read upstream logs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use payguard_aws::event::StageEvent;
use payguard_engine::task::consumer::{ConsumerTask, MakeBody};
use payguard_engine::task::{Budget, Env, Report, TaskPlan};
use payguard_engine::{EngineError, StageId, TaskId};
use payguard_topology::Topology;
use serde::Serialize;

use crate::error::{Failure, HostError};
use crate::function::Host;
use crate::guard::{Warm, guarded, working_time};

/// Share of a lease that a task works before it takes the lease anew.
const LEASE_SHARE: i64 = 2;

/// Runs the tasks of a stage that are woken.
pub struct ConsumerHost {
    stage: StageId,
    topology: Arc<Topology>,
    env: Env,
    make: MakeBody,
    warm: Warm<ConsumerTask>,
}

/// What was done for a wake-up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TaskReports {
    /// One for each task.
    pub tasks: Vec<TaskReport>,
}

/// What a task did in one invocation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TaskReport {
    /// The task.
    pub task: String,
    /// Commits made.
    pub commits: u64,
    /// Records in them.
    pub records: u64,
    /// Commits lost to another executor.
    pub lost: u64,
    /// Whether the time ended before the input did; the task was woken again.
    pub more: bool,
    /// Whether another executor was at work; nothing was done.
    pub busy: bool,
}

impl ConsumerHost {
    /// The host of the tasks of `stage`.
    #[must_use]
    pub fn new(topology: Arc<Topology>, env: Env, stage: &str, make: MakeBody) -> ConsumerHost {
        ConsumerHost { stage: StageId::new(stage), topology, env, make, warm: Warm::default() }
    }

    /// The tasks that are named, each once.
    fn plans(&self, names: &[String]) -> Result<BTreeMap<TaskId, TaskPlan>, HostError> {
        let wrong = |detail: String| HostError::WrongEvent { stage: self.stage.to_string(), detail };
        let plan = |name: &String| {
            let id: TaskId = name.parse().map_err(|e: payguard_engine::ids::BadTaskId| wrong(e.to_string()))?;
            let plan = self.topology.plan(&id).filter(|_| id.stage == self.stage);
            plan.map(|plan| (id, plan)).ok_or_else(|| wrong(format!("it has no task {name}")))
        };
        names.iter().map(plan).collect()
    }

    async fn run_task(&self, id: TaskId, plan: TaskPlan, time: Duration) -> Result<TaskReport, Failure> {
        let fresh = || ConsumerTask::new(self.env.clone(), plan, self.make.clone());
        let mut task = self.warm.take(&id).unwrap_or_else(fresh);
        let report = match guarded(self.drive(&mut task, time)).await {
            Ok(report) => report,
            Err(cause) => {
                drop(task);
                self.give_lease_back(&id).await;
                return Err(Failure { name: id.to_string(), cause });
            }
        };
        if report.more {
            self.env.waker.wake(&id).await;
        }
        let Report { commits, records, lost, more, busy, .. } = report;
        tracing::info!(task = %id, commits, records, lost, more, busy, "worked");
        let name = id.to_string();
        self.warm.keep(id, task);
        Ok(TaskReport { task: name, commits, records, lost, more, busy })
    }

    /// Runs a task to the end of its input or of the time, and takes its lease anew before it runs out.
    async fn drive(&self, task: &mut ConsumerTask, time: Duration) -> Result<Report, EngineError> {
        let clock = &self.env.clock;
        let until = clock.now().plus(i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
        let mut total = Report::default();
        loop {
            let slice = clock.now().plus(self.env.settings.lease_ms / LEASE_SHARE);
            let report = task.run(Budget { until: until.min(slice), commits: u32::MAX }).await?;
            total.commits += report.commits;
            total.records += report.records;
            total.lost += report.lost;
            (total.more, total.ended, total.busy) = (report.more, report.ended, report.busy);
            if !report.more || clock.now() >= until {
                return Ok(total);
            }
        }
    }

    /// A task that failed has kept its lease: the next try, here or elsewhere, should not have to wait for its end.
    async fn give_lease_back(&self, id: &TaskId) {
        let Some(owner) = &self.env.settings.lease_owner else { return };
        if let Err(error) = self.env.ledger.release_lease(id, owner).await {
            tracing::warn!(task = %id, %error, "the lease could not be given back");
        }
    }
}

#[async_trait]
impl Host for ConsumerHost {
    type Answer = TaskReports;

    async fn handle(&self, event: StageEvent, left: Duration) -> Result<TaskReports, HostError> {
        let StageEvent::Wake(wake) = &event else {
            return Err(HostError::wrong(&self.stage.0, &event));
        };
        let time = working_time(left);
        let runs = self.plans(&wake.wake)?.into_iter().map(|(id, plan)| self.run_task(id, plan, time));
        let (mut tasks, mut failures) = (Vec::new(), Vec::new());
        for outcome in join_all(runs).await {
            match outcome {
                Ok(report) => tasks.push(report),
                Err(failure) => failures.push(failure),
            }
        }
        if failures.is_empty() { Ok(TaskReports { tasks }) } else { Err(HostError::Tasks(failures)) }
    }
}

#[cfg(test)]
mod tests;
