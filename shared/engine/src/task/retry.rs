//! Patience with stores that cannot be reached.

use std::future::Future;
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::task::Settings;

/// Repeats `operation` while the store is unavailable, with growing pauses; any other failure is final.
///
/// # Errors
/// The last failure.
pub async fn patiently<T, F>(settings: &Settings, mut operation: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut pause = settings.store_backoff_ms;
    let mut tries = 1;
    loop {
        match operation().await {
            Err(error) if error.kind == StoreErrorKind::Unavailable && tries < settings.store_tries => {
                tracing::warn!(%error, tries, pause_ms = pause, "store unavailable, trying again");
                tokio::time::sleep(Duration::from_millis(pause)).await;
                pause *= 2;
                tries += 1;
            }
            result => return result,
        }
    }
}
