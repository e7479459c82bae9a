//! The function of stage `reorder_b`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let make = payguard_reorder::make_b(&function.config, &function.topology);
        Ok(function.consumer(stage::REORDER_B, make))
    })
}
