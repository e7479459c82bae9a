//! Timers of all keys of one operator, earliest first.
//!
//! Many keys share a time (the end of a bucket or window) and others have one of their own, so keys are kept by time:
//! setting a timer is one push, and the keys of a time are sorted once, when it fires.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use smallvec::SmallVec;

/// Keys of one time.
type Keys<K> = SmallVec<[K; 2]>;

/// Timers by (time, key). May hold timers that were deleted since; it never loses one.
#[derive(Debug)]
pub(crate) struct TimerQueue<K> {
    waiting: BTreeMap<i64, Keys<K>>,
    /// Keys of `firing_at` that have not fired yet, the next one last.
    firing: Keys<K>,
    firing_at: i64,
}

impl<K> Default for TimerQueue<K> {
    fn default() -> TimerQueue<K> {
        TimerQueue { waiting: BTreeMap::new(), firing: Keys::new(), firing_at: i64::MIN }
    }
}

impl<K> TimerQueue<K> {
    /// Adds a timer.
    pub(crate) fn push(&mut self, time: i64, key: K) {
        self.waiting.entry(time).or_default().push(key);
    }

    /// The earliest time there is.
    pub(crate) fn next_time(&self) -> Option<i64> {
        let waiting = self.waiting.first_key_value().map(|(time, _)| *time);
        if self.firing.is_empty() { waiting } else { waiting.into_iter().chain([self.firing_at]).min() }
    }

    /// Takes the earliest timer at or before `due`: by time, then by key in the order `by_key`, those included that were
    /// set meanwhile.
    pub(crate) fn pop_due(&mut self, due: i64, by_key: impl Fn(&K, &K) -> Ordering) -> Option<(i64, K)> {
        let waiting = self.waiting.first_key_value().map(|(time, _)| *time).filter(|time| *time <= due);
        match waiting {
            Some(time) if self.firing.is_empty() => self.fire(time, by_key),
            Some(time) if time <= self.firing_at => {
                let firing = std::mem::take(&mut self.firing);
                self.waiting.entry(self.firing_at).or_default().extend(firing);
                self.fire(time, by_key);
            }
            _ => {}
        }
        let key = (self.firing_at <= due).then(|| self.firing.pop()).flatten()?;
        Some((self.firing_at, key))
    }

    fn fire(&mut self, time: i64, by_key: impl Fn(&K, &K) -> Ordering) {
        self.firing = self.waiting.remove(&time).unwrap_or_default();
        self.firing.sort_unstable_by(|a, b| by_key(b, a));
        self.firing_at = time;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn timers_come_by_time_and_key_and_none_is_lost(
            pushes in prop::collection::vec((0i64..20, 0u8..5), 0..60),
            dues in prop::collection::vec(0i64..25, 1..6),
        ) {
            let mut queue = TimerQueue::default();
            let mut model = Vec::new();
            for (time, key) in pushes {
                queue.push(time, key.to_string());
                model.push((time, key.to_string()));
            }
            model.sort();
            for due in dues {
                prop_assert_eq!(queue.next_time(), model.first().map(|m| m.0));
                let mut fired = Vec::new();
                while let Some((time, key)) = queue.pop_due(due, Ord::cmp) {
                    fired.push((time, key.to_string()));
                }
                let expected: Vec<_> = model.iter().filter(|m| m.0 <= due).cloned().collect();
                prop_assert_eq!(fired, expected);
                model.retain(|m| m.0 > due);
            }
        }
    }

    #[test]
    fn a_timer_set_while_others_fire_fires_too() {
        let mut queue = TimerQueue::default();
        queue.push(5, "b");
        queue.push(5, "c");
        assert_eq!(queue.pop_due(9, Ord::cmp), Some((5, "b")));
        queue.push(5, "a");
        queue.push(3, "z");
        queue.push(9, "d");
        queue.push(10, "later");
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop_due(9, Ord::cmp)).collect();
        assert_eq!(rest, [(3, "z"), (5, "a"), (5, "c"), (9, "d")]);
        assert_eq!(queue.next_time(), Some(10));
    }
}
