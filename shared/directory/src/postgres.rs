//! The directory in PostgreSQL: the table of `infra/sql/01-merchants.sql`.

use std::time::Duration;

use async_trait::async_trait;
use deadpool_postgres::{Connect, Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod};
use futures_util::future::BoxFuture;
use payguard_postgres::{Connected, DatabaseSettings, reasons};
use tokio::task::JoinHandle;
use tokio_postgres::error::Severity;
use tokio_postgres::{Client, Config, Error};

use crate::{LookupError, MerchantDirectory};

const QUERY: &str = "SELECT risk_level FROM merchants WHERE merchant_id = $1";

/// The merchants of a table `merchants`, read over at most [`PostgresDirectory::CONNECTIONS`] connections.
///
/// It connects when it is asked, so it can be made while the database is down, and finds it again by itself. Sessions
/// are read-only. A connection is used again only after an answer: with an error, or a question that was dropped, it is
/// closed, so no question waits behind one that nobody wants any more.
pub struct PostgresDirectory {
    pool: Pool,
}

impl PostgresDirectory {
    /// Most connections open at a time.
    pub const CONNECTIONS: usize = 8;

    /// A directory that is not connected yet. `timeout` is the longest that anyone waits for an answer: the server gives
    /// up a question after it too.
    ///
    /// # Errors
    /// When the pool refuses the settings.
    pub fn new(settings: &DatabaseSettings, timeout: Duration) -> Result<PostgresDirectory, PostgresDirectoryError> {
        let settings = settings.clone().with_patience(timeout);
        let session = format!(
            "SET default_transaction_read_only = on; SET statement_timeout = {}",
            timeout.as_millis().clamp(1, i32::MAX as u128)
        );
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(settings.config().clone(), Connector(settings), recycling);
        let begin = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
            let session = session.clone();
            Box::pin(async move { client.batch_execute(&session).await.map_err(HookError::Backend) })
        });
        let pool = Pool::builder(manager).max_size(PostgresDirectory::CONNECTIONS).post_create(begin).build();
        let pool = pool.map_err(|error| PostgresDirectoryError(error.to_string()))?;
        Ok(PostgresDirectory { pool })
    }

    async fn ask(&self, merchant_id: &str) -> Result<Option<String>, Failure> {
        let mut lease = Lease(Some(self.pool.get().await.map_err(|e| Failure::NotConnected(reasons(&e)))?));
        let Some(client) = &lease.0 else { return Ok(None) };
        let answer = async {
            let statement = client.prepare_cached(QUERY).await?;
            let row = client.query_opt(&statement, &[&merchant_id]).await?;
            row.map(|row| row.try_get(0)).transpose()
        };
        let level = answer.await.map_err(Failure::of)?;
        // Back to the pool.
        drop(lease.0.take());
        Ok(level)
    }
}

#[async_trait]
impl MerchantDirectory for PostgresDirectory {
    async fn risk_level(&self, merchant_id: &str) -> Result<Option<String>, LookupError> {
        if merchant_id.contains('\0') {
            // No text of PostgreSQL does; asking would be an error each time.
            return Ok(None);
        }
        let answer = match self.ask(merchant_id).await {
            // It may have broken long ago, unused, as the others: a server was restarted, a process frozen. Once more.
            Err(Failure::Broken(_)) => {
                self.pool.retain(|_, _| false);
                self.ask(merchant_id).await
            }
            answer => answer,
        };
        answer.map_err(|failure| LookupError::new(merchant_id, failure.detail()))
    }
}

/// Makes the connections of the pool.
struct Connector(DatabaseSettings);

impl Connect for Connector {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        Box::pin(async {
            let Connected { client, driver } = self.0.connect().await?;
            Ok((client, driver))
        })
    }
}

/// No pool of connections can be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no pool of connections can be made: {0}")]
pub struct PostgresDirectoryError(String);

/// A connection, closed unless it is taken out.
struct Lease(Option<Object>);

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            drop(Object::take(client));
        }
    }
}

enum Failure {
    /// No connection was to be had.
    NotConnected(String),
    /// The connection broke.
    Broken(String),
    /// The server refused.
    Refused(String),
}

impl Failure {
    fn of(error: tokio_postgres::Error) -> Failure {
        let fatal = |severity| matches!(severity, Some(Severity::Fatal | Severity::Panic));
        match error.as_db_error() {
            Some(db) if !fatal(db.parsed_severity()) => Failure::Refused(reasons(&error)),
            _ => Failure::Broken(reasons(&error)),
        }
    }

    fn detail(self) -> String {
        match self {
            Failure::NotConnected(reasons) | Failure::Broken(reasons) | Failure::Refused(reasons) => reasons,
        }
    }
}
