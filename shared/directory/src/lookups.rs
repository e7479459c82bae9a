//! Look-ups that alerts share, and what was found.
//!
//! A look-up is a future that every alert waiting for it holds and polls: it goes on as long as one of them waits,
//! whoever began it, and is dropped with the last. So nothing is asked twice because an alert gave up, no waiting alert is
//! forgotten, and nothing goes on when nobody waits: on Lambda, work left over would freeze with the process.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::cache::Cache;
use crate::{Limits, LookupError, MerchantDirectory, UNKNOWN};

/// What a look-up ends with. Alerts share it.
pub(crate) type Answer = Result<Arc<str>, Arc<LookupError>>;
/// A look-up under way.
pub(crate) type Lookup = Shared<BoxFuture<'static, Answer>>;

/// Where an alert finds the risk of its merchant.
pub(crate) enum Found {
    /// It is known.
    Cached(Arc<str>),
    /// Another alert's look-up will tell.
    Joined(Lookup),
    /// A look-up of its own will tell.
    Begun(Lookup),
}

/// The directory, what it answered and what it is being asked.
pub(crate) struct Lookups {
    directory: Arc<dyn MerchantDirectory>,
    /// One for every question that the directory may be asked at once.
    places: Semaphore,
    /// How long a look-up can be joined.
    joinable: Duration,
    known: Mutex<Known>,
}

struct Known {
    cache: Cache,
    running: HashMap<Arc<str>, Running>,
    /// Look-ups begun: their ids.
    begun: u64,
}

struct Running {
    id: u64,
    since: Instant,
    lookup: WeakShared<BoxFuture<'static, Answer>>,
}

impl Lookups {
    pub(crate) fn new(directory: Arc<dyn MerchantDirectory>, limits: &Limits) -> Lookups {
        let cache = Cache::new(limits.cache_for, limits.cached_merchants);
        let known = Known { cache, running: HashMap::new(), begun: 0 };
        Lookups {
            directory,
            places: Semaphore::new(limits.concurrent),
            joinable: limits.timeout,
            known: Mutex::new(known),
        }
    }

    /// Finds out where the risk of a merchant comes from. A look-up that has taken as long as an alert waits at most is
    /// not joined any more: else a busy merchant would wait for one dead connection for ever.
    pub(crate) fn find(self: &Arc<Lookups>, merchant: &str, now: Instant) -> Found {
        let mut known = self.lock();
        if let Some(risk) = known.cache.get(merchant, now) {
            return Found::Cached(risk.clone());
        }
        let running = known.running.get(merchant).filter(|running| now - running.since < self.joinable);
        if let Some(lookup) = running.and_then(|running| running.lookup.upgrade()) {
            return Found::Joined(lookup);
        }
        known.begun += 1;
        let merchant: Arc<str> = merchant.into();
        let mark = Mark { lookups: self.clone(), merchant: merchant.clone(), id: known.begun };
        let (id, lookup) = (mark.id, look_up(mark).boxed().shared());
        // A future that was never polled can always be downgraded.
        if let Some(weak) = lookup.downgrade() {
            known.running.insert(merchant, Running { id, since: now, lookup: weak });
        }
        Found::Begun(lookup)
    }

    /// Merchants kept and look-ups under way.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let known = self.lock();
        (known.cache.len(), known.running.len())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that a look-up is under way, until it is dropped. Never dropped under the lock.
struct Mark {
    lookups: Arc<Lookups>,
    merchant: Arc<str>,
    id: u64,
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut known = self.lookups.lock();
        if known.running.get(&self.merchant).is_some_and(|running| running.id == self.id) {
            known.running.remove(&self.merchant);
        }
    }
}

/// Asks the directory, when there is a place, and remembers what it says. Errors are not remembered: the next alert asks
/// again.
async fn look_up(mark: Mark) -> Answer {
    let (lookups, merchant) = (&*mark.lookups, &mark.merchant);
    let _place = lookups.places.acquire().await;
    // A panic would poison the look-up for all that wait.
    let asked = AssertUnwindSafe(lookups.directory.risk_level(merchant)).catch_unwind().await;
    let answer = asked.unwrap_or_else(|_| Err(LookupError::new(&**merchant, "the directory panicked")))?;
    let risk: Arc<str> = answer.as_deref().unwrap_or(UNKNOWN).into();
    lookups.lock().cache.insert(merchant.clone(), risk.clone(), Instant::now());
    Ok(risk)
}
