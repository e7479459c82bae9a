//! What all functions share: start from the environment, take one event after the other, do its work within the
//! deadline, answer.
//!
//! It owns the rules of an invocation, not the work itself: nothing runs on behind an answer, warm tasks are discarded
//! after an error or a panic, and an answer never acknowledges more than what is committed.

mod broadcast;
mod consumer;
mod error;
mod function;
mod guard;
mod kafka;
mod options;
mod source;

pub use broadcast::BroadcastHost;
pub use consumer::{ConsumerHost, TaskReport, TaskReports};
pub use error::{Failure, HostError, StartError};
pub use function::{Function, Host, run};
pub use options::Options;
pub use source::SourceHost;
