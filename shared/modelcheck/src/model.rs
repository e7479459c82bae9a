//! The model: its state, what may happen in it, and what happens then.

use std::sync::Arc;

use payguard_engine::lease::may_take;
use payguard_model::ProcessingTime;
use stateright::Property;

use crate::config::Config;
use crate::consumer;
use crate::coverage::{Coverage, Event};
use crate::durable::{At, Attempt, Log, MAX_ROWS, Objects, Row, Seen, Sink, Table, Task, watermark};
use crate::gc::collectable;
use crate::invariants::{self, Broken};
use crate::producer;
use crate::settle;

/// One model of the protocol.
#[derive(Clone)]
pub struct Model {
    pub(crate) config: Config,
    pub(crate) coverage: Arc<Coverage>,
}

/// Faults that are left.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    pub(crate) crashes: u8,
    pub(crate) lost: u8,
    pub(crate) late: u8,
}

/// A lease: who has it, and whether it has run out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Lease {
    pub(crate) owner: Option<u8>,
    pub(crate) is_over: bool,
}

/// Everything: what is durable, what is in memory, what is under way.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    pub(crate) producer_log: Log,
    pub(crate) consumer_log: Log,
    pub(crate) objects: Objects,
    pub(crate) table: Table,
    pub(crate) sink: Sink,
    /// Records acknowledged to their source: those after them are delivered again.
    pub(crate) acknowledged: u8,
    pub(crate) leases: [Lease; 2],
    /// A commit that may arrive at any time, or never.
    pub(crate) delayed: Option<(Task, u8, Row)>,
    pub(crate) faults: Faults,
    pub(crate) producers: Vec<producer::Phase>,
    pub(crate) consumers: Vec<consumer::Phase>,
    pub(crate) broken: Broken,
}

/// One step of the model.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// An executor of the producer does something.
    #[doc(hidden)]
    Producer(u8, ProducerAct),
    /// An executor of the consumer does something.
    #[doc(hidden)]
    Consumer(u8, ConsumerAct),
    /// The producer without executors commits so many records.
    Produce(u8),
    /// The consumer without executors takes a row.
    Consume,
    /// The collector removes the object of this row.
    CollectObject(u8),
    /// The collector removes this row.
    CollectRow(u8),
    /// The lease of the producer runs out.
    ProducerLeaseEnds,
    /// The lease of the consumer runs out.
    ConsumerLeaseEnds,
    /// A commit that nobody waits for any more arrives at the ledger.
    DelayedCommit,
}

/// What an executor of the producer does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ProducerAct(pub(crate) producer::Act);

/// What an executor of the consumer does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ConsumerAct(pub(crate) consumer::Act);

impl Model {
    /// The model of a configuration.
    #[must_use]
    pub fn new(config: Config) -> Model {
        Model { config, coverage: Arc::new(Coverage::new()) }
    }

    /// How often everything happened so far.
    #[must_use]
    pub fn counts(&self) -> Vec<(Event, u64)> {
        self.coverage.counts()
    }

    pub(crate) fn saw(&self, event: Event) {
        self.coverage.saw(event);
    }

    fn make(&self, state: &mut State, action: Action) {
        match action {
            Action::Producer(executor, ProducerAct(act)) => {
                let at = usize::from(executor);
                let idle = producer::Phase::Idle { memory: None };
                let phase = std::mem::replace(&mut state.producers[at], idle);
                state.producers[at] = producer::act(phase, act, executor, self, state);
            }
            Action::Consumer(executor, ConsumerAct(act)) => {
                let at = usize::from(executor);
                let phase = state.consumers[at];
                state.consumers[at] = consumer::act(phase, act, executor, self, state);
            }
            Action::Produce(records) => self.produce(state, records),
            Action::Consume => state.consumer_log.head.at.row += 1,
            Action::CollectObject(seq) => {
                if let Some(row) = state.producer_log.row(seq) {
                    state.objects.remove(seq, row.attempt);
                }
            }
            Action::CollectRow(seq) => {
                state.producer_log.collect(seq);
                self.saw(Event::RowCollected);
            }
            Action::ProducerLeaseEnds => state.leases[0].is_over = true,
            Action::ConsumerLeaseEnds => state.leases[1].is_over = true,
            Action::DelayedCommit => {
                if let Some((task, seq, row)) = state.delayed.take()
                    && settle::commit(task, seq, row, self, state)
                {
                    self.saw(Event::LateCommit);
                }
            }
        }
    }

    /// A source's task without executors: commits are all it does, and everything of it is flushed at once.
    fn produce(&self, state: &mut State, records: u8) {
        let head = state.producer_log.head;
        let Some(attempt) = Attempt::of(0).next() else { return };
        let (seq, to) = (head.seq + 1, At::row(head.at.row + records));
        let (records, before) = (Seen::between(head.at.row, to.row), Seen::between(0, head.at.row));
        let watermark = watermark(head.watermark, records);
        let row = Row { attempt, from: head.at, to, watermark, flushed: seq, before };
        state.objects.put(seq, attempt);
        settle::commit(Task::Producer, seq, row, self, state);
        state.acknowledged = to.row;
    }

    /// Objects of attempts that have lost are removed as soon as they may be: an eager collector sees most. Those of
    /// attempts that were forgotten before their row was made go with them, because nobody will ever read them.
    fn collect_orphans(&self, state: &mut State) {
        for seq in 1..=MAX_ROWS as u8 {
            let is_made = seq <= state.producer_log.head.seq;
            let kept = state.producer_log.row(seq).map(|row| row.attempt);
            let is_orphan = |attempt: &Attempt| kept != Some(*attempt) && (is_made || !state.is_tried(seq, *attempt));
            let orphans: Vec<Attempt> = state.objects.of(seq).filter(is_orphan).collect();
            for attempt in orphans {
                state.objects.remove(seq, attempt);
                if is_made {
                    self.saw(Event::OrphanCollected);
                }
            }
        }
    }

    fn collector_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let log = &state.producer_log;
        let through = collectable(&self.config, &log.head, &state.consumer_log.head);
        // In ascending order, the object before its row, one by one.
        let next = (1..=through.min(MAX_ROWS as u8)).find_map(|seq| Some((seq, log.row(seq)?)));
        if let Some((seq, row)) = next {
            let has_object = state.objects.has(seq, row.attempt);
            actions.push(if has_object { Action::CollectObject(seq) } else { Action::CollectRow(seq) });
        }
    }

    fn outside_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.config.producers == 0 {
            let left = self.config.records - state.producer_log.head.at.row;
            actions.extend((1..=left.min(self.config.batch)).map(Action::Produce));
        }
        if self.config.consumers == 0 && state.consumer_log.head.at.row < state.producer_log.head.seq {
            actions.push(Action::Consume);
        }
        let ends = [Action::ProducerLeaseEnds, Action::ConsumerLeaseEnds];
        let held = state.leases.iter().zip(ends).filter(|(lease, _)| lease.owner.is_some() && !lease.is_over);
        actions.extend(held.map(|(_, action)| action));
        if state.delayed.is_some() {
            actions.push(Action::DelayedCommit);
        }
    }
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let config = &self.config;
        vec![State {
            producer_log: Log::default(),
            consumer_log: Log::default(),
            objects: Objects::default(),
            table: Table::default(),
            sink: Sink::default(),
            acknowledged: 0,
            leases: [Lease::default(); 2],
            delayed: None,
            faults: Faults { crashes: config.crashes, lost: config.lost, late: config.late },
            producers: vec![producer::Phase::Idle { memory: None }; usize::from(config.producers)],
            consumers: vec![consumer::Phase::Idle { memory: None }; usize::from(config.consumers)],
            broken: Broken::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What comes after a broken property tells nothing more.
        if state.broken.any() {
            return;
        }
        let mut acts = Vec::new();
        for (executor, phase) in (0..).zip(&state.producers) {
            phase.acts(executor, self, state, &mut acts);
            actions.extend(acts.drain(..).map(|act| Action::Producer(executor, ProducerAct(act))));
        }
        let mut acts = Vec::new();
        for (executor, phase) in (0..).zip(&state.consumers) {
            phase.acts(executor, self, state, &mut acts);
            actions.extend(acts.drain(..).map(|act| Action::Consumer(executor, ConsumerAct(act))));
        }
        self.outside_actions(state, actions);
        self.collector_actions(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.make(&mut next, action);
        self.collect_orphans(&mut next);
        invariants::check(self, &mut next);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Model>> {
        invariants::properties()
    }
}

impl State {
    pub(crate) fn log(&self, task: Task) -> &Log {
        match task {
            Task::Producer => &self.producer_log,
            Task::Consumer => &self.consumer_log,
        }
    }

    pub(crate) fn log_mut(&mut self, task: Task) -> &mut Log {
        match task {
            Task::Producer => &mut self.producer_log,
            Task::Consumer => &mut self.consumer_log,
        }
    }

    /// Whether somebody may still commit row `seq` of the producer as this attempt.
    fn is_tried(&self, seq: u8, attempt: Attempt) -> bool {
        let delayed = self.delayed.filter(|(task, ..)| *task == Task::Producer).map(|(_, seq, row)| (seq, row.attempt));
        let tried = self.producers.iter().filter_map(producer::Phase::attempt);
        tried.chain(delayed).any(|it| it == (seq, attempt))
    }

    /// The last record before a position of the producer's log.
    pub(crate) fn record_at(&self, at: At) -> u8 {
        self.producer_log.ever(at.row).map_or(0, |row| row.to.row) + at.within
    }

    /// Whether an executor may begin: the lease is free, its own, or over. Time is "now" or "before now" here.
    pub(crate) fn may_take_lease(&self, executor: u8, task: Task, config: &Config) -> bool {
        let lease = self.leases[task as usize];
        let (now, later) = (ProcessingTime(1), ProcessingTime(2));
        let held = lease.owner.map(|owner| (OWNERS[usize::from(owner)], if lease.is_over { now } else { later }));
        !config.leases || may_take(held, OWNERS[usize::from(executor)], now)
    }

    pub(crate) fn take_lease(&mut self, executor: u8, task: Task, model: &Model) {
        if !model.config.leases {
            return;
        }
        let others_work = match task {
            Task::Producer => (0..).zip(&self.producers).any(|(at, p)| at != executor && p.is_working()),
            Task::Consumer => (0..).zip(&self.consumers).any(|(at, c)| at != executor && c.is_working()),
        };
        if others_work {
            model.saw(Event::TwoOwners);
        }
        self.leases[task as usize] = Lease { owner: Some(executor), is_over: false };
    }

    pub(crate) fn release_lease(&mut self, executor: u8, task: Task) {
        let lease = &mut self.leases[task as usize];
        if lease.owner == Some(executor) {
            *lease = Lease::default();
        }
    }
}

/// Names of the executors as owners of leases.
const OWNERS: [&str; 2] = ["A", "B"];
