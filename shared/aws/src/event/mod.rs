//! Events that Lambda hands to a function, and what a function answers. No SDK types.

mod kafka;
mod wake;

pub use kafka::{BatchItemFailure, BatchResponse, KafkaEvent, KafkaRecord, NO_TIMESTAMP};
pub use wake::{HeartbeatEvent, ScheduleEvent, StageEvent, WakeEvent};

use std::time::Duration;

/// An event that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("the event is not understood at `{path}`: {detail}")]
pub struct EventError {
    /// Where in the JSON, for example `records.payments.raw-0[2].offset`.
    pub path: String,
    /// What is wrong there.
    pub detail: String,
}

/// Reads a value from JSON text; an error names the place.
fn from_json<T: serde::de::DeserializeOwned>(json: &[u8]) -> Result<T, EventError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|err| EventError { path: err.path().to_string(), detail: err.inner().to_string() })?;
    deserializer.end().map_err(|err| EventError { path: ".".to_owned(), detail: err.to_string() })?;
    Ok(value)
}

/// Time left until an invocation's deadline, both in milliseconds since the Unix epoch.
///
/// Local emulators hand out deadlines in the past or far away: anything but a deadline within the next 15 minutes
/// (Lambda's own limit) counts as `otherwise`.
#[must_use]
pub fn time_left(deadline_ms: u64, now_ms: u64, otherwise: Duration) -> Duration {
    const LONGEST: Duration = Duration::from_mins(15);
    match deadline_ms.checked_sub(now_ms).map(Duration::from_millis) {
        Some(left) if left <= LONGEST => left,
        _ => otherwise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_out_of_reach_is_not_believed() {
        let now = 1_764_000_000_000;
        let otherwise = Duration::from_secs(30);
        for (deadline, left) in [
            (now + 2_000, Duration::from_secs(2)),
            (now, Duration::ZERO),
            (600_000, otherwise),
            (now - 1, otherwise),
            (now + 3_600_000, otherwise),
            (u64::MAX, otherwise),
        ] {
            assert_eq!(time_left(deadline, now, otherwise), left, "{deadline}");
        }
    }
}
