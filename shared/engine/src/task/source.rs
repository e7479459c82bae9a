//! Tasks that are given the records of one Kafka partition.
//!
//! The position is the last processed offset. Redelivered records, at or below it, are skipped; a gap is allowed
//! (compaction, transaction markers, expired data) and counted. The caller acknowledges an offset only when it is at or
//! below the committed position.

use std::collections::BTreeMap;
use std::sync::Arc;

use payguard_model::{EventTime, ProcessingTime};
use payguard_operators::watermark::{BoundedOutOfOrderness, IDLE_AFTER_MS, MAX_OUT_OF_ORDERNESS_MS};

use super::batch;
use super::committer::{Proposal, commit, wake_consumers};
use super::handover;
use super::retry::patiently;
use super::{Env, Report, Settings, TaskPlan};
use crate::error::EngineError;
use crate::ids::{InputId, TaskId};
use crate::logic::{Collector, SourceLogic, SourceRecord};
use crate::row::{Head, InputState, Position};
use crate::segment::{Arrival, SegmentBuilder};
use crate::teeth::{Mutant, bites};

/// Makes the fresh operators of a task of a source stage.
pub type MakeSource = Arc<dyn Fn(&TaskId) -> Box<dyn SourceLogic> + Send + Sync>;

/// Counter of records that were delivered again.
pub const REDELIVERED: &str = "source.redelivered";
/// Counter of offsets that were never delivered.
pub const GAP: &str = "source.offset_gap";

/// One task of a source stage.
pub struct SourceTask {
    env: Env,
    plan: TaskPlan,
    logic: Box<dyn SourceLogic>,
    input: InputId,
    head: Option<Head>,
    /// Empty, with the memory of earlier commits.
    builder: Option<SegmentBuilder>,
    woke_everyone_at: ProcessingTime,
    /// When the layouts of the consumers were last looked at.
    looked_at: Option<ProcessingTime>,
}

/// What is known of records that wait outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backlog {
    /// Nothing waits behind the committed position.
    None,
    /// Records wait.
    Some,
}

impl SourceTask {
    /// A task that has loaded nothing yet; `plan.task`'s instance names the partition.
    #[must_use]
    pub fn new(env: Env, plan: TaskPlan, make: &MakeSource) -> SourceTask {
        let (input, logic) = (plan.task.instance.to_string(), make(&plan.task));
        let woke_everyone_at = ProcessingTime(i64::MIN);
        SourceTask { env, plan, logic, input, head: None, builder: None, woke_everyone_at, looked_at: None }
    }

    /// The task.
    #[must_use]
    pub fn id(&self) -> &TaskId {
        &self.plan.task
    }

    /// The committed offset: every record at or below it may be acknowledged (-1: none).
    ///
    /// # Errors
    /// When the ledger fails.
    pub async fn position(&mut self) -> Result<i64, EngineError> {
        self.at().await
    }

    /// Processes a run of records, ascending by offset. When it returns, all of them are committed.
    ///
    /// # Errors
    /// When a store fails; what is committed is told by [`SourceTask::position`], the rest must be delivered again.
    ///
    /// # Cancel safety
    /// Dropping the future is like a crash: the next call reads the durable position.
    pub async fn ingest(&mut self, records: &[SourceRecord<'_>]) -> Result<Report, EngineError> {
        let mut report = Report::default();
        self.refresh().await?;
        let mut redelivered = None;
        loop {
            let at = self.at().await?;
            let after = if bites(Mutant::TakeAgain) && report.commits == 0 { -1 } else { at };
            let rest = not_processed(records, after);
            let skipped = (records.len() - rest.len()) as u64;
            // What we find skipped at first was committed before this delivery.
            let again = *redelivered.get_or_insert(skipped);
            if rest.is_empty() {
                return Ok(report);
            }
            let chunk = &rest[..fitting(rest, &self.env.settings)];
            let counted = if report.commits == 0 { again } else { 0 };
            let done = self.commit_chunk(chunk, counted, &mut report).await;
            if done.is_err() && bites(Mutant::AcknowledgeFirst) {
                return Ok(report);
            }
            done?;
        }
    }

    /// Says that the partition has ended: its watermark goes to the end of time. Only bounded inputs end.
    ///
    /// # Errors
    /// When a store fails.
    pub async fn end(&mut self) -> Result<(), EngineError> {
        self.refresh().await?;
        while !self.head().await?.ended() {
            let head = self.head().await?.clone();
            let inputs = self.inputs_after(&head, position(&head, &self.input), EventTime::MAX, false);
            let out = batch::collector(self.builder(), &self.plan, &head, EventTime::MAX, self.env.clock.now());
            self.commit_batch(head, out, inputs, false, false).await?;
        }
        Ok(())
    }

    /// Declares the partition idle when it has been silent for [`IDLE_AFTER_MS`] and nothing waits; true if it is idle.
    ///
    /// The silence of a partition that never had a record begins with its first heartbeat, which is committed.
    ///
    /// # Errors
    /// When a store fails.
    pub async fn heartbeat(&mut self, backlog: Backlog) -> Result<bool, EngineError> {
        self.refresh().await?;
        let now = self.env.clock.now();
        let head = self.head().await?.clone();
        if head.idle || head.ended() {
            return Ok(head.idle);
        }
        let begins = head.seq == 0;
        if !begins && (backlog == Backlog::Some || now.0 - head.last_input_at_ms < IDLE_AFTER_MS) {
            return Ok(false);
        }
        let idle = !begins;
        let inputs = self.inputs_after(&head, position(&head, &self.input), self.watermark_of_input(&head), idle);
        let out = batch::collector(self.builder(), &self.plan, &head, head.watermark(), now);
        Ok(self.commit_batch(head, out, inputs, idle, begins).await? && idle)
    }

    fn builder(&mut self) -> SegmentBuilder {
        self.builder.take().unwrap_or_else(|| batch::builder(&self.plan))
    }

    async fn commit_chunk(
        &mut self,
        chunk: &[SourceRecord<'_>],
        redelivered: u64,
        report: &mut Report,
    ) -> Result<(), EngineError> {
        let head = self.head().await?.clone();
        let mut generator = resume(self.watermark_of_input(&head));
        let mut out = batch::collector(self.builder(), &self.plan, &head, head.watermark(), self.env.clock.now());
        let mut at = position(&head, &self.input);
        let partition = self.plan.task.topic_partition().map_or(0, |(_, partition)| partition.unsigned_abs());
        if bites(Mutant::WatermarkFirst) {
            chunk.iter().filter_map(|record| record.timestamp).for_each(|time| generator.observe(time));
        }
        for record in chunk {
            if at >= 0 && record.offset > at + 1 {
                out.count("source", "offset_gap", u64::try_from(record.offset - at - 1).unwrap_or(0));
            }
            at = record.offset;
            let bound = record.watermark_bound.unwrap_or(EventTime::MAX);
            out.advance(generator.watermark().min(bound));
            out.handle(Arrival { partition, offset: at });
            if let Some(time) = self.logic.on_record(record, &mut out) {
                generator.observe(time);
            }
            out.advance(generator.watermark().min(bound));
        }
        self.logic.end_batch(&mut out);
        out.count("source", "records_in", chunk.len() as u64);
        out.count("source", "redelivered", redelivered);
        let inputs = self.inputs_after(&head, at, generator.watermark(), false);
        if self.commit_batch(head, out, inputs, false, true).await? {
            report.commits += 1;
            report.records += chunk.len() as u64;
        } else {
            report.lost += 1;
        }
        Ok(())
    }

    /// Commits a batch; true when it is ours. After a lost commit the head is read anew.
    async fn commit_batch(
        &mut self,
        mut head: Head,
        out: Collector,
        inputs: BTreeMap<InputId, InputState>,
        idle: bool,
        took_input: bool,
    ) -> Result<bool, EngineError> {
        if head.seq == 0 {
            patiently(&self.env.settings, || self.env.ledger.register(&self.plan.task)).await?;
        }
        let (watermark, now) = (out.watermark(), out.now());
        let (mut builder, counters) = out.finish();
        let segment = builder.finish(&[]);
        self.builder = Some(builder);
        let proposal = Proposal {
            inputs,
            untouched: Position { at: -1, within: 0 },
            watermark_ms: watermark.0,
            idle,
            segment,
            counters: counters.counted(),
            gauges: counters.gauges(),
            took_input,
            flushed_seq: head.seq + 1,
            ..Proposal::after(&head, now)
        };
        // Until the outcome is known, what is in memory is not trusted.
        self.head = None;
        let (outcome, row) = commit(&self.env, &self.plan, &mut head, proposal).await?;
        if !outcome.is_mine() {
            return Ok(false);
        }
        let everyone = head.ended() || idle || now.since(self.woke_everyone_at) >= self.env.settings.watermark_wake_ms;
        if everyone {
            self.woke_everyone_at = now;
        }
        self.head = Some(head);
        wake_consumers(&self.env, &self.plan, &row, everyone).await;
        Ok(true)
    }

    /// The watermark of the records alone: the task's may be held below it.
    fn watermark_of_input(&self, head: &Head) -> EventTime {
        head.inputs.get(&self.input).map_or(EventTime::MIN, InputState::watermark)
    }

    fn inputs_after(&self, head: &Head, at: i64, watermark: EventTime, idle: bool) -> BTreeMap<InputId, InputState> {
        let mut inputs = head.inputs.clone();
        let state = InputState { position: Position { at, within: 0 }, watermark_ms: watermark.0, idle };
        inputs.insert(self.input.clone(), state);
        inputs
    }

    async fn at(&mut self) -> Result<i64, EngineError> {
        let input = self.input.clone();
        Ok(position(self.head().await?, &input))
    }

    async fn head(&mut self) -> Result<&Head, EngineError> {
        if self.head.is_none() {
            self.refresh().await?;
        }
        Ok(self.head.get_or_insert_with(Head::empty))
    }

    /// Reads the durable head: warm memory may be behind another executor.
    async fn refresh(&mut self) -> Result<(), EngineError> {
        if handover::refresh_outputs(&self.env, &mut self.plan, &mut self.looked_at).await? {
            self.builder = None;
        }
        self.head = Some(self.env.head(&self.plan.task).await?.unwrap_or_else(Head::empty));
        Ok(())
    }
}

/// The generator that a committed watermark came from.
fn resume(watermark: EventTime) -> BoundedOutOfOrderness {
    let newest = watermark.plus(MAX_OUT_OF_ORDERNESS_MS + 1);
    BoundedOutOfOrderness::restore((watermark != EventTime::MIN).then_some(newest))
}

fn position(head: &Head, input: &InputId) -> i64 {
    head.inputs.get(input).map_or(-1, |s| s.position.at)
}

/// The records after a position; those at or below it were delivered again.
#[must_use]
pub fn not_processed<'a, 'r>(records: &'a [SourceRecord<'r>], at: i64) -> &'a [SourceRecord<'r>] {
    &records[records.partition_point(|r| r.offset <= at)..]
}

/// How many of the records fit into one commit: at least one.
fn fitting(records: &[SourceRecord<'_>], settings: &Settings) -> usize {
    let mut bytes = 0;
    let fit = records.iter().enumerate().take_while(|(number, record)| {
        bytes += record.value.map_or(0, <[u8]>::len);
        *number == 0 || bytes <= settings.bytes_per_commit
    });
    fit.take(settings.records_per_commit).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_bounded_in_records_and_bytes_and_takes_at_least_one() {
        let of = |len: usize| SourceRecord {
            offset: 0,
            timestamp: None,
            value: Some(&[0; 100][..len]),
            watermark_bound: None,
            replays: 0,
        };
        let settings = Settings { records_per_commit: 4, bytes_per_commit: 20, ..Settings::default() };
        let count = |lens: &[usize]| fitting(&lens.iter().map(|len| of(*len)).collect::<Vec<_>>(), &settings);
        assert_eq!(count(&[10, 10, 1]), 2);
        assert_eq!(count(&[100, 1]), 1, "one that is too large goes alone");
        assert_eq!(count(&[1, 1, 1, 1, 1]), 4);
        assert_eq!(count(&[0, 0]), 2);
        assert_eq!(count(&[]), 0);
    }
}
