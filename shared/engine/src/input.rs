//! Reading upstream rows: which slices of a row belong to a task, and getting their bytes.

use bytes::Bytes;

use crate::error::EngineError;
use crate::ids::{StageId, TaskId};
use crate::merge::BufferedRow;
use crate::row::{CommitRow, SegmentLocation, Slice};
use crate::segment::{self, SliceError, SliceReader};
use crate::store::SegmentStore;

/// One upstream stage of a task and the streams it reads from there.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// The stage that produces.
    pub stage: StageId,
    /// Its shards; `None` for a source stage, whose tasks are found in the registry.
    pub shards: Option<u32>,
    /// Its streams that this stage reads: (name, number of the input stream in this stage).
    pub streams: Vec<(String, usize)>,
}

/// Reads the records of a row that are for `shard`.
///
/// # Errors
/// When the segment store fails or the bytes are not those that were committed.
pub async fn open_row(
    store: &dyn SegmentStore,
    producer: &TaskId,
    row: &CommitRow,
    upstream: &Upstream,
    shard: u32,
) -> Result<BufferedRow, EngineError> {
    let mut slices = Vec::new();
    for slice in &row.slices {
        if slice.shard != shard {
            continue;
        }
        let Some((_, stream)) = upstream.streams.iter().find(|(name, _)| *name == slice.stream) else { continue };
        let raw = read_slice(store, producer, row, slice).await?;
        let reader = SliceReader::new(raw, slice.count).map_err(|e| damaged(producer, row, &e))?;
        slices.push((*stream, reader));
    }
    Ok(BufferedRow {
        seq: i64::try_from(row.seq).unwrap_or(i64::MAX),
        watermark: row.watermark(),
        idle: row.idle,
        slices,
    })
}

/// Reads and checks one slice of a row: output records or the state delta.
///
/// # Errors
/// When the segment store fails or the bytes are not those that were committed.
pub async fn read_slice(
    store: &dyn SegmentStore,
    producer: &TaskId,
    row: &CommitRow,
    slice: &Slice,
) -> Result<Bytes, EngineError> {
    let stored = match &row.segment {
        None => Bytes::new(),
        Some(SegmentLocation::Object(key)) => {
            store.get(key, slice.offset, slice.len).await.map_err(|e| match e.kind {
                crate::error::StoreErrorKind::Corrupt => damaged_by(producer, row, e.to_string()),
                _ => EngineError::Store(e),
            })?
        }
        Some(SegmentLocation::Inline(bytes)) => {
            let from = usize::try_from(slice.offset).unwrap_or(usize::MAX).min(bytes.len());
            let len = usize::try_from(slice.len).unwrap_or(usize::MAX).min(bytes.len() - from);
            bytes.slice(from..from + len)
        }
    };
    segment::open(slice, &stored).map_err(|e| damaged(producer, row, &e))
}

/// The error for a row's segment that is not what was written.
#[must_use]
pub fn damaged(producer: &TaskId, row: &CommitRow, error: &SliceError) -> EngineError {
    damaged_by(producer, row, error.to_string())
}

fn damaged_by(producer: &TaskId, row: &CommitRow, detail: String) -> EngineError {
    let object = match &row.segment {
        Some(SegmentLocation::Object(key)) => key.clone(),
        Some(SegmentLocation::Inline(_)) | None => "inline".to_owned(),
    };
    EngineError::DamagedSegment { task: producer.to_string(), seq: row.seq, object, detail }
}
