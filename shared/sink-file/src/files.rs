//! The files of one task and the mark that makes their content real.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use payguard_engine::store::{SinkBatch, SinkPosition, SinkReply};
use payguard_engine::{InputState, Position, Seq, StoreError, StoreErrorKind};
use serde::{Deserialize, Serialize};

/// The open files of one task.
pub(crate) struct TaskFiles {
    dir: PathBuf,
    mark_path: PathBuf,
    mark: Mark,
    files: BTreeMap<String, File>,
}

/// What makes a batch real.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mark {
    seq: u64,
    inputs: BTreeMap<String, MarkInput>,
    counters: BTreeMap<String, u64>,
    /// Bytes of every file the task writes.
    lengths: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkInput {
    at: i64,
    within: u32,
    watermark_ms: i64,
    idle: bool,
}

impl TaskFiles {
    /// Reads the mark and cuts every file back to what it says.
    pub(crate) fn open(dir: &Path, mark_path: PathBuf) -> Result<TaskFiles, StoreError> {
        let mark = Mark::load(&mark_path)?;
        let mut files = TaskFiles { dir: dir.to_owned(), mark_path, mark: Mark::default(), files: BTreeMap::new() };
        for (name, length) in &mark.lengths {
            files.append(name, *length, &[])?;
        }
        files.mark = mark;
        Ok(files)
    }

    /// Where the task stands.
    pub(crate) fn position(&self) -> SinkPosition {
        self.mark.position()
    }

    /// Appends a batch's texts and makes them real, if the files are at the batch before it.
    pub(crate) fn write(&mut self, mut mark: Mark, texts: &BTreeMap<&str, Vec<u8>>) -> Result<SinkReply, StoreError> {
        if self.mark.seq + 1 != mark.seq {
            return Ok(SinkReply::Elsewhere(self.mark.position()));
        }
        self.claim(texts)?;
        mark.lengths.clone_from(&self.mark.lengths);
        for (topic, text) in texts {
            let length = mark.lengths.entry(file_name(topic)).or_default();
            self.append(&file_name(topic), *length, text)?;
            *length += text.len() as u64;
        }
        mark.store(&self.mark_path)?;
        self.mark = mark;
        Ok(SinkReply::Written)
    }

    /// Names the files in the mark before they are written for the first time: what a crash leaves in them is cut off.
    pub(crate) fn claim(&mut self, texts: &BTreeMap<&str, Vec<u8>>) -> Result<(), StoreError> {
        let known = self.mark.lengths.len();
        for topic in texts.keys() {
            self.mark.lengths.entry(file_name(topic)).or_default();
        }
        if self.mark.lengths.len() > known { self.mark.store(&self.mark_path) } else { Ok(()) }
    }

    /// Writes `text` at `length`, which is where the last real batch ended.
    fn append(&mut self, name: &str, length: u64, text: &[u8]) -> Result<(), StoreError> {
        let path = self.dir.join(name);
        let file = match self.files.remove(name) {
            Some(file) => file,
            None => OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(|e| failed("open", &path, &e))?,
        };
        let file = self.files.entry(name.to_owned()).or_insert(file);
        let found = file.metadata().map_err(|e| failed("read", &path, &e))?.len();
        if found < length {
            let detail = format!("{found} bytes where {length} were written: the file was changed from outside");
            return Err(StoreError::new(StoreErrorKind::Corrupt, "append", path.display().to_string(), detail));
        }
        let mut write = || {
            if found > length {
                file.set_len(length)?;
            }
            if text.is_empty() {
                return Ok(());
            }
            file.seek(SeekFrom::Start(length))?;
            file.write_all(text)?;
            file.sync_data()
        };
        write().map_err(|e| failed("append", &path, &e))
    }
}

impl Mark {
    /// The mark of a batch, without the lengths that it leads to.
    pub(crate) fn of(batch: &SinkBatch) -> Mark {
        Mark {
            seq: batch.seq.0,
            inputs: batch.inputs.iter().map(|(id, state)| (id.clone(), MarkInput::of(state))).collect(),
            counters: batch.counters.clone(),
            lengths: BTreeMap::new(),
        }
    }

    pub(crate) fn load(path: &Path) -> Result<Mark, StoreError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Mark::default()),
            Err(e) => return Err(failed("read", path, &e)),
        };
        serde_json::from_slice(&text)
            .map_err(|e| StoreError::new(StoreErrorKind::Corrupt, "read", path.display().to_string(), e.to_string()))
    }

    fn store(&self, path: &Path) -> Result<(), StoreError> {
        let text = serde_json::to_vec(self).map_err(|e| {
            StoreError::new(StoreErrorKind::Invalid, "write", path.display().to_string(), e.to_string())
        })?;
        let draft = path.with_extension("draft");
        let write = || {
            let mut file = File::create(&draft)?;
            file.write_all(&text)?;
            file.sync_data()?;
            std::fs::rename(&draft, path)
        };
        write().map_err(|e| failed("write", path, &e))
    }

    pub(crate) fn position(&self) -> SinkPosition {
        let inputs = self.inputs.iter().map(|(id, input)| (id.clone(), input.state())).collect();
        SinkPosition { seq: Seq(self.seq), inputs, counters: self.counters.clone() }
    }
}

impl MarkInput {
    fn of(state: &InputState) -> MarkInput {
        let Position { at, within } = state.position;
        MarkInput { at, within, watermark_ms: state.watermark_ms, idle: state.idle }
    }

    fn state(self) -> InputState {
        let position = Position { at: self.at, within: self.within };
        InputState { position, watermark_ms: self.watermark_ms, idle: self.idle }
    }
}

pub(crate) fn file_name(topic: &str) -> String {
    format!("{topic}.jsonl")
}

pub(crate) fn failed(operation: &'static str, path: &Path, error: &std::io::Error) -> StoreError {
    let kind = match error.kind() {
        // A full disk can be emptied while we wait.
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::Interrupted => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Invalid,
    };
    StoreError::new(kind, operation, path.display().to_string(), error.to_string())
}
