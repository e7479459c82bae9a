//! Sums over fixed segments of event time (lesson 7): what a rule remembers of a card instead of its payments.
//!
//! [`BucketSize`] owns the borders, [`BucketedSum`] the sums. Buckets are aligned to the epoch. A bucket that touches
//! the start of a window counts whole, so a window of `w` ms in effect floats between `w` and `w` + one bucket.
//!
//! All times are milliseconds of event time.

use payguard_model::EventTime;

/// The length of a bucket in milliseconds, greater than 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketSize(i64);

impl BucketSize {
    /// Buckets of `ms` milliseconds.
    ///
    /// # Panics
    ///
    /// When `ms` is not positive; in a constant that is a compile error.
    #[must_use]
    pub const fn from_ms(ms: i64) -> BucketSize {
        assert!(ms > 0, "a bucket has a positive length");
        BucketSize(ms)
    }

    /// Start of the bucket of `t`, inclusive; `t − t mod size`, also before the epoch.
    #[must_use]
    pub fn bucket_start(self, t: EventTime) -> EventTime {
        EventTime(self.index(t).saturating_mul(self.0))
    }

    /// End of the bucket of `t`, exclusive; stops at the end of the scale.
    #[must_use]
    pub fn bucket_end(self, t: EventTime) -> EventTime {
        self.end_of(self.index(t))
    }

    /// The number of the bucket of `t`, counted from the epoch.
    fn index(self, t: EventTime) -> i64 {
        t.0.div_euclid(self.0)
    }

    fn end_of(self, index: i64) -> EventTime {
        EventTime(index.saturating_add(1).saturating_mul(self.0))
    }
}

/// The sums of the buckets of one key that are not empty, ascending by time.
///
/// Few by design (as many as fit into a window, and the ones waiting for the watermark), hence vectors. Stored as the
/// number of the first bucket, the distances of all of them to it and their sums: ten buckets with counts below 128
/// take 29 bytes. All calls for one value use the same [`BucketSize`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BucketedSum {
    /// Number of the first bucket; 0 when there is none.
    #[prost(int64, tag = "1")]
    first: i64,
    /// Distance in buckets from the first one, ascending; the first is 0.
    #[prost(uint64, repeated, tag = "2")]
    distances: Vec<u64>,
    /// The sums, parallel to `distances`.
    #[prost(int64, repeated, tag = "3")]
    sums: Vec<i64>,
}

impl BucketedSum {
    /// Adds `value` to the bucket of `t`; true when that bucket is new. The sum stops at the ends of the scale.
    pub fn add(&mut self, size: BucketSize, t: EventTime, value: i64) -> bool {
        let index = size.index(t);
        if self.is_empty() {
            self.first = index;
        } else if index < self.first {
            let shift = distance_between(self.first, index);
            self.distances.iter_mut().for_each(|distance| *distance += shift);
            self.first = index;
        }
        let distance = distance_between(index, self.first);
        // Nearly always the newest bucket, so look from the end.
        let after = self.distances.iter().rposition(|&other| other <= distance);
        match after {
            Some(at) if self.distances[at] == distance => {
                self.sums[at] = self.sums[at].saturating_add(value);
                false
            }
            _ => {
                let at = after.map_or(0, |before| before + 1);
                self.distances.insert(at, distance);
                self.sums.insert(at, value);
                true
            }
        }
    }

    /// The sum of all buckets that end after `from`; buckets after the newest payment of the window count too.
    #[must_use]
    pub fn sum_since(&self, size: BucketSize, from: EventTime) -> i64 {
        // A bucket ends after `from` exactly when it is the bucket of `from` or a later one.
        self.sums[self.before(size.index(from))..].iter().fold(0, |sum, &value| sum.saturating_add(value))
    }

    /// Removes the buckets that end at or before `from`.
    pub fn evict_before(&mut self, size: BucketSize, from: EventTime) {
        self.remove_first(self.before(size.index(from)));
    }

    /// Removes the buckets for which `is_over(end of the bucket)`; it must hold for a bucket if for a later one.
    pub(crate) fn evict_while(&mut self, size: BucketSize, is_over: impl Fn(EventTime) -> bool) {
        let over = self.distances.partition_point(|&distance| is_over(size.end_of(at_distance(self.first, distance))));
        self.remove_first(over);
    }

    /// The buckets, ascending: start and sum.
    pub fn buckets(&self, size: BucketSize) -> impl Iterator<Item = (EventTime, i64)> {
        let start = move |distance| EventTime(at_distance(self.first, distance).saturating_mul(size.0));
        self.distances.iter().zip(&self.sums).map(move |(&distance, &sum)| (start(distance), sum))
    }

    /// How many buckets are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.distances.len()
    }

    /// Whether no bucket is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.distances.is_empty()
    }

    /// How many buckets come before bucket number `index`.
    fn before(&self, index: i64) -> usize {
        if index <= self.first {
            return 0;
        }
        let from = distance_between(index, self.first);
        self.distances.partition_point(|&distance| distance < from)
    }

    fn remove_first(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        self.sums.drain(..count);
        self.distances.drain(..count);
        let shift = self.distances.first().copied().unwrap_or_default();
        self.distances.iter_mut().for_each(|distance| *distance -= shift);
        self.first = if self.is_empty() { 0 } else { at_distance(self.first, shift) };
    }
}

/// `later − earlier`, exact over the whole scale.
fn distance_between(later: i64, earlier: i64) -> u64 {
    later.abs_diff(earlier)
}

/// The number `distance` buckets after `first`; a distance made by [`distance_between`] stays on the scale.
fn at_distance(first: i64, distance: u64) -> i64 {
    first.saturating_add_unsigned(distance)
}

#[cfg(test)]
mod tests;
