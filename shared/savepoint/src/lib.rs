//! Savepoints: a consistent cut of a running pipeline in a format of its own, and a new pipeline made of it.
//!
//! **The cut.** Stages are captured from the last to the first, each task as of one commit. Logs are immutable and a
//! consumer is captured before its producers, so it has never read more than they are captured with; what it has not
//! read yet — the records in flight — is part of the savepoint. Nothing is stopped meanwhile.
//!
//! **The format** (`docs/savepoints.md`) knows nothing of pages, segments or tables: state by operator and key group,
//! records in flight by task, and a manifest, which is written last and makes the savepoint exist.
//!
//! **Restoring** lays rows, pages and heads of a new pipeline out, the heads last, so that its tasks simply start. Logs
//! keep their numbers: what is not in flight is missing as if it had been collected. A restored pipeline has the shards
//! that the saved one had; other shards are given to it as to any other (`payguard_engine::task::handover`).
//!
//! Pure: `cut`, `format`, `plan`. The rest reads and writes through the engine's store traits.

mod capture;
mod catalog;
mod create;
mod cut;
mod error;
pub mod format;
pub mod overlay;
mod plan;
mod restore;
mod rows;
mod verify;

pub use capture::{rows_after, slice_of};
pub use catalog::{Listed, delete, list, show};
pub use create::{Create, Progress, SinkPositions, create};
pub use error::{Refusal, SavepointError};
pub use format::{FORMAT, Manifest};
pub use restore::{Restore, Restored, restore};
pub use verify::{LoadState, Verified, verify};
