//! The number of shards of a stage is changed while its pipeline runs, here or in another process.

use std::sync::Arc;

use payguard_directory::SeededDirectory;
use payguard_engine::layout::Layout;
use payguard_engine::task::consumer::ConsumerTask;
use payguard_engine::task::{Env, handover};
use payguard_engine::{EngineError, StageId, TaskId};
use payguard_model::KEY_GROUPS;
use payguard_topology::{Config, Topology, payguard, stage};

use crate::runner::stage_body;

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rescaled {
    /// The layout before.
    pub from: Layout,
    /// The layout now.
    pub to: Layout,
}

/// Why the shards were not changed.
#[derive(Debug, thiserror::Error)]
pub enum RescaleError {
    /// There is no such stage, or it has no shards to change.
    #[error("`{stage}` has no shards that can be changed; these stages have: {stages}")]
    NoShards {
        /// What was asked for.
        stage: String,
        /// The stages that have.
        stages: String,
    },
    /// Not a number of shards that a stage can have.
    #[error("a stage has 1 to {KEY_GROUPS} shards, as many as there are key groups; got {0}")]
    Number(u32),
    /// A task failed. What was begun goes on with the next call.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Gives `stage` other shards: the tasks it has flush their state and end, new ones go on where they were.
///
/// # Errors
/// When the stage or the number cannot be, or a task fails: then the same call again goes on.
pub async fn rescale(
    config: &Config,
    topology: &Topology,
    env: &Env,
    stage: &str,
    shards: u32,
) -> Result<Rescaled, RescaleError> {
    let can = topology.stages.iter().filter(|s| s.kind.can_be_redrawn());
    let Some(found) = can.clone().find(|s| *s.id.0 == *stage) else {
        let stages = can.map(|s| s.id.to_string()).collect::<Vec<_>>().join(", ");
        return Err(RescaleError::NoShards { stage: stage.to_owned(), stages });
    };
    if !(1..=KEY_GROUPS).contains(&shards) {
        return Err(RescaleError::Number(shards));
    }
    let registered = env.ledger.tasks(&found.id).await.map_err(EngineError::from)?;
    let (first, from) = (Layout::first(found.shards), topology.layout(found, &registered));
    let task = |id: &TaskId| consumer(config, topology, env, id);
    let to = handover::redraw(env, &found.id, first, shards, &task).await?;
    Ok(Rescaled { from, to })
}

/// Gives the stages of a pipeline that was restored with `begun` as its configuration the shards that were `asked` for, by
/// stage. A stage that was given others since is left alone; `saved` tells the generation that it was restored with.
///
/// # Errors
/// When a task fails: then the same call again goes on.
pub async fn rescale_restored(
    begun: &Config,
    asked: &[(&str, u32)],
    saved: impl Fn(&StageId) -> u32,
    env: &Env,
) -> Result<Vec<(StageId, Rescaled)>, RescaleError> {
    let topology = payguard(begun);
    let mut rescaled = Vec::new();
    for (id, shards) in asked {
        let Some(stage) = topology.stage(&StageId::new(id)) else { continue };
        let registered = env.ledger.tasks(&stage.id).await.map_err(EngineError::from)?;
        let now = topology.layout(stage, &registered);
        if now.generation > saved(&stage.id) && now.shards != *shards {
            continue;
        }
        let done = rescale(begun, &topology, env, id, *shards).await?;
        if done.from != done.to {
            rescaled.push((stage.id.clone(), done));
        }
    }
    Ok(rescaled)
}

fn consumer(config: &Config, topology: &Topology, env: &Env, id: &TaskId) -> Result<ConsumerTask, EngineError> {
    let unknown = || EngineError::Unplanned { task: id.to_string() };
    let plan = topology.plan(id).ok_or_else(unknown)?;
    let body = if id.stage == StageId::new(stage::ENRICH) {
        // Only its state is moved, of which it has none: nobody is asked about anything.
        Some(payguard_enrich::make(topology, Arc::new(SeededDirectory)))
    } else {
        stage_body(config, topology, &id.stage)
    };
    Ok(ConsumerTask::new(env.clone(), plan, body.ok_or_else(unknown)?))
}
