//! The function of stage `clock`.

use std::process::ExitCode;

use payguard_clock::host::ClockHost;

fn main() -> ExitCode {
    payguard_lambda::run(|function| Ok(ClockHost::new(function)))
}
