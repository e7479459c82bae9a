//! The contract between an operator and whatever runs it.

use payguard_model::{EventTime, ProcessingTime};
use smallvec::SmallVec;

/// The scale a timer is set on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TimerDomain {
    /// Fires when the watermark reaches its time.
    EventTime,
    /// Fires when the task's recorded `now` reaches its time.
    ProcessingTime,
}

/// The timers of one key: a set, so that registering the same time again changes nothing.
///
/// Sorted ascending; short by design (one timer per bucket or window), hence vectors, the shortest ones in place.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Timers {
    /// Event-time timers in milliseconds, ascending.
    pub event: Times,
    /// Processing-time timers in milliseconds, ascending.
    pub processing: Times,
}

/// Times of timers, milliseconds.
pub type Times = SmallVec<[i64; 2]>;

impl Timers {
    /// The timers of one domain, ascending.
    #[must_use]
    pub fn of(&self, domain: TimerDomain) -> &[i64] {
        match domain {
            TimerDomain::EventTime => &self.event,
            TimerDomain::ProcessingTime => &self.processing,
        }
    }

    /// Adds a timer; false when it was there already.
    pub fn insert(&mut self, domain: TimerDomain, time: i64) -> bool {
        let times = self.of_mut(domain);
        match times.binary_search(&time) {
            Ok(_) => false,
            Err(at) => {
                times.insert(at, time);
                true
            }
        }
    }

    /// Removes a timer; false when there was none.
    pub fn remove(&mut self, domain: TimerDomain, time: i64) -> bool {
        let times = self.of_mut(domain);
        match times.binary_search(&time) {
            Ok(at) => {
                times.remove(at);
                true
            }
            Err(_) => false,
        }
    }

    /// Whether no timer is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.event.is_empty() && self.processing.is_empty()
    }

    fn of_mut(&mut self, domain: TimerDomain) -> &mut Times {
        match domain {
            TimerDomain::EventTime => &mut self.event,
            TimerDomain::ProcessingTime => &mut self.processing,
        }
    }
}

/// What an operator may see and do while it handles one event or timer of one key.
pub trait Context<Out> {
    /// The operator's watermark: no event at or before it is expected any more.
    fn watermark(&self) -> EventTime;
    /// The processing time recorded for the running commit; constant within a batch.
    fn now(&self) -> ProcessingTime;
    /// Sets a timer of the current key.
    fn register_timer(&mut self, domain: TimerDomain, time: i64);
    /// Removes a timer of the current key; nothing happens when there is none.
    fn delete_timer(&mut self, domain: TimerDomain, time: i64);
    /// Removes all timers of the current key.
    fn delete_all_timers(&mut self);
    /// Emits an output record with its event time.
    fn emit(&mut self, event_time: EventTime, output: Out);
    /// Adds to a named counter of this operator (INV-6: what is not emitted is counted).
    fn count(&mut self, counter: &'static str, by: u64);
}

/// One operator with keyed state.
///
/// `state` is the current key's value, `Default` when the key is new; when it equals `Default` afterwards and no timer
/// is set, the key is forgotten. The key is passed for outputs only; an operator never sees another key's state.
pub trait KeyedOperator: Send + Sync + 'static {
    /// A decoded input record.
    type Event;
    /// What is remembered for a key; its protobuf encoding is what is stored.
    type State: prost::Message + Default + PartialEq + Clone + Send + Sync + 'static;
    /// An output record.
    type Output;

    /// The permanent id under which the state is stored.
    const ID: &'static str;

    /// Handles one event. The watermark is the one reached before this event.
    fn on_event(&self, key: &str, event: &Self::Event, state: &mut Self::State, ctx: &mut dyn Context<Self::Output>);

    /// Handles a timer that is due; it has been removed from the set already.
    fn on_timer(
        &self,
        key: &str,
        domain: TimerDomain,
        time: i64,
        state: &mut Self::State,
        ctx: &mut dyn Context<Self::Output>,
    );
}
