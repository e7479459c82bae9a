//! The function of stage `window`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| Ok(function.consumer(stage::WINDOW, payguard_window::make(&function.topology))))
}
