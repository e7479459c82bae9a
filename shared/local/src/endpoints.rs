//! Where the stores of a running process listen: written into its state folder, for `payguard status`.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

use crate::embedded::EmbeddedStack;

const FILE: &str = "endpoints.json";

/// URLs of the embedded servers of one process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Endpoints {
    /// Of DynamoDB.
    pub dynamodb: String,
    /// Of S3.
    pub s3: String,
}

impl Endpoints {
    /// Those of `stack`.
    #[must_use]
    pub fn of(stack: &EmbeddedStack) -> Endpoints {
        Endpoints { dynamodb: stack.dynamodb_endpoint(), s3: stack.s3_endpoint() }
    }

    /// Writes them into the state folder. They outlive the process: they count only while the folder is in use.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn write(&self, state_dir: &Path) -> io::Result<()> {
        std::fs::write(state_dir.join(FILE), serde_json::to_vec(self)?)
    }

    /// Those of the process that has the folder open, once it listens there.
    ///
    /// # Errors
    /// When there are none, they do not parse, or nobody listens.
    pub async fn listening(state_dir: &Path) -> io::Result<Endpoints> {
        let endpoints: Endpoints = serde_json::from_slice(&std::fs::read(state_dir.join(FILE))?)?;
        for url in [&endpoints.dynamodb, &endpoints.s3] {
            TcpStream::connect(url.trim_start_matches("http://")).await?;
        }
        Ok(endpoints)
    }
}
