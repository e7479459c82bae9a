//! The function of stage `combine`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let make = payguard_combine::make(&function.config, &function.topology);
        Ok(function.consumer(stage::COMBINE, make))
    })
}
