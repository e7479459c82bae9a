//! What was consumed: the figures a bill is made of.

use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_dynamodb::types::ConsumedCapacity;

/// Counters of consumption, shared by the adapters of one process.
///
/// DynamoDB's units are those the service reports, which are already rounded as they are billed. A failed condition
/// reports nothing but is billed all the same: it is counted by an estimate of the item's size.
#[derive(Debug, Default)]
pub struct Usage {
    write_half_units: AtomicU64,
    read_half_units: AtomicU64,
    write_requests: AtomicU64,
    read_requests: AtomicU64,
    s3_puts: AtomicU64,
    s3_gets: AtomicU64,
    s3_lists: AtomicU64,
    s3_put_bytes: AtomicU64,
    s3_get_bytes: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct UsageSnapshot {
    /// DynamoDB write units.
    pub write_units: f64,
    /// DynamoDB read units.
    pub read_units: f64,
    /// Requests that write to DynamoDB; SDK retries are not counted.
    pub write_requests: u64,
    /// Requests that read from DynamoDB.
    pub read_requests: u64,
    /// Objects stored.
    pub s3_puts: u64,
    /// Objects or ranges read.
    pub s3_gets: u64,
    /// Listings; S3 bills them as objects that are stored, and removals not at all.
    pub s3_lists: u64,
    /// Bytes stored.
    pub s3_put_bytes: u64,
    /// Bytes read.
    pub s3_get_bytes: u64,
}

impl UsageSnapshot {
    /// What was consumed since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &UsageSnapshot) -> UsageSnapshot {
        UsageSnapshot {
            write_units: self.write_units - earlier.write_units,
            read_units: self.read_units - earlier.read_units,
            write_requests: self.write_requests.saturating_sub(earlier.write_requests),
            read_requests: self.read_requests.saturating_sub(earlier.read_requests),
            s3_puts: self.s3_puts.saturating_sub(earlier.s3_puts),
            s3_gets: self.s3_gets.saturating_sub(earlier.s3_gets),
            s3_lists: self.s3_lists.saturating_sub(earlier.s3_lists),
            s3_put_bytes: self.s3_put_bytes.saturating_sub(earlier.s3_put_bytes),
            s3_get_bytes: self.s3_get_bytes.saturating_sub(earlier.s3_get_bytes),
        }
    }
}

impl Usage {
    /// The counters now. Counters that change meanwhile may be of slightly different moments.
    #[must_use]
    pub fn snapshot(&self) -> UsageSnapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        UsageSnapshot {
            write_units: get(&self.write_half_units) as f64 / 2.0,
            read_units: get(&self.read_half_units) as f64 / 2.0,
            write_requests: get(&self.write_requests),
            read_requests: get(&self.read_requests),
            s3_puts: get(&self.s3_puts),
            s3_gets: get(&self.s3_gets),
            s3_lists: get(&self.s3_lists),
            s3_put_bytes: get(&self.s3_put_bytes),
            s3_get_bytes: get(&self.s3_get_bytes),
        }
    }

    /// A write request was sent.
    pub(crate) fn write_request(&self) {
        self.write_requests.fetch_add(1, Ordering::Relaxed);
    }

    /// A read request was sent.
    pub(crate) fn read_request(&self) {
        self.read_requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Keys were listed.
    pub(crate) fn list_request(&self) {
        self.s3_lists.fetch_add(1, Ordering::Relaxed);
    }

    /// The service reported what a write consumed.
    pub(crate) fn wrote(&self, capacity: Option<&ConsumedCapacity>) {
        // A repeated transaction is answered from memory and billed as a read: the report tells which it was.
        let Some(capacity) = capacity else { return };
        match (capacity.read_capacity_units(), capacity.write_capacity_units()) {
            (None, None) => add(&self.write_half_units, capacity.capacity_units().unwrap_or(0.0)),
            (reads, writes) => {
                add(&self.read_half_units, reads.unwrap_or(0.0));
                add(&self.write_half_units, writes.unwrap_or(0.0));
            }
        }
    }

    /// The service reported what a read consumed.
    pub(crate) fn read(&self, capacity: Option<&ConsumedCapacity>) {
        add(&self.read_half_units, capacity.and_then(ConsumedCapacity::capacity_units).unwrap_or(0.0));
    }

    /// A write was refused by its condition; it is billed by the size of the item it met, at least one unit.
    pub(crate) fn refused_write(&self, units: u64) {
        self.write_half_units.fetch_add(units.max(1) * 2, Ordering::Relaxed);
    }

    /// An object was stored.
    pub(crate) fn put_object(&self, bytes: usize) {
        self.s3_puts.fetch_add(1, Ordering::Relaxed);
        self.s3_put_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// An object or a range of it was read.
    pub(crate) fn got_object(&self, bytes: usize) {
        self.s3_gets.fetch_add(1, Ordering::Relaxed);
        self.s3_get_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Adds units; DynamoDB reports multiples of a half.
fn add(counter: &AtomicU64, units: f64) {
    counter.fetch_add((units * 2.0).round().max(0.0) as u64, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity() -> aws_sdk_dynamodb::types::builders::ConsumedCapacityBuilder {
        ConsumedCapacity::builder()
    }

    #[test]
    fn halves_are_counted_exactly() {
        let usage = Usage::default();
        usage.read(Some(&capacity().capacity_units(0.5).build()));
        usage.read(Some(&capacity().capacity_units(1.0).build()));
        assert_eq!(usage.snapshot().read_units, 1.5);
    }

    #[test]
    fn a_repeated_transaction_counts_as_a_read() {
        let usage = Usage::default();
        usage.wrote(Some(&capacity().capacity_units(4.0).read_capacity_units(4.0).build()));
        usage.wrote(Some(&capacity().capacity_units(6.0).write_capacity_units(6.0).build()));
        usage.wrote(Some(&capacity().capacity_units(2.0).build()));
        let snapshot = usage.snapshot();
        assert_eq!((snapshot.read_units, snapshot.write_units), (4.0, 8.0));
    }

    #[test]
    fn a_refused_write_costs_at_least_one_unit() {
        let usage = Usage::default();
        usage.refused_write(0);
        usage.refused_write(3);
        assert_eq!(usage.snapshot().write_units, 4.0);
    }
}
