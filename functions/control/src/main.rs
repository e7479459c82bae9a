//! The function of stage `control`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let logic = payguard_control::make(&function.config);
        Ok(function.broadcast(stage::CONTROL, logic))
    })
}
