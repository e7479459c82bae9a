//! What a task finds missing is nothing it needs, when it has moved on since its head was read.

use super::{Env, TaskPlan};
use crate::error::EngineError;
use crate::resume::{Missing, missing};
use crate::row::Head;

/// What was read for a batch after `head`; `None` when something was not there because another executor of the task has
/// gone on from `head` and what it had passed has been collected. Then the batch is lost, as a commit may be.
///
/// # Errors
/// When the reading failed, or when something that the task still needs is gone.
pub(super) async fn unless_passed<T>(
    env: &Env,
    plan: &TaskPlan,
    head: &Head,
    read: Result<T, EngineError>,
) -> Result<Option<T>, EngineError> {
    let gap = match read {
        Err(error) if error.is_missing() => error,
        read => return read.map(Some),
    };
    let newest = env.head(&plan.task).await?.unwrap_or_else(Head::empty);
    if missing(head, &newest) == Missing::Passed {
        tracing::info!(task = %plan.task, seq = head.seq, newest = newest.seq, %gap, "others have gone on");
        return Ok(None);
    }
    let detail = format!(
        "{gap}, and {} still needs it after its commit {}. Either the store has lost it, or the task has joined the \
         pipeline when its log was collected already: start a new pipeline, with another name or state folder",
        plan.task, head.seq
    );
    Err(EngineError::Broken { task: plan.task.to_string(), invariant: "INV-5", detail })
}
