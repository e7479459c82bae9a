//! The tables, as the files of `infra/sql` make them.

use std::time::Duration;

use tokio_postgres::Client;

use crate::error::reasons;
use crate::settings::{Connected, DatabaseSettings};

/// One file, applied whole; applying it again changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Migration {
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub sql: &'static str,
}

macro_rules! migration {
    ($name:literal) => {
        Migration { name: $name, sql: include_str!(concat!("../../../infra/sql/", $name)) }
    };
}

impl Migration {
    /// What makes the tables, in order.
    pub const TABLES: [Migration; 3] =
        [migration!("01-merchants.sql"), migration!("02-merchant-stats.sql"), migration!("03-positions.sql")];
    /// The merchants of the demonstration.
    pub const DEMO_MERCHANTS: Migration = migration!("04-demo-merchants.sql");
}

/// Two that migrate at a time wait for each other by this number.
const LOCK: i64 = 0x7061_7967_7561_7264;
/// How long anybody waits for the connection, the other who migrates, and a file.
const PATIENCE: Duration = Duration::from_secs(30);

/// The tables could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The database could not be reached, or let nobody in.
    #[error("cannot connect to {place}: {detail}")]
    Connect {
        /// The database.
        place: String,
        /// Why.
        detail: String,
    },
    /// A file could not be applied; nothing was changed.
    #[error("cannot apply {name} to {place}, nothing was changed: {detail}")]
    Apply {
        /// The file.
        name: &'static str,
        /// The database.
        place: String,
        /// Why.
        detail: String,
    },
}

/// Applies migrations in order, all or none.
///
/// # Errors
/// When the database cannot be reached or refuses one of them.
pub async fn migrate(settings: &DatabaseSettings, migrations: &[Migration]) -> Result<(), MigrateError> {
    let place = settings.place();
    let settings = settings.clone().with_patience(PATIENCE);
    let connected = tokio::time::timeout(PATIENCE, settings.connect()).await;
    let Connected { client, .. } = match connected {
        Ok(Ok(connected)) => connected,
        Ok(Err(error)) => return Err(MigrateError::Connect { place, detail: reasons(&error) }),
        Err(_) => return Err(MigrateError::Connect { place, detail: format!("no answer within {PATIENCE:?}") }),
    };
    apply(client, migrations).await.map_err(|(name, detail)| MigrateError::Apply { name, place, detail })
}

/// Dropping the client in between undoes everything.
async fn apply(mut client: Client, migrations: &[Migration]) -> Result<(), (&'static str, String)> {
    let outcome = async |name, sql: &str, client: &tokio_postgres::Transaction<'_>| {
        client.batch_execute(sql).await.map_err(|error| (name, reasons(&error)))
    };
    let begin = client.transaction().await.map_err(|error| ("BEGIN", reasons(&error)))?;
    let patience = format!("SET LOCAL statement_timeout = {}", PATIENCE.as_millis());
    outcome("the time limit", &patience, &begin).await?;
    outcome("the lock", &format!("SELECT pg_advisory_xact_lock({LOCK})"), &begin).await?;
    for migration in migrations {
        outcome(migration.name, migration.sql, &begin).await?;
    }
    begin.commit().await.map_err(|error| ("COMMIT", reasons(&error)))
}
