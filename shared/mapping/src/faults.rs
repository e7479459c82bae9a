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
            let longest = usize::try_from(self.faults.longest_pause.as_millis()).unwrap_or(usize::MAX - 1);
            let pause = u64::try_from(self.dice.below(longest + 1)).unwrap_or(0);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        if self.dice.happens(self.faults.timeout) {
            let invoker = self.invoker.clone();
            tokio::spawn(async move { invoker.invoke(event).await });
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
