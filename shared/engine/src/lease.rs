//! The lease: keeps two executors from doing the same work. Safety never depends on it.

use payguard_model::ProcessingTime;

/// Whether `owner` may take a lease that `holder` holds until `until`.
#[must_use]
pub fn may_take(holder: Option<(&str, ProcessingTime)>, owner: &str, now: ProcessingTime) -> bool {
    match holder {
        None => true,
        Some((held_by, until)) => held_by == owner || until <= now,
    }
}
