//! Adapters: the ledger and the state table on DynamoDB, segments on S3, wake-ups and events of Lambda.
//!
//! The only crate that knows the AWS SDKs. It owns how rows, pages and segments are laid out there and what every
//! answer of a service means; it owns no decision: those are in `payguard-engine`, whose traits it implements.
//!
//! Without features it speaks plain HTTP to an embedded or local endpoint and contains no TLS. Feature `lambda` adds
//! what runs in AWS: configuration from the environment, TLS, and invoking other functions.

pub mod client;
pub mod dynamo;
pub mod event;
#[cfg(feature = "lambda")]
pub mod lambda;
pub mod s3;
pub mod s3_files;
mod sdk_error;
pub mod system;
pub mod tables;
pub mod usage;

pub use client::{Clients, embedded_clients};
pub use dynamo::{DynamoLedger, DynamoStateTable, Tables};
pub use s3::S3Segments;
pub use s3_files::S3Files;
pub use usage::{Usage, UsageSnapshot};
