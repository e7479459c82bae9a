//! AWS's event source mapping for Kafka, on one machine: it reads topics as a consumer group and invokes a function with
//! batches of their records, with the semantics that functions meet in Lambda. Delivery is at least once.
//!
//! [`core`] decides, [`Mapping::run`] reads, invokes and commits. [`Faults`] make it deliver as badly as the real one may.

pub mod core;
mod failure;
mod faults;
pub mod http;
mod invoker;
mod reader;
mod run;

pub use failure::{FailureDestination, FailureFolder};
pub use faults::Faults;
pub use http::HttpInvoker;
pub use invoker::{FnInvoker, Invoker, outcome_of};
pub use reader::StartPosition;
pub use run::{Mapping, MappingError, MappingOptions, Summary};
