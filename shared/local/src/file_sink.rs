//! Topics and tables as files: one JSONL file each, exactly once.
//!
//! A batch is appended to the files, then its *mark* — seq, input positions, counters and the files' lengths — replaces
//! the task's mark file by a rename: that is the moment the batch becomes real. On start, and before every batch, a
//! file longer than the mark says is cut back to it. So whatever was killed, the files hold the committed batches, once
//! and in order.
//!
//! One process at a time: the folder is locked while it is open. A topic has one writing task.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use payguard_engine::store::{Sink, SinkBatch, SinkPosition, SinkReply};
use payguard_engine::{InputState, Position, Seq, StoreError, StoreErrorKind, TaskId};
use serde::{Deserialize, Serialize};

/// Folder of the marks and the lock, inside the output folder.
const OWN_DIR: &str = ".payguard";

/// Is told about every record that has become real.
pub trait SinkObserver: Send + Sync {
    /// Called once per record, after its batch is durable.
    fn on_record(&self, topic: &str, value: &[u8]);
}

/// Topics and tables in one folder.
pub struct FileSink {
    dir: PathBuf,
    observer: Option<Arc<dyn SinkObserver>>,
    tasks: Arc<Mutex<BTreeMap<TaskId, TaskFiles>>>,
    /// Held for the lock on it.
    _lock: File,
}

/// The open files of one task.
struct TaskFiles {
    mark: Mark,
    files: BTreeMap<String, File>,
}

/// What makes a batch real.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
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

impl FileSink {
    /// Opens the folder, creating it when needed. `topics` are created empty, so that a reader finds every file.
    ///
    /// # Errors
    /// When the folder cannot be written or another process has it open.
    pub fn open(
        dir: &Path,
        topics: &[&str],
        observer: Option<Arc<dyn SinkObserver>>,
    ) -> Result<FileSink, StoreError> {
        let own = dir.join(OWN_DIR);
        std::fs::create_dir_all(&own).map_err(|e| failed("create folder", &own, &e))?;
        let lock_path = own.join("lock");
        let lock = File::create(&lock_path).map_err(|e| failed("create", &lock_path, &e))?;
        lock.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => {
                StoreError::new(StoreErrorKind::Invalid, "open", dir.display().to_string(), "another process writes here")
            }
            TryLockError::Error(e) => failed("lock", &lock_path, &e),
        })?;
        for topic in topics {
            let path = dir.join(file_name(topic));
            OpenOptions::new().append(true).create(true).open(&path).map_err(|e| failed("create", &path, &e))?;
        }
        Ok(FileSink { dir: dir.to_owned(), observer, tasks: Arc::default(), _lock: lock })
    }

    /// The file of a topic or table.
    #[must_use]
    pub fn path(&self, topic: &str) -> PathBuf {
        self.dir.join(file_name(topic))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        task: &TaskId,
        work: impl FnOnce(&Path, &Path, &mut TaskFiles) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (dir, task, tasks) = (self.dir.clone(), task.clone(), self.tasks.clone());
        let mark_path = dir.join(OWN_DIR).join(format!("{}.json", task.to_string().replace('/', "-")));
        let done = tokio::task::spawn_blocking(move || {
            let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
            if !tasks.contains_key(&task) {
                tasks.insert(task.clone(), TaskFiles::open(&dir, &mark_path)?);
            }
            let result = match tasks.get_mut(&task) {
                Some(files) => work(&dir, &mark_path, files),
                None => unreachable!("inserted above"),
            };
            if result.is_err() {
                // What is open may be half-written: the next call reads the mark and cuts the files back.
                tasks.remove(&task);
            }
            result
        });
        done.await.map_err(|e| {
            StoreError::new(StoreErrorKind::Unavailable, "write", self.dir.display().to_string(), e.to_string())
        })?
    }
}

#[async_trait]
impl Sink for FileSink {
    async fn position(&self, task: &TaskId) -> Result<SinkPosition, StoreError> {
        self.blocking(task, |_, _, files| Ok(files.mark.position())).await
    }

    async fn write(&self, task: &TaskId, batch: &SinkBatch) -> Result<SinkReply, StoreError> {
        let mut mark = Mark {
            seq: batch.seq.0,
            inputs: batch.inputs.iter().map(|(id, state)| (id.clone(), MarkInput::of(state))).collect(),
            counters: batch.counters.clone(),
            lengths: BTreeMap::new(),
        };
        let mut texts: BTreeMap<&'static str, Vec<u8>> = BTreeMap::new();
        for record in &batch.records {
            let text = texts.entry(record.topic).or_default();
            text.extend_from_slice(&record.value);
            text.push(b'\n');
        }
        let reply = self
            .blocking(task, move |dir, mark_path, files| {
                if files.mark.seq + 1 != mark.seq {
                    return Ok(SinkReply::Elsewhere(files.mark.position()));
                }
                mark.lengths.clone_from(&files.mark.lengths);
                for (topic, text) in &texts {
                    let length = mark.lengths.entry(file_name(topic)).or_default();
                    files.append(dir, &file_name(topic), *length, text)?;
                    *length += text.len() as u64;
                }
                mark.store(mark_path)?;
                files.mark = mark;
                Ok(SinkReply::Written)
            })
            .await?;
        if let (SinkReply::Written, Some(observer)) = (&reply, &self.observer) {
            for record in &batch.records {
                observer.on_record(record.topic, &record.value);
            }
        }
        Ok(reply)
    }
}

impl TaskFiles {
    /// Reads the task's mark and cuts its files back to it.
    fn open(dir: &Path, mark_path: &Path) -> Result<TaskFiles, StoreError> {
        let mark = Mark::load(mark_path)?;
        let mut files = TaskFiles { mark: Mark::default(), files: BTreeMap::new() };
        for (name, length) in &mark.lengths {
            files.append(dir, name, *length, &[])?;
        }
        files.mark = mark;
        Ok(files)
    }

    /// Writes `text` at `length`, which is where the last real batch ended.
    fn append(&mut self, dir: &Path, name: &str, length: u64, text: &[u8]) -> Result<(), StoreError> {
        let path = dir.join(name);
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
            file.seek(SeekFrom::Start(length))?;
            file.write_all(text)?;
            file.sync_data()
        };
        write().map_err(|e| failed("append", &path, &e))
    }
}

impl Mark {
    fn load(path: &Path) -> Result<Mark, StoreError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Mark::default()),
            Err(e) => return Err(failed("read", path, &e)),
        };
        serde_json::from_slice(&text).map_err(|e| {
            StoreError::new(StoreErrorKind::Corrupt, "read", path.display().to_string(), e.to_string())
        })
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

    fn position(&self) -> SinkPosition {
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

fn file_name(topic: &str) -> String {
    format!("{topic}.jsonl")
}

fn failed(operation: &'static str, path: &Path, error: &std::io::Error) -> StoreError {
    let kind = match error.kind() {
        // A full disk can be emptied while we wait.
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::Interrupted => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Invalid,
    };
    StoreError::new(kind, operation, path.display().to_string(), error.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use payguard_engine::StageId;
    use payguard_engine::store::SinkRecord;

    use super::*;

    fn task() -> TaskId {
        TaskId::shard(&StageId::new("publish"), 0)
    }

    fn batch(seq: u64, values: &[&str]) -> SinkBatch {
        let record = |v: &&str| SinkRecord { topic: "t", key: String::new(), value: v.as_bytes().to_vec() };
        let state = InputState::untouched(i64::try_from(seq).unwrap());
        SinkBatch {
            seq: Seq(seq),
            inputs: [("up/0".to_owned(), state)].into(),
            counters: [("in.s".to_owned(), values.len() as u64)].into(),
            records: values.iter().map(record).collect(),
        }
    }

    fn text(dir: &Path) -> String {
        std::fs::read_to_string(dir.join("t.jsonl")).unwrap()
    }

    #[tokio::test]
    async fn a_batch_is_written_once_and_its_position_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let sink = FileSink::open(dir.path(), &["t"], None).unwrap();
        assert_eq!(sink.position(&task()).await.unwrap(), SinkPosition::default());
        assert_eq!(sink.write(&task(), &batch(1, &["a", "b"])).await.unwrap(), SinkReply::Written);
        let again = sink.write(&task(), &batch(1, &["x"])).await.unwrap();
        assert!(matches!(again, SinkReply::Elsewhere(p) if p.seq == Seq(1)), "a repeat changes nothing");
        let early = sink.write(&task(), &batch(3, &["x"])).await.unwrap();
        assert!(matches!(early, SinkReply::Elsewhere(_)), "a gap changes nothing");
        drop(sink);
        let sink = FileSink::open(dir.path(), &["t"], None).unwrap();
        let position = sink.position(&task()).await.unwrap();
        assert_eq!(position.seq, Seq(1));
        assert_eq!(position.inputs["up/0"].position.at, 1);
        assert_eq!(position.counters["in.s"], 2);
        assert_eq!(text(dir.path()), "a\nb\n");
    }

    #[tokio::test]
    async fn what_a_crash_left_behind_the_mark_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let sink = FileSink::open(dir.path(), &["t"], None).unwrap();
        sink.write(&task(), &batch(1, &["a"])).await.unwrap();
        drop(sink);
        let mut file = OpenOptions::new().append(true).open(dir.path().join("t.jsonl")).unwrap();
        file.write_all(b"half a rec").unwrap();
        let sink = FileSink::open(dir.path(), &["t"], None).unwrap();
        sink.position(&task()).await.unwrap();
        assert_eq!(text(dir.path()), "a\n");
        sink.write(&task(), &batch(2, &["b"])).await.unwrap();
        assert_eq!(text(dir.path()), "a\nb\n");
    }

    #[tokio::test]
    async fn a_file_that_lost_bytes_is_an_error_and_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let sink = FileSink::open(dir.path(), &["t"], None).unwrap();
        sink.write(&task(), &batch(1, &["abc"])).await.unwrap();
        OpenOptions::new().write(true).open(dir.path().join("t.jsonl")).unwrap().set_len(2).unwrap();
        let error = sink.write(&task(), &batch(2, &["d"])).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Corrupt);
        assert!(error.to_string().contains("t.jsonl"), "{error}");
        assert_eq!(text(dir.path()), "ab");
    }

    #[test]
    fn two_processes_cannot_write_one_folder() {
        let dir = tempfile::tempdir().unwrap();
        let _first = FileSink::open(dir.path(), &[], None).unwrap();
        let second = FileSink::open(dir.path(), &[], None).err().unwrap();
        assert!(second.to_string().contains("another process"), "{second}");
    }
}
