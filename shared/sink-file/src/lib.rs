//! Topics and tables as files: one JSONL file each, exactly once.
//!
//! A batch is appended to the files, then its *mark* — seq, input positions, counters and the files' lengths — replaces
//! the task's mark file by a rename: that is the moment the batch becomes real. On start, and before every batch, a
//! file longer than the mark says is cut back to it. So whatever was killed, the files hold the committed batches, once
//! and in order.
//!
//! A topic has one writing task. Two processes never write at the same time: [`FileSink::open`] takes the folder for as
//! long as the sink lives, [`FileSink::shared`] for one operation at a time, trusting nothing it remembers.

mod files;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use payguard_engine::store::{Sink, SinkBatch, SinkObserver, SinkPosition, SinkReply};
use payguard_engine::{StoreError, StoreErrorKind, TaskId};

use files::{Mark, TaskFiles, failed, file_name};

/// Folder of the marks and the lock, inside the output folder.
const OWN_DIR: &str = ".payguard";
/// How long an operation of a shared folder waits for the other processes.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// How often it looks.
const LOCK_POLL: Duration = Duration::from_millis(2);

/// Topics and tables in one folder.
pub struct FileSink {
    folder: Arc<Folder>,
    observer: Option<Arc<dyn SinkObserver>>,
}

/// The output folder and what is open in it.
struct Folder {
    dir: PathBuf,
    lock: File,
    /// Whether other processes write here too.
    shared: bool,
    /// Empty between the operations of a shared folder.
    tasks: Mutex<BTreeMap<TaskId, TaskFiles>>,
}

impl FileSink {
    /// Opens the folder for this process alone, creating it when needed. `topics` are created empty, so that a reader
    /// finds every file.
    ///
    /// # Errors
    /// When the folder cannot be written or another process has it open.
    pub fn open(dir: &Path, topics: &[&str], observer: Option<Arc<dyn SinkObserver>>) -> Result<FileSink, StoreError> {
        let folder = Folder::create(dir, false)?;
        folder.lock.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => StoreError::new(
                StoreErrorKind::Invalid,
                "open",
                dir.display().to_string(),
                "another process writes here",
            ),
            TryLockError::Error(e) => failed("lock", dir, &e),
        })?;
        folder.create_topics(topics)?;
        Ok(FileSink { folder: Arc::new(folder), observer })
    }

    /// Opens the folder to be used by several processes in turn.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn shared(dir: &Path, topics: &[&str]) -> Result<FileSink, StoreError> {
        let folder = Folder::create(dir, true)?;
        folder.create_topics(topics)?;
        Ok(FileSink { folder: Arc::new(folder), observer: None })
    }

    /// The file of a topic or table.
    #[must_use]
    pub fn path(&self, topic: &str) -> PathBuf {
        self.folder.dir.join(file_name(topic))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        task: &TaskId,
        work: impl FnOnce(&mut TaskFiles) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (folder, task) = (self.folder.clone(), task.clone());
        let done = tokio::task::spawn_blocking(move || folder.with_files(&task, work));
        done.await.map_err(|e| {
            let dir = self.folder.dir.display().to_string();
            StoreError::new(StoreErrorKind::Unavailable, "write", dir, e.to_string())
        })?
    }
}

/// Where `task` stands in an output folder, which another process may be writing: the mark is replaced whole.
///
/// # Errors
/// When the mark cannot be read.
pub fn position_in(dir: &Path, task: &TaskId) -> Result<SinkPosition, StoreError> {
    Mark::load(&mark_path(dir, task)).map(|mark| mark.position())
}

fn mark_path(dir: &Path, task: &TaskId) -> PathBuf {
    dir.join(OWN_DIR).join(format!("{}.json", task.to_string().replace('/', "-")))
}

impl Folder {
    fn create(dir: &Path, shared: bool) -> Result<Folder, StoreError> {
        let own = dir.join(OWN_DIR);
        std::fs::create_dir_all(&own).map_err(|e| failed("create folder", &own, &e))?;
        let path = own.join("lock");
        let lock = File::create(&path).map_err(|e| failed("create", &path, &e))?;
        Ok(Folder { dir: dir.to_owned(), lock, shared, tasks: Mutex::default() })
    }

    fn create_topics(&self, topics: &[&str]) -> Result<(), StoreError> {
        for topic in topics {
            let path = self.dir.join(file_name(topic));
            OpenOptions::new().append(true).create(true).open(&path).map_err(|e| failed("create", &path, &e))?;
        }
        Ok(())
    }

    /// Works on the files of a task. In a shared folder nobody else does meanwhile, and everything is read anew.
    fn with_files<T>(
        &self,
        task: &TaskId,
        work: impl FnOnce(&mut TaskFiles) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if self.shared {
            self.wait_for_lock()?;
        }
        let result = self.open_files(&mut tasks, task).and_then(work);
        if self.shared || result.is_err() {
            // What is open may be half-written or changed by others: the next call reads the mark and cuts files back.
            tasks.remove(task);
        }
        if self.shared {
            self.lock.unlock().map_err(|e| failed("unlock", &self.dir, &e))?;
        }
        result
    }

    fn open_files<'a>(
        &self,
        tasks: &'a mut BTreeMap<TaskId, TaskFiles>,
        task: &TaskId,
    ) -> Result<&'a mut TaskFiles, StoreError> {
        if !tasks.contains_key(task) {
            tasks.insert(task.clone(), TaskFiles::open(&self.dir, mark_path(&self.dir, task))?);
        }
        Ok(tasks.get_mut(task).expect("inserted above"))
    }

    fn wait_for_lock(&self) -> Result<(), StoreError> {
        let started = Instant::now();
        loop {
            match self.lock.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) if started.elapsed() < LOCK_WAIT => std::thread::sleep(LOCK_POLL),
                Err(TryLockError::WouldBlock) => {
                    let detail = "another process has kept the folder for long";
                    let dir = self.dir.display().to_string();
                    return Err(StoreError::new(StoreErrorKind::Unavailable, "lock", dir, detail));
                }
                Err(TryLockError::Error(e)) => return Err(failed("lock", &self.dir, &e)),
            }
        }
    }
}

#[async_trait]
impl Sink for FileSink {
    async fn position(&self, task: &TaskId) -> Result<SinkPosition, StoreError> {
        self.blocking(task, |files| Ok(files.position())).await
    }

    async fn write(&self, task: &TaskId, batch: &SinkBatch) -> Result<SinkReply, StoreError> {
        let mark = Mark::of(batch);
        let mut texts: BTreeMap<&'static str, Vec<u8>> = BTreeMap::new();
        for record in &batch.records {
            let text = texts.entry(record.topic).or_default();
            text.extend_from_slice(&record.value);
            text.push(b'\n');
        }
        let reply = self.blocking(task, move |files| files.write(mark, &texts)).await?;
        if let (SinkReply::Written, Some(observer)) = (&reply, &self.observer) {
            for record in &batch.records {
                observer.on_record(record.topic, &record.value);
            }
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests;
