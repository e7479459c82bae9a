//! What is configured of the connections pipeline.

use payguard_operators::connections::SessionLimits;
use serde::{Deserialize, Serialize};

use super::{ConfigError, invalid};
use crate::connections::VARIANTS;

/// Sessions of connection attempts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Connections {
    /// Topic with raw events.
    pub topic: String,
    /// Variants that run side by side: `a`, `b`.
    pub variants: Vec<String>,
    /// The variant whose verdicts and late events are published as those of the pipeline.
    pub visible_variant: String,
    /// A session closes when the watermark is this far past its newest event, milliseconds.
    pub session_gap_ms: i64,
    /// Events that are kept of a session, the oldest ones.
    pub max_events_per_session: usize,
    /// Sessions that a task remembers, open or closed; of more, the longest silent are given up.
    pub max_buffered_sessions: usize,
    /// Topic of verdicts; with several variants each has one too, of this name with `.` and its own.
    pub verdicts_topic: String,
    /// Topic of refused records.
    pub dlq_topic: String,
    /// Topic of events that came when their session was forgotten.
    pub late_topic: String,
}

impl Default for Connections {
    fn default() -> Connections {
        let limits = SessionLimits::default();
        Connections {
            topic: "connections.raw".to_owned(),
            variants: VARIANTS.iter().map(|variant| variant.name.to_owned()).collect(),
            visible_variant: "b".to_owned(),
            session_gap_ms: limits.gap_ms,
            max_events_per_session: limits.max_events,
            max_buffered_sessions: 1_000_000,
            verdicts_topic: "connections.verdicts".to_owned(),
            dlq_topic: "connections.dlq".to_owned(),
            late_topic: "connections.late".to_owned(),
        }
    }
}

impl Connections {
    /// The numbers that bound a session.
    #[must_use]
    pub fn limits(&self) -> SessionLimits {
        SessionLimits { gap_ms: self.session_gap_ms, max_events: self.max_events_per_session }
    }

    /// Whether several variants run.
    #[must_use]
    pub fn is_compared(&self) -> bool {
        self.variants.len() > 1
    }

    /// Every topic that is written, with its key.
    pub(super) fn topics(&self) -> [(&'static str, &str); 3] {
        [
            ("connections.verdicts_topic", &self.verdicts_topic),
            ("connections.dlq_topic", &self.dlq_topic),
            ("connections.late_topic", &self.late_topic),
        ]
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let fail = |key: &str, detail: String| Err(invalid(&format!("connections.{key}"), &detail));
        let known = VARIANTS.map(|variant| variant.name).join(", ");
        for (at, name) in self.variants.iter().enumerate() {
            if !VARIANTS.iter().any(|variant| variant.name == name) {
                return fail("variants", format!("`{name}` is none of {known}"));
            }
            if self.variants[..at].contains(name) {
                return fail("variants", format!("`{name}` is named twice"));
            }
        }
        if !self.variants.contains(&self.visible_variant) {
            let (visible, running) = (&self.visible_variant, self.variants.join(", "));
            return fail("visible_variant", format!("`{visible}` does not run; connections.variants has {running}"));
        }
        if self.session_gap_ms < 0 {
            return fail("session_gap_ms", "must not be negative".to_owned());
        }
        // A chain's code in memory has room for this many reasons.
        if !(1..=10_000).contains(&self.max_events_per_session) {
            return fail("max_events_per_session", "must be 1 to 10000".to_owned());
        }
        if self.max_buffered_sessions == 0 {
            return fail("max_buffered_sessions", "must be at least 1".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::Config;

    #[test]
    fn what_cannot_run_is_refused_with_its_key() {
        let load = |pairs: &[(&str, &str)]| {
            let overrides: Vec<_> =
                pairs.iter().map(|(key, value)| (format!("connections.{key}"), (*value).to_owned())).collect();
            Config::default().load(None, [], &[], &overrides)
        };
        let cases: [(&[(&str, &str)], &str); 8] = [
            (&[("variants", "a,c")], "`c` is none of a, b"),
            (&[("variants", "b,b")], "named twice"),
            (&[("variants", "a")], "`b` does not run"),
            (&[("visible_variant", "c")], "`c` does not run"),
            (&[("max_events_per_session", "0")], "1 to 10000"),
            (&[("max_buffered_sessions", "0")], "at least 1"),
            (&[("session_gap_ms", "-1")], "negative"),
            (&[("late_topic", "connections.raw")], "its own input"),
        ];
        for (pairs, text) in cases {
            let error = load(pairs).unwrap_err().to_string();
            assert!(error.contains("connections.") && error.contains(text), "{error}");
        }
        let alone = load(&[("variants", "a"), ("visible_variant", "a")]).unwrap();
        assert!(!alone.connections.is_compared());
        let system = Config::default().load(None, [], &[], &[("system".to_owned(), "cards".to_owned())]);
        assert!(system.is_err());
    }
}
