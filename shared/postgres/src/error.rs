//! What the database's errors say.

use std::error::Error;

/// An error and its causes, on one line.
#[must_use]
pub fn reasons(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        cause = error.source();
    }
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}
