//! Savepoints: a consistent cut while the pipeline goes on, restored under any number of shards; what is refused; what
//! a crash leaves behind; the commands.
#![allow(missing_docs)]

mod collect;
mod command;
mod crash;
mod cut;
mod lessons;
mod refusals;
mod support;
