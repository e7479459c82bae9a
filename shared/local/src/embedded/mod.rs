//! The embedded stack: DynamoDB and S3 as two servers in this process, spoken to by the real SDK clients.
//!
//! It owns where their data is kept, their threads, and the lock on the directory. Each server has its own runtime and
//! threads, so computing in the caller's runtime does not delay answers. With a directory everything survives the
//! process, also when it is killed; what the operating system had not yet written is lost with the power.

mod error;
mod objects;
mod paths;
mod server;
mod state_dir;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dynoxide::Database;
use payguard_aws::{Clients, Tables, embedded_clients, tables};

pub use error::StackError;
use objects::FileObjects;
use server::Server;
use state_dir::StateDir;

/// Bucket of the embedded S3 server.
pub const BUCKET: &str = "payguard-segments";

/// Threads of the DynamoDB server. It works under one lock; the second thread parses and answers meanwhile.
const DYNAMODB_THREADS: usize = 2;

/// Threads of the S3 server.
const S3_THREADS: usize = 2;

/// Time between two clean-ups of expired items.
const SWEEP_EVERY: Duration = Duration::from_mins(5);

/// Where the embedded stack keeps its data and listens.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StackOptions {
    /// Directory of the data; `None` keeps nothing beyond the stack.
    pub dir: Option<PathBuf>,
    /// Port of DynamoDB on the loopback address; 0 takes a free one.
    pub dynamodb_port: u16,
    /// Port of S3 on the loopback address; 0 takes a free one.
    pub s3_port: u16,
}

/// The running stack. Dropping it stops the servers too; [`EmbeddedStack::stop`] does not block the runtime meanwhile.
#[derive(Debug)]
pub struct EmbeddedStack {
    dynamodb: Server,
    s3: Server,
    clients: Clients,
    tables: Tables,
}

impl EmbeddedStack {
    /// Starts both servers and creates tables and bucket if they are not there.
    ///
    /// # Errors
    /// The directory is used by another process, cannot be written or is damaged; a port is taken.
    pub async fn start(options: StackOptions) -> Result<EmbeddedStack, StackError> {
        let state_dir = Arc::new(StateDir::open(options.dir.as_deref())?);
        let database = open_database(&state_dir)?;
        let dynamodb = start_dynamodb(database, options.dynamodb_port, Arc::clone(&state_dir)).await?;
        let s3 = start_s3(options.s3_port, state_dir).await?;
        let clients = embedded_clients(&endpoint(dynamodb.address()), &endpoint(s3.address()));
        let tables = Tables::default();
        tables::create_tables(&clients.dynamodb, &tables).await?;
        tables::create_bucket(&clients, BUCKET).await?;
        Ok(EmbeddedStack { dynamodb, s3, clients, tables })
    }

    /// SDK clients of the servers.
    #[must_use]
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// The tables, which exist.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The bucket, which exists.
    #[must_use]
    pub fn bucket(&self) -> &'static str {
        BUCKET
    }

    /// URL of the DynamoDB server.
    #[must_use]
    pub fn dynamodb_endpoint(&self) -> String {
        endpoint(self.dynamodb.address())
    }

    /// URL of the S3 server.
    #[must_use]
    pub fn s3_endpoint(&self) -> String {
        endpoint(self.s3.address())
    }

    /// Lets running requests end, stops the servers and gives the directory back.
    pub async fn stop(self) {
        let stopped = tokio::task::spawn_blocking(move || drop(self));
        if let Err(err) = stopped.await {
            tracing::error!(%err, "the embedded stack did not stop cleanly");
        }
    }
}

fn endpoint(address: SocketAddr) -> String {
    format!("http://{address}")
}

fn open_database(state_dir: &StateDir) -> Result<Database, StackError> {
    let Some(file) = state_dir.database_file() else {
        return Database::memory().map_err(|err| StackError::database("in memory".as_ref(), &err));
    };
    let name = file.to_str().ok_or_else(|| StackError::NotUtf8 { path: file.clone() })?;
    let database = Database::new(name).map_err(|err| StackError::database(&file, &err))?;
    // Sets `synchronous = NORMAL`: commits survive the process, not a power cut, and do not wait for the disk.
    database.disable_bulk_loading().map_err(|err| StackError::database(&file, &err))?;
    Ok(database)
}

async fn start_dynamodb(database: Database, port: u16, state_dir: Arc<StateDir>) -> Result<Server, StackError> {
    Server::start("dynamodb", loopback(port), DYNAMODB_THREADS, move |listener, stop| {
        Box::pin(async move {
            let sweeper = tokio::spawn(sweep_expired(database.clone()));
            if let Err(error) = dynoxide::server::serve_with_shutdown(listener, database, stop).await {
                tracing::error!(error, "the embedded DynamoDB server failed");
            }
            sweeper.abort();
            drop(state_dir);
        })
    })
    .await
}

async fn start_s3(port: u16, state_dir: Arc<StateDir>) -> Result<Server, StackError> {
    let objects = FileObjects::open(&state_dir.objects_dir())?;
    Server::start("s3", loopback(port), S3_THREADS, move |listener, stop| {
        Box::pin(async move {
            server::serve_s3(listener, objects, stop).await;
            drop(state_dir);
        })
    })
    .await
}

/// DynamoDB deletes expired items by itself; the embedded one has to be told.
async fn sweep_expired(database: Database) {
    let mut timer = tokio::time::interval(SWEEP_EVERY);
    timer.tick().await;
    loop {
        timer.tick().await;
        let database = database.clone();
        match tokio::task::spawn_blocking(move || database.sweep_ttl()).await {
            Ok(Ok(0)) => {}
            Ok(Ok(items)) => tracing::debug!(items, "expired items removed"),
            Ok(Err(error)) => tracing::warn!(%error, "expired items could not be removed"),
            Err(error) => tracing::warn!(%error, "the clean-up of expired items failed"),
        }
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
