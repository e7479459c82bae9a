//! The directory of the embedded stack: one process at a time, and writable.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::error::StackError;

/// File whose lock says that the directory is in use. The lock ends with the process, however it ends.
const LOCK_FILE: &str = "payguard.lock";

/// A directory that this process alone uses, or a temporary one that goes with it.
#[derive(Debug)]
pub(super) enum StateDir {
    /// Kept.
    Kept { path: PathBuf, _lock: File },
    /// Removed when dropped.
    Temporary(TempDir),
}

impl StateDir {
    /// Takes the directory for this process, or makes a temporary one.
    pub(super) fn open(dir: Option<&Path>) -> Result<StateDir, StackError> {
        let Some(dir) = dir else {
            let temporary = tempfile::Builder::new().prefix("payguard-").tempdir();
            return temporary.map(StateDir::Temporary).map_err(StackError::unwritable(&std::env::temp_dir()));
        };
        fs::create_dir_all(dir).map_err(StackError::unwritable(dir))?;
        let path = dir.canonicalize().map_err(StackError::unwritable(dir))?;
        let lock = File::create(path.join(LOCK_FILE)).map_err(StackError::unwritable(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StackError::InUse { path }),
            Err(TryLockError::Error(source)) => return Err(StackError::Unwritable { path, source }),
        }
        probe(&path).map_err(StackError::unwritable(&path))?;
        Ok(StateDir::Kept { path, _lock: lock })
    }

    /// File of the database; `None`: it lives in memory.
    pub(super) fn database_file(&self) -> Option<PathBuf> {
        match self {
            StateDir::Kept { path, .. } => Some(path.join("dynamodb.sqlite")),
            StateDir::Temporary(_) => None,
        }
    }

    /// Directory of the objects.
    pub(super) fn objects_dir(&self) -> PathBuf {
        match self {
            StateDir::Kept { path, .. } => path.join("s3"),
            StateDir::Temporary(dir) => dir.path().join("s3"),
        }
    }
}

/// Writes something, so that a full disk shows now and not in the first commit.
fn probe(dir: &Path) -> std::io::Result<()> {
    let file = dir.join(".probe");
    fs::write(&file, [0u8; 4096])?;
    fs::remove_file(&file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_user_is_refused_until_the_first_has_gone() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = StateDir::open(Some(dir.path())).expect("free");
        let refused = StateDir::open(Some(dir.path())).expect_err("in use");
        assert!(matches!(&refused, StackError::InUse { .. }), "{refused}");
        drop(first);
        StateDir::open(Some(dir.path())).expect("free again");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("file");
        fs::write(&file, b"x").expect("written");
        let refused = StateDir::open(Some(&file.join("below"))).expect_err("a file is in the way");
        assert!(refused.to_string().contains("below cannot be used for state"), "{refused}");
    }
}
