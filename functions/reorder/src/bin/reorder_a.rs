//! The function of stage `reorder_a`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let make = payguard_reorder::make_a(&function.config, &function.topology);
        Ok(function.consumer(stage::REORDER_A, make))
    })
}
