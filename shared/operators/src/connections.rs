//! Connection attempts: what is said about a session once its steps can be read in the order in which they happened.
//!
//! Key: session id. A session is open until the watermark passes its newest event by the gap; then its chain is read
//! and one verdict is emitted. It is remembered for three more minutes of event time: an event that comes meanwhile
//! opens it again, and when it is closed anew and the verdict is another one, that is emitted with the next revision.
//! An event that comes later still goes to the late ones.
//!
//! There are two ways to do it, which differ in two things only:
//!
//! | | [`EventTimeOrder`] (`b`) | [`ArrivalOrder`] (`a`) |
//! | --- | --- | --- |
//! | the chain is read | by (event time, order of steps, arrival) | by arrival |
//! | state and timers | plain records; a timer that moves on when it finds the session grown | bytes that every event reads and writes; a timer for every event |
//!
//! **Guards.** A session that is silent for three minutes of processing time is closed with what it has; of a session
//! with too many events the oldest are kept; when there are too many sessions, the host calls the earliest
//! processing-time timer before it is due, and the session that has been silent the longest is given up. Each has a
//! counter.
//!
//! INV: a session that is remembered has exactly one processing-time timer, which is never later than the end of its
//! silence: so the earliest of all timers leads to the session that was silent the longest.

mod chain;
mod logic;
mod session;

use payguard_model::{ConnectionEvent, ConnectionVerdict};
use prost::Message;
use serde::{Serialize, Serializer};

pub use chain::{ChainEvent, Judgement, judge};
pub use session::Session;

use crate::{Context, KeyedOperator, TimerDomain};
use logic::{Rules, Timing};

/// Silence in processing time after which a session is closed with what it has: three minutes.
pub const SILENCE_MS: i64 = 180_000;
/// How long a closed session is remembered, of event time: three minutes.
pub const REOPEN_MS: i64 = 180_000;

/// Names of the counters.
pub mod counter {
    /// Events that found a place in a session.
    pub const EVENTS: &str = "events";
    /// Of these, such that came behind the watermark.
    pub const LATE_JOINED: &str = "late_joined";
    /// Events of sessions that nobody remembers any more; they go to the late ones.
    pub const TOO_LATE: &str = "too_late";
    /// Events that a full session did not keep.
    pub const EVENTS_DROPPED: &str = "events_dropped";
    /// Sessions that an event opened again.
    pub const REOPENED: &str = "reopened";
    /// Verdicts that replace an earlier one.
    pub const REVISIONS: &str = "revisions";
    /// Sessions closed because they were silent.
    pub const EVICTED_SILENT: &str = "evicted_silent";
    /// Open sessions given up because there were too many.
    pub const EVICTED_FULL: &str = "evicted_full";
    /// Closed sessions forgotten before their time, by silence or because there were too many.
    pub const FORGOTTEN_EARLY: &str = "forgotten_early";
    /// Verdicts by outcome.
    pub const SUCCESS: &str = "success";
    /// Verdicts by outcome.
    pub const FAILED: &str = "failed";
    /// Verdicts by outcome.
    pub const INCOMPLETE: &str = "incomplete";
}

/// Numbers that bound a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionLimits {
    /// A session closes when the watermark is this far past its newest event, milliseconds.
    pub gap_ms: i64,
    /// Events that are kept of a session; at least 1.
    pub max_events: usize,
}

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits { gap_ms: 30_000, max_events: 64 }
    }
}

/// What is emitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReorderOutput {
    /// About a session that was closed.
    Verdict(ConnectionVerdict),
    /// An event whose session nobody remembers any more.
    Late(ConnectionEvent),
}

/// Variant `b`: events take their places by event time before the chain is read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EventTimeOrder {
    /// Numbers that bound a session.
    pub limits: SessionLimits,
}

impl EventTimeOrder {
    const fn rules(&self) -> Rules {
        Rules { limits: self.limits, variant: "b", timing: Timing::Coalesced }
    }
}

impl KeyedOperator for EventTimeOrder {
    type Event = ConnectionEvent;
    type State = Session;
    type Output = ReorderOutput;

    const ID: &'static str = "reorder-by-event-time";

    fn on_event(&self, _id: &str, event: &ConnectionEvent, state: &mut Session, ctx: &mut dyn Context<ReorderOutput>) {
        self.rules().on_event(event, state, ctx);
    }

    fn on_timer(
        &self,
        id: &str,
        domain: TimerDomain,
        time: i64,
        state: &mut Session,
        ctx: &mut dyn Context<ReorderOutput>,
    ) {
        self.rules().on_timer(id, domain, time, state, ctx);
    }
}

/// Variant `a`: events are read as they came. What is remembered of a session are bytes, which every event reads and
/// writes, as an application does that keeps its state in a store outside of its memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ArrivalOrder {
    /// Numbers that bound a session.
    pub limits: SessionLimits,
}

/// A session as bytes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StoredSession {
    /// Encoding of a [`Session`].
    #[prost(bytes = "vec", tag = "1")]
    session: Vec<u8>,
}

impl StoredSession {
    /// Bytes that are none of a session count as a new one: nothing but [`StoredSession::write`] makes them.
    fn read(&self) -> Session {
        Session::decode(&self.session[..]).unwrap_or_default()
    }

    fn write(&mut self, session: &Session) {
        self.session.clear();
        session.encode_raw(&mut self.session);
    }
}

/// As the session that it holds.
impl Serialize for StoredSession {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.read().serialize(serializer)
    }
}

impl ArrivalOrder {
    const fn rules(&self) -> Rules {
        Rules { limits: self.limits, variant: "a", timing: Timing::PerEvent }
    }
}

impl KeyedOperator for ArrivalOrder {
    type Event = ConnectionEvent;
    type State = StoredSession;
    type Output = ReorderOutput;

    const ID: &'static str = "reorder-by-arrival";

    fn on_event(
        &self,
        _id: &str,
        event: &ConnectionEvent,
        state: &mut StoredSession,
        ctx: &mut dyn Context<ReorderOutput>,
    ) {
        let mut session = state.read();
        self.rules().on_event(event, &mut session, ctx);
        state.write(&session);
    }

    fn on_timer(
        &self,
        id: &str,
        domain: TimerDomain,
        time: i64,
        state: &mut StoredSession,
        ctx: &mut dyn Context<ReorderOutput>,
    ) {
        let mut session = state.read();
        self.rules().on_timer(id, domain, time, &mut session, ctx);
        state.write(&session);
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod model;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
