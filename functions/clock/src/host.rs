//! Carries out what the clock decides: in Lambda, by invoking the functions of the tasks. Then it collects garbage.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use payguard_aws::event::StageEvent;
use payguard_aws::lambda::LambdaWaker;
use payguard_engine::gc::Collected;
use payguard_engine::store::Waker;
use payguard_engine::task::Env;
use payguard_engine::{Head, TaskId};
use payguard_lambda::{Function, Host, HostError};
use payguard_topology::{Topology, progress, stage};
use serde::Serialize;

use crate::collect::{Limits, collect};
use crate::{Tick, decide};

/// Longest time that collecting takes: there is another tick in a minute.
const COLLECT_TIME: Duration = Duration::from_secs(20);
/// What is left of an invocation's time when collecting ends.
const SPARE_TIME: Duration = Duration::from_secs(5);

/// Answers schedules.
pub struct ClockHost {
    topology: Arc<Topology>,
    env: Env,
    waker: Arc<LambdaWaker>,
    retention_ms: i64,
}

/// What the clock asked for and did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Ticked {
    /// Source tasks that were asked whether they are idle.
    pub heartbeats: Vec<String>,
    /// Tasks that were woken.
    pub wakes: Vec<String>,
    /// What was collected.
    pub collected: Collected,
}

impl ClockHost {
    /// The clock of a function's pipeline.
    #[must_use]
    pub fn new(function: &Function) -> ClockHost {
        let (topology, env, waker) = (function.topology.clone(), function.env.clone(), function.waker.clone());
        ClockHost { topology, env, waker, retention_ms: function.config.gc.retention_ms }
    }

    async fn tick(&self, left: Duration) -> Result<Ticked, HostError> {
        let heads = progress::heads(&*self.env.ledger, &self.topology).await.map_err(HostError::Heads)?;
        let (mut silent, mut waiting) = (Vec::new(), Vec::new());
        for tick in decide(&self.topology, &heads, self.env.clock.now()) {
            match tick {
                Tick::Heartbeat(task) => silent.push(task),
                Tick::Wake(task) => waiting.push(task),
            }
        }
        let failed_before = self.waker.failed();
        if let Some(first) = silent.first() {
            self.waker.heartbeat(&first.stage, &silent).await;
        }
        join_all(waiting.iter().map(|task| self.waker.wake(task))).await;
        let not_woken = self.waker.failed() - failed_before;
        let collected = self.collect(&heads, left).await;
        let (asked, told) = (silent.len(), waiting.len());
        match (not_woken, collected) {
            (0, Ok(collected)) => {
                let Collected { rows, objects, orphans, pages, .. } = collected;
                tracing::info!(heartbeats = asked, wakes = told, rows, objects, orphans, pages, "{}", stage::CLOCK);
                Ok(Ticked { heartbeats: names(&silent), wakes: names(&waiting), collected })
            }
            (0, Err(error)) => Err(error),
            (failed, _) => Err(HostError::Invocations { failed }),
        }
    }

    /// Collects after everything else is done, so that no task waits for it.
    async fn collect(&self, heads: &[(TaskId, Head)], left: Duration) -> Result<Collected, HostError> {
        let time = COLLECT_TIME.min(left.saturating_sub(SPARE_TIME));
        let until = self.env.clock.now().plus(i64::try_from(time.as_millis()).unwrap_or(0));
        let limits = Limits::per_minute(self.retention_ms, until);
        let mut outcome = collect(&self.env, &self.topology, heads, limits).await;
        for error in &outcome.failed {
            tracing::warn!(%error, "not everything was collected");
        }
        match outcome.failed.pop() {
            None => Ok(outcome.collected),
            Some(last) => Err(HostError::Collection { failed: outcome.failed.len() + 1, last }),
        }
    }
}

fn names(tasks: &[TaskId]) -> Vec<String> {
    tasks.iter().map(ToString::to_string).collect()
}

#[async_trait]
impl Host for ClockHost {
    type Answer = Ticked;

    async fn handle(&self, event: StageEvent, left: Duration) -> Result<Ticked, HostError> {
        match event {
            StageEvent::Schedule(_) => self.tick(left).await,
            other => Err(HostError::wrong(stage::CLOCK, &other)),
        }
    }
}
