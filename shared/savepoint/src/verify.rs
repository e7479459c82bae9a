//! Is a savepoint whole, and does it make sense?

use std::collections::BTreeMap;

use bytes::Bytes;
use payguard_engine::StageId;
use payguard_engine::logic::StageLogic;
use payguard_engine::page::{Page, PageAddress};
use payguard_engine::store::FileStore;
use payguard_engine::task::Settings;
use payguard_engine::task::retry::patiently;
use payguard_model::{EventTime, key_group};
use payguard_topology::keys::encoding;

use crate::catalog::show;
use crate::error::SavepointError;
use crate::format::{DataFile, Manifest, SavedRow, SavedTask, StateFile, decode_keys};

/// The fresh operators of a stage, to see whether they can read the state; `None` for a stage that is not known here.
pub type LoadState<'a> = dyn Fn(&StageId) -> Option<Box<dyn StageLogic>> + Sync + 'a;

/// What was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// Files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Keys of state.
    pub keys: u64,
    /// Rows in flight.
    pub rows: u64,
    /// Records in them.
    pub records: u64,
}

/// Reads everything: checksums and counts, whether every entry decodes (by its operator too, where `load` knows it) and
/// is in its key group, whether rows in flight are complete and no task has read more than its producer is saved with.
///
/// # Errors
/// The first thing that is wrong, or a store's failure.
pub async fn verify(
    files: &dyn FileStore,
    settings: &Settings,
    name: &str,
    load: &LoadState<'_>,
) -> Result<Verified, SavepointError> {
    let manifest = show(files, settings, name).await?;
    check_positions(&manifest)?;
    let mut verified = Verified::default();
    let mut seen =
        |file: &DataFile| (verified.files, verified.bytes) = (verified.files + 1, verified.bytes + file.bytes);
    let (mut keys, mut rows, mut records) = (0, 0, 0);
    for state in &manifest.state {
        let bytes = read(files, settings, &state.file).await?;
        check_state(&manifest, state, bytes, load)?;
        seen(&state.file);
        keys += state.file.entries;
    }
    for task in &manifest.tasks {
        let mut check = RowCheck { task, next: task.rows.after + 1, records: BTreeMap::new() };
        for file in &task.rows.files {
            let bytes = read(files, settings, file).await?;
            for row in file.decode::<SavedRow>(bytes)? {
                check.row(file, &row)?;
            }
            seen(file);
            rows += file.entries;
        }
        check.end()?;
        records += check.records.values().sum::<u64>();
    }
    Ok(Verified { keys, rows, records, ..verified })
}

async fn read(files: &dyn FileStore, settings: &Settings, file: &DataFile) -> Result<Bytes, SavepointError> {
    let bytes = patiently(settings, || files.get_file(&file.path)).await?;
    let bytes = bytes.ok_or_else(|| damaged(&file.path, "it is missing".to_owned()))?;
    file.check(&bytes)?;
    Ok(bytes)
}

fn damaged(path: &str, detail: String) -> SavepointError {
    SavepointError::Damaged { path: path.to_owned(), detail }
}

/// No reader is ahead of what its producer is saved with, and what it has not read is there.
fn check_positions(manifest: &Manifest) -> Result<(), SavepointError> {
    let path = format!("{}/manifest.json", manifest.name);
    let producers: BTreeMap<&str, &SavedTask> = manifest.tasks.iter().map(|task| (task.task.as_str(), task)).collect();
    for task in &manifest.tasks {
        for (input, read) in &task.inputs {
            let Some(producer) = producers.get(input.as_str()) else { continue };
            let read_into = u64::try_from(read.at).unwrap_or(0) + u64::from(read.within > 0);
            if read_into > producer.seq {
                let detail = format!("{} has read {input} up to {read_into}, it ends at {}", task.task, producer.seq);
                return Err(damaged(&path, detail));
            }
            // Who is sealed reads no more, and of what has ended nothing is read.
            let reads_on = task.sealed.is_none() && read.watermark_ms != EventTime::MAX.0;
            if reads_on && u64::try_from(read.at).unwrap_or(0) < producer.rows.after {
                let detail = format!(
                    "{} has read {input} up to {}, its rows begin after {}",
                    task.task, read.at, producer.rows.after
                );
                return Err(damaged(&path, detail));
            }
        }
    }
    Ok(())
}

fn check_state(
    manifest: &Manifest,
    state: &StateFile,
    bytes: Bytes,
    load: &LoadState<'_>,
) -> Result<(), SavepointError> {
    let (path, stage) = (&state.file.path, StageId::new(&state.stage));
    let encoding = encoding(&state.operator);
    let keys = decode_keys(encoding, &state.file, bytes)?;
    if let Some(stray) = keys.keys().find(|key| key_group(key, manifest.key_groups).0 != state.group) {
        return Err(damaged(path, format!("key {stray} does not belong to key group {}", state.group)));
    }
    let Some(mut logic) = load(&stage) else { return Ok(()) };
    let mut operators = logic.states();
    let Some(operator) = operators.iter_mut().find(|operator| operator.operator() == state.operator) else {
        return Ok(());
    };
    let address =
        |page| PageAddress { stage: stage.clone(), group: state.group, operator: state.operator.clone(), page };
    let pages = encoding.lay_out(state.group, keys, 1).into_iter().map(|body| Page {
        address: address(body.page),
        version: 1,
        body: body.body.into(),
        expires_at_s: None,
    });
    let loaded = operator.load(pages.collect());
    loaded.map_err(|e| damaged(path, format!("operator {} cannot read it: {}", state.operator, e.0)))
}

/// Rows in flight are contiguous, their stamps and watermarks ascend, and their records are as many as the manifest
/// says.
struct RowCheck<'a> {
    task: &'a SavedTask,
    next: u64,
    records: BTreeMap<String, u64>,
}

impl RowCheck<'_> {
    fn row(&mut self, file: &DataFile, row: &SavedRow) -> Result<(), SavepointError> {
        if row.seq != self.next {
            let detail = format!("row {} of {} where {} should be", row.seq, self.task.task, self.next);
            return Err(damaged(&file.path, detail));
        }
        self.next += 1;
        for slice in &row.slices {
            *self.records.entry(slice.stream.clone()).or_default() += slice.records.len() as u64;
            let ascend = slice.records.windows(2).all(|r| r[0].stamp_ms <= r[1].stamp_ms && r[0].order < r[1].order);
            let within = slice.records.last().is_none_or(|last| last.stamp_ms <= row.watermark_ms);
            if !ascend || !within {
                let detail =
                    format!("row {} of {}: records of {} are out of order", row.seq, self.task.task, slice.stream);
                return Err(damaged(&file.path, detail));
            }
        }
        Ok(())
    }

    fn end(&self) -> Result<(), SavepointError> {
        let path = self.task.rows.files.first().map_or("manifest.json", |file| &file.path);
        if self.next != self.task.seq + 1 && self.task.rows.count(self.task.seq) > 0 {
            let detail = format!("rows {} to {} of {} are missing", self.next, self.task.seq, self.task.task);
            return Err(damaged(path, detail));
        }
        match self.records == self.task.rows.records {
            true => Ok(()),
            false => {
                let detail = format!(
                    "{:?} records of {}, the manifest says {:?}",
                    self.records, self.task.task, self.task.rows.records
                );
                Err(damaged(path, detail))
            }
        }
    }
}
