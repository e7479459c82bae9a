//! The function of stage `match`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let make = payguard_match::make(&function.config, &function.topology);
        Ok(function.consumer(stage::MATCH, make))
    })
}
