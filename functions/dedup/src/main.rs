//! The function of stage `dedup`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let make = payguard_dedup::make(&function.config, &function.topology);
        Ok(function.consumer(stage::DEDUP, make))
    })
}
