//! The sink of merchant totals against a real server.
#![allow(clippy::unwrap_used, missing_docs)]

mod faults;
mod fixture;
mod proxy;
mod refusals;
mod writes;
