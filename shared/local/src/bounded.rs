//! A bounded run: files to their end, all stages in this process, until every task has seen the end of its input.

use std::path::PathBuf;

use futures_util::future::{try_join, try_join_all};
use payguard_engine::task::broadcast::BroadcastTask;
use payguard_engine::task::source::SourceTask;
use payguard_engine::{EngineError, StageId, TaskId};
use payguard_topology::stage;

use crate::arrival::ArrivalClock;
use crate::file_source::{FileSourceError, feed, messages};
use crate::runner::LocalPipeline;

/// The files of a run.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Records of the topic that drives the pipeline, such as payments; each file is a partition.
    pub payments: Vec<PathBuf>,
    /// Confirmations, one partition. Beside one file of payments, a file of the same name that ends in `.after` tells
    /// for every confirmation after how many payments it arrived.
    pub confirmations: Option<PathBuf>,
    /// Changes of the rules, in force one after the other before the first payment.
    pub rules: Option<PathBuf>,
}

/// How a run came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Every task has seen the end of its input: so many lines of payments and confirmations.
    Finished(u64),
    /// It was stopped after so many payments; every task stands where it stood, records are in flight.
    Stopped(u64),
}

/// Feeds every file to a partition of its own while the stages work; returns the lines of all payments and
/// confirmations.
///
/// `progress` is told bytes that are committed or were before.
///
/// # Errors
/// When a file or a store fails. Repeating the call on the same stores goes on where they stand.
pub async fn run(pipeline: &LocalPipeline, inputs: &Inputs, progress: impl Fn(u64)) -> Result<u64, FileSourceError> {
    match run_until(pipeline, inputs, None, progress).await? {
        Outcome::Finished(lines) | Outcome::Stopped(lines) => Ok(lines),
    }
}

/// The same; with `stop_after` it ends, without ending the input, once so many payments of every file are processed.
///
/// # Errors
/// As [`run`].
pub async fn run_until(
    pipeline: &LocalPipeline,
    inputs: &Inputs,
    stop_after: Option<u64>,
    progress: impl Fn(u64),
) -> Result<Outcome, FileSourceError> {
    let mut sources = Sources::begin(pipeline, inputs).await?;
    let mut running = pipeline.start();
    if let Some(stop_after) = stop_after {
        let until = i64::try_from(stop_after).unwrap_or(i64::MAX);
        let payments = tokio::select! {
            lines = sources.feed_until(pipeline, inputs, until, &progress) => lines?,
            failed = running.finished() => return Err(stopped_early(failed)),
        };
        running.stop().await?;
        return Ok(Outcome::Stopped(u64::try_from(payments).unwrap_or(0)));
    }
    let feeding = async {
        let lines = sources.feed(pipeline, inputs, &progress).await?;
        sources.end().await?;
        Ok(lines)
    };
    let finishing = async { running.finished().await.map_err(FileSourceError::from) };
    let (lines, ()) = try_join(feeding, finishing).await?;
    Ok(Outcome::Finished(u64::try_from(lines).unwrap_or(0)))
}

/// Takes what an earlier run left behind to its end, without reading more: all windows close.
///
/// # Errors
/// When a store fails.
pub async fn drain(pipeline: &LocalPipeline) -> Result<(), EngineError> {
    let mut running = pipeline.start();
    let ending = async {
        if let Some(control) = pipeline.control_if_any() {
            control.begin().await?;
            control.end().await?;
        }
        let stage = StageId::new(stage::PARSE);
        for task in pipeline.env.ledger.tasks(&stage).await? {
            if let Some(mut source) = pipeline.source_task(&task) {
                source.end().await?;
            }
        }
        Ok(())
    };
    let ((), ()) = try_join(ending, running.finished()).await?;
    Ok(())
}

/// The consumers are done although the input has not ended: one of them has failed, or the input had ended before.
fn stopped_early(failed: Result<(), EngineError>) -> FileSourceError {
    match failed {
        Err(error) => error.into(),
        Ok(()) => EngineError::Ended { task: stage::PARSE.to_owned() }.into(),
    }
}

/// Refuses to go on without the file of a partition that the pipeline knows: everybody would wait for it.
async fn check_partitions(
    pipeline: &LocalPipeline,
    payments: &[SourceTask],
    confirmations: Option<&SourceTask>,
) -> Result<(), FileSourceError> {
    let given = |id: &TaskId| payments.iter().chain(confirmations).any(|source| source.id() == id);
    for task in pipeline.env.ledger.tasks(&StageId::new(stage::PARSE)).await.map_err(EngineError::from)? {
        if given(&task) {
            continue;
        }
        let head = pipeline.env.ledger.load_head(&task).await.map_err(EngineError::from)?;
        if !head.is_some_and(|head| head.ended() || head.idle) {
            return Err(FileSourceError::NoFile { partition: task.instance.to_string() });
        }
    }
    Ok(())
}

/// The source tasks of the files.
struct Sources {
    control: Option<BroadcastTask>,
    payments: Vec<SourceTask>,
    confirmations: Option<SourceTask>,
    arrival: Option<ArrivalClock>,
}

impl Sources {
    /// Puts the rules in force and makes every partition known.
    async fn begin(pipeline: &LocalPipeline, inputs: &Inputs) -> Result<Sources, FileSourceError> {
        let control = pipeline.control_if_any();
        if let Some(control) = &control {
            control.begin().await?;
        }
        if let (Some(control), Some(rules)) = (&control, &inputs.rules) {
            let partition = format!("{}-0", pipeline.config.source.rules_topic);
            control.ingest(&partition, &messages(rules)?.records()).await?;
        }
        let payments: Vec<SourceTask> = (0..).take(inputs.payments.len()).map(|p| pipeline.input(p)).collect();
        let confirmations = inputs.confirmations.as_ref().map(|_| pipeline.confirmations(0));
        for source in payments.iter().chain(&confirmations) {
            // All partitions are known before the first record: no stage may think that it has seen every input.
            pipeline.env.ledger.register(source.id()).await.map_err(EngineError::from)?;
        }
        check_partitions(pipeline, &payments, confirmations.as_ref()).await?;
        let arrival = match (&inputs.payments[..], &inputs.confirmations) {
            ([payments], Some(confirmations)) => ArrivalClock::of(pipeline, payments, confirmations)?,
            _ => None,
        };
        Ok(Sources { control, payments, confirmations, arrival })
    }

    /// Feeds all files to their ends.
    async fn feed(
        &mut self,
        pipeline: &LocalPipeline,
        inputs: &Inputs,
        progress: &impl Fn(u64),
    ) -> Result<i64, FileSourceError> {
        let at_once = pipeline.env.settings.records_per_commit;
        let Sources { payments, confirmations, arrival, .. } = self;
        let files = inputs.payments.iter().zip(payments);
        let feeds = try_join_all(files.map(|(path, source)| feed(path, source, at_once, None, None, progress)));
        let confirming = async {
            match (&inputs.confirmations, confirmations) {
                (Some(path), Some(source)) => feed(path, source, at_once, None, arrival.as_mut(), progress).await,
                _ => Ok(0),
            }
        };
        let (lines, confirmed) = try_join(feeds, confirming).await?;
        Ok(lines.into_iter().sum::<i64>() + confirmed)
    }

    /// Feeds payments up to line `until` of every file, and confirmations meanwhile.
    async fn feed_until(
        &mut self,
        pipeline: &LocalPipeline,
        inputs: &Inputs,
        until: i64,
        progress: &impl Fn(u64),
    ) -> Result<i64, FileSourceError> {
        let at_once = pipeline.env.settings.records_per_commit;
        let Sources { payments, confirmations, arrival, .. } = self;
        let files = inputs.payments.iter().zip(payments);
        let feeds = try_join_all(files.map(|(path, source)| feed(path, source, at_once, Some(until), None, progress)));
        let confirming = async {
            if let (Some(path), Some(source)) = (&inputs.confirmations, confirmations) {
                feed(path, source, at_once, None, arrival.as_mut(), progress).await?;
            }
            // There may be payments to come still.
            std::future::pending::<Result<i64, FileSourceError>>().await
        };
        // Confirmations end where they are when the payments do: dropping their feed is like a crash, which is harmless.
        tokio::select! {
            lines = feeds => Ok(lines?.into_iter().sum()),
            failed = confirming => failed,
        }
    }

    /// Says that no more records come.
    async fn end(&mut self) -> Result<(), EngineError> {
        if let Some(control) = &self.control {
            control.end().await?;
        }
        for source in self.payments.iter_mut().chain(&mut self.confirmations) {
            source.end().await?;
        }
        Ok(())
    }
}
