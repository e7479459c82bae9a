//! The function of stage `dedup`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| Ok(function.consumer(stage::DEDUP, payguard_dedup::make(&function.topology))))
}
