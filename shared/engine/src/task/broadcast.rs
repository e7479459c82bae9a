//! The task that decides a broadcast value: settings that other tasks read at the start of a batch.
//!
//! It takes messages one by one, each in a commit of its own, so that the accepted ones have one total order however
//! many partitions or people send them. The value and its version are in the head; the log is their history.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use payguard_model::EventTime;

use super::batch;
use super::committer::{Proposal, commit, wake_consumers};
use super::retry::patiently;
use super::{Env, TaskPlan};
use crate::commit::CommitOutcome;
use crate::error::EngineError;
use crate::ids::InputId;
use crate::logic::{BroadcastLogic, DecodeError, SourceRecord, Verdict};
use crate::row::{Broadcast, Head, InputState, Position};

/// The input of messages that come from no partition.
const DIRECT: &str = "direct";
/// What its counters begin with.
const OPERATOR: &str = "control";

/// The task that decides a broadcast value.
pub struct BroadcastTask {
    env: Env,
    plan: TaskPlan,
    logic: Arc<dyn BroadcastLogic>,
}

/// What became of a message.
#[derive(Clone, PartialEq, Debug)]
pub enum Decided {
    /// It is the value in force.
    Accepted(Broadcast),
    /// It was refused for this reason; the value before it stays in force.
    Refused(&'static str),
    /// It was a tombstone.
    Ignored,
}

impl BroadcastTask {
    /// The task of a plan with one output stream, for refused messages.
    #[must_use]
    pub fn new(env: Env, plan: TaskPlan, logic: Arc<dyn BroadcastLogic>) -> BroadcastTask {
        BroadcastTask { env, plan, logic }
    }

    /// The value in force; `None` while nothing was accepted.
    ///
    /// # Errors
    /// When the ledger fails.
    pub async fn current(&self) -> Result<Option<Broadcast>, EngineError> {
        Ok(self.head().await?.broadcast)
    }

    /// Makes the task known before its first message, so that those who read its outputs wait for its end. Only
    /// bounded runs need it.
    ///
    /// # Errors
    /// When a store fails.
    pub async fn begin(&self) -> Result<(), EngineError> {
        while self.head().await?.seq == 0 {
            let mut head = Head::empty();
            patiently(&self.env.settings, || self.env.ledger.register(&self.plan.task)).await?;
            let proposal = Proposal { idle: true, ..Proposal::after(&head, self.env.clock.now()) };
            commit(&self.env, &self.plan, &mut head, proposal).await?;
        }
        Ok(())
    }

    /// Decides about records of a Kafka partition, ascending by offset; those decided before are skipped.
    ///
    /// # Errors
    /// When a store fails: the records must be delivered again.
    pub async fn ingest(&self, partition: &InputId, records: &[SourceRecord<'_>]) -> Result<(), EngineError> {
        for record in records {
            loop {
                let head = self.head().await?;
                if position(&head, partition) >= record.offset
                    || self.decide(head, partition, record.offset, record.value).await?.is_some()
                {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The offset up to which a partition's records are decided about (-1: none).
    ///
    /// # Errors
    /// When the ledger fails.
    pub async fn position(&self, partition: &InputId) -> Result<i64, EngineError> {
        Ok(position(&self.head().await?, partition))
    }

    /// Decides about a message that comes from no partition, after all that were decided before.
    ///
    /// # Errors
    /// When a store fails; the message may have been decided about all the same.
    pub async fn send(&self, message: &[u8]) -> Result<Decided, EngineError> {
        let input = DIRECT.to_owned();
        loop {
            let head = self.head().await?;
            let offset = position(&head, &input) + 1;
            if let Some(decided) = self.decide(head, &input, offset, Some(message)).await? {
                return Ok(decided);
            }
        }
    }

    /// Says that no more messages come. Only bounded runs end.
    ///
    /// # Errors
    /// When a store fails.
    pub async fn end(&self) -> Result<(), EngineError> {
        loop {
            let mut head = self.head().await?;
            // A task that never decided anything is nobody's input.
            if head.seq == 0 || head.ended() {
                return Ok(());
            }
            let watermark_ms = EventTime::MAX.0;
            let proposal = Proposal { watermark_ms, ..Proposal::after(&head, self.env.clock.now()) };
            let (outcome, row) = commit(&self.env, &self.plan, &mut head, proposal).await?;
            if outcome.is_mine() {
                wake_consumers(&self.env, &self.plan, &row, true).await;
            }
        }
    }

    /// One message, one commit; `None` when another executor was faster.
    async fn decide(
        &self,
        mut head: Head,
        input: &InputId,
        offset: i64,
        message: Option<&[u8]>,
    ) -> Result<Option<Decided>, EngineError> {
        if head.ended() {
            return Err(EngineError::Ended { task: self.plan.task.to_string() });
        }
        let now = self.env.clock.now();
        let mut out = batch::collector(batch::builder(&self.plan), &self.plan, &head, head.watermark(), now);
        let current = head.broadcast.as_ref().map(|b| &b.value[..]);
        let verdict = message.map(|message| self.logic.on_message(current, message, now)).transpose();
        let bad = |e: DecodeError| EngineError::bad_record(&self.plan.task, "broadcast", e);
        let decided = match verdict.map_err(bad)? {
            None => {
                out.count(OPERATOR, "tombstones", 1);
                Decided::Ignored
            }
            Some(Verdict::Accepted { value }) => {
                let version = head.broadcast.as_ref().map_or(0, |b| b.version) + 1;
                out.count(OPERATOR, "accepted", 1);
                Decided::Accepted(Broadcast { version, value: Bytes::from(value) })
            }
            Some(Verdict::Refused { record, reason }) => {
                out.count(OPERATOR, "refused", 1);
                out.count(OPERATOR, reason, 1);
                tracing::warn!(task = %self.plan.task, input, offset, reason, "message refused");
                out.emit_encoded(0, reason, EventTime(now.0), &record);
                Decided::Refused(reason)
            }
        };
        if head.seq == 0 {
            patiently(&self.env.settings, || self.env.ledger.register(&self.plan.task)).await?;
        }
        let (mut builder, counters) = out.finish();
        let broadcast = match &decided {
            Decided::Accepted(broadcast) => Some(broadcast.clone()),
            Decided::Refused(_) | Decided::Ignored => None,
        };
        let proposal = Proposal {
            inputs: inputs_after(&head, input, offset),
            untouched: Position { at: -1, within: 0 },
            // Settings never hold time back.
            idle: true,
            segment: builder.finish(&[]),
            counters: counters.counted(),
            took_input: true,
            flushed_seq: head.seq + 1,
            broadcast,
            ..Proposal::after(&head, now)
        };
        let (outcome, row) = commit(&self.env, &self.plan, &mut head, proposal).await?;
        match outcome {
            CommitOutcome::Committed | CommitOutcome::AlreadyMine => {
                wake_consumers(&self.env, &self.plan, &row, false).await;
                Ok(Some(decided))
            }
            // Sent once more, it might be decided twice and undo what others have decided in between. A partition's
            // message is safe: its offset tells.
            CommitOutcome::Passed if input == DIRECT => Err(EngineError::Unresolved {
                task: self.plan.task.to_string(),
                seq: row.seq,
                tries: 1,
                detail: "the log has gone on; look at the value in force before sending the message again".to_owned(),
            }),
            CommitOutcome::Lost | CommitOutcome::Passed | CommitOutcome::Unknown => Ok(None),
        }
    }

    async fn head(&self) -> Result<Head, EngineError> {
        Ok(self.env.head(&self.plan.task).await?.unwrap_or_else(Head::empty))
    }
}

fn inputs_after(head: &Head, input: &InputId, at: i64) -> BTreeMap<InputId, InputState> {
    let mut inputs = head.inputs.clone();
    let state = InputState { position: Position { at, within: 0 }, watermark_ms: EventTime::MIN.0, idle: true };
    inputs.insert(input.clone(), state);
    inputs
}

fn position(head: &Head, input: &InputId) -> i64 {
    head.inputs.get(input).map_or(-1, |state| state.position.at)
}
