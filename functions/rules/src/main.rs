//! The function of stage `rules`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let make = payguard_rules::make(&function.config, &function.topology);
        Ok(function.consumer(stage::RULES, make))
    })
}
