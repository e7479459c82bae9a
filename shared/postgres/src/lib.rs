//! PostgreSQL: how to reach a database, with or without TLS.
//!
//! [`DatabaseSettings`] come from variables; [`DatabaseSettings::connect`] opens one connection, with the TLS that they ask
//! for. Neither an error nor a `Debug` output holds a password.

mod error;
mod settings;
#[cfg(feature = "testing")]
pub mod testing;
mod tls;

pub use error::reasons;
pub use settings::{Connected, DatabaseSettings, SettingsError};
