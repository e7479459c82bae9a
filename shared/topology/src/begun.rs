//! The shards that the stages of a pipeline began with, where the configuration names a number that they were given
//! later.

use futures_util::future::try_join_all;
use payguard_engine::task::Env;
use payguard_engine::task::retry::patiently;
use payguard_engine::{StageId, StoreError, TaskId};

use crate::{Config, Stage, payguard};

/// The pseudo-stage whose log tells of restoring: its task 0 has commit 1 while it goes on and commit 2 when it is done.
pub const RESTORE: &str = "restore";

/// A pipeline that cannot be worked on.
#[derive(Debug, thiserror::Error)]
pub enum BegunError {
    /// The ledger failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A restore has not come to its end.
    #[error("pipeline {pipeline} is being restored from {from} and is not whole: run that restore again to finish it")]
    Restoring {
        /// The pipeline.
        pipeline: String,
        /// The savepoint.
        from: String,
    },
}

/// The configuration for a pipeline that may have begun: a stage whose configured shards are any number that it has been
/// given since has those that it began with, which name its first tasks.
///
/// Every other number is left as it is: a stage that has begun refuses it
/// ([`Shards`](payguard_engine::EngineError::Shards)).
///
/// # Errors
/// When the ledger fails, or the pipeline is being restored from a savepoint and is not whole yet.
pub async fn as_begun(env: &Env, mut config: Config) -> Result<Config, BegunError> {
    let restore = TaskId::shard(&StageId::new(RESTORE), 0);
    let restoring = patiently(&env.settings, || env.ledger.load_head(&restore)).await?;
    if let Some(head) = restoring.filter(|head| head.seq == 1) {
        return Err(BegunError::Restoring { pipeline: config.pipeline, from: head.code });
    }
    let topology = payguard(&config);
    let stages = topology.stages.iter().filter(|stage| stage.kind.can_be_redrawn());
    let begun = try_join_all(stages.map(|stage| began_with(env, stage))).await?;
    for (stage, shards) in begun.into_iter().flatten() {
        config.shards.set(&stage.id.0, shards);
    }
    Ok(config)
}

/// The shards that a stage began with, if they are others than those of the topology, which it was given later.
async fn began_with<'a>(env: &Env, stage: &'a Stage) -> Result<Option<(&'a Stage, u32)>, StoreError> {
    let task = TaskId::shard(&stage.id, 0);
    let head = patiently(&env.settings, || env.ledger.load_head(&task)).await?;
    let Some(first) = head.map(|head| head.shards).filter(|first| *first > 0 && *first != stage.shards) else {
        return Ok(None);
    };
    let registered = patiently(&env.settings, || env.ledger.tasks(&stage.id)).await?;
    let was_given = |shards| registered.iter().filter_map(TaskId::redrawn).any(|(layout, _)| layout.shards == shards);
    Ok(was_given(stage.shards).then_some((stage, first)))
}
