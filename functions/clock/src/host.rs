//! Carries out what the clock decides: in Lambda, by invoking the functions of the tasks.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use payguard_aws::event::StageEvent;
use payguard_aws::lambda::LambdaWaker;
use payguard_engine::TaskId;
use payguard_engine::store::Waker;
use payguard_engine::task::Env;
use payguard_lambda::{Function, Host, HostError};
use payguard_topology::{Topology, progress, stage};
use serde::Serialize;

use crate::{Tick, decide};

/// Answers schedules.
pub struct ClockHost {
    topology: Arc<Topology>,
    env: Env,
    waker: Arc<LambdaWaker>,
}

/// What the clock asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Asked {
    /// Source tasks that were asked whether they are idle.
    pub heartbeats: Vec<String>,
    /// Tasks that were woken.
    pub wakes: Vec<String>,
}

impl ClockHost {
    /// The clock of a function's pipeline.
    #[must_use]
    pub fn new(function: &Function) -> ClockHost {
        let (topology, env, waker) = (function.topology.clone(), function.env.clone(), function.waker.clone());
        ClockHost { topology, env, waker }
    }

    async fn tick(&self) -> Result<Asked, HostError> {
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
        let asked = Asked { heartbeats: names(&silent), wakes: names(&waiting) };
        tracing::info!(heartbeats = asked.heartbeats.len(), wakes = asked.wakes.len(), "{}", stage::CLOCK);
        match self.waker.failed() - failed_before {
            0 => Ok(asked),
            failed => Err(HostError::Invocations { failed }),
        }
    }
}

fn names(tasks: &[TaskId]) -> Vec<String> {
    tasks.iter().map(ToString::to_string).collect()
}

#[async_trait]
impl Host for ClockHost {
    type Answer = Asked;

    async fn handle(&self, event: StageEvent, _left: Duration) -> Result<Asked, HostError> {
        match event {
            StageEvent::Schedule(_) => self.tick().await,
            other => Err(HostError::wrong(stage::CLOCK, &other)),
        }
    }
}
