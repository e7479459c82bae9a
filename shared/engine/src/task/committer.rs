//! One commit: segment first, then the conditional write, then what became of it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use payguard_model::ProcessingTime;

use super::retry::patiently;
use super::{Env, OUT, TaskPlan};
use crate::commit::{AfterReply, CommitOutcome, Resolution, after_reply, check_succession, moved, resolve};
use crate::error::{EngineError, StoreErrorKind};
use crate::ids::{Attempt, InputId, Seq, TaskId};
use crate::layout::{Layout, Taken};
use crate::row::{Broadcast, CommitRow, Head, InputState, Position, SegmentLocation};
use crate::segment::{Segment, object_key};
use crate::store::CommitReply;
use crate::teeth::{Mutant, bites};

/// What a batch leads to, ready to be committed.
pub(super) struct Proposal {
    /// All inputs after the batch.
    pub(super) inputs: BTreeMap<InputId, InputState>,
    /// What an input that is new stands at.
    pub(super) untouched: Position,
    /// The task's watermark and idleness after the batch.
    pub(super) watermark_ms: i64,
    pub(super) idle: bool,
    pub(super) segment: Segment,
    pub(super) counters: BTreeMap<String, u64>,
    pub(super) gauges: BTreeMap<String, i64>,
    pub(super) now_ms: i64,
    pub(super) took_input: bool,
    pub(super) next_timer_ms: Option<i64>,
    pub(super) flushed_seq: u64,
    /// The value the batch decides, for tasks that decide one.
    pub(super) broadcast: Option<Broadcast>,
    /// Version of the broadcast value the batch was handled with.
    pub(super) pinned: u64,
    /// What tasks of earlier generations have taken of the inputs.
    pub(super) taken: Vec<Taken>,
    /// The layout that takes over, when this is the task's last commit.
    pub(super) sealed: Option<Layout>,
}

impl Proposal {
    /// A proposal that changes nothing after `head`.
    pub(super) fn after(head: &Head, now: ProcessingTime) -> Proposal {
        Proposal {
            inputs: head.inputs.clone(),
            untouched: Position { at: 0, within: 0 },
            watermark_ms: head.watermark_ms,
            idle: head.idle,
            segment: Segment::default(),
            counters: BTreeMap::new(),
            gauges: BTreeMap::new(),
            now_ms: now.0,
            took_input: false,
            next_timer_ms: None,
            flushed_seq: head.flushed_seq,
            broadcast: None,
            pinned: head.pinned,
            taken: head.taken.clone(),
            sealed: None,
        }
    }
}

/// Commits the proposal after `head`. On a win `head` becomes the new head.
///
/// # Errors
/// When a store fails for good, or the commit's fate stays unknown: the caller must drop its live state.
pub(super) async fn commit(
    env: &Env,
    plan: &TaskPlan,
    head: &mut Head,
    proposal: Proposal,
) -> Result<(CommitOutcome, CommitRow), EngineError> {
    let attempt = env.attempts.next();
    let (next, row) = lay_out(env, &plan.task, head, proposal, &attempt).await?;
    if let Err(detail) = check_succession(head, &row) {
        return Err(EngineError::Broken { task: plan.task.to_string(), invariant: "INV-2", detail });
    }
    let outcome = settle(env, &plan.task, &next, &row, &attempt).await?;
    if outcome.is_mine() {
        *head = next;
    }
    tracing::debug!(task = %plan.task, seq = row.seq, ?outcome, watermark = row.watermark_ms, "commit");
    Ok((outcome, row))
}

/// Stores the segment and builds head and row.
async fn lay_out(
    env: &Env,
    task: &TaskId,
    head: &Head,
    proposal: Proposal,
    attempt: &Attempt,
) -> Result<(Head, CommitRow), EngineError> {
    let seq = head.seq + 1;
    let (from, to) = moved(&head.inputs, &proposal.inputs, proposal.untouched);
    let segment = store_segment(env, task, seq, attempt, &proposal.segment.bytes).await?;
    let mut row = CommitRow {
        seq,
        attempt: attempt.0.clone(),
        from,
        to,
        watermark_ms: proposal.watermark_ms,
        idle: proposal.idle,
        segment,
        slices: proposal.segment.slices,
        delta: proposal.segment.delta,
        now_ms: proposal.now_ms,
        counters: proposal.counters,
        code: env.settings.code.clone(),
        generation: head.generation,
        broadcast: proposal.broadcast.clone(),
        pinned: proposal.pinned,
        sealed: proposal.sealed,
        schema: env.settings.schema,
    };
    for slice in &row.slices {
        *row.counters.entry(format!("{OUT}{}", slice.stream)).or_default() += u64::from(slice.count);
    }
    let mut counters = head.counters.clone();
    for (name, by) in &row.counters {
        *counters.entry(name.clone()).or_default() += by;
    }
    let mut gauges = head.gauges.clone();
    gauges.extend(proposal.gauges);
    let next = Head {
        seq,
        attempt: attempt.0.clone(),
        watermark_ms: proposal.watermark_ms,
        idle: proposal.idle,
        inputs: proposal.inputs,
        flushed_seq: proposal.flushed_seq,
        next_timer_ms: proposal.next_timer_ms,
        generation: head.generation,
        code: env.settings.code.clone(),
        committed_at_ms: proposal.now_ms,
        last_input_at_ms: if proposal.took_input { proposal.now_ms } else { head.last_input_at_ms },
        counters,
        gauges,
        broadcast: proposal.broadcast.or_else(|| head.broadcast.clone()),
        pinned: proposal.pinned,
        shards: head.shards,
        sealed: proposal.sealed,
        taken: proposal.taken,
        restored_from: head.restored_from.clone(),
        schema: env.settings.schema,
    };
    Ok((next, row))
}

async fn store_segment(
    env: &Env,
    task: &TaskId,
    seq: u64,
    attempt: &Attempt,
    bytes: &Bytes,
) -> Result<Option<SegmentLocation>, EngineError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() <= env.settings.inline_bytes {
        return Ok(Some(SegmentLocation::Inline(bytes.clone())));
    }
    let key = object_key(task, seq, attempt);
    patiently(&env.settings, || env.segments.put(&key, bytes.clone())).await?;
    Ok(Some(SegmentLocation::Object(key)))
}

/// Asks the ledger, and asks again with the same attempt, until the outcome is known.
async fn settle(
    env: &Env,
    task: &TaskId,
    head: &Head,
    row: &CommitRow,
    attempt: &Attempt,
) -> Result<CommitOutcome, EngineError> {
    let seq = Seq(row.seq);
    let mut pause = env.settings.store_backoff_ms;
    let mut detail = String::new();
    for _ in 0..env.settings.store_tries {
        let reply = match env.ledger.commit(task, head, row).await {
            // The request may have arrived all the same.
            Err(error) if error.kind == StoreErrorKind::Unavailable => CommitReply::Unknown(error.to_string()),
            reply => reply?,
        };
        if let AfterReply::Done(outcome) = after_reply(&reply) {
            return Ok(outcome);
        }
        if bites(Mutant::GoOnAfterUnknown) && matches!(reply, CommitReply::Unknown(_)) {
            return Ok(CommitOutcome::Unknown);
        }
        detail = format!("{reply:?}");
        match look(env, task, seq, attempt).await {
            Ok(Resolution::Known(outcome)) => return Ok(outcome),
            Ok(Resolution::NotApplied) => {}
            Ok(Resolution::Broken(detail)) => {
                return Err(EngineError::Broken { task: task.to_string(), invariant: "INV-1", detail });
            }
            Err(error) => detail = error.to_string(),
        }
        tracing::warn!(task = %task, %seq, %detail, pause_ms = pause, "commit unknown, trying the same attempt again");
        tokio::time::sleep(Duration::from_millis(pause)).await;
        pause *= 2;
    }
    Err(EngineError::Unresolved { task: task.to_string(), seq: seq.0, tries: env.settings.store_tries, detail })
}

async fn look(env: &Env, task: &TaskId, seq: Seq, attempt: &Attempt) -> Result<Resolution, EngineError> {
    let head = env.ledger.load_head(task).await?;
    let row = env.ledger.load_row(task, seq).await?;
    Ok(resolve(head.as_ref(), row.as_ref(), attempt, seq))
}

/// Wakes the tasks that got data, and all other consumers when `everyone`.
pub(super) async fn wake_consumers(env: &Env, plan: &TaskPlan, row: &CommitRow, everyone: bool) {
    let mut woken: Vec<TaskId> = Vec::new();
    for output in &plan.outputs {
        for shard in 0..output.layout.shards {
            let has_data = row.slices.iter().any(|s| s.stream == output.stream && s.shard == shard);
            let task = output.layout.task(&output.consumer, shard);
            if (has_data || everyone) && !woken.contains(&task) {
                env.waker.wake(&task).await;
                woken.push(task);
            }
        }
    }
}
