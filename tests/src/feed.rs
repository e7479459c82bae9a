//! What is delivered to a simulated pipeline: Kafka partitions, and how far they are acknowledged.

use payguard_engine::logic::SourceRecord;
use payguard_model::EventTime;
use payguard_sim::reference::RawRecord;

use crate::data::{Confirmation, Shape};

/// How batches of several partitions follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// One batch of each in turn.
    InTurn,
    /// A whole partition, then the next.
    OneAfterTheOther,
}

/// Kafka partitions and how far their delivery is acknowledged.
#[derive(Clone, Debug)]
pub struct Feed {
    pub(crate) partitions: Vec<Vec<RawRecord>>,
    pub(crate) acknowledged: Vec<usize>,
    pub(crate) confirmations: Vec<Confirmation>,
    pub(crate) confirmed: usize,
    /// Messages of the rules' topic, all decided about before the first payment.
    pub(crate) rules: Vec<RawRecord>,
    pub(crate) batch: usize,
    pub(crate) order: Order,
}

impl Feed {
    /// One partition, delivered in batches of `batch`.
    #[must_use]
    pub fn one(records: &[RawRecord], batch: usize) -> Feed {
        Feed::many(vec![records.to_vec()], batch, Order::InTurn)
    }

    /// Several partitions.
    #[must_use]
    pub fn many(partitions: Vec<Vec<RawRecord>>, batch: usize, order: Order) -> Feed {
        let acknowledged = vec![0; partitions.len()];
        Feed { acknowledged, partitions, confirmations: Vec::new(), confirmed: 0, rules: Vec::new(), batch, order }
    }

    /// The same with confirmations, one partition.
    #[must_use]
    pub fn confirmed(self, confirmations: Vec<Confirmation>) -> Feed {
        Feed { confirmations, ..self }
    }

    /// The same with messages that change the rules before the first payment.
    #[must_use]
    pub fn ruled(self, messages: &[&str]) -> Feed {
        let record = |(offset, text): (i64, &&str)| {
            let value = Some(text.as_bytes().to_vec());
            RawRecord { offset, timestamp: None, value }
        };
        Feed { rules: (0..).zip(messages).map(record).collect(), ..self }
    }

    /// One partition, its confirmations, and messages of which one is refused: every stage has something to do.
    #[must_use]
    pub fn full(seed: u64, records: &[RawRecord], batch: usize) -> Feed {
        let messages =
            [r#"{"velocityMaxPayments":1,"blockedCountries":["XX"]}"#, "[]", r#"{"blockedCountries":["PL"]}"#];
        Feed::one(records, batch).confirmed(crate::data::confirmations(seed, records)).ruled(&messages)
    }

    /// [`Feed::full`] of `count` records drawn from the seed, with everything that raises an alert.
    #[must_use]
    pub fn drawn(seed: u64, count: usize, shape: Shape, batch: usize) -> Feed {
        Feed::full(seed, &crate::data::records(seed, count, shape.attacked()), batch)
    }

    /// The same feed from its beginning in batches of another size.
    #[must_use]
    pub fn in_batches(&self, batch: usize) -> Feed {
        Feed { batch, ..self.clone() }
    }

    /// Partitions of payments.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// The same feed with nothing acknowledged.
    #[must_use]
    pub fn from_the_start(&self) -> Feed {
        Feed { acknowledged: vec![0; self.partitions.len()], confirmed: 0, ..self.clone() }
    }

    /// These records behind those of `earlier`, which has the same partitions.
    #[must_use]
    pub fn after(&self, earlier: &Feed) -> Feed {
        let mut joined = earlier.from_the_start();
        for (partition, more) in joined.partitions.iter_mut().zip(&self.partitions) {
            let next = i64::try_from(partition.len()).unwrap_or(0);
            partition.extend(more.iter().map(|r| RawRecord { offset: next + r.offset, ..r.clone() }));
        }
        joined
    }

    /// Whether a partition has a record that is not acknowledged.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.ready().is_empty() || self.confirmed < self.confirmations.len()
    }

    /// Records that are acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        (self.acknowledged.iter().sum::<usize>() + self.confirmed) as u64
    }

    /// Records in all partitions, those of confirmations included.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.partitions.iter().map(|p| p.len() as u64).sum::<u64>() + self.confirmations.len() as u64
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The partitions that have a batch to deliver now.
    pub(crate) fn ready(&self) -> Vec<usize> {
        let open = (0..self.partitions.len()).filter(|p| self.acknowledged[*p] < self.partitions[*p].len());
        match self.order {
            Order::InTurn => open.collect(),
            Order::OneAfterTheOther => open.take(1).collect(),
        }
    }
}

/// A raw record as the engine takes it.
#[must_use]
pub fn as_source(record: &RawRecord) -> SourceRecord<'_> {
    SourceRecord {
        offset: record.offset,
        timestamp: record.timestamp.map(EventTime),
        value: record.value.as_deref(),
        watermark_bound: None,
        replays: 0,
    }
}
