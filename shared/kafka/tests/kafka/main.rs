//! Connecting to a real Apache Kafka.
#![allow(clippy::unwrap_used, missing_docs)]

mod login;
mod transactions;
