//! What Lambda does to functions now and then, on purpose.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use payguard_aws::event::KafkaEvent;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::core::Outcome;
use crate::invoker::Invoker;

/// How often things go wrong: each a probability per invocation. The order of faults follows from the seed; which records
/// they meet depends on timing.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Of the random choices.
    pub seed: u64,
    /// A part of a batch that was answered is delivered again, with other borders.
    pub duplicate: f64,
    /// The mapping gives an invocation up and delivers the batch again while the function still works on it.
    pub timeout: f64,
    /// Before an invocation the mapping does nothing for a while.
    pub pause: f64,
    /// The longest such pause.
    pub longest_pause: Duration,
    /// The consumer group is rebalanced: partitions are read again from the last commit.
    pub rebalance: f64,
}

/// The random choices of a mapping.
pub(crate) struct Dice(Mutex<ChaCha8Rng>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(Mutex::new(ChaCha8Rng::seed_from_u64(seed)))
    }

    fn next(&self) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next_u32()
    }

    pub(crate) fn happens(&self, probability: f64) -> bool {
        f64::from(self.next()) < probability * (f64::from(u32::MAX) + 1.0)
    }

    /// A number below `end`, which is at least 1.
    fn below(&self, end: usize) -> usize {
        usize::try_from(self.next()).unwrap_or(0) % end.max(1)
    }
}

/// An invoker with faults.
pub(crate) struct Faulty {
    pub(crate) faults: Faults,
    pub(crate) dice: Arc<Dice>,
    pub(crate) invoker: Arc<dyn Invoker>,
}

#[async_trait]
impl Invoker for Faulty {
    async fn invoke(&self, event: KafkaEvent) -> Outcome {
        if self.dice.happens(self.faults.pause) {
            tokio::time::sleep(self.any_pause()).await;
        }
        if self.dice.happens(self.faults.timeout) {
            let (invoker, late) = (self.invoker.clone(), self.any_pause());
            tokio::spawn(async move {
                // Its records may come after those of the repetition, and at the same time.
                tokio::time::sleep(late).await;
                invoker.invoke(event).await
            });
            tracing::info!("fault: an invocation is given up while it works");
            return Outcome::Failed;
        }
        let again = self.dice.happens(self.faults.duplicate).then(|| self.part(&event));
        let outcome = self.invoker.invoke(event).await;
        if let Some(again) = again {
            tracing::info!(records = again.record_count(), "fault: records are delivered again");
            self.invoker.invoke(again).await;
        }
        outcome
    }
}

impl Faulty {
    fn any_pause(&self) -> Duration {
        let longest = usize::try_from(self.faults.longest_pause.as_millis()).unwrap_or(usize::MAX - 1);
        Duration::from_millis(u64::try_from(self.dice.below(longest + 1)).unwrap_or(0))
    }

    /// Some records in a row of each partition.
    fn part(&self, event: &KafkaEvent) -> KafkaEvent {
        let mut part = event.clone();
        for records in part.records.values_mut() {
            let from = self.dice.below(records.len());
            let to = from + 1 + self.dice.below(records.len() - from);
            *records = records[from..to].to_vec();
        }
        part
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use payguard_aws::event::{BatchResponse, KafkaRecord};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::invoker::FnInvoker;

    const NONE: Faults =
        Faults { seed: 7, duplicate: 0.0, timeout: 0.0, pause: 0.0, longest_pause: Duration::ZERO, rebalance: 0.0 };

    /// A function that works when it is let, and the offsets of each of its events.
    struct Slow {
        faulty: Faulty,
        gate: Arc<Semaphore>,
        events: Arc<Mutex<Vec<Vec<i64>>>>,
    }

    fn slow(faults: Faults) -> Slow {
        let (gate, events) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (at_gate, seen) = (gate.clone(), events.clone());
        let invoker = FnInvoker::new(move |event: KafkaEvent| {
            let (gate, seen) = (at_gate.clone(), seen.clone());
            async move {
                gate.acquire().await.unwrap().forget();
                seen.lock().unwrap().push(event.records["t-0"].iter().map(|record| record.offset).collect());
                Ok(BatchResponse::default())
            }
        });
        let dice = Arc::new(Dice::new(faults.seed));
        Slow { faulty: Faulty { faults, dice, invoker: Arc::new(invoker) }, gate, events }
    }

    fn event() -> KafkaEvent {
        let record = |offset| KafkaRecord {
            topic: "t".to_owned(),
            partition: 0,
            offset,
            timestamp: 0,
            timestamp_type: None,
            key: None,
            value: None,
            headers: Vec::new(),
        };
        KafkaEvent {
            event_source: "SelfManagedKafka".to_owned(),
            event_source_arn: None,
            bootstrap_servers: None,
            records: [("t-0".to_owned(), (0..10).map(record).collect())].into(),
        }
    }

    #[tokio::test]
    async fn a_function_still_works_on_what_was_given_up() {
        let slow = slow(Faults { timeout: 1.0, ..NONE });
        assert_eq!(slow.faulty.invoke(event()).await, Outcome::Failed);
        assert!(slow.events.lock().unwrap().is_empty());
        slow.gate.add_permits(1);
        while slow.events.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(*slow.events.lock().unwrap(), [(0..10).collect::<Vec<_>>()]);
    }

    #[tokio::test]
    async fn a_part_of_what_was_answered_comes_again_the_same_one_for_the_same_seed() {
        let mut parts = Vec::new();
        for seed in [7, 7, 8] {
            let slow = slow(Faults { seed, duplicate: 1.0, ..NONE });
            slow.gate.add_permits(40);
            for _ in 0..20 {
                assert_eq!(slow.faulty.invoke(event()).await, Outcome::Unprocessed(vec![]));
            }
            let events = slow.events.lock().unwrap().clone();
            for part in events.iter().skip(1).step_by(2) {
                assert!(!part.is_empty() && part.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{part:?}");
            }
            parts.push(events);
        }
        assert_eq!(parts[0], parts[1]);
        assert_ne!(parts[0], parts[2]);
    }

    #[tokio::test]
    async fn without_faults_nothing_changes() {
        let slow = slow(NONE);
        slow.gate.add_permits(1);
        assert_eq!(slow.faulty.invoke(event()).await, Outcome::Unprocessed(vec![]));
        assert_eq!(slow.events.lock().unwrap().len(), 1);
    }
}
