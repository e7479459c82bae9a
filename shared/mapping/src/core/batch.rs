//! Records that are delivered together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use payguard_aws::event::{BatchItemFailure, KafkaEvent, KafkaRecord};

use super::Partition;

/// Records of one or more partitions, in offset order within each.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(super) items: Vec<Item>,
    /// How often it was delivered again.
    pub(super) retries: u32,
    /// It is not delivered before this time.
    pub(super) not_before_ms: i64,
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) partition: Partition,
    /// Which of the times that the partition became ours this is.
    pub(super) generation: u64,
    pub(super) record: Arc<KafkaRecord>,
}

impl Item {
    /// As functions name it.
    pub(super) fn id(&self) -> (String, i64) {
        (self.partition.to_string(), self.record.offset)
    }
}

impl Batch {
    pub(super) fn new(items: Vec<Item>) -> Batch {
        Batch { items, retries: 0, not_before_ms: i64::MIN }
    }

    /// The event that a function is given.
    #[must_use]
    pub fn event(&self, bootstrap: &str) -> KafkaEvent {
        let mut records: BTreeMap<String, Vec<KafkaRecord>> = BTreeMap::new();
        for item in &self.items {
            records.entry(item.partition.to_string()).or_default().push(KafkaRecord::clone(&item.record));
        }
        KafkaEvent {
            event_source: "SelfManagedKafka".to_owned(),
            event_source_arn: None,
            bootstrap_servers: Some(bootstrap.to_owned()),
            records,
        }
    }

    /// How often it was delivered before.
    #[must_use]
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it has no record. No batch that is handed out is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The records that are listed; `None` when one of them is not in this batch.
    pub(super) fn unprocessed(&self, listed: &[BatchItemFailure]) -> Option<BTreeSet<(String, i64)>> {
        let ours: BTreeSet<(String, i64)> = self.items.iter().map(Item::id).collect();
        let listed: BTreeSet<_> = listed.iter().map(|failure| (failure.partition.clone(), failure.offset)).collect();
        listed.is_subset(&ours).then_some(listed)
    }

    pub(super) fn halves(mut self) -> (Batch, Batch) {
        let second = self.items.split_off(self.items.len() / 2);
        (Batch { items: self.items, ..self }, Batch { items: second, ..self })
    }
}
