//! Card testing: at least three small payments in a row and then at once a large one, all within five minutes.
//!
//! Any other payment breaks the series, a large one too early as well. Only the last small payments decide: of a longer
//! series it is enough that its last three lie within the time. The match is the whole series within the time.

use serde::Serialize;

use super::{Match, Pending};

/// Id of the rule in its alerts.
pub const RULE_ID: &str = "card-testing";

/// A payment below this many minor units is a probe.
pub const SMALL_AMOUNT_MINOR: i64 = 500;

/// A payment above this many minor units cashes out.
pub const LARGE_AMOUNT_MINOR: i64 = 30_000;

/// Probes a cash-out needs before it.
pub const MIN_PROBES: usize = 3;

/// The first probe and the cash-out are less than this apart: five minutes of event time.
pub const WINDOW_MS: i64 = 300_000;

/// Most probes that are remembered, and so named in an alert: a longer series is cut at its beginning.
pub const MAX_PROBES: usize = 20;

/// The probes directly before the next payment, by time.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeRun {
    /// The probes, the last [`MAX_PROBES`] at most.
    #[prost(message, repeated, tag = "1")]
    probes: Vec<Probe>,
}

/// A small payment.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Event time, milliseconds.
    #[prost(int64, tag = "1")]
    #[serde(rename = "eventTimeMs")]
    t_ms: i64,
    /// The payment.
    #[prost(string, tag = "2")]
    payment_id: String,
}

/// Takes the card's next payment; the match it ends.
pub(super) fn step(run: &mut ProbeRun, payment: &Pending) -> Option<Match> {
    run.remove_first(|probe| payment.t_ms.saturating_sub(probe.t_ms) >= WINDOW_MS);
    if payment.amount_minor < SMALL_AMOUNT_MINOR {
        run.push(payment);
        return None;
    }
    let probes = std::mem::take(&mut run.probes);
    if payment.amount_minor <= LARGE_AMOUNT_MINOR || probes.len() < MIN_PROBES {
        return None;
    }
    let span_ms = payment.t_ms.saturating_sub(probes[0].t_ms);
    let ids = probes.into_iter().map(|probe| probe.payment_id);
    Some(Match { payments: ids.chain([payment.payment_id.clone()]).collect(), span_ms })
}

impl ProbeRun {
    /// When the last probe can no longer be part of a match.
    pub(super) fn over_at(&self) -> Option<i64> {
        self.probes.last().map(Probe::over_at)
    }

    /// Forgets the probes that no payment after `time` can match.
    pub(super) fn forget(&mut self, time: i64) {
        self.remove_first(|probe| probe.over_at() <= time);
    }

    fn push(&mut self, payment: &Pending) {
        if self.probes.len() == MAX_PROBES {
            self.probes.remove(0);
        }
        self.probes.push(Probe { t_ms: payment.t_ms, payment_id: payment.payment_id.clone() });
    }

    /// Removes the probes for which `is_over`; it must hold for a probe if for a later one.
    fn remove_first(&mut self, is_over: impl Fn(&Probe) -> bool) {
        let over = self.probes.partition_point(is_over);
        self.probes.drain(..over);
    }
}

impl Probe {
    fn over_at(&self) -> i64 {
        self.t_ms.saturating_add(WINDOW_MS)
    }
}
