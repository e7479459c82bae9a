//! Flush: committed state becomes pages of the state table.
//!
//! The engine flushes between batches, so memory *is* the committed state as of the head. A page is written only over
//! an older version (INV-4); a crash half-way, a repeated flush and a zombie's late flush are harmless, because the
//! deltas after `flushed_seq` are applied on top of whatever pages are found.

use super::retry::patiently;
use super::{Env, TaskPlan};
use crate::error::EngineError;
use crate::logic::StageLogic;
use crate::page::{Page, PageAddress, version};
use crate::row::Head;

/// Pages written at the same time.
const PARALLEL: usize = 16;

/// Dirty state of all operators, bytes.
pub(super) fn dirty_bytes(logic: &mut dyn StageLogic) -> usize {
    logic.states().iter().map(|s| s.dirty_bytes()).sum()
}

/// Writes the dirty pages as of `head`; returns the seq that is flushed now.
///
/// # Errors
/// When the state table fails: the caller must drop its live state, because the pages are no longer marked dirty.
pub(super) async fn flush(
    env: &Env,
    plan: &TaskPlan,
    head: &Head,
    logic: &mut dyn StageLogic,
) -> Result<u64, EngineError> {
    let version = version(head.generation, head.seq);
    let (mut pages, mut obsolete) = (Vec::new(), Vec::new());
    for state in logic.states() {
        let operator = state.operator().to_owned();
        let dirty = state.take_dirty_pages(head.seq);
        let address =
            |group, page| PageAddress { stage: plan.task.stage.clone(), group, operator: operator.clone(), page };
        for body in dirty.put {
            let address = address(body.group, body.page);
            pages.push(Page { address, version, body: body.body.into(), expires_at_s: body.expires_at_s });
        }
        obsolete.extend(dirty.delete.into_iter().map(|(group, page)| address(group, page)));
    }
    tracing::debug!(task = %plan.task, seq = head.seq, pages = pages.len(), "flush");
    // Chunks written side by side; a page that is in the table in a younger version is left alone.
    for chunk in pages.chunks(PARALLEL) {
        let writes = chunk.iter().map(|page| patiently(&env.settings, || env.state.put_page(page)));
        all(writes).await?;
    }
    // Only after the pages that replace them: a crash in between must find one or the other.
    for chunk in obsolete.chunks(PARALLEL) {
        let removals = chunk.iter().map(|address| patiently(&env.settings, || env.state.delete_page(address, version)));
        all(removals).await?;
    }
    Ok(head.seq)
}

async fn all<T, E>(futures: impl Iterator<Item = impl Future<Output = Result<T, E>>>) -> Result<Vec<T>, E> {
    futures_util::future::try_join_all(futures).await
}
