//! Everything on one machine: the embedded stack, the runner of all stages in one process, files as source and sink.

pub mod accounting;
mod arrival;
pub mod bounded;
pub mod dir_files;
pub mod embedded;
pub mod endpoints;
pub mod file_source;
pub mod rescale;
pub mod runner;
pub mod stores;
