#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use payguard_aws::event::BatchItemFailure;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const TOPIC: &str = "payments.raw";

fn limits() -> Limits {
    Limits {
        batch_size: 3,
        window_ms: 0,
        payload_bytes: PAYLOAD_BYTES,
        pollers: 1,
        maximum_retries: None,
        maximum_age_ms: None,
        bisect: false,
        backoff_ms: 0,
    }
}

fn partition(number: i32) -> Partition {
    Partition { topic: TOPIC.to_owned(), number }
}

fn record(number: i32, offset: i64, bytes: usize) -> KafkaRecord {
    KafkaRecord {
        topic: TOPIC.to_owned(),
        partition: number,
        offset,
        timestamp: 1_000,
        timestamp_type: None,
        key: None,
        value: Some(vec![0; bytes]),
        headers: Vec::new(),
    }
}

/// The mapping beside a naive model of it: a function that answers at will, and a topic that is read again from the last
/// commit after each rebalance.
struct World {
    core: Core,
    now_ms: i64,
    /// Every record of the topic so far, and how many of them were read.
    topic: BTreeMap<i32, (Vec<KafkaRecord>, usize)>,
    committed: BTreeMap<i32, i64>,
    /// Processed or in the failure destination, ever.
    resolved: BTreeSet<(i32, i64)>,
    delivered: BTreeSet<(i32, i64)>,
    given_up: BTreeSet<(i32, i64)>,
    running: Vec<(Ticket, Batch)>,
    discarding: Vec<(Ticket, Batch)>,
    /// Deliveries that count no more, because of a rebalance.
    stale: BTreeSet<Ticket>,
}

impl World {
    fn new(limits: Limits, partitions: i32) -> World {
        let mut core = Core::new(limits);
        (0..partitions).for_each(|number| core.assign(partition(number)));
        World {
            core,
            now_ms: 2_000,
            topic: (0..partitions).map(|number| (number, (Vec::new(), 0))).collect(),
            committed: BTreeMap::new(),
            resolved: BTreeSet::new(),
            delivered: BTreeSet::new(),
            given_up: BTreeSet::new(),
            running: Vec::new(),
            discarding: Vec::new(),
            stale: BTreeSet::new(),
        }
    }

    fn produce(&mut self, number: i32, bytes: usize) {
        let (records, _) = self.topic.get_mut(&number).unwrap();
        // Offsets have gaps: markers of transactions.
        let offset = records.last().map_or(10, |last| last.offset + 1 + i64::from(bytes.is_multiple_of(7)));
        records.push(record(number, offset, bytes));
        self.read(number);
    }

    fn read(&mut self, number: i32) {
        let (records, read) = self.topic.get_mut(&number).unwrap();
        for record in &records[*read..] {
            self.core.arrive(record.clone(), self.now_ms);
        }
        *read = records.len();
        self.step();
    }

    fn rebalance(&mut self, number: i32) {
        self.core.revoke(&partition(number));
        self.core.assign(partition(number));
        let touched = |(_, batch): &&(Ticket, Batch)| batch.items.iter().any(|item| item.partition.number == number);
        self.stale.extend(self.running.iter().chain(&self.discarding).filter(touched).map(|(ticket, _)| *ticket));
        let (records, read) = self.topic.get_mut(&number).unwrap();
        let from = self.committed.get(&number).copied().unwrap_or(0);
        *read = records.iter().take_while(|record| record.offset < from).count();
        // What was given up and is not written yet will be given up, or delivered, again.
        self.given_up.retain(|(of, offset)| *of != number || self.resolved.contains(&(*of, *offset)));
        self.read(number);
    }

    fn step(&mut self) {
        for action in self.core.next(self.now_ms) {
            match action {
                Action::Invoke(ticket, batch) => self.invoked(ticket, batch),
                Action::Discard(ticket, batch, _) => {
                    self.given_up.extend(ids(&batch));
                    self.discarding.push((ticket, batch));
                }
                Action::Commit(partition, position) => self.commit(partition.number, position),
            }
        }
    }

    fn invoked(&mut self, ticket: Ticket, batch: Batch) {
        let limits = &self.core.limits;
        assert!((1..=limits.batch_size).contains(&batch.len()));
        let json = serde_json::to_vec(&batch.event("localhost:9092")).unwrap().len();
        assert!(json <= limits.payload_bytes, "{json} bytes");
        let pollers: BTreeSet<_> = batch.items.iter().map(|item| self.core.poller_of(&item.partition)).collect();
        assert_eq!(pollers.len(), 1, "one poller");
        let together = ids(&batch);
        assert_eq!(together.len(), batch.len(), "no record twice in a batch");
        for (number, offset) in &together {
            for (other, running) in &self.running {
                let shared = ids(running).iter().any(|(of, _)| of == number);
                assert!(!shared || self.stale.contains(other), "partition {number} is in two invocations");
            }
            let before = self.topic[number].0.iter().map(|record| (*number, record.offset));
            for earlier in before.filter(|(_, earlier)| earlier < offset) {
                let over = self.resolved.contains(&earlier) || self.given_up.contains(&earlier);
                assert!(over || together.contains(&earlier), "{offset} of {number} overtakes {}", earlier.1);
            }
        }
        self.delivered.extend(together);
        self.running.push((ticket, batch));
    }

    fn commit(&mut self, number: i32, position: i64) {
        let before = self.committed.insert(number, position);
        assert!(before.is_none_or(|before| before < position), "positions rise");
        for record in self.topic[&number].0.iter().filter(|record| record.offset < position) {
            assert!(self.resolved.contains(&(number, record.offset)), "{} is not done at {position}", record.offset);
        }
    }

    fn answer(&mut self, at: usize, listed: Option<Vec<bool>>, unknown: bool) {
        if self.running.is_empty() {
            return;
        }
        let (ticket, batch) = self.running.swap_remove(at % self.running.len());
        let outcome = match listed {
            None => Outcome::Failed,
            Some(listed) => {
                let listed = batch.items.iter().zip(listed.into_iter().cycle()).filter(|(_, listed)| *listed);
                let failure = |(item, _): (&Item, bool)| BatchItemFailure {
                    partition: item.partition.to_string(),
                    offset: item.record.offset,
                };
                let mut failures: Vec<BatchItemFailure> = listed.map(failure).collect();
                let failed: BTreeSet<_> = failures.iter().map(|f| (f.partition.clone(), f.offset)).collect();
                if unknown {
                    failures.push(BatchItemFailure { partition: format!("{TOPIC}-0"), offset: 1_000_000 });
                } else {
                    let done = batch.items.iter().filter(|item| !failed.contains(&item.id()));
                    self.resolved.extend(done.map(|item| (item.partition.number, item.record.offset)));
                }
                Outcome::Unprocessed(failures)
            }
        };
        self.core.answered(ticket, &outcome, self.now_ms);
        self.step();
    }

    fn done(&mut self) {
        let (ticket, batch) = self.running.swap_remove(0);
        self.resolved.extend(ids(&batch));
        self.core.answered(ticket, &Outcome::Done, self.now_ms);
        self.step();
    }

    fn written(&mut self, at: usize) {
        if !self.discarding.is_empty() {
            let (ticket, batch) = self.discarding.swap_remove(at % self.discarding.len());
            self.resolved.extend(ids(&batch));
            self.core.discarded(ticket);
            self.step();
        }
    }

    /// From now on everything succeeds.
    fn settle(&mut self) {
        loop {
            if !self.running.is_empty() {
                self.done();
            } else if !self.discarding.is_empty() {
                self.written(0);
            } else if let Some(at) = self.core.wake_at() {
                assert!(at > self.now_ms, "what is due is done at once");
                self.now_ms = at;
                self.step();
            } else {
                break;
            }
        }
    }
}

fn ids(batch: &Batch) -> BTreeSet<(i32, i64)> {
    batch.items.iter().map(|item| (item.partition.number, item.record.offset)).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Produce(i32, usize),
    Answer(usize, Option<Vec<bool>>, bool),
    Done,
    Written(usize),
    Wait(i64),
    Rebalance(i32),
}

fn step() -> impl Strategy<Value = Step> {
    let answers = (any::<usize>(), proptest::option::of(vec(any::<bool>(), 1..6)), proptest::bool::weighted(0.2));
    prop_oneof![
        6 => (0..4i32, prop_oneof![6 => 0..300usize, 1 => 2_000..3_000usize]).prop_map(|(p, b)| Step::Produce(p, b)),
        3 => answers.prop_map(|(at, listed, unknown)| Step::Answer(at, listed, unknown)),
        2 => Just(Step::Done),
        1 => any::<usize>().prop_map(Step::Written),
        2 => (0..2_000i64).prop_map(Step::Wait),
        1 => (0..4i32).prop_map(Step::Rebalance),
    ]
}

prop_compose! {
    fn any_limits()(
        batch_size in 1..8usize, window_ms in prop_oneof![Just(0), 1..1_000i64], payload in 4_900..8_000usize,
        pollers in 1..5usize, maximum_retries in proptest::option::of(0..3u32),
        maximum_age_ms in proptest::option::of(500..6_000i64), bisect: bool,
        backoff_ms in prop_oneof![Just(0), 1..500i64],
    ) -> Limits {
        let payload_bytes = payload;
        Limits { batch_size, window_ms, payload_bytes, pollers, maximum_retries, maximum_age_ms, bisect, backoff_ms }
    }
}

proptest! {
    /// The world checks every delivery and every commit; in the end nothing is left.
    #[test]
    fn every_record_is_processed_or_given_up_in_order_whatever_happens(
        limits in any_limits(), steps in vec(step(), 0..120)
    ) {
        let mut world = World::new(limits, 4);
        for step in steps {
            match step {
                Step::Produce(number, bytes) => world.produce(number, bytes),
                Step::Answer(at, listed, unknown) => world.answer(at, listed, unknown),
                Step::Done if world.running.is_empty() => {}
                Step::Done => world.done(),
                Step::Written(at) => world.written(at),
                Step::Wait(ms) => {
                    world.now_ms += ms;
                    world.step();
                }
                Step::Rebalance(number) => world.rebalance(number),
            }
        }
        world.settle();
        for (number, (records, _)) in &world.topic {
            for record in records {
                let id = (*number, record.offset);
                prop_assert!(world.resolved.contains(&id), "{:?} is left", id);
                prop_assert!(world.delivered.contains(&id) || world.given_up.contains(&id));
            }
            prop_assert_eq!(world.committed.get(number).copied(), records.last().map(|last| last.offset + 1));
        }
        prop_assert!(!world.core.is_working());
    }
}

/// What is invoked at once, as (partition, offset) by invocation.
fn deliveries(core: &mut Core, now_ms: i64) -> Vec<(Ticket, Vec<(i32, i64)>)> {
    let invoked = core.next(now_ms).into_iter().filter_map(|action| match action {
        Action::Invoke(ticket, batch) => Some((ticket, ids(&batch).into_iter().collect())),
        _ => None,
    });
    invoked.collect()
}

fn core(limits: Limits, arrived: &[(i32, i64)]) -> Core {
    let mut core = Core::new(limits);
    for number in 0..2 {
        core.assign(partition(number));
    }
    for (number, offset) in arrived {
        core.arrive(record(*number, *offset, 10), 0);
    }
    core
}

#[test]
fn a_batch_waits_for_its_window_unless_it_is_full() {
    let limits = Limits { window_ms: 500, ..limits() };
    let mut waiting = core(limits.clone(), &[(0, 1), (1, 1)]);
    assert!(deliveries(&mut waiting, 499).is_empty());
    assert_eq!(waiting.wake_at(), Some(500));
    assert_eq!(deliveries(&mut waiting, 500)[0].1, [(0, 1), (1, 1)], "several partitions in one event");

    let mut full = core(limits, &[(0, 1), (1, 1), (0, 2), (0, 3)]);
    assert_eq!(deliveries(&mut full, 0)[0].1, [(0, 1), (0, 2), (0, 3)]);
}

#[test]
fn pollers_work_side_by_side_each_on_its_partitions() {
    let mut core = core(Limits { pollers: 2, ..limits() }, &[(0, 1), (1, 1), (0, 2)]);
    let both = deliveries(&mut core, 0);
    assert_eq!(both.iter().map(|(_, ids)| ids.clone()).collect::<Vec<_>>(), [vec![(0, 1), (0, 2)], vec![(1, 1)]]);
    core.arrive(record(0, 3, 10), 0);
    assert!(deliveries(&mut core, 0).is_empty(), "its partition is at work");
}

#[test]
fn a_batch_that_failed_is_cut_in_two_until_the_bad_record_is_alone() {
    let limits = Limits { batch_size: 4, bisect: true, maximum_retries: Some(1), ..limits() };
    let mut core = core(limits, &[(0, 1), (0, 2), (0, 3), (0, 4)]);
    let (mut seen, mut given_up) = (Vec::new(), Vec::new());
    loop {
        let mut invoked = None;
        for action in core.next(0) {
            match action {
                Action::Invoke(ticket, batch) => invoked = Some((ticket, ids(&batch))),
                Action::Discard(_, batch, reason) => given_up.push((ids(&batch), reason)),
                Action::Commit(..) => {}
            }
        }
        let Some((ticket, records)) = invoked else { break };
        let offsets: Vec<i64> = records.iter().map(|(_, offset)| *offset).collect();
        let outcome = if offsets.contains(&3) { Outcome::Failed } else { Outcome::Done };
        core.answered(ticket, &outcome, 0);
        seen.push(offsets);
    }
    // The rest goes on while the bad record is written.
    assert_eq!(seen, [vec![1, 2, 3, 4], vec![1, 2], vec![3, 4], vec![3], vec![3], vec![4]]);
    assert_eq!(given_up, [([(0, 3)].into(), Reason::RetriesExhausted)]);
}

#[test]
fn answers_mean_what_they_mean_to_lambda() {
    let failure = |offset| BatchItemFailure { partition: format!("{TOPIC}-0"), offset };
    for (outcome, again) in [
        (Outcome::Done, vec![]),
        (Outcome::Unprocessed(vec![]), vec![]),
        (Outcome::Unprocessed(vec![failure(2)]), vec![(0, 2)]),
        (Outcome::Unprocessed(vec![failure(3), failure(1), failure(3)]), vec![(0, 1), (0, 3)]),
        (Outcome::Unprocessed(vec![failure(2), failure(9)]), vec![(0, 1), (0, 2), (0, 3)]),
        (Outcome::Failed, vec![(0, 1), (0, 2), (0, 3)]),
    ] {
        let mut core = core(limits(), &[(0, 1), (0, 2), (0, 3)]);
        let (ticket, _) = deliveries(&mut core, 0).remove(0);
        core.answered(ticket, &outcome, 0);
        let delivered = deliveries(&mut core, 0).pop().map_or(Vec::new(), |(_, ids)| ids);
        assert_eq!(delivered, again, "{outcome:?}");
    }
}

#[test]
fn retries_pause_longer_each_time_and_other_partitions_go_on() {
    let mut core = core(Limits { backoff_ms: 100, batch_size: 1, ..limits() }, &[(0, 1)]);
    let mut now_ms = 0;
    for pause in [100, 200, 400, 800, 1_600, 3_200, 6_400, 6_400] {
        let (ticket, ids) = deliveries(&mut core, now_ms).remove(0);
        assert_eq!(ids, [(0, 1)]);
        core.answered(ticket, &Outcome::Failed, now_ms);
        assert_eq!(core.wake_at(), Some(now_ms + pause));
        now_ms += pause;
    }
    let (ticket, _) = deliveries(&mut core, now_ms).remove(0);
    core.answered(ticket, &Outcome::Failed, now_ms);
    core.arrive(record(0, 2, 10), now_ms);
    core.arrive(record(1, 1, 10), now_ms);
    assert_eq!(deliveries(&mut core, now_ms)[0].1, [(1, 1)]);
}
