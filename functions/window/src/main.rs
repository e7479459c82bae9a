//! The function of stage `window`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let make = payguard_window::make(&function.config, &function.topology);
        Ok(function.consumer(stage::WINDOW, make))
    })
}
