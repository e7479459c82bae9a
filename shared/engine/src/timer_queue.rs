//! Timers of all keys of one operator, earliest first.
//!
//! Most timers lie ahead: a timer waits unsorted in the span of its time, and a span is sorted once, when its first timer
//! is due. So setting a timer is one push into one of a few spans, however many timers there are. A timer that is set
//! within a span that is sorted already goes to a heap.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};

/// Length of a span, as a power of two: 1,024 ms.
const SPAN_BITS: u32 = 10;

/// Timers that are not looked at yet.
#[derive(Debug)]
struct Span<K> {
    earliest: i64,
    timers: Vec<(i64, K)>,
}

/// A timer, the earliest being the greatest.
#[derive(Debug)]
struct Meanwhile<K> {
    time: i64,
    key: K,
}

impl<K> PartialEq for Meanwhile<K> {
    fn eq(&self, other: &Meanwhile<K>) -> bool {
        self.time == other.time
    }
}

impl<K> Eq for Meanwhile<K> {}

impl<K> PartialOrd for Meanwhile<K> {
    fn partial_cmp(&self, other: &Meanwhile<K>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Meanwhile<K> {
    fn cmp(&self, other: &Meanwhile<K>) -> Ordering {
        other.time.cmp(&self.time)
    }
}

/// Timers by (time, key). May hold timers that were deleted since; it never loses one.
#[derive(Debug)]
pub(crate) struct TimerQueue<K> {
    /// By time divided by the length of a span.
    waiting: BTreeMap<i64, Span<K>>,
    /// The timers up to the end of span `opened` that do not fire yet, by time, the next one last.
    sorted: Vec<(i64, K)>,
    /// Such that were set since that span was opened.
    meanwhile: BinaryHeap<Meanwhile<K>>,
    opened: i64,
    /// Keys of `firing_at` that have not fired yet, the next one last.
    firing: Vec<K>,
    firing_at: i64,
}

impl<K> Default for TimerQueue<K> {
    fn default() -> TimerQueue<K> {
        let none = i64::MIN;
        TimerQueue {
            waiting: BTreeMap::new(),
            sorted: Vec::new(),
            meanwhile: BinaryHeap::new(),
            opened: none,
            firing: Vec::new(),
            firing_at: none,
        }
    }
}

impl<K> TimerQueue<K> {
    /// Adds a timer.
    pub(crate) fn push(&mut self, time: i64, key: K) {
        let number = time >> SPAN_BITS;
        if number <= self.opened {
            self.meanwhile.push(Meanwhile { time, key });
            return;
        }
        let span = self.waiting.entry(number).or_insert(Span { earliest: time, timers: Vec::new() });
        span.earliest = span.earliest.min(time);
        span.timers.push((time, key));
    }

    /// The earliest time there is.
    pub(crate) fn next_time(&self) -> Option<i64> {
        let firing = (!self.firing.is_empty()).then_some(self.firing_at);
        let waiting = || self.waiting.first_key_value().map(|(_, span)| span.earliest);
        firing.into_iter().chain(self.next_opened()).min().or_else(waiting)
    }

    /// The earliest time up to the end of span `opened`, those that fire left out.
    fn next_opened(&self) -> Option<i64> {
        let sorted = self.sorted.last().map(|(time, _)| *time);
        sorted.into_iter().chain(self.meanwhile.peek().map(|timer| timer.time)).min()
    }

    /// Takes the earliest timer at or before `due`: by time, then by key in the order `by_key`, those included that were
    /// set meanwhile.
    pub(crate) fn pop_due(&mut self, due: i64, by_key: impl Fn(&K, &K) -> Ordering) -> Option<(i64, K)> {
        let set_meanwhile = self.next_opened().is_some_and(|time| time <= self.firing_at);
        if self.firing.is_empty() || set_meanwhile {
            self.next_group(due, by_key);
        }
        let key = (self.firing_at <= due).then(|| self.firing.pop()).flatten()?;
        Some((self.firing_at, key))
    }

    /// Makes the keys of the earliest time those that fire, if it is due.
    fn next_group(&mut self, due: i64, by_key: impl Fn(&K, &K) -> Ordering) {
        let firing_at = self.firing_at;
        while let Some(key) = self.firing.pop() {
            self.push(firing_at, key);
        }
        if self.sorted.is_empty()
            && self.meanwhile.is_empty()
            && let Some(first) = self.waiting.first_entry().filter(|first| first.get().earliest <= due)
        {
            self.opened = *first.key();
            self.sorted = first.remove().timers;
            self.sorted.sort_unstable_by_key(|(time, _)| Reverse(*time));
        }
        let Some(time) = self.next_opened().filter(|time| *time <= due) else { return };
        let from = self.sorted.iter().rposition(|(other, _)| *other > time).map_or(0, |at| at + 1);
        self.firing.extend(self.sorted.drain(from..).map(|(_, key)| key));
        while self.meanwhile.peek().is_some_and(|timer| timer.time == time) {
            self.firing.extend(self.meanwhile.pop().map(|timer| timer.key));
        }
        self.firing.sort_unstable_by(|a, b| by_key(b, a));
        self.firing_at = time;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time() -> impl Strategy<Value = i64> {
        prop_oneof![8 => 0i64..20, 4 => 0i64..10_000, 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => Just(-1)]
    }

    proptest! {
        #[test]
        fn timers_come_by_time_and_key_and_none_is_lost(
            rounds in prop::collection::vec((prop::collection::vec((time(), 0u8..5), 0..40), time(), 0usize..50), 1..8),
        ) {
            let mut queue = TimerQueue::default();
            let mut model = Vec::new();
            for (pushes, due, most) in rounds {
                for (time, key) in pushes {
                    queue.push(time, key);
                    model.push((time, key));
                }
                model.sort_unstable();
                prop_assert_eq!(queue.next_time(), model.first().map(|m| m.0));
                let fired: Vec<_> = std::iter::from_fn(|| queue.pop_due(due, Ord::cmp)).take(most).collect();
                let due_now = model.iter().filter(|m| m.0 <= due).count();
                prop_assert_eq!(fired, model.drain(..due_now.min(most)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_timer_set_while_others_fire_fires_too() {
        let mut queue = TimerQueue::default();
        queue.push(5, "b");
        queue.push(5, "c");
        assert_eq!(queue.pop_due(9, Ord::cmp), Some((5, "b")));
        for (time, key) in [(5, "a"), (3, "z"), (9, "d"), (10, "later"), (5_000, "much later")] {
            queue.push(time, key);
        }
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop_due(9, Ord::cmp)).collect();
        assert_eq!(rest, [(3, "z"), (5, "a"), (5, "c"), (9, "d")]);
        assert_eq!(queue.next_time(), Some(10));
    }
}
