//! PostgreSQL: how to reach a database, the tables that the project keeps there, and the sink of merchant totals.
//!
//! [`DatabaseSettings`] come from variables; [`DatabaseSettings::connect`] opens one connection, with the TLS that they ask
//! for. [`migrate`] makes the tables. [`PostgresSink`] writes rows and position in one transaction. Neither an error nor a
//! `Debug` output holds a password.

mod error;
mod migrations;
mod position;
mod settings;
mod sink;
#[cfg(feature = "testing")]
pub mod testing;
mod tls;
mod totals;

pub use error::reasons;
pub use migrations::{MigrateError, Migration, migrate};
pub use settings::{Connected, DatabaseSettings, SettingsError};
pub use sink::{Patience, PostgresSink};
pub use totals::TABLE;
