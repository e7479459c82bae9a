//! The machine's clock and random ids: what the engine asks of the system rather than of a service.

use payguard_engine::Attempt;
use payguard_engine::store::{AttemptIds, Clock};
use payguard_model::ProcessingTime;

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the one place where the clock is read")]
    fn now(&self) -> ProcessingTime {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        ProcessingTime(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }
}

/// Random attempt ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomAttempts;

impl AttemptIds for RandomAttempts {
    fn next(&self) -> Attempt {
        Attempt(uuid::Uuid::new_v4().to_string())
    }
}
