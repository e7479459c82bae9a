//! The engine: tasks that advance a durable log by one conditional write per batch.
//!
//! Words (`docs/architecture.md` has the picture): a *task* is a stage and a shard; a *commit* is log row `n + 1` of a
//! task, made together with the head's step from `n`; a *segment* is the bytes of one commit; a *flush* writes
//! committed state to the state table. Everything but the log is reachable from it or disposable.
//!
//! Invariants, named in code, tests and metrics:
//!
//! * **INV-1** one row per (task, seq); seq has no gaps.
//! * **INV-2** a row's `from` positions equal its predecessor's `to` positions.
//! * **INV-3** the watermark of a task never decreases.
//! * **INV-4** a state page's version is at most the head's seq, and its value is the one the log gives at that version.
//! * **INV-5** nothing that a reader may still need is collected.
//! * **INV-6** every accepted input record is accounted for: emitted, counted, or in a dead-letter or late stream.
//!
//! Decisions are pure (`commit`, `resume`, `merge`, `keyed`, `segment`, `layout`, `lease`, `gc`); `task` reads facts, lets
//! them decide, and carries out the result through the traits in `store`.

pub mod commit;
pub mod error;
pub mod export;
pub mod gc;
pub mod ids;
pub mod input;
pub mod keyed;
pub mod layout;
pub mod lease;
pub mod logic;
pub mod merge;
pub mod page;
pub mod resume;
pub mod row;
pub mod segment;
pub mod store;
pub mod task;
pub mod teeth;
mod timer_queue;
pub mod ttl_set;

pub use error::{EngineError, StoreError, StoreErrorKind};
pub use ids::{Attempt, InputId, Seq, StageId, StreamId, TaskId};
pub use row::{Broadcast, CommitRow, Head, InputState, Position};
