//! The load generator: payments as their terminals send them, the bank's confirmations, and connection attempts.
//!
//! A stream is a function of its [`GeneratorConfig`]: equal configurations give equal bytes on every platform. Nothing
//! here reads a clock or sends anything; [`write_files`] writes files, and a live sender asks [`PaymentSource`] for one
//! record, and its confirmation, at a time.

mod config;
mod connections;
mod draws;
mod files;
mod source;

pub use config::{ConfigError, GeneratorConfig};
pub use connections::{CONNECTIONS_FILE, ConnectionConfig, ConnectionSource, ConnectionSummary, write_connections};
pub use files::{AFTER_FILE, CONFIRMATIONS_FILE, PAYMENTS_FILE, write_files};
pub use source::{BROKEN_RECORD, PaymentSource, Record, Summary};
