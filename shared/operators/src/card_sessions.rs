//! Sessions of a card (lesson 6, assignment): series of payments without a pause longer than 30 s.
//!
//! Key: card id. A payment at `t` opens the window `[t, t + 30,000)`, which is merged with every live session of the
//! card that it overlaps *or touches*: a pause of exactly 30,000 ms continues the session (the course's text says
//! "shorter", its code merges touching windows, and the code is followed). A session is emitted once, when the
//! watermark reaches its last millisecond, and forgotten: no lateness is allowed. Payments are never stored.
//!
//! A payment that cannot join a live session and whose own window is over (`t + 29,999 <= watermark`) is dropped and
//! counted. One that joins is never late, because a live session is not over.
//!
//! INV: a card's live sessions do not touch each other, so their ends differ, and each has exactly one timer.

use std::ops::Range;

use payguard_model::{CardSession, EventTime, Payment};
use serde::Serialize;

use crate::{Context, KeyedOperator, TimerDomain};

/// The longest pause within a session: 30 s of event time.
pub const SESSION_GAP_MS: i64 = 30_000;

/// Counter of payments dropped because their session was over.
pub const LATE_DROPPED: &str = "late_dropped";

/// A session that may still grow.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveSession {
    /// Time of the first payment, milliseconds.
    #[prost(int64, tag = "1")]
    #[serde(rename = "firstPaymentMs")]
    first_ms: i64,
    /// Time of the last payment, milliseconds.
    #[prost(int64, tag = "2")]
    #[serde(rename = "lastPaymentMs")]
    last_ms: i64,
    /// Payments so far.
    #[prost(int64, tag = "3")]
    payment_count: i64,
    /// Their sum in minor units.
    #[prost(int64, tag = "4")]
    amount_minor: i64,
}

/// The live sessions of one card, ascending by time; seldom more than one.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CardState {
    /// The sessions.
    #[prost(message, repeated, tag = "1")]
    sessions: Vec<LiveSession>,
}

/// The operator.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CardSessionWindow;

impl KeyedOperator for CardSessionWindow {
    type Event = Payment;
    type State = CardState;
    type Output = CardSession;

    const ID: &'static str = "card-sessions";

    fn on_event(&self, _card: &str, payment: &Payment, state: &mut CardState, ctx: &mut dyn Context<CardSession>) {
        let single = LiveSession::of(payment);
        let joined = state.touching(&single);
        if joined.is_empty() && single.max_timestamp() <= ctx.watermark() {
            ctx.count(LATE_DROPPED, 1);
            return;
        }
        let merged = state.sessions[joined.clone()].iter().fold(single, |merged, session| merged.merge(session));
        let mut is_timer_set = false;
        for session in &state.sessions[joined.clone()] {
            if session.max_timestamp() == merged.max_timestamp() {
                is_timer_set = true;
            } else {
                ctx.delete_timer(TimerDomain::EventTime, session.max_timestamp().0);
            }
        }
        if !is_timer_set {
            ctx.register_timer(TimerDomain::EventTime, merged.max_timestamp().0);
        }
        state.replace(joined, merged);
    }

    fn on_timer(
        &self,
        card: &str,
        _domain: TimerDomain,
        time: i64,
        state: &mut CardState,
        ctx: &mut dyn Context<CardSession>,
    ) {
        let time = EventTime(time);
        for session in state.sessions.iter().filter(|session| session.max_timestamp() == time) {
            ctx.emit(time, session.finished(card));
        }
        state.sessions.retain(|session| session.max_timestamp() != time);
    }
}

impl CardState {
    /// Where the sessions are that overlap or touch `other`; where it belongs when there are none.
    fn touching(&self, other: &LiveSession) -> Range<usize> {
        let from = self.sessions.partition_point(|session| session.end_ms() < other.first_ms);
        let joined = self.sessions[from..].partition_point(|session| session.first_ms <= other.end_ms());
        from..from + joined
    }

    /// Puts `session` in the place of the sessions in `joined`.
    fn replace(&mut self, joined: Range<usize>, session: LiveSession) {
        if joined.is_empty() {
            self.sessions.insert(joined.start, session);
        } else {
            self.sessions[joined.start] = session;
            self.sessions.drain(joined.start + 1..joined.end);
        }
    }
}

impl LiveSession {
    fn of(payment: &Payment) -> LiveSession {
        LiveSession {
            first_ms: payment.event_time_ms,
            last_ms: payment.event_time_ms,
            payment_count: 1,
            amount_minor: payment.amount_minor,
        }
    }

    /// End, exclusive: one gap after the last payment.
    fn end_ms(&self) -> i64 {
        self.last_ms.saturating_add(SESSION_GAP_MS)
    }

    /// The last millisecond: when the watermark reaches it, the session is over.
    fn max_timestamp(&self) -> EventTime {
        EventTime(self.last_ms).plus(SESSION_GAP_MS - 1)
    }

    fn merge(self, other: &LiveSession) -> LiveSession {
        LiveSession {
            first_ms: self.first_ms.min(other.first_ms),
            last_ms: self.last_ms.max(other.last_ms),
            payment_count: self.payment_count.saturating_add(other.payment_count),
            amount_minor: self.amount_minor.saturating_add(other.amount_minor),
        }
    }

    fn finished(&self, card: &str) -> CardSession {
        CardSession {
            card_id: card.to_owned(),
            session_start_ms: self.first_ms,
            session_end_ms: self.end_ms(),
            payment_count: self.payment_count,
            amount_minor: self.amount_minor,
        }
    }
}

#[cfg(test)]
mod tests;
