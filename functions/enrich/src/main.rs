//! The function of stage `enrich`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let directory = payguard_enrich::directory::open(&std::env::vars().collect())?;
        Ok(function.consumer(stage::ENRICH, payguard_enrich::make(&function.topology, directory)))
    })
}
