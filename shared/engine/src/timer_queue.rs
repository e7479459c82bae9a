//! Timers of all keys of one operator, earliest first.
//!
//! Many keys share a time (the end of a bucket or window), so keys are kept by time: setting a timer is one push, and
//! the keys of a time are sorted once, when it fires.

use std::collections::BTreeMap;

use smol_str::SmolStr;

/// Timers by (time, key). May hold timers that were deleted since; it never loses one.
#[derive(Debug, Default)]
pub(crate) struct TimerQueue {
    waiting: BTreeMap<i64, Vec<SmolStr>>,
    /// Keys of `firing_at` that have not fired yet, the next one last.
    firing: Vec<SmolStr>,
    firing_at: i64,
}

impl TimerQueue {
    /// Adds a timer.
    pub(crate) fn push(&mut self, time: i64, key: SmolStr) {
        self.waiting.entry(time).or_default().push(key);
    }

    /// The earliest time there is.
    pub(crate) fn next_time(&self) -> Option<i64> {
        let waiting = self.waiting.first_key_value().map(|(time, _)| *time);
        if self.firing.is_empty() { waiting } else { waiting.into_iter().chain([self.firing_at]).min() }
    }

    /// Takes the earliest timer at or before `due`: by time, then by key, those included that were set meanwhile.
    pub(crate) fn pop_due(&mut self, due: i64) -> Option<(i64, SmolStr)> {
        let waiting = self.waiting.first_key_value().map(|(time, _)| *time).filter(|time| *time <= due);
        match waiting {
            Some(time) if self.firing.is_empty() => self.fire(time),
            Some(time) if time <= self.firing_at => {
                let firing = std::mem::take(&mut self.firing);
                self.waiting.entry(self.firing_at).or_default().extend(firing);
                self.fire(time);
            }
            _ => {}
        }
        let key = (self.firing_at <= due).then(|| self.firing.pop()).flatten()?;
        Some((self.firing_at, key))
    }

    fn fire(&mut self, time: i64) {
        self.firing = self.waiting.remove(&time).unwrap_or_default();
        self.firing.sort_unstable_by(|a, b| b.cmp(a));
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
                queue.push(time, SmolStr::from(key.to_string()));
                model.push((time, key.to_string()));
            }
            model.sort();
            for due in dues {
                prop_assert_eq!(queue.next_time(), model.first().map(|m| m.0));
                let mut fired = Vec::new();
                while let Some((time, key)) = queue.pop_due(due) {
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
        queue.push(5, "b".into());
        queue.push(5, "c".into());
        assert_eq!(queue.pop_due(9), Some((5, "b".into())));
        queue.push(5, "a".into());
        queue.push(3, "z".into());
        queue.push(9, "d".into());
        queue.push(10, "later".into());
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop_due(9)).collect();
        assert_eq!(rest, [(3, "z".into()), (5, "a".into()), (5, "c".into()), (9, "d".into())]);
        assert_eq!(queue.next_time(), Some(10));
    }
}
