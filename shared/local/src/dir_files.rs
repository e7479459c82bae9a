//! Files in a folder: where savepoints of a local pipeline are.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use payguard_engine::store::{FileInfo, FileStore};
use payguard_engine::{StoreError, StoreErrorKind};

/// End of the name of a file that is being written.
const DRAFT: &str = ".draft";

/// [`FileStore`] in a folder, which is made when the first file is written.
#[derive(Clone, Debug)]
pub struct DirFiles {
    dir: PathBuf,
}

impl DirFiles {
    /// The files of a folder.
    #[must_use]
    pub fn new(dir: &Path) -> DirFiles {
        DirFiles { dir: dir.to_owned() }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        operation: &'static str,
        path: &str,
        work: impl FnOnce(&Path, &Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (dir, file) = (self.dir.clone(), self.dir.join(path));
        let target = file.display().to_string();
        let fail = |kind, detail: String| StoreError::new(kind, operation, target.clone(), detail);
        match tokio::task::spawn_blocking(move || work(&dir, &file)).await {
            Ok(done) => done.map_err(|e| fail(kind(&e), e.to_string())),
            Err(e) => Err(fail(StoreErrorKind::Unavailable, e.to_string())),
        }
    }
}

#[async_trait]
impl FileStore for DirFiles {
    fn location(&self) -> String {
        self.dir.display().to_string()
    }

    async fn put_file(&self, path: &str, bytes: Bytes) -> Result<(), StoreError> {
        self.blocking("write file", path, move |_, file| {
            if let Some(parent) = file.parent() {
                fs::create_dir_all(parent)?;
            }
            let draft = draft_of(file);
            let mut open = File::create(&draft)?;
            open.write_all(&bytes)?;
            // A savepoint is meant to outlive a power cut.
            open.sync_data()?;
            fs::rename(&draft, file)?;
            // Its name is in the folder, which is written apart.
            file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_data())
        })
        .await
    }

    async fn get_file(&self, path: &str) -> Result<Option<Bytes>, StoreError> {
        self.blocking("read file", path, |_, file| match fs::read(file) {
            Ok(bytes) => Ok(Some(Bytes::from(bytes))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        })
        .await
    }

    async fn list_files(&self, prefix: &str) -> Result<Vec<FileInfo>, StoreError> {
        let wanted = prefix.to_owned();
        self.blocking("list files", prefix, move |dir, _| {
            let below = wanted.rsplit_once('/').map_or("", |(parents, _)| parents);
            let mut files = Vec::new();
            collect(&dir.join(below), below, &mut files)?;
            files.retain(|file: &FileInfo| file.path.starts_with(&wanted));
            files.sort();
            Ok(files)
        })
        .await
    }

    async fn delete_file(&self, path: &str) -> Result<(), StoreError> {
        self.blocking("delete file", path, |dir, file| {
            match fs::remove_file(file) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            // Folders are no files: those left empty go too.
            let parents = file.ancestors().skip(1).take_while(|parent| *parent != dir && parent.starts_with(dir));
            for parent in parents {
                if fs::remove_dir(parent).is_err() {
                    break;
                }
            }
            Ok(())
        })
        .await
    }
}

/// A name that no other writer uses.
fn draft_of(file: &Path) -> PathBuf {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{number}{DRAFT}", std::process::id()));
    file.with_file_name(name)
}

fn collect(dir: &Path, parents: &str, files: &mut Vec<FileInfo>) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        Err(e) => return Err(e),
    };
    for entry in entries {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        let path = if parents.is_empty() { name.clone() } else { format!("{parents}/{name}") };
        // A file may be removed while it is listed.
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            collect(&entry.path(), &path, files)?;
        } else {
            // Drafts of writers that died are listed too, so that whoever cleans up finds them.
            files.push(FileInfo { path, bytes: metadata.len() });
        }
    }
    Ok(())
}

fn kind(error: &io::Error) -> StoreErrorKind {
    match error.kind() {
        // A full disk can be emptied while we wait.
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::Interrupted => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Invalid,
    }
}
