//! The function of stage `parse`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let make = payguard_parse::make(&function.config, &function.topology);
        Ok(function.source(stage::PARSE, make))
    })
}
