//! How risky a merchant is, and how alerts learn it without ever waiting for long.
//!
//! A [`MerchantDirectory`] answers for one merchant; [`Enrichment`] asks it for many alerts at once, with a cache, limits
//! and a time limit, and always has an answer: a directory that fails or hangs costs a count and the risk [`UNKNOWN`].
//!
//! Directories: [`SeededDirectory`] knows the merchants of the demonstration, [`FileDirectory`] reads a file, and with the
//! feature `postgres` `PostgresDirectory` asks a database.

mod cache;
mod enrichment;
mod file;
mod lookups;
#[cfg(feature = "postgres")]
mod postgres;
mod seeded;

use async_trait::async_trait;

pub use enrichment::{Enrichment, Limits, Risks};
pub use file::{FileDirectory, FileDirectoryError};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresDirectory, PostgresDirectoryError};
pub use seeded::SeededDirectory;

/// The risk of a merchant that is not in the directory, or of which the directory said nothing in time.
pub const UNKNOWN: &str = "UNKNOWN";

/// Levels a merchant can have.
pub const LEVELS: [&str; 3] = ["HIGH", "MEDIUM", "LOW"];

/// Knows the risk levels of merchants.
///
/// The future of a look-up may be dropped at any moment; nothing may go on in its name after that.
#[async_trait]
pub trait MerchantDirectory: Send + Sync {
    /// The risk level of a merchant, or nothing when the directory does not have the merchant.
    ///
    /// # Errors
    /// When the directory cannot say.
    async fn risk_level(&self, merchant_id: &str) -> Result<Option<String>, LookupError>;
}

/// A directory could not say how risky a merchant is.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot read the risk of merchant {merchant_id:?}: {detail}")]
pub struct LookupError {
    /// The merchant.
    pub merchant_id: String,
    /// What went wrong.
    pub detail: String,
}

impl LookupError {
    /// A failed look-up of a merchant.
    #[must_use]
    pub fn new(merchant_id: impl Into<String>, detail: impl Into<String>) -> LookupError {
        LookupError { merchant_id: merchant_id.into(), detail: detail.into() }
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
