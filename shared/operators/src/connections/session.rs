//! What is remembered of a session.

use payguard_model::{ConnectionEvent, ConnectionVerdict, Step};
use serde::Serialize;

use super::chain::{ChainEvent, Judgement};

/// A session: its events as small records, in the order in which they are read, and what was said about it.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// The client of the first event of the chain.
    #[prost(string, tag = "1")]
    pub(super) client_id: String,
    /// Event time of the event that came first, milliseconds: the others are told by their distance.
    #[prost(int64, tag = "2")]
    #[serde(rename = "firstArrivalMs")]
    base_ms: i64,
    /// Event times of the oldest and the newest event, those included that were not kept.
    #[prost(sint64, tag = "3")]
    #[serde(rename = "oldestAfterMs")]
    oldest: i64,
    #[prost(sint64, tag = "4")]
    #[serde(rename = "newestAfterMs")]
    newest: i64,
    /// The events.
    #[prost(message, repeated, tag = "5")]
    pub(super) events: Vec<ChainEvent>,
    /// The reasons that events give, each once.
    #[prost(string, repeated, tag = "6")]
    reasons: Vec<String>,
    /// Events that came behind the watermark.
    #[prost(uint32, tag = "7")]
    pub(super) late_events: u32,
    /// Processing time of the event that came last.
    #[prost(int64, tag = "8")]
    pub(super) seen_ms: i64,
    /// Whether it waits for more.
    #[prost(bool, tag = "9")]
    pub(super) open: bool,
    /// What was said about it.
    #[prost(message, optional, tag = "10")]
    pub(super) told: Option<Told>,
}

/// The verdict that was emitted last.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, Serialize)]
pub(super) struct Told {
    /// Number of the outcome.
    #[prost(uint32, tag = "1")]
    outcome: u32,
    /// Number of the step that failed, from 1; 0: none.
    #[prost(uint32, tag = "2")]
    failed: u32,
    /// Number of the reason, from 1; 0: none.
    #[prost(uint32, tag = "3")]
    reason: u32,
    /// Its revision.
    #[prost(uint32, tag = "4")]
    pub(super) revision: u32,
}

/// Whether an event that joined a session is kept in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Joined {
    Kept,
    /// The session was full: its newest event, or this one, is not kept.
    OneDropped,
}

impl Session {
    /// Whether nothing is known of it.
    pub(super) fn is_new(&self) -> bool {
        self.events.is_empty()
    }

    /// Event time of the newest event.
    pub(super) fn newest_ms(&self) -> i64 {
        self.base_ms.saturating_add(self.newest)
    }

    /// Takes an event in: behind those that are read before it if `sorted`, else behind all others.
    pub(super) fn join(&mut self, event: &ConnectionEvent, sorted: bool, max_events: usize) -> Joined {
        if self.is_new() {
            self.base_ms = event.event_time_ms;
        }
        let at = event.event_time_ms.saturating_sub(self.base_ms);
        (self.oldest, self.newest) = (self.oldest.min(at), self.newest.max(at));
        let reason = event.reason.as_deref().filter(|_| !event.ok).map_or(0, |reason| self.number_of(reason));
        let joining = ChainEvent::new(at, event.step(), event.ok, reason);
        let place = match sorted {
            true => self.events.partition_point(|e| (e.at, e.step()) <= (at, joining.step())),
            false => self.events.len(),
        };
        if place == 0 {
            self.client_id.clear();
            self.client_id.push_str(&event.client_id);
        }
        if place == max_events {
            return Joined::OneDropped;
        }
        self.events.insert(place, joining);
        if self.events.len() > max_events {
            self.events.truncate(max_events);
            return Joined::OneDropped;
        }
        Joined::Kept
    }

    /// Whether another verdict was emitted before, or none.
    pub(super) fn is_news(&self, judgement: Judgement) -> bool {
        self.told.is_none_or(|told| Told { revision: 0, ..told } != Told::of(judgement, 0))
    }

    /// Notes a verdict and tells it; its revision is the number of those before.
    pub(super) fn tell(&mut self, id: &str, variant: &str, judgement: Judgement, evicted: bool) -> ConnectionVerdict {
        let revision = self.told.map_or(0, |told| told.revision.saturating_add(1));
        self.told = Some(Told::of(judgement, revision));
        ConnectionVerdict {
            session_id: id.to_owned(),
            client_id: self.client_id.clone(),
            variant: variant.to_owned(),
            outcome: judgement.outcome.number(),
            failed_step: judgement.failed.map(Step::number),
            reason: self.reason(judgement.reason).map(str::to_owned),
            steps: self.events.iter().map(|e| ConnectionVerdict::code(e.step(), e.ok())).collect(),
            started_at_ms: self.base_ms.saturating_add(self.oldest),
            duration_ms: self.newest.saturating_sub(self.oldest),
            late_events: self.late_events,
            evicted,
            revision,
        }
    }

    fn reason(&self, number: u32) -> Option<&str> {
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        self.reasons.get(at).map(String::as_str)
    }

    /// The number of a reason, from 1.
    fn number_of(&mut self, reason: &str) -> u32 {
        let at = self.reasons.iter().position(|known| known == reason).unwrap_or_else(|| {
            self.reasons.push(reason.to_owned());
            self.reasons.len() - 1
        });
        u32::try_from(at + 1).unwrap_or(0)
    }
}

impl Told {
    fn of(judgement: Judgement, revision: u32) -> Told {
        let failed = judgement.failed.map_or(0, |step| step.number() + 1);
        Told { outcome: judgement.outcome.number(), failed, reason: judgement.reason, revision }
    }
}
