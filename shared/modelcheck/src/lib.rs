//! A model of the commit protocol, checked by following every run of it within bounds.
//!
//! Two tasks: a *producer* with keyed state, which is given records by a source, and a *consumer* that writes the
//! producer's records to a sink. Each has up to two executors. Every operation on a store is a step of its own, so an
//! executor may sleep, or crash, between any two of them; answers may be lost, commits may arrive late, leases may run
//! out, and a collector removes what nobody needs at any moment. `docs/model.md` says what is covered and what is not.
//!
//! What is decided is decided by the engine's own functions: [`payguard_engine::commit`], [`payguard_engine::resume`],
//! [`payguard_engine::page`], [`payguard_engine::lease`], [`payguard_engine::merge`] and
//! [`payguard_engine::task::source::not_processed`]. The order of the steps is the model's, as the engine's tasks have
//! it.

mod canonical;
mod check;
mod config;
mod consumer;
mod coverage;
mod durable;
mod gc;
mod invariants;
mod memory;
mod model;
mod producer;
mod settle;
mod words;

pub use check::{Checked, Story, check};
pub use config::{Config, Layout, Mutant};
pub use coverage::Event;
pub use durable::MAX_RECORDS;
pub use invariants::{COMPLETE, Rule, noticed_by};
pub use model::{Action, Model, State};
