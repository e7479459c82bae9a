//! A runner for one operator in tests: one task, no store, every key in memory.
//!
//! It keeps the contract of [`KeyedOperator`] to the letter: an event meets the watermark reached before it; timers
//! fire in order of (time, key) when the watermark or the clock moves, never because of an event; a timer set in the
//! past waits for the next move; a key with default state and without timers is forgotten.

use std::collections::{BTreeMap, BTreeSet};

use payguard_model::{EventTime, Payment, ProcessingTime};
use prost::Message;

use crate::{Context, KeyedOperator, TimerDomain, Timers};

/// A payment in EUR from DE, as in the lessons' tests.
#[must_use]
pub fn payment(id: &str, card: &str, merchant: &str, amount_minor: i64, event_time_ms: i64) -> Payment {
    Payment {
        payment_id: id.to_owned(),
        card_id: card.to_owned(),
        merchant_id: merchant.to_owned(),
        amount_minor,
        currency: "EUR".to_owned(),
        country: Some("DE".to_owned()),
        event_time_ms,
        ..Payment::default()
    }
}

/// A payment of 1,000 to merchant `m1`, as in the lessons' tests.
#[must_use]
pub fn payment_on_card(id: &str, card: &str, event_time_ms: i64) -> Payment {
    payment(id, card, "m1", 1_000, event_time_ms)
}

/// Runs one operator and records what it does.
#[derive(Debug)]
pub struct Harness<O: KeyedOperator> {
    operator: O,
    keys: BTreeMap<String, Key<O::State>>,
    /// The timers of all keys: domain, time, key.
    timers: BTreeSet<(TimerDomain, i64, String)>,
    watermark: EventTime,
    now: ProcessingTime,
    outputs: Vec<(EventTime, O::Output)>,
    counters: BTreeMap<&'static str, u64>,
}

#[derive(Debug)]
struct Key<S> {
    state: S,
    timers: Timers,
}

impl<O: KeyedOperator> Harness<O> {
    /// A task without keys, before every event, at processing time 0.
    #[must_use]
    pub fn new(operator: O) -> Harness<O> {
        Harness {
            operator,
            keys: BTreeMap::new(),
            timers: BTreeSet::new(),
            watermark: EventTime::MIN,
            now: ProcessingTime(0),
            outputs: Vec::new(),
            counters: BTreeMap::new(),
        }
    }

    /// Handles one event of `key`.
    pub fn process(&mut self, key: &str, event: &O::Event) {
        self.with_key(key, |operator, state, ctx| operator.on_event(key, event, state, ctx));
    }

    /// The operator, to change its settings between two events.
    pub fn operator_mut(&mut self) -> &mut O {
        &mut self.operator
    }

    /// Moves the watermark and fires the event-time timers that are due; a watermark that is not greater than the
    /// present one is ignored.
    pub fn advance_watermark(&mut self, watermark: EventTime) {
        if watermark > self.watermark {
            self.watermark = watermark;
            self.fire(TimerDomain::EventTime, watermark.0);
        }
    }

    /// Moves the clock and fires the processing-time timers that are due; a clock does not go back.
    pub fn advance_processing_time(&mut self, now: ProcessingTime) {
        if now > self.now {
            self.now = now;
            self.fire(TimerDomain::ProcessingTime, now.0);
        }
    }

    /// Calls the earliest processing-time timer, due or not; false when there is none.
    pub fn fire_earliest(&mut self) -> bool {
        let Some((time, name)) = self.take_due(TimerDomain::ProcessingTime, i64::MAX) else { return false };
        self.with_key(&name, |operator, state, ctx| {
            operator.on_timer(&name, TimerDomain::ProcessingTime, time, state, ctx);
        });
        true
    }

    /// Writes the state of every key to its stored form and reads it back, as after a restart.
    pub fn restart(&mut self) {
        for key in self.keys.values_mut() {
            let stored = key.state.encode_to_vec();
            key.state = O::State::decode(stored.as_slice()).expect("a state just encoded can be decoded");
        }
    }

    /// The watermark reached.
    #[must_use]
    pub fn watermark(&self) -> EventTime {
        self.watermark
    }

    /// All outputs so far with their event times, in order of emission.
    #[must_use]
    pub fn outputs(&self) -> &[(EventTime, O::Output)] {
        &self.outputs
    }

    /// The outputs since the last call, without their event times.
    pub fn take_outputs(&mut self) -> Vec<O::Output> {
        self.outputs.drain(..).map(|(_, output)| output).collect()
    }

    /// A counter of the operator; 0 when it was never counted.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    /// How many timers of one domain are set, over all keys.
    #[must_use]
    pub fn timer_count(&self, domain: TimerDomain) -> usize {
        self.timers.iter().filter(|(of, _, _)| *of == domain).count()
    }

    /// The timers of one key; `None` when it is not known.
    #[must_use]
    pub fn timers(&self, key: &str) -> Option<&Timers> {
        self.keys.get(key).map(|key| &key.timers)
    }

    /// The state of one key; `None` when it is not known.
    #[must_use]
    pub fn state(&self, key: &str) -> Option<&O::State> {
        self.keys.get(key).map(|key| &key.state)
    }

    /// How many keys are remembered.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    fn fire(&mut self, domain: TimerDomain, up_to: i64) {
        while let Some((time, name)) = self.take_due(domain, up_to) {
            self.with_key(&name, |operator, state, ctx| operator.on_timer(&name, domain, time, state, ctx));
        }
    }

    /// Removes the first timer in order of (time, key) that is not after `up_to`.
    fn take_due(&mut self, domain: TimerDomain, up_to: i64) -> Option<(i64, String)> {
        let first = self.timers.range((domain, i64::MIN, String::new())..).next()?;
        if first.0 != domain || first.1 > up_to {
            return None;
        }
        let (_, time, name) = first.clone();
        self.timers.remove(&(domain, time, name.clone()));
        if let Some(key) = self.keys.get_mut(&name) {
            key.timers.remove(domain, time);
        }
        Some((time, name))
    }

    fn with_key(&mut self, name: &str, call: impl FnOnce(&O, &mut O::State, &mut dyn Context<O::Output>)) {
        let mut key =
            self.keys.remove(name).unwrap_or_else(|| Key { state: O::State::default(), timers: Timers::default() });
        let mut context = Recorder {
            watermark: self.watermark,
            now: self.now,
            key: name,
            timers: &mut key.timers,
            all_timers: &mut self.timers,
            outputs: &mut self.outputs,
            counters: &mut self.counters,
        };
        call(&self.operator, &mut key.state, &mut context);
        if key.state != O::State::default() || !key.timers.is_empty() {
            self.keys.insert(name.to_owned(), key);
        }
    }
}

/// The context of one call.
struct Recorder<'a, Out> {
    watermark: EventTime,
    now: ProcessingTime,
    key: &'a str,
    timers: &'a mut Timers,
    all_timers: &'a mut BTreeSet<(TimerDomain, i64, String)>,
    outputs: &'a mut Vec<(EventTime, Out)>,
    counters: &'a mut BTreeMap<&'static str, u64>,
}

impl<Out> Context<Out> for Recorder<'_, Out> {
    fn watermark(&self) -> EventTime {
        self.watermark
    }

    fn now(&self) -> ProcessingTime {
        self.now
    }

    fn register_timer(&mut self, domain: TimerDomain, time: i64) {
        if self.timers.insert(domain, time) {
            self.all_timers.insert((domain, time, self.key.to_owned()));
        }
    }

    fn delete_timer(&mut self, domain: TimerDomain, time: i64) {
        if self.timers.remove(domain, time) {
            self.all_timers.remove(&(domain, time, self.key.to_owned()));
        }
    }

    fn delete_all_timers(&mut self) {
        let Timers { event, processing } = std::mem::take(self.timers);
        let timers = event.into_iter().map(|time| (TimerDomain::EventTime, time));
        let timers = timers.chain(processing.into_iter().map(|time| (TimerDomain::ProcessingTime, time)));
        for (domain, time) in timers {
            self.all_timers.remove(&(domain, time, self.key.to_owned()));
        }
    }

    fn emit(&mut self, event_time: EventTime, output: Out) {
        self.outputs.push((event_time, output));
    }

    fn count(&mut self, counter: &'static str, by: u64) {
        *self.counters.entry(counter).or_default() += by;
    }
}
