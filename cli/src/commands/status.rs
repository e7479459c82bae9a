//! `payguard status`.
use std::process::ExitCode;
use crate::{Failure, config::ConfigArgs};
#[derive(clap::Args)]
pub(crate) struct Args {}
pub(crate) fn run(_: &Args, _: &ConfigArgs) -> Result<ExitCode, Failure> { Err("later".into()) }
