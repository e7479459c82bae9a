//! What AWS's event source mapping decides: which records make a batch, what becomes of a batch that failed, and how far
//! a partition is done. Pure: it is told what happened and when, and says what to do.

mod batch;
mod size;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use payguard_aws::event::{BatchItemFailure, KafkaRecord, NO_TIMESTAMP};

pub use batch::Batch;
use batch::Item;
pub use size::{ENVELOPE_BYTES, record_bytes};

/// The largest event of a synchronous invocation, in bytes.
pub const PAYLOAD_BYTES: usize = 6 * 1024 * 1024;

/// The settings of a mapping that decide about batches. Times are in milliseconds.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most records of a batch; at least 1.
    pub batch_size: usize,
    /// How long the first record of a batch waits for more.
    pub window_ms: i64,
    /// The largest event, in bytes of its JSON.
    pub payload_bytes: usize,
    /// Most invocations at a time; at least 1. A partition belongs to one of them: its number modulo this.
    pub pollers: usize,
    /// How often a batch is delivered again before it is given up; `None`: for ever.
    pub maximum_retries: Option<u32>,
    /// A record older than this, by its timestamp, is given up when its batch fails; `None`: never.
    pub maximum_age_ms: Option<i64>,
    /// Whether a batch that failed is cut in two. The cut does not count as a retry.
    pub bisect: bool,
    /// The pause before the first retry; it doubles with each, up to 64 times this.
    pub backoff_ms: i64,
}

/// A partition of a topic.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Partition {
    /// The topic.
    pub topic: String,
    /// The number.
    pub number: i32,
}

impl fmt::Display for Partition {
    /// As events name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.number)
    }
}

/// Names an invocation, or records on their way to the failure destination.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

/// What a function answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Every record is processed.
    Done,
    /// These are not. A record that the batch does not have makes the whole batch fail, an empty list none.
    Unprocessed(Vec<BatchItemFailure>),
    /// The function failed, or did not answer in time.
    Failed,
}

/// Why records are given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// They were delivered as often as the mapping allows.
    RetriesExhausted,
    /// They are older than the mapping allows.
    Expired,
    /// One record is larger than an event may be.
    TooLarge,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Action {
    /// Invoke the function, then call [`Core::answered`].
    Invoke(Ticket, Batch),
    /// Write the records to the failure destination, then call [`Core::discarded`].
    Discard(Ticket, Batch, Reason),
    /// Every record below this offset is processed or discarded.
    Commit(Partition, i64),
}

/// The mapping's memory.
pub struct Core {
    limits: Limits,
    lanes: BTreeMap<Partition, Lane>,
    /// Batches to deliver again. Those that share a partition are in its order.
    retries: VecDeque<Batch>,
    running: BTreeMap<Ticket, Batch>,
    discarding: BTreeMap<Ticket, Batch>,
    given_up: Vec<(Batch, Reason)>,
    tickets: u64,
    generations: u64,
    draining: bool,
}

/// One partition that is ours.
struct Lane {
    /// Which of the times that it became ours this is. What was begun before counts no more.
    generation: u64,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Offsets that have left `waiting` and are neither processed nor discarded.
    unresolved: BTreeSet<i64>,
    /// The offset after the last record that arrived.
    next: Option<i64>,
    committed: Option<i64>,
}

struct Waiting {
    record: Arc<KafkaRecord>,
    bytes: usize,
    arrived_ms: i64,
}

impl Core {
    /// A mapping without partitions.
    #[must_use]
    pub fn new(limits: Limits) -> Core {
        let limits = Limits { batch_size: limits.batch_size.max(1), pollers: limits.pollers.max(1), ..limits };
        Core {
            limits,
            lanes: BTreeMap::new(),
            retries: VecDeque::new(),
            running: BTreeMap::new(),
            discarding: BTreeMap::new(),
            given_up: Vec::new(),
            tickets: 0,
            generations: 0,
            draining: false,
        }
    }

    /// A partition is ours from now on.
    pub fn assign(&mut self, partition: Partition) {
        self.generations += 1;
        let (waiting, waiting_bytes, unresolved) = (VecDeque::new(), 0, BTreeSet::new());
        let lane =
            Lane { generation: self.generations, waiting, waiting_bytes, unresolved, next: None, committed: None };
        self.lanes.insert(partition, lane);
    }

    /// A partition is not ours any more: what waits is forgotten, and the answers of invocations that go on decide nothing
    /// about it. Whoever has it now begins at the last commit.
    pub fn revoke(&mut self, partition: &Partition) {
        self.lanes.remove(partition);
        for batch in &mut self.retries {
            batch.items.retain(|item| item.partition != *partition);
        }
        self.retries.retain(|batch| !batch.items.is_empty());
        for (batch, _) in &mut self.given_up {
            batch.items.retain(|item| item.partition != *partition);
        }
        self.given_up.retain(|(batch, _)| !batch.items.is_empty());
    }

    /// No more invocations: those that go on are waited for.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// A record was read. Records of a partition arrive in offset order; those of a partition that is not ours, or that
    /// were read before, are left out.
    pub fn arrive(&mut self, record: KafkaRecord, now_ms: i64) {
        let partition = Partition { topic: record.topic.clone(), number: record.partition };
        let Some(lane) = self.lanes.get_mut(&partition) else { return };
        if lane.next.is_some_and(|next| record.offset < next) {
            return;
        }
        lane.next = Some(record.offset + 1);
        lane.committed.get_or_insert(record.offset);
        let bytes = record_bytes(&record);
        if ENVELOPE_BYTES + bytes > self.limits.payload_bytes {
            lane.unresolved.insert(record.offset);
            let item = Item { partition, generation: lane.generation, record: Arc::new(record) };
            self.given_up.push((Batch::new(vec![item]), Reason::TooLarge));
            return;
        }
        lane.waiting_bytes += bytes;
        lane.waiting.push_back(Waiting { record: Arc::new(record), bytes, arrived_ms: now_ms });
    }

    /// An invocation ended.
    pub fn answered(&mut self, ticket: Ticket, outcome: &Outcome, now_ms: i64) {
        let Some(mut batch) = self.running.remove(&ticket) else { return };
        let unprocessed = match outcome {
            Outcome::Done => Some(BTreeSet::new()),
            Outcome::Unprocessed(items) => batch.unprocessed(items),
            Outcome::Failed => None,
        };
        batch.items.retain(|item| self.lanes.get(&item.partition).is_some_and(|l| l.generation == item.generation));
        match unprocessed {
            None => self.failed(batch, self.limits.bisect, now_ms),
            Some(unprocessed) => {
                let (again, done): (Vec<_>, Vec<_>) =
                    batch.items.into_iter().partition(|item| unprocessed.contains(&item.id()));
                self.resolve(&done);
                self.failed(Batch { items: again, ..batch }, false, now_ms);
            }
        }
    }

    /// Records are in the failure destination.
    pub fn discarded(&mut self, ticket: Ticket) {
        if let Some(batch) = self.discarding.remove(&ticket) {
            self.resolve(&batch.items);
        }
    }

    /// What is to be done now. Until something happens or [`Core::wake_at`] is reached there is nothing more to do.
    pub fn next(&mut self, now_ms: i64) -> Vec<Action> {
        let mut actions = Vec::new();
        for (batch, reason) in std::mem::take(&mut self.given_up) {
            let ticket = self.ticket();
            actions.push(Action::Discard(ticket, batch.clone(), reason));
            self.discarding.insert(ticket, batch);
        }
        for poller in 0..self.limits.pollers {
            if let Some(batch) = self.due(poller, now_ms) {
                let ticket = self.ticket();
                actions.push(Action::Invoke(ticket, batch.clone()));
                self.running.insert(ticket, batch);
            }
        }
        for (partition, lane) in &mut self.lanes {
            let position = lane.position();
            if position > lane.committed {
                lane.committed = position;
                actions.extend(position.map(|position| Action::Commit(partition.clone(), position)));
            }
        }
        actions
    }

    /// When [`Core::next`] will have something to do although nothing happens before. Not earlier than `now_ms` unless it
    /// has something to do now.
    #[must_use]
    pub fn wake_at(&self) -> Option<i64> {
        let idle = (0..self.limits.pollers).filter(|poller| !self.draining && !self.is_busy(*poller));
        let times = idle.flat_map(|poller| {
            let retry = self.ready(poller).map(|(_, batch)| batch.not_before_ms).min();
            let fresh =
                self.fresh(poller).filter_map(|(_, lane)| lane.waiting.front()).map(|first| first.arrived_ms).min();
            [retry, fresh.map(|arrived| arrived.saturating_add(self.limits.window_ms))]
        });
        times.flatten().min()
    }

    /// Records that wait in a partition, and their bytes: for whoever must stop reading when there are too many.
    #[must_use]
    pub fn waiting(&self, partition: &Partition) -> (usize, usize) {
        let lane = self.lanes.get(partition);
        lane.map_or((0, 0), |lane| (lane.waiting.len(), lane.waiting_bytes))
    }

    /// What was committed last, or should have been, of the partitions that are ours.
    #[must_use]
    pub fn positions(&self) -> Vec<(Partition, i64)> {
        let lanes = self.lanes.iter();
        lanes.filter_map(|(partition, lane)| Some((partition.clone(), lane.committed?))).collect()
    }

    /// The partitions that are ours.
    pub fn partitions(&self) -> impl Iterator<Item = &Partition> {
        self.lanes.keys()
    }

    /// Whether invocations or writes to the failure destination go on.
    #[must_use]
    pub fn is_working(&self) -> bool {
        !self.running.is_empty() || !self.discarding.is_empty()
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn resolve(&mut self, items: &[Item]) {
        for item in items {
            if let Some(lane) = self.lanes.get_mut(&item.partition).filter(|lane| lane.generation == item.generation) {
                lane.unresolved.remove(&item.record.offset);
            }
        }
    }

    /// Queues a batch that failed to be delivered again, before those that come after it, or gives it up.
    fn failed(&mut self, batch: Batch, bisect: bool, now_ms: i64) {
        let expired = |item: &Item| {
            let timestamp = item.record.timestamp;
            let age = self.limits.maximum_age_ms.filter(|_| timestamp != NO_TIMESTAMP);
            age.is_some_and(|age| now_ms.saturating_sub(timestamp) > age)
        };
        let (old, items): (Vec<_>, Vec<_>) = batch.items.into_iter().partition(expired);
        let batch = Batch { items, ..batch };
        self.given_up.extend((!old.is_empty()).then(|| (Batch::new(old), Reason::Expired)));
        if batch.items.is_empty() {
            return;
        }
        let backoff = |retries: u32| self.limits.backoff_ms.saturating_mul(1 << retries.min(6));
        let cut = bisect && batch.items.len() > 1;
        if !cut && self.limits.maximum_retries.is_some_and(|most| batch.retries >= most) {
            self.given_up.push((batch, Reason::RetriesExhausted));
        } else if cut {
            let not_before_ms = now_ms.saturating_add(backoff(batch.retries));
            let (first, second) = Batch { not_before_ms, ..batch }.halves();
            self.retries.push_front(second);
            self.retries.push_front(first);
        } else {
            let not_before_ms = now_ms.saturating_add(backoff(batch.retries));
            self.retries.push_front(Batch { not_before_ms, retries: batch.retries + 1, ..batch });
        }
    }

    /// The poller of a partition.
    fn poller_of(&self, partition: &Partition) -> usize {
        usize::try_from(partition.number).unwrap_or(0) % self.limits.pollers
    }

    fn poller(&self, batch: &Batch) -> Option<usize> {
        batch.items.first().map(|item| self.poller_of(&item.partition))
    }

    /// Whether the poller's function is at work on a partition that is still ours.
    fn is_busy(&self, poller: usize) -> bool {
        self.running.values().flat_map(|batch| &batch.items).any(|item| {
            self.poller_of(&item.partition) == poller
                && self.lanes.get(&item.partition).is_some_and(|lane| lane.generation == item.generation)
        })
    }

    /// The partitions of a poller that have no batch to deliver again.
    fn fresh(&self, poller: usize) -> impl Iterator<Item = (&Partition, &Lane)> {
        let blocked: BTreeSet<&Partition> =
            self.retries.iter().flat_map(|batch| &batch.items).map(|item| &item.partition).collect();
        let lanes = self.lanes.iter();
        lanes.filter(move |(partition, _)| self.poller_of(partition) == poller && !blocked.contains(partition))
    }

    fn due(&mut self, poller: usize, now_ms: i64) -> Option<Batch> {
        if self.draining || self.is_busy(poller) {
            return None;
        }
        self.due_again(poller, now_ms).or_else(|| self.due_first(poller, now_ms))
    }

    /// The batches of a poller to deliver again whose partitions have none before them, with their places.
    fn ready(&self, poller: usize) -> impl Iterator<Item = (usize, &Batch)> {
        let mut before: BTreeSet<&Partition> = BTreeSet::new();
        self.retries.iter().enumerate().filter(move |(_, batch)| {
            let ours = self.poller(batch) == Some(poller);
            let ready = ours && batch.items.iter().all(|item| !before.contains(&item.partition));
            before.extend(batch.items.iter().map(|item| &item.partition));
            ready
        })
    }

    fn due_again(&mut self, poller: usize, now_ms: i64) -> Option<Batch> {
        let at = self.ready(poller).find(|(_, batch)| batch.not_before_ms <= now_ms).map(|(at, _)| at)?;
        self.retries.remove(at)
    }

    /// A batch of records that were never delivered: when there are enough of them, or the first has waited long enough.
    fn due_first(&mut self, poller: usize, now_ms: i64) -> Option<Batch> {
        let Limits { batch_size, window_ms, payload_bytes, .. } = self.limits;
        let mut lanes: Vec<(i64, Partition)> = Vec::new();
        let (mut count, mut bytes) = (0, ENVELOPE_BYTES);
        for (partition, lane) in self.fresh(poller) {
            let Some(first) = lane.waiting.front() else { continue };
            lanes.push((first.arrived_ms, partition.clone()));
            count += lane.waiting.len();
            bytes += lane.waiting_bytes;
        }
        lanes.sort();
        let waited = lanes.first().is_some_and(|(arrived, _)| arrived.saturating_add(window_ms) <= now_ms);
        if !waited && count < batch_size && bytes < payload_bytes {
            return None;
        }
        let (mut items, mut left) = (Vec::new(), payload_bytes - ENVELOPE_BYTES.min(payload_bytes));
        for (_, partition) in lanes {
            let Some(lane) = self.lanes.get_mut(&partition) else { continue };
            while let Some(waiting) = lane.waiting.pop_front_if(|w| items.len() < batch_size && w.bytes <= left) {
                left -= waiting.bytes;
                lane.waiting_bytes -= waiting.bytes;
                lane.unresolved.insert(waiting.record.offset);
                let (partition, generation) = (partition.clone(), lane.generation);
                items.push(Item { partition, generation, record: waiting.record });
            }
        }
        (!items.is_empty()).then(|| Batch::new(items))
    }
}

impl Lane {
    /// Every record below is processed or discarded.
    fn position(&self) -> Option<i64> {
        let waiting = self.waiting.front().map(|waiting| waiting.record.offset);
        // A record that is too large is unresolved while those before it still wait.
        self.unresolved.first().copied().into_iter().chain(waiting).min().or(self.next)
    }
}

#[cfg(test)]
mod tests;
