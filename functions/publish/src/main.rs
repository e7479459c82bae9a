//! The function of stage `publish`.

use std::process::ExitCode;

use payguard_publish::TOPICS;
use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let sink = function.options.open_sink(&TOPICS)?;
        Ok(function.consumer(stage::PUBLISH, payguard_publish::make(&function.topology, sink)))
    })
}
