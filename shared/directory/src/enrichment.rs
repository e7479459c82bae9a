//! The risks of many alerts' merchants at once.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::Semaphore;
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep_until};

use crate::lookups::{Answer, Found, Lookups};
use crate::{LookupError, MerchantDirectory, UNKNOWN};

/// Longer times than this are taken for this: far enough, and no sum of times overflows.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How much is asked of a directory at once, how long an alert waits, and what is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Alerts in the queue: asked for and not answered yet. Others wait outside, and their time has not begun. 0 means 1.
    pub queued: usize,
    /// Questions that the directory is asked at once. 0 means 1.
    pub concurrent: usize,
    /// How long an alert is in the queue at most.
    pub timeout: Duration,
    /// How long an answer is used. A change in the directory reaches alerts that much later at most.
    pub cache_for: Duration,
    /// Merchants whose answers are kept; the oldest answer goes first.
    pub cached_merchants: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            queued: 200,
            concurrent: 8,
            timeout: Duration::from_secs(2),
            cache_for: Duration::from_secs(5 * 60),
            cached_merchants: 100_000,
        }
    }
}

/// What [`Enrichment::risks`] found, and what it took. Every alert is a look-up, shares one, or is a cache hit:
/// `lookups + shared + cache_hits` is the number of alerts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Risks {
    /// The risk of every merchant, in the order they were given: a level, or [`UNKNOWN`].
    pub risks: Vec<Arc<str>>,
    /// Look-ups that alerts of this call began. One that ran out of time before its turn has not reached the directory.
    pub lookups: u64,
    /// Alerts that waited for the look-up of another alert, of this call or of another at the same time.
    pub shared: u64,
    /// Alerts whose merchant's risk was known.
    pub cache_hits: u64,
    /// Alerts whose look-up failed or took too long. A merchant that the directory does not have is no failure.
    pub failures: u64,
}

/// Tells the risks of alerts' merchants, whatever becomes of the directory.
///
/// An absent merchant is [`UNKNOWN`], and remembered as that. A failure or a time-out is [`UNKNOWN`] for that alert, is
/// counted, and not remembered. An answer that comes when no alert waits for it any more is lost: the question is dropped
/// with the last alert that asked it, so nothing goes on after a call has ended.
pub struct Enrichment {
    limits: Limits,
    queue: Semaphore,
    lookups: Arc<Lookups>,
}

enum Source {
    Begun,
    Joined,
    Cache,
}

impl Enrichment {
    /// An enrichment that knows nothing yet. The limits hold for all its calls together.
    #[must_use]
    pub fn new(directory: Arc<dyn MerchantDirectory>, limits: Limits) -> Enrichment {
        let limits = Limits {
            queued: limits.queued.clamp(1, Semaphore::MAX_PERMITS),
            concurrent: limits.concurrent.clamp(1, Semaphore::MAX_PERMITS),
            timeout: limits.timeout.min(LONGEST),
            cache_for: limits.cache_for.min(LONGEST),
            ..limits
        };
        let lookups = Arc::new(Lookups::new(directory, &limits));
        Enrichment { limits, queue: Semaphore::new(limits.queued), lookups }
    }

    /// The risk of each alert's merchant, in order. Takes at most the time limit per `queued` alerts, and never fails:
    /// failures are counted, and the first of a call is logged.
    ///
    /// To be called inside a tokio runtime with time.
    pub async fn risks(&self, merchants: &[&str]) -> Risks {
        // The runtime's budget would stop some alerts in the middle of a poll and let those behind them pass.
        unconstrained(self.ask_for_all(merchants)).await
    }

    async fn ask_for_all(&self, merchants: &[&str]) -> Risks {
        let alerts = stream::iter(0..merchants.len()).map(|at| self.alert(at, merchants[at]));
        let mut answers = pin!(alerts.buffer_unordered(self.limits.queued));
        let mut found = Risks { risks: vec![UNKNOWN.into(); merchants.len()], ..Risks::default() };
        let mut first_error = None;
        while let Some((at, source, answer)) = answers.next().await {
            match source {
                Source::Begun => found.lookups += 1,
                Source::Joined => found.shared += 1,
                Source::Cache => found.cache_hits += 1,
            }
            match answer {
                Ok(risk) => found.risks[at] = risk,
                Err(error) => {
                    found.failures += 1;
                    first_error.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first_error {
            tracing::warn!(failures = found.failures, alerts = merchants.len(), %error, "risks of merchants not found");
        }
        found
    }

    /// The risk of one alert's merchant: waits to enter the queue, and in it at most the time limit.
    async fn alert(&self, at: usize, merchant: &str) -> (usize, Source, Answer) {
        let _queued = self.queue.acquire().await;
        let entered = Instant::now();
        let (source, lookup) = match self.lookups.find(merchant, entered) {
            Found::Cached(risk) => return (at, Source::Cache, Ok(risk)),
            Found::Joined(lookup) => (Source::Joined, lookup),
            Found::Begun(lookup) => (Source::Begun, lookup),
        };
        // Time first: an alert whose time is up must not put its question to the directory on its way out.
        let answer = tokio::select! {
            biased;
            () = sleep_until(entered + self.limits.timeout) => {
                let detail = format!("no answer within {:?}", self.limits.timeout);
                Err(Arc::new(LookupError::new(merchant, detail)))
            }
            answer = lookup => answer,
        };
        (at, source, answer)
    }

    /// Merchants remembered and look-ups under way.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> (usize, usize) {
        self.lookups.sizes()
    }
}
