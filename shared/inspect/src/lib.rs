//! Looking into a pipeline: the state of its keys — now, in a savepoint, or in the past — and its log.
//!
//! Nothing is changed and nobody is disturbed: no lease is taken. What is read of a key group is always its state as of
//! one commit of the task that owns it, whatever that task does meanwhile ([`live`]).
//!
//! Pure: `states`, `streams`, `time`, `rows`, `error`. The rest reads through the engine's store traits.

pub mod error;
pub mod live;
mod owner;
mod replay;
pub mod rows;
pub mod saved;
pub mod source;
pub mod states;
pub mod streams;
pub mod tally;
pub mod time;

pub use error::InspectError;
pub use live::{Asked, At, Live};
pub use saved::Saved;
pub use source::{AsOf, GroupState, Source};
