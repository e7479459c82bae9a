//! The world of a simulation: every store of the engine in memory, faults at chosen operations, a checker of the
//! invariants, and a naive model of the pipeline. For tests only.
//!
//! What it does not own: how a pipeline is driven (that is in `tests/`), and what the real stores do (`shared/aws`).

pub mod check;
pub mod conformance;
pub mod coverage;
pub mod faults;
pub mod reference;
pub mod rng;
mod stores;
mod story;
pub mod world;

pub use faults::{Fault, FaultPlan, OpKind};
pub use rng::Rng;
pub use world::{Crashed, SimWorld};
