//! Answers, kept for a fixed time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// What merchants' risks were found to be. All answers live equally long, so the oldest is the first to expire, and the
/// first to go when there are too many.
pub(crate) struct Cache {
    lifetime: Duration,
    capacity: usize,
    answers: HashMap<Arc<str>, Answer>,
    /// Every insertion whose answer may still be there, oldest first; at most `capacity`.
    by_age: VecDeque<(Arc<str>, Instant)>,
}

struct Answer {
    risk: Arc<str>,
    expires: Instant,
}

impl Cache {
    pub(crate) fn new(lifetime: Duration, capacity: usize) -> Cache {
        Cache { lifetime, capacity, answers: HashMap::new(), by_age: VecDeque::new() }
    }

    /// The risk of a merchant, if it was found less than the lifetime ago.
    pub(crate) fn get(&self, merchant: &str, now: Instant) -> Option<&Arc<str>> {
        self.answers.get(merchant).filter(|answer| answer.expires > now).map(|answer| &answer.risk)
    }

    /// Remembers an answer in place of an older one. `now` does not decrease from call to call.
    pub(crate) fn insert(&mut self, merchant: Arc<str>, risk: Arc<str>, now: Instant) {
        let expires = now + self.lifetime;
        self.answers.insert(merchant.clone(), Answer { risk, expires });
        self.by_age.push_back((merchant, expires));
        while self.by_age.len() > self.capacity || self.by_age.front().is_some_and(|(_, expires)| *expires <= now) {
            self.remove_oldest();
        }
    }

    fn remove_oldest(&mut self) {
        let Some((merchant, expires)) = self.by_age.pop_front() else { return };
        // A younger answer about the same merchant stays.
        if self.answers.get(&merchant).is_some_and(|answer| answer.expires == expires) {
            self.answers.remove(&merchant);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        assert!(self.answers.len() <= self.by_age.len() && self.by_age.len() <= self.capacity);
        self.answers.len()
    }
}
