//! Panics become failures, warm tasks are kept only when they may be trusted, work ends before the deadline.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use payguard_engine::TaskId;

/// At most this much of an invocation's time is kept back for what has been begun.
const MARGIN: Duration = Duration::from_secs(15);

/// Tasks between two invocations. Whoever works with one takes it out, and puts it back only when all went well.
pub(crate) struct Warm<T> {
    tasks: Mutex<BTreeMap<TaskId, T>>,
}

impl<T> Default for Warm<T> {
    fn default() -> Warm<T> {
        Warm { tasks: Mutex::default() }
    }
}

impl<T> Warm<T> {
    /// Takes the task out.
    pub(crate) fn take(&self, id: &TaskId) -> Option<T> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
    }

    /// Whether it is here.
    pub(crate) fn has(&self, id: &TaskId) -> bool {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }

    /// Keeps the task for the next invocation.
    pub(crate) fn keep(&self, id: TaskId, task: T) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).insert(id, task);
    }
}

/// Runs a future; a panic in it becomes an error text.
///
/// Where the build aborts on panics, as `cargo lambda build` does by default, the process ends instead, and with it all
/// warm memory.
pub(crate) async fn guarded<T, E: ToString>(work: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(panic) => Err(format!("panicked: {}", panic_text(&*panic))),
    }
}

/// The same, given up after `time`.
pub(crate) async fn within<T, E: ToString>(
    time: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    let outcome = tokio::time::timeout(time, guarded(work)).await;
    outcome.unwrap_or_else(|_| Err(format!("not done after {time:?}")))
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "no message",
    }
}

/// How long work may be begun when `left` is left until the deadline.
pub(crate) fn working_time(left: Duration) -> Duration {
    left - MARGIN.min(left / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_with_its_text() {
        let panicking = guarded(async { if true { panic!("broken {}", 1) } else { Ok::<(), String>(()) } }).await;
        assert_eq!(panicking, Err("panicked: broken 1".to_owned()));
        assert_eq!(guarded(async { Ok::<_, String>(3) }).await, Ok(3));
    }

    #[test]
    fn a_part_of_the_time_is_kept_back() {
        assert_eq!(working_time(Duration::from_secs(120)), Duration::from_secs(105));
        assert_eq!(working_time(Duration::from_secs(4)), Duration::from_secs(3));
        assert_eq!(working_time(Duration::ZERO), Duration::ZERO);
    }
}
