//! One batch of a consumer task: merged records through the operators, synchronously.

use std::collections::BTreeMap;

use bytes::Bytes;
use payguard_model::{EventTime, ProcessingTime};

use super::{Settings, TaskPlan};
use crate::error::EngineError;
use crate::logic::{Collector, DecodeError, LookupLogic, LookupRecord, Origin, SinkLogic, StageLogic};
use crate::merge::{MergedRecord, Merger, Next};
use crate::row::Head;
use crate::segment::SegmentBuilder;
use crate::store::SinkRecord;
use crate::teeth::{Mutant, bites};

/// What came of the records of one batch.
pub(super) struct Batch {
    /// Records taken.
    pub(super) records: usize,
    /// The same by stream.
    pub(super) by_stream: BTreeMap<String, u64>,
    /// The task's watermark afterwards, and whether all inputs are idle.
    pub(super) watermark: EventTime,
    pub(super) idle: bool,
}

/// A builder for the outputs of `plan`. A task keeps its own from commit to commit, because of the memory it has.
pub(super) fn builder(plan: &TaskPlan) -> SegmentBuilder {
    SegmentBuilder::new(plan.outputs.iter().map(|o| (o.stream.as_str(), o.layout.shards)))
}

/// A collector for the outputs of `plan`.
pub(super) fn collector(
    builder: SegmentBuilder,
    plan: &TaskPlan,
    head: &Head,
    watermark: EventTime,
    now: ProcessingTime,
) -> Collector {
    let origin = Origin { task: plan.task.to_string(), seq: head.seq + 1 };
    Collector::new(builder, watermark, now, origin)
}

/// Moves the watermark to `to`, stopping at every timer on the way.
///
/// A timer's outputs carry the moment before its time as their stamp, whatever steps the watermark came in: so they do
/// not depend on how the input was cut into batches.
pub(super) fn advance(logic: &mut dyn StageLogic, to: EventTime, out: &mut Collector) {
    if to <= out.watermark() {
        return;
    }
    while let Some(time) = logic.next_event_timer()
        && time <= to
    {
        out.advance_to_timer(time);
        logic.on_watermark(out);
    }
    out.advance(to);
}

/// Runs records through the operators until the buffers or the limits of a commit end.
///
/// # Errors
/// When a record does not decode.
pub(super) fn run_operators(
    plan: &TaskPlan,
    settings: &Settings,
    merger: &mut Merger,
    logic: &mut dyn StageLogic,
    out: &mut Collector,
) -> Result<Batch, EngineError> {
    logic.on_processing_time(out);
    let (mut counts, mut records, mut bytes) = (Vec::new(), 0, 0);
    loop {
        advance(logic, merger.watermark().0, out);
        if records >= settings.records_per_commit || bytes >= settings.bytes_per_commit {
            break;
        }
        let Some(record) = take(plan, merger)? else { break };
        bytes += record.payload.len();
        records += 1;
        count(&mut counts, record.stream);
        out.handle(record.arrival);
        logic.on_record(record.stream, record.payload, out).map_err(|e| bad_record(plan, record.stream, e))?;
    }
    let by_stream = name_counts(plan, &counts);
    Ok(Batch { records, by_stream, watermark: out.watermark(), idle: merger.watermark().1 })
}

/// Renders records for a sink until the buffers or the limits of a commit end.
///
/// # Errors
/// When a record does not decode.
pub(super) fn run_sink(
    plan: &TaskPlan,
    settings: &Settings,
    merger: &mut Merger,
    logic: &dyn SinkLogic,
    before: EventTime,
) -> Result<(Batch, Vec<SinkRecord>), EngineError> {
    let (mut counts, mut rendered, mut records, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
    loop {
        if records >= settings.records_per_commit || bytes >= settings.bytes_per_commit {
            break;
        }
        let Some(record) = take(plan, merger)? else { break };
        bytes += record.payload.len();
        records += 1;
        count(&mut counts, record.stream);
        let (stream, payload) = (record.stream, record.payload);
        logic.render(stream, payload, &mut rendered).map_err(|e| bad_record(plan, stream, e))?;
    }
    let (watermark, idle) = merger.watermark();
    let watermark = if bites(Mutant::WatermarkOfBatch) { watermark } else { watermark.max(before) };
    let by_stream = name_counts(plan, &counts);
    Ok((Batch { records, by_stream, watermark, idle }, rendered))
}

/// Takes records until the buffers or the limits of a commit end, has them answered, and emits the answers: each with
/// the watermark that had been reached at its record, and its arrival.
///
/// # Errors
/// When a record does not decode, or the answers are not one for each record.
pub(super) async fn run_lookup(
    plan: &TaskPlan,
    settings: &Settings,
    merger: &mut Merger,
    logic: &dyn LookupLogic,
    out: &mut Collector,
) -> Result<Batch, EngineError> {
    let (mut counts, mut records, mut stamps, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0);
    while records.len() < settings.records_per_commit && bytes < settings.bytes_per_commit {
        let reached = merger.watermark().0;
        let Some(record) = take(plan, merger)? else { break };
        bytes += record.payload.len();
        count(&mut counts, record.stream);
        stamps.push((reached, record.arrival));
        records.push(LookupRecord { stream: record.stream, payload: Bytes::copy_from_slice(record.payload) });
    }
    let (watermark, idle) = merger.watermark();
    let answers = logic.answer(&records, out.counters()).await;
    let answers = answers.map_err(|e| bad_record(plan, records.first().map_or(0, |r| r.stream), e))?;
    if answers.len() != records.len() {
        return Err(EngineError::Broken {
            task: plan.task.to_string(),
            invariant: "INV-6",
            detail: format!("{} answers to {} records", answers.len(), records.len()),
        });
    }
    for (answer, (reached, arrival)) in answers.iter().zip(stamps) {
        out.advance(reached);
        out.handle(arrival);
        out.emit_encoded(answer.output, &answer.key, answer.event_time, &answer.payload);
    }
    out.advance(watermark);
    let by_stream = name_counts(plan, &counts);
    Ok(Batch { records: records.len(), by_stream, watermark: out.watermark(), idle })
}

fn count(counts: &mut Vec<u64>, stream: usize) {
    if counts.len() <= stream {
        counts.resize(stream + 1, 0);
    }
    counts[stream] += 1;
}

fn name_counts(plan: &TaskPlan, counts: &[u64]) -> BTreeMap<String, u64> {
    let count_of = |number: &usize| counts.get(*number).copied().filter(|n| *n > 0);
    let streams = plan.upstreams.iter().flat_map(|u| &u.streams);
    streams.filter_map(|(name, number)| count_of(number).map(|n| (name.clone(), n))).collect()
}

fn take<'m>(plan: &TaskPlan, merger: &'m mut Merger) -> Result<Option<MergedRecord<'m>>, EngineError> {
    match merger.take_next() {
        Ok(Next::Record(record)) => Ok(Some(record)),
        Ok(Next::Blocked | Next::Empty) => Ok(None),
        Err(error) => Err(EngineError::Broken {
            task: plan.task.to_string(),
            invariant: "INV-6",
            detail: format!("an upstream slice does not parse: {error}"),
        }),
    }
}

fn bad_record(plan: &TaskPlan, stream: usize, error: DecodeError) -> EngineError {
    let name = plan.upstreams.iter().flat_map(|u| &u.streams).find(|(_, n)| *n == stream).map(|(name, _)| name.clone());
    EngineError::bad_record(&plan.task, &name.unwrap_or_else(|| stream.to_string()), error)
}
