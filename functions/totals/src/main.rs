//! The function of stage `totals`.

use std::process::ExitCode;

use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let variables = std::env::vars().collect();
        let sink = payguard_totals::sink::open(&function.options, &function.config.pipeline, &variables)?;
        Ok(function.consumer(stage::TOTALS, payguard_totals::make(sink)))
    })
}
