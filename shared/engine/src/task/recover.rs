//! Recovery: live state = pages of the state table, overlaid by the deltas of the rows after `flushed_seq`.

use futures_util::{StreamExt, TryStreamExt};
use payguard_model::KeyGroup;

use super::retry::patiently;
use super::{Env, TaskPlan};
use crate::error::{EngineError, StoreError, StoreErrorKind};
use crate::ids::Seq;
use crate::input::read_slice;
use crate::logic::{StageLogic, apply_stage_delta};
use crate::page::Page;
use crate::resume::recovery;
use crate::row::Head;
use crate::store::RowLimits;
use crate::teeth::{Mutant, bites};

/// Key groups read at the same time.
const PARALLEL: usize = 16;
/// Log rows read at once.
const ROWS: u32 = 64;

/// Loads the state as of `head` into `logic`, which must be fresh.
///
/// # Errors
/// When a store fails, or what it holds does not decode.
pub(super) async fn load_state(
    env: &Env,
    plan: &TaskPlan,
    head: &Head,
    logic: &mut dyn StageLogic,
) -> Result<(), EngineError> {
    if logic.states().is_empty() {
        return Ok(());
    }
    let recovery = recovery(head);
    let deltas_first = bites(Mutant::PagesOverDeltas);
    if deltas_first {
        apply_rows(env, plan, recovery.after, recovery.until, logic).await?;
    }
    if recovery.pages {
        let mut pages = load_pages(env, plan).await?;
        for state in logic.states() {
            let mine = pages.extract_if(.., |p| p.address.operator == state.operator()).collect();
            state.load(mine).map_err(|e| broken(plan, &e.0))?;
        }
        if let Some(page) = pages.first() {
            return Err(broken(plan, &format!("page {} belongs to no operator of the stage", page.address)));
        }
    }
    if deltas_first { Ok(()) } else { apply_rows(env, plan, recovery.after, recovery.until, logic).await }
}

/// Applies the deltas of rows `after + 1 ..= until` in order.
///
/// # Errors
/// When a store fails, a row is missing, or a delta is damaged.
pub(super) async fn apply_rows(
    env: &Env,
    plan: &TaskPlan,
    after: Seq,
    until: Seq,
    logic: &mut dyn StageLogic,
) -> Result<(), EngineError> {
    let mut at = after;
    while at < until {
        let limits = RowLimits { rows: ROWS };
        let rows = env.rows(&plan.task, at, limits).await?;
        if rows.is_empty() {
            let detail = format!("the row is missing below the head {until}");
            let target = format!("{} {}", plan.task, at.next());
            return Err(StoreError::new(StoreErrorKind::Missing, "load rows", target, detail).into());
        }
        for row in rows.iter().take_while(|r| r.seq <= until.0) {
            if let Some(delta) = &row.delta {
                let bytes = read_slice(&*env.segments, &plan.task, row, delta).await?;
                apply_stage_delta(logic, &bytes).map_err(|e| broken(plan, &e.0))?;
            }
            at = Seq(row.seq);
        }
    }
    Ok(())
}

async fn load_pages(env: &Env, plan: &TaskPlan) -> Result<Vec<Page>, EngineError> {
    let reads = plan
        .groups()
        .map(|group| patiently(&env.settings, move || env.state.load_pages(&plan.task.stage, KeyGroup(group))));
    let pages: Vec<Vec<Page>> = futures_util::stream::iter(reads).buffer_unordered(PARALLEL).try_collect().await?;
    Ok(pages.into_iter().flatten().collect())
}

fn broken(plan: &TaskPlan, detail: &str) -> EngineError {
    EngineError::Broken { task: plan.task.to_string(), invariant: "INV-4", detail: detail.to_owned() }
}
