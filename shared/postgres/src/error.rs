//! What the database's errors say, and what is to be done about them.

use std::error::Error;
use std::io;

use payguard_engine::{StoreError, StoreErrorKind};
use tokio_postgres::error::SqlState;

/// An error and its causes, on one line.
#[must_use]
pub fn reasons(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        cause = error.source();
    }
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

/// A failure of the database as one of a store.
pub(crate) fn store_error(operation: &'static str, target: String, error: &tokio_postgres::Error) -> StoreError {
    let advice = match error.code() {
        Some(code) if is_missing_table(code) => ": make the tables with `payguard migrate`",
        _ => "",
    };
    StoreError::new(kind(error), operation, target, format!("{}{advice}", reasons(error)))
}

fn is_missing_table(code: &SqlState) -> bool {
    [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN, SqlState::INVALID_COLUMN_REFERENCE].contains(code)
}

fn kind(error: &tokio_postgres::Error) -> StoreErrorKind {
    match error.code() {
        Some(code) => kind_of_code(code),
        None if is_refused_tls(error) => StoreErrorKind::Invalid,
        // Not reached, or the connection broke.
        None => StoreErrorKind::Unavailable,
    }
}

/// By the class of the code, its first two characters, see the appendix of PostgreSQL's manual.
fn kind_of_code(code: &SqlState) -> StoreErrorKind {
    match code {
        // Waited too long for a lock; the server has become a standby.
        &SqlState::LOCK_NOT_AVAILABLE | &SqlState::READ_ONLY_SQL_TRANSACTION => return StoreErrorKind::Unavailable,
        &SqlState::DATA_CORRUPTED | &SqlState::INDEX_CORRUPTED => return StoreErrorKind::Corrupt,
        _ => {}
    }
    match code.code().get(..2) {
        // Connection, rolled back, no resources, stopped by an operator, the machine, the server itself.
        Some("08" | "40" | "53" | "57" | "58" | "XX") => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Invalid,
    }
}

/// Whether TLS that was asked for is not to be had: trying again does not help.
fn is_refused_tls(error: &tokio_postgres::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        let tls = error.downcast_ref::<io::Error>().and_then(|e| e.get_ref()?.downcast_ref::<rustls::Error>());
        if matches!(tls, Some(rustls::Error::InvalidCertificate(_))) || error.to_string() == NO_TLS {
            return true;
        }
        cause = error.source();
    }
    false
}

/// What the client says of a server that speaks no TLS; it has no type for that.
const NO_TLS: &str = "server does not support TLS";
