//! Why the embedded stack cannot start.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use payguard_engine::StoreError;

/// The embedded stack could not start.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// Another process uses the directory.
    #[error("{} is in use by another process; stop it or choose another directory", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The directory cannot be created or written.
    #[error("{} cannot be used for state: {source}", path.display())]
    Unwritable {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The database's path has to be text.
    #[error("{} is not valid UTF-8; choose another directory", path.display())]
    NotUtf8 {
        /// The path.
        path: PathBuf,
    },
    /// The database does not open.
    #[error("the database {} does not open: {detail}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// What the database said.
        detail: String,
    },
    /// A port cannot be listened on.
    #[error("the {server} server cannot listen on {address}: {source}")]
    Listen {
        /// Which server.
        server: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A thread or runtime could not be started.
    #[error("the {server} server does not start: {detail}")]
    Thread {
        /// Which server.
        server: &'static str,
        /// Why.
        detail: String,
    },
    /// Tables or bucket could not be created.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl StackError {
    pub(super) fn database(path: &Path, err: &dyn Display) -> StackError {
        StackError::Database { path: path.to_owned(), detail: err.to_string() }
    }

    pub(crate) fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> StackError {
        let path = path.to_owned();
        |source| StackError::Unwritable { path, source }
    }
}
