//! A bounded run: files to their end, all stages in this process, until every task has seen the end of its input.

use std::path::PathBuf;

use payguard_engine::EngineError;

use crate::file_source::{FileSourceError, feed};
use crate::runner::LocalPipeline;

/// Feeds every file to a partition of its own while the stages work; returns the lines of all files.
///
/// `progress` is told bytes that are committed or were before.
///
/// # Errors
/// When a file or a store fails. Repeating the call on the same stores goes on where they stand.
pub async fn run(pipeline: &LocalPipeline, files: &[PathBuf], progress: impl Fn(u64)) -> Result<u64, FileSourceError> {
    let mut sources = Vec::new();
    for partition in (0..).take(files.len()) {
        let source = pipeline.source(partition);
        // All partitions are known before the first record: no stage may think that it has seen every input.
        pipeline.env.ledger.register(source.id()).await.map_err(EngineError::from)?;
        sources.push(source);
    }
    let mut running = pipeline.start();
    let at_once = pipeline.env.settings.records_per_commit;
    let feeds = files.iter().zip(&mut sources).map(|(path, source)| feed(path, source, at_once, &progress));
    let feeding = futures_util::future::try_join_all(feeds);
    let finishing = async { running.finished().await.map_err(FileSourceError::from) };
    let (lines, ()) = futures_util::future::try_join(feeding, finishing).await?;
    Ok(lines.into_iter().map(|n| u64::try_from(n).unwrap_or(0)).sum())
}
