//! The schema lock: what is stored, and under which names, as a text that is part of the repository.
//!
//! [`source`] reads the sources of the workspace for protobuf messages; the test `lock` adds the ids of the topology and
//! compares both with `schema.lock` by the rules of [`compare`]. What stored bytes may become is recorded on request;
//! what would lose or misread them is refused, with a sentence that names the cure.

pub mod rules;
pub mod schema;
pub mod source;

pub use rules::{Comparison, compare};
pub use schema::{Field, Id, IdKind, Message, Schema};
