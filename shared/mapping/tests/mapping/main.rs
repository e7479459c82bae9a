//! The mapping between a real Apache Kafka and functions.
#![allow(clippy::unwrap_used, missing_docs)]

mod delivery;
mod function;
mod invoke_api;
mod world;
