//! The function of stage `totals`.

use std::process::ExitCode;

use payguard_topology::stage;
use payguard_totals::TABLE;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let sink = function.options.open_sink(&[TABLE])?;
        Ok(function.consumer(stage::TOTALS, payguard_totals::make(sink)))
    })
}
