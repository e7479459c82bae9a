//! The same rules, naively: everything is kept as it came and worked out anew at every step.

use std::collections::BTreeMap;

use payguard_model::{ConnectionEvent, ConnectionVerdict, Outcome, Step};

use super::{ReorderOutput, SessionLimits};

const THREE_MINUTES: i64 = 180_000;

/// All sessions of one task.
pub struct Model {
    limits: SessionLimits,
    /// `a` or `b`.
    variant: &'static str,
    watermark: i64,
    now: i64,
    /// What came of it so far.
    pub outputs: Vec<ReorderOutput>,
    sessions: BTreeMap<String, Known>,
}

#[derive(Default)]
struct Known {
    /// As they arrived.
    events: Vec<ConnectionEvent>,
    late: u32,
    seen: i64,
    open: bool,
    /// The verdicts so far, without what a new one always changes.
    told: Vec<(Outcome, Option<Step>, Option<String>)>,
}

impl Model {
    /// No session, before every event, at processing time 0.
    #[must_use]
    pub fn new(variant: &'static str, limits: SessionLimits) -> Model {
        let (outputs, sessions) = (Vec::new(), BTreeMap::new());
        Model { limits, variant, watermark: i64::MIN, now: 0, outputs, sessions }
    }

    /// An event arrives.
    pub fn event(&mut self, event: &ConnectionEvent) {
        let over = event.event_time_ms + self.limits.gap_ms + THREE_MINUTES;
        if !self.sessions.contains_key(&event.session_id) && over <= self.watermark {
            self.outputs.push(ReorderOutput::Late(event.clone()));
            return;
        }
        let known = self.sessions.entry(event.session_id.clone()).or_default();
        known.events.push(event.clone());
        known.late += u32::from(event.event_time_ms <= self.watermark);
        (known.seen, known.open) = (self.now, true);
    }

    /// The watermark reached.
    #[must_use]
    pub fn watermark(&self) -> i64 {
        self.watermark
    }

    /// The clock.
    #[must_use]
    pub fn now(&self) -> i64 {
        self.now
    }

    /// Closes and forgets what is due, the earliest first.
    pub fn advance_watermark(&mut self, watermark: i64) {
        self.watermark = self.watermark.max(watermark);
        loop {
            let due = |known: &Known| known.newest() + self.limits.gap_ms + if known.open { 0 } else { THREE_MINUTES };
            let next = self.sessions.iter().map(|(id, known)| (due(known), id.clone())).min();
            let Some((_, id)) = next.filter(|(due, _)| *due <= self.watermark) else { return };
            if self.sessions[&id].open {
                self.close(&id, false);
            } else {
                self.sessions.remove(&id);
            }
        }
    }

    /// Closes what was silent for three minutes and forgets what was silent for six, the earliest first.
    pub fn advance_processing_time(&mut self, now: i64) {
        self.now = now;
        loop {
            let due = |known: &Known| known.seen + if known.open { THREE_MINUTES } else { 2 * THREE_MINUTES };
            let next = self.sessions.iter().map(|(id, known)| (due(known), id.clone())).min();
            let Some((_, id)) = next.filter(|(due, _)| *due <= self.now) else { return };
            if self.sessions[&id].open {
                self.close(&id, true);
            } else {
                self.sessions.remove(&id);
            }
        }
    }

    /// How many sessions are remembered.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    fn close(&mut self, id: &str, evicted: bool) {
        let (limits, by_time) = (self.limits, self.variant == "b");
        let known = self.sessions.get_mut(id).expect("a session that is known");
        known.open = false;
        let chain = known.chain(by_time, limits.max_events);
        let judged = judged(&chain);
        if known.told.last() == Some(&judged) {
            return;
        }
        let times = || known.events.iter().map(|e| e.event_time_ms);
        let (first, last) = (times().min().expect("an event"), times().max().expect("an event"));
        self.outputs.push(ReorderOutput::Verdict(ConnectionVerdict {
            session_id: id.to_owned(),
            client_id: chain[0].client_id.clone(),
            variant: self.variant.to_owned(),
            outcome: judged.0.number(),
            failed_step: judged.1.map(Step::number),
            reason: judged.2.clone(),
            steps: chain.iter().map(|e| ConnectionVerdict::code(e.step(), e.ok)).collect(),
            started_at_ms: first,
            duration_ms: last - first,
            late_events: known.late,
            evicted,
            revision: u32::try_from(known.told.len()).expect("few"),
        }));
        known.told.push(judged);
    }
}

impl Known {
    fn newest(&self) -> i64 {
        self.events.iter().map(|e| e.event_time_ms).max().expect("an event")
    }

    fn chain(&self, by_time: bool, most: usize) -> Vec<ConnectionEvent> {
        let mut chain = self.events.clone();
        if by_time {
            // A stable sort: what arrived first stays first.
            chain.sort_by_key(|e| (e.event_time_ms, e.step()));
        }
        chain.truncate(most);
        chain
    }
}

/// The verdict on a chain, step by step.
fn judged(chain: &[ConnectionEvent]) -> (Outcome, Option<Step>, Option<String>) {
    let of = |step: Step| chain.iter().enumerate().filter(move |(_, e)| e.step() == step);
    for step in Step::ALL {
        let is_healed = |failure: usize| {
            let retry = of(step).find(|(at, e)| *at > failure && e.ok);
            retry.is_some_and(|(at, _)| !chain[..at].iter().any(|e| e.step() > step && e.ok))
        };
        let last_failed = of(step).next_back().is_some_and(|(_, e)| !e.ok);
        let unhealed = of(step).any(|(at, e)| !e.ok && !is_healed(at));
        if last_failed || unhealed {
            let reason = of(step).rfind(|(_, e)| !e.ok).and_then(|(_, e)| e.reason.clone());
            return (Outcome::Failed, Some(step), reason);
        }
    }
    let deciding: Vec<Option<i64>> =
        Step::ALL.iter().map(|step| of(*step).next_back().map(|(_, e)| e.event_time_ms)).collect();
    let success = deciding.iter().all(Option::is_some) && deciding.is_sorted();
    (if success { Outcome::Success } else { Outcome::Incomplete }, None, None)
}
