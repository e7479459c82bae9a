//! A bounded run: files to their end, all stages in this process, until every task has seen the end of its input.

use std::path::PathBuf;

use futures_util::future::{try_join, try_join_all};
use payguard_engine::EngineError;
use payguard_engine::task::source::SourceTask;

use crate::arrival::ArrivalClock;
use crate::file_source::{FileSourceError, feed, messages};
use crate::runner::LocalPipeline;

/// The files of a run.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Payments; each file is a partition.
    pub payments: Vec<PathBuf>,
    /// Confirmations, one partition. Beside one file of payments, a file of the same name that ends in `.after` tells
    /// for every confirmation after how many payments it arrived.
    pub confirmations: Option<PathBuf>,
    /// Changes of the rules, in force one after the other before the first payment.
    pub rules: Option<PathBuf>,
}

/// Feeds every file to a partition of its own while the stages work; returns the lines of all payments and
/// confirmations.
///
/// `progress` is told bytes that are committed or were before.
///
/// # Errors
/// When a file or a store fails. Repeating the call on the same stores goes on where they stand.
pub async fn run(pipeline: &LocalPipeline, inputs: &Inputs, progress: impl Fn(u64)) -> Result<u64, FileSourceError> {
    let control = pipeline.control();
    control.begin().await?;
    if let Some(rules) = &inputs.rules {
        let partition = format!("{}-0", pipeline.config.source.rules_topic);
        control.ingest(&partition, &messages(rules)?.records()).await?;
    }
    let mut payments: Vec<SourceTask> = (0..).take(inputs.payments.len()).map(|p| pipeline.payments(p)).collect();
    let mut confirmations = inputs.confirmations.as_ref().map(|_| pipeline.confirmations(0));
    for source in payments.iter().chain(&confirmations) {
        // All partitions are known before the first record: no stage may think that it has seen every input.
        pipeline.env.ledger.register(source.id()).await.map_err(EngineError::from)?;
    }
    let mut arrival = match (&inputs.payments[..], &inputs.confirmations) {
        ([payments], Some(confirmations)) => ArrivalClock::of(pipeline, payments, confirmations)?,
        _ => None,
    };
    let mut running = pipeline.start();
    let at_once = pipeline.env.settings.records_per_commit;
    let feeding = async {
        let files = inputs.payments.iter().zip(&mut payments);
        let feeds = try_join_all(files.map(|(path, source)| feed(path, source, at_once, None, &progress)));
        let confirming = async {
            match (&inputs.confirmations, &mut confirmations) {
                (Some(path), Some(source)) => feed(path, source, at_once, arrival.as_mut(), &progress).await,
                _ => Ok(0),
            }
        };
        let (lines, confirmed) = try_join(feeds, confirming).await?;
        control.end().await?;
        for source in payments.iter_mut().chain(&mut confirmations) {
            source.end().await?;
        }
        Ok(lines.into_iter().sum::<i64>() + confirmed)
    };
    let finishing = async { running.finished().await.map_err(FileSourceError::from) };
    let (lines, ()) = try_join(feeding, finishing).await?;
    Ok(u64::try_from(lines).unwrap_or(0))
}
