//! The event-time operators of PayGuard, pure: state of one key in, state and outputs out.
//!
//! An operator owns *what is decided*; it does not own where state lives, when the watermark moves or who is told.
//! The engine keeps the state of every key and calls [`KeyedOperator`]; nothing here does I/O, reads a clock or waits.
//!
//! Times near the ends of the 64-bit scale are ordinary input: sums and time arithmetic saturate, nothing panics.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::type_complexity, reason = "a test may stop; its tables are tuples")
)]

pub mod amount_spike;
pub mod blocked_country;
mod bucket_rule;
pub mod buckets;
pub mod card_profile;
pub mod card_sessions;
pub mod connections;
pub mod dedup;
pub mod detail;
pub mod lateness;
pub mod matching;
pub mod merchant_stats;
mod minute_windows;
pub mod operator;
pub mod salted_stats;
pub mod sequences;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod velocity;
pub mod watermark;

#[cfg(test)]
mod lesson_tests;
#[cfg(test)]
mod model_tests;

pub use bucket_rule::{BucketView, RuleState, RuleView};
pub use matching::{MatchEvent, MatchOutput};
pub use minute_windows::{WindowTotal, WindowTotals};
pub use operator::{Context, KeyedOperator, TimerDomain, Timers, Times};
