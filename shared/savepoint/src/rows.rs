//! Records in flight: rows of a producer that some reader has not read to their end.

use payguard_engine::input::damaged;
use payguard_engine::layout::Layout;
use payguard_engine::row::Slice;
use payguard_engine::segment::{Arrival, SliceReader, Stamp};
use payguard_engine::store::FileStore;
use payguard_engine::task::Env;
use payguard_engine::task::retry::patiently;
use payguard_engine::{CommitRow, TaskId};

use crate::capture::{rows_after, slice_of};
use crate::create::Meter;
use crate::cut::Readers;
use crate::error::SavepointError;
use crate::format::{DataFile, SavedRecord, SavedRow, SavedRows, SavedSlice, encode};

/// A file of rows is closed when it has grown to this, bytes.
const FILE_BYTES: usize = 8 << 20;

/// What the rows of a task are captured with.
pub(crate) struct RowCapture<'a> {
    pub(crate) env: &'a Env,
    pub(crate) files: &'a dyn FileStore,
    pub(crate) folder: &'a str,
    pub(crate) readers: Readers<'a>,
}

impl RowCapture<'_> {
    /// Writes the rows of `task` up to `seq` that are in flight.
    ///
    /// # Errors
    /// When a store fails or a row is gone.
    pub(crate) async fn run(
        &self,
        task: &TaskId,
        seq: u64,
        meter: &mut Meter<'_>,
    ) -> Result<SavedRows, SavepointError> {
        let after = self.readers.read_by_all(task, seq);
        let mut saved = SavedRows { after, ..SavedRows::default() };
        let (mut rows, mut bytes, mut at) = (Vec::new(), 0, after);
        while at < seq {
            for row in rows_after(self.env, task, at).await?.into_iter().take_while(|row| row.seq <= seq) {
                let row = self.save(task, &row).await?;
                for slice in &row.slices {
                    *saved.records.entry(slice.stream.clone()).or_default() += slice.records.len() as u64;
                }
                bytes += row.slices.iter().flat_map(|s| &s.records).map(|r| r.payload.len() + 16).sum::<usize>() + 64;
                at = row.seq;
                rows.push(row);
                if bytes >= FILE_BYTES {
                    self.write(task, &mut saved, std::mem::take(&mut rows), meter).await?;
                    bytes = 0;
                }
            }
        }
        if !rows.is_empty() {
            self.write(task, &mut saved, rows, meter).await?;
        }
        Ok(saved)
    }

    async fn save(&self, task: &TaskId, row: &CommitRow) -> Result<SavedRow, SavepointError> {
        let mut slices = Vec::new();
        for slice in &row.slices {
            if !self.is_needed(task, row, slice) {
                continue;
            }
            let bytes = slice_of(self.env, task, row, slice).await?;
            let mut reader = SliceReader::new(bytes.clone(), slice.count).map_err(|e| damaged(task, row, &e))?;
            let mut records = Vec::with_capacity(slice.count as usize);
            while let Some(record) = reader.take().map_err(|e| damaged(task, row, &e))? {
                let (Stamp { watermark, arrival }, order) = (record.header.stamp, record.header.order);
                let (stamp_ms, payload) = (watermark.0, bytes.slice_ref(record.payload));
                let Arrival { partition, offset } = arrival;
                records.push(SavedRecord { stamp_ms, order, payload, partition, offset });
            }
            slices.push(SavedSlice {
                stream: slice.stream.clone(),
                shard: slice.shard,
                shards: slice.shards,
                min_event_time_ms: slice.min_event_time_ms,
                max_event_time_ms: slice.max_event_time_ms,
                records,
            });
        }
        let (seq, watermark_ms, idle, now_ms) = (row.seq, row.watermark_ms, row.idle, row.now_ms);
        Ok(SavedRow { seq, watermark_ms, idle, now_ms, broadcast: row.broadcast.clone(), slices, sealed: row.sealed })
    }

    /// Whether some reader needs a slice of a row.
    fn is_needed(&self, task: &TaskId, row: &CommitRow, slice: &Slice) -> bool {
        let topology = self.readers.topology;
        let Some(stream) = topology.outputs(&task.stage).find(|s| s.name == slice.stream) else { return true };
        let groups = Layout::first(slice.shards).groups(slice.shard);
        self.readers.need(&stream.consumer, task, row.seq, &groups)
    }

    async fn write(
        &self,
        task: &TaskId,
        saved: &mut SavedRows,
        rows: Vec<SavedRow>,
        meter: &mut Meter<'_>,
    ) -> Result<(), SavepointError> {
        let (bytes, entries) = encode(rows);
        let path = format!("{}/rows/{task}/{:05}.pb", self.folder, saved.files.len());
        patiently(&self.env.settings, || self.files.put_file(&path, bytes.clone())).await?;
        let file = DataFile::of(path, entries, &bytes);
        meter.wrote_rows(&file);
        saved.files.push(file);
        Ok(())
    }
}
