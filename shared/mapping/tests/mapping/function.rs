//! A function that remembers what it was given.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use payguard_aws::event::{BatchItemFailure, BatchResponse, KafkaEvent, KafkaRecord};
use payguard_mapping::{FnInvoker, Invoker};
use tokio::sync::Notify;

/// Answers what it is told to, and remembers.
pub(crate) struct Function {
    seen: Mutex<Seen>,
    changed: Notify,
    /// Which records it does not process.
    refuses: Box<Refuses>,
}

/// By record and how often it was delivered.
type Refuses = dyn Fn(&KafkaRecord, u32) -> Refusal + Send + Sync;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    No,
    /// It lists the record.
    Listed,
    /// It fails as a whole.
    Fails,
}

#[derive(Default)]
pub(crate) struct Seen {
    /// How often each offset was delivered, by partition.
    pub(crate) deliveries: BTreeMap<i32, BTreeMap<i64, u32>>,
    /// Records that were processed, by partition, each once.
    pub(crate) processed: BTreeMap<i32, BTreeSet<i64>>,
    /// One of each that was seen.
    pub(crate) records: BTreeMap<(i32, i64), KafkaRecord>,
    pub(crate) most_partitions: usize,
    working: BTreeSet<i32>,
    /// Invocations that met another one at work on a partition.
    pub(crate) overlaps: u32,
}

impl Function {
    pub(crate) fn new(refuses: impl Fn(&KafkaRecord, u32) -> Refusal + Send + Sync + 'static) -> Arc<Function> {
        Arc::new(Function { seen: Mutex::default(), changed: Notify::new(), refuses: Box::new(refuses) })
    }

    pub(crate) fn invoker(self: &Arc<Function>) -> Arc<dyn Invoker> {
        let function = self.clone();
        Arc::new(FnInvoker::new(move |event| {
            let function = function.clone();
            async move { function.work(event).await }
        }))
    }

    async fn work(&self, event: KafkaEvent) -> Result<BatchResponse, String> {
        let partitions: BTreeSet<i32> = event.records.values().flatten().map(|record| record.partition).collect();
        self.look(|seen| {
            seen.overlaps += u32::from(!seen.working.is_disjoint(&partitions));
            seen.working.extend(&partitions);
            seen.most_partitions = seen.most_partitions.max(partitions.len());
        });
        // Others get their turn while this one works.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let answer = self.look(|seen| {
            seen.working.retain(|partition| !partitions.contains(partition));
            self.answer(seen, &event)
        });
        self.changed.notify_waiters();
        answer
    }

    fn answer(&self, seen: &mut Seen, event: &KafkaEvent) -> Result<BatchResponse, String> {
        let mut answer = BatchResponse::default();
        let mut fails = false;
        let mut done = Vec::new();
        for (partition, records) in &event.records {
            assert!(records.is_sorted_by(|a, b| a.offset < b.offset), "{partition}: in order");
            for record in records {
                assert_eq!(*partition, format!("{}-{}", record.topic, record.partition));
                let count = seen.deliveries.entry(record.partition).or_default().entry(record.offset).or_default();
                *count += 1;
                seen.records.insert((record.partition, record.offset), record.clone());
                match (self.refuses)(record, *count) {
                    Refusal::No => done.push(record),
                    Refusal::Fails => fails = true,
                    Refusal::Listed => {
                        let (partition, offset) = (partition.clone(), record.offset);
                        answer.batch_item_failures.push(BatchItemFailure { partition, offset });
                    }
                }
            }
        }
        if fails {
            return Err("it was told to fail".to_owned());
        }
        for record in done {
            seen.processed.entry(record.partition).or_default().insert(record.offset);
        }
        Ok(answer)
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.seen.lock().unwrap())
    }

    /// Waits until so many records are processed.
    pub(crate) async fn processed(&self, count: usize) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if self.look(|seen| seen.processed.values().map(BTreeSet::len).sum::<usize>()) >= count {
                return;
            }
            changed.await;
        }
    }
}
