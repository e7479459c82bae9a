//! What both variants do with events and timers.

use payguard_model::{ConnectionEvent, EventTime, Outcome};

use super::chain::judge;
use super::session::{Joined, Session};
use super::{REOPEN_MS, ReorderOutput, SILENCE_MS, SessionLimits, counter};
use crate::lateness::behind_watermark_ms;
use crate::{Context, TimerDomain};

/// When event-time timers are set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Timing {
    /// By the first event; the timer moves on when it finds the session grown. Events are read by event time.
    Coalesced,
    /// By every event. Events are read by arrival.
    PerEvent,
}

/// A variant.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) limits: SessionLimits,
    pub(super) variant: &'static str,
    pub(super) timing: Timing,
}

type Ctx<'a> = dyn Context<ReorderOutput> + 'a;

impl Rules {
    pub(super) fn on_event(&self, event: &ConnectionEvent, session: &mut Session, ctx: &mut Ctx<'_>) {
        let (time, watermark) = (EventTime(event.event_time_ms), ctx.watermark());
        if session.is_new() && self.forget_at(time.0) <= watermark.0 {
            ctx.count(counter::TOO_LATE, 1);
            ctx.emit(time, ReorderOutput::Late(event.clone()));
            return;
        }
        ctx.count(counter::EVENTS, 1);
        if behind_watermark_ms(time, watermark).is_some() {
            session.late_events = session.late_events.saturating_add(1);
            ctx.count(counter::LATE_JOINED, 1);
        }
        let (is_new, was_open) = (session.is_new(), session.open);
        let forgotten_at = self.forget_at(session.newest_ms());
        if session.join(event, self.timing == Timing::Coalesced, self.limits.max_events) == Joined::OneDropped {
            ctx.count(counter::EVENTS_DROPPED, 1);
        }
        session.open = true;
        session.seen_ms = ctx.now().0;
        if is_new {
            ctx.register_timer(TimerDomain::ProcessingTime, self.silent_at(session));
        } else if !was_open {
            ctx.count(counter::REOPENED, 1);
            ctx.delete_timer(TimerDomain::EventTime, forgotten_at);
        }
        match self.timing {
            Timing::Coalesced if was_open => {}
            Timing::Coalesced => ctx.register_timer(TimerDomain::EventTime, self.close_at(session)),
            Timing::PerEvent => {
                ctx.register_timer(TimerDomain::EventTime, time.0.saturating_add(self.limits.gap_ms));
                if !was_open {
                    // Another event's timer may have been used up before.
                    ctx.register_timer(TimerDomain::EventTime, self.close_at(session));
                }
            }
        }
    }

    pub(super) fn on_timer(&self, id: &str, domain: TimerDomain, time: i64, session: &mut Session, ctx: &mut Ctx<'_>) {
        match domain {
            TimerDomain::EventTime => self.on_event_time(id, time, session, ctx),
            TimerDomain::ProcessingTime => self.on_silence(id, time, session, ctx),
        }
    }

    fn on_event_time(&self, id: &str, time: i64, session: &mut Session, ctx: &mut Ctx<'_>) {
        if session.open {
            if time >= self.close_at(session) {
                self.close(id, session, false, ctx);
            } else if self.timing == Timing::Coalesced {
                ctx.register_timer(TimerDomain::EventTime, self.close_at(session));
            }
        } else if time >= self.forget_at(session.newest_ms()) {
            forget(session, ctx);
        }
    }

    /// A processing-time timer: due, or called before its time because there are too many sessions.
    fn on_silence(&self, id: &str, time: i64, session: &mut Session, ctx: &mut Ctx<'_>) {
        let silent_at = self.silent_at(session);
        if time < silent_at {
            // It was not silent.
            ctx.register_timer(TimerDomain::ProcessingTime, silent_at);
            return;
        }
        let (is_due, end) = (time <= ctx.now().0, silent_at.saturating_add(SILENCE_MS));
        match (session.open, is_due) {
            (true, true) => {
                ctx.count(counter::EVICTED_SILENT, 1);
                self.close(id, session, true, ctx);
                ctx.register_timer(TimerDomain::ProcessingTime, end);
            }
            (true, false) => {
                ctx.count(counter::EVICTED_FULL, 1);
                self.close(id, session, true, ctx);
                forget(session, ctx);
            }
            // The watermark has stood still: event time does not tell when to forget it.
            (false, true) if time < end => ctx.register_timer(TimerDomain::ProcessingTime, end),
            (false, _) => {
                ctx.count(counter::FORGOTTEN_EARLY, 1);
                forget(session, ctx);
            }
        }
    }

    fn close(&self, id: &str, session: &mut Session, evicted: bool, ctx: &mut Ctx<'_>) {
        session.open = false;
        ctx.register_timer(TimerDomain::EventTime, self.forget_at(session.newest_ms()));
        let judgement = judge(&session.events);
        if !session.is_news(judgement) {
            return;
        }
        let verdict = session.tell(id, self.variant, judgement, evicted);
        if verdict.revision > 0 {
            ctx.count(counter::REVISIONS, 1);
        }
        let outcome = match judgement.outcome {
            Outcome::Success => counter::SUCCESS,
            Outcome::Failed => counter::FAILED,
            Outcome::Incomplete => counter::INCOMPLETE,
        };
        ctx.count(outcome, 1);
        ctx.emit(EventTime(session.newest_ms()), ReorderOutput::Verdict(verdict));
    }

    /// When the watermark closes an open session.
    fn close_at(&self, session: &Session) -> i64 {
        session.newest_ms().saturating_add(self.limits.gap_ms)
    }

    /// When the watermark makes a closed session with this newest event forgotten.
    fn forget_at(&self, newest_ms: i64) -> i64 {
        newest_ms.saturating_add(self.limits.gap_ms).saturating_add(REOPEN_MS)
    }

    /// The end of its silence, if nothing more comes.
    fn silent_at(&self, session: &Session) -> i64 {
        session.seen_ms.saturating_add(SILENCE_MS)
    }
}

/// Forgets a session with all its timers.
fn forget(session: &mut Session, ctx: &mut Ctx<'_>) {
    *session = Session::default();
    ctx.delete_all_timers();
}
