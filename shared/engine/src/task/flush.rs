//! Flush: committed state becomes pages of the state table.
//!
//! The engine flushes between batches, so memory *is* the committed state as of the head. A page is written only over
//! an older version (INV-4); a crash half-way, a repeated flush and a zombie's late flush are harmless, because the
//! deltas after `flushed_seq` are applied on top of whatever pages are found.
//!
//! A commit is flushed at most once, and only by the executor that made it, right after it. Two executors that flushed
//! one commit would differ in what is new to them and in how deep their pages are split, and so could write different
//! pages of one name and version, of which the table keeps the first.

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

/// Whether the state of an operator is written after every commit.
pub(super) fn writes_through(logic: &mut dyn StageLogic) -> bool {
    logic.states().iter().any(|s| s.writes_through())
}

/// Pages whose keys younger pages have taken over.
#[derive(Default)]
pub(super) struct Replaced {
    version: u64,
    pages: Vec<PageAddress>,
}

/// Writes the dirty pages as of `head`; returns the pages that they replace, for [`remove`] after the next commit.
///
/// # Errors
/// When the state table fails: the caller must drop its live state, because the pages are no longer marked dirty.
pub(super) async fn flush(
    env: &Env,
    plan: &TaskPlan,
    head: &Head,
    logic: &mut dyn StageLogic,
) -> Result<Replaced, EngineError> {
    let version = version(head.generation, head.seq);
    let (mut pages, mut replaced) = (Vec::new(), Replaced { version, pages: Vec::new() });
    for state in logic.states() {
        let operator = state.operator().to_owned();
        let dirty = state.take_dirty_pages(version);
        let address =
            |group, page| PageAddress { stage: plan.task.stage.clone(), group, operator: operator.clone(), page };
        for body in dirty.put {
            let address = address(body.group, body.page);
            pages.push(Page { address, version, body: body.body.into(), expires_at_s: body.expires_at_s });
        }
        replaced.pages.extend(dirty.delete.into_iter().map(|(group, page)| address(group, page)));
    }
    tracing::debug!(task = %plan.task, seq = head.seq, pages = pages.len(), "flush");
    // Chunks written side by side; a page that is in the table in a younger version is left alone.
    for chunk in pages.chunks(PARALLEL) {
        let writes = chunk.iter().map(|page| patiently(&env.settings, || env.state.put_page(page)));
        all(writes).await?;
    }
    Ok(replaced)
}

/// Removes pages that a flush replaced. To be called after the commit that follows the flush, not before.
///
/// A table lists pages one by one: who loads while they are replaced may find neither the old nor the new. So the old
/// ones stay until the head has moved past the flush. Whoever missed them began to load before that, and what they
/// loaded cannot be committed.
///
/// # Errors
/// When the state table fails; pages that stay do no harm.
pub(super) async fn remove(env: &Env, replaced: Replaced) -> Result<(), EngineError> {
    let Replaced { version, pages } = replaced;
    for chunk in pages.chunks(PARALLEL) {
        let removals = chunk.iter().map(|address| patiently(&env.settings, || env.state.delete_page(address, version)));
        all(removals).await?;
    }
    Ok(())
}

async fn all<T, E>(futures: impl Iterator<Item = impl Future<Output = Result<T, E>>>) -> Result<Vec<T>, E> {
    futures_util::future::try_join_all(futures).await
}
