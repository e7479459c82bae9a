//! What tasks are run with, over the embedded stores: those of this process, or of the one that has the folder open.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use payguard_aws::Clients;
use payguard_aws::client::embedded_clients;
use payguard_aws::dynamo::{DynamoLedger, DynamoStateTable, Tables};
use payguard_aws::s3::S3Segments;
use payguard_aws::system::{RandomAttempts, SystemClock};
use payguard_aws::usage::Usage;
use payguard_engine::task::Env;
use payguard_topology::Config;

use crate::embedded::{BUCKET, EmbeddedStack, StackError, StackOptions};
use crate::endpoints::Endpoints;
use crate::runner::LocalWaker;

/// The stores of `stack`, the machine's clock and random attempt ids; what they consume is counted in `usage`.
#[must_use]
pub fn env(stack: &EmbeddedStack, config: &Config, usage: &Arc<Usage>) -> Env {
    env_of(stack.clients(), stack.tables(), BUCKET, config, usage)
}

/// The stores behind `clients`, the machine's clock and random attempt ids; nobody in another process is woken.
#[must_use]
pub fn env_of(clients: &Clients, tables: &Tables, bucket: &str, config: &Config, usage: &Arc<Usage>) -> Env {
    let pipeline = config.pipeline.as_str();
    Env {
        ledger: Arc::new(DynamoLedger::new(clients.dynamodb.clone(), tables, pipeline, usage.clone())),
        state: Arc::new(DynamoStateTable::new(clients.dynamodb.clone(), tables, pipeline, usage.clone())),
        segments: Arc::new(S3Segments::new(clients, bucket, pipeline, usage.clone())),
        waker: Arc::new(LocalWaker::default()),
        clock: Arc::new(SystemClock),
        attempts: Arc::new(RandomAttempts),
        settings: config.settings(),
    }
}

/// The stores of a state folder.
pub struct Connection {
    /// For looking at tasks, and for deciding rules.
    pub env: Env,
    /// The SDK clients of the stores.
    pub clients: Clients,
    stack: Option<EmbeddedStack>,
}

/// The stores of a state folder cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The stores do not start.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// Another process has the folder open, and its stores do not listen.
    #[error("{}: another process has the folder open, and its stores do not listen: {error}", dir.display())]
    Silent {
        /// The folder.
        dir: PathBuf,
        /// Why they cannot be reached.
        error: std::io::Error,
    },
}

/// Pause before a folder that is in use, but whose stores do not listen, is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How often it is looked at: a process that has just begun listens within a second or two, and a command that had
/// nobody to ask gives the folder back as soon.
const LOOKS: u32 = 100;

/// Starts the stores of a process that goes on, and tells other processes where they listen. A command that looks into
/// the folder just now is waited for.
///
/// # Errors
/// As [`EmbeddedStack::start`]; the folder is in use by another process that goes on.
pub async fn serve(dir: Option<&Path>) -> Result<EmbeddedStack, StackError> {
    let mut looks = 0;
    loop {
        let options = StackOptions { dir: dir.map(Path::to_owned), ..StackOptions::default() };
        match (EmbeddedStack::start(options).await, dir) {
            (Err(StackError::InUse { .. }), Some(dir)) if looks < LOOKS && Endpoints::listening(dir).await.is_err() => {
                looks += 1;
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            (Ok(stack), Some(dir)) => {
                let told = Endpoints::of(&stack).write(dir);
                return told.map(|()| stack).map_err(StackError::unwritable(dir));
            }
            (result, _) => return result,
        }
    }
}

impl Connection {
    /// Opens a folder; one that another process works on is used through that process, which may have just begun.
    ///
    /// # Errors
    /// When neither is possible.
    pub async fn open(dir: &Path, config: &Config) -> Result<Connection, ConnectError> {
        let usage = Arc::new(Usage::default());
        let mut looks = 0;
        loop {
            let options = StackOptions { dir: Some(dir.to_owned()), ..StackOptions::default() };
            match EmbeddedStack::start(options).await {
                Ok(stack) => {
                    let (env, clients) = (env(&stack, config, &usage), stack.clients().clone());
                    return Ok(Connection { env, clients, stack: Some(stack) });
                }
                Err(StackError::InUse { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            looks += 1;
            // What the file says may be of a process that is gone.
            match Endpoints::listening(dir).await {
                Ok(Endpoints { dynamodb, s3 }) => {
                    let clients = embedded_clients(&dynamodb, &s3);
                    let env = env_of(&clients, &Tables::default(), BUCKET, config, &usage);
                    return Ok(Connection { env, clients, stack: None });
                }
                Err(error) if looks >= LOOKS => return Err(ConnectError::Silent { dir: dir.to_owned(), error }),
                Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// Whether no other process has the folder open.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.stack.is_some()
    }

    /// Closes what was opened.
    pub async fn close(self) {
        if let Some(stack) = self.stack {
            stack.stop().await;
        }
    }
}
