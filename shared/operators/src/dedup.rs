//! Deduplication by payment id (lesson 7): the first copy that arrives goes on, repeats within an hour do not.
//!
//! It owns the decision only; which ids are remembered, and how they are forgotten, is behind [`SeenIds`]. Contents of
//! copies are not compared. The hour runs by processing time and from the first copy: a repeat does not prolong it.

use payguard_model::ProcessingTime;

/// The permanent id of the operator.
pub const ID: &str = "deduplicate";

/// How long a payment id is remembered: one hour of processing time.
pub const REMEMBER_FOR_MS: i64 = 3_600_000;

/// Whether an id written at `written_at` is forgotten at `now`: exactly one hour later it is.
#[must_use]
pub fn is_expired(written_at: ProcessingTime, now: ProcessingTime) -> bool {
    written_at.plus(REMEMBER_FOR_MS) <= now
}

/// The ids seen so far.
///
/// An implementation may forget an id once it [`is_expired`], and may keep it longer.
pub trait SeenIds {
    /// When `id` was written last; `None` when it is not known.
    fn written_at(&self, id: &str) -> Option<ProcessingTime>;
    /// Remembers `id` as written at `at`, in place of an earlier time.
    fn write(&mut self, id: &str, at: ProcessingTime);
}

/// What a payment is to the deduplication.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arrival {
    /// No copy within the last hour: the payment goes on.
    First,
    /// A copy went on within the last hour: this one ends here.
    Duplicate,
}

/// Decides about the payment `id` at `now` and remembers a first arrival.
pub fn first_arrival(seen: &mut impl SeenIds, id: &str, now: ProcessingTime) -> Arrival {
    match seen.written_at(id) {
        Some(written_at) if !is_expired(written_at, now) => Arrival::Duplicate,
        Some(_) | None => {
            seen.write(id, now);
            Arrival::First
        }
    }
}

#[cfg(test)]
mod tests;
