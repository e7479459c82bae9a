//! Steps of connection attempts: what comes in (topic `connections.raw`), and what is said about a session (topic
//! `connections.verdicts`).

use serde::ser::{SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};

mod parse;

pub use parse::{ConnectionReason, parse_connection_into};

/// A step of a connection attempt, in the order in which they are taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    /// The client proves who it is.
    Auth,
    /// The client is bound to an access point.
    Assoc,
    /// The client gets an address.
    Dhcp,
    /// The client resolves a name.
    Dns,
}

impl Step {
    /// All steps, in their order.
    pub const ALL: [Step; 4] = [Step::Auth, Step::Assoc, Step::Dhcp, Step::Dns];

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Step::Auth => "auth",
            Step::Assoc => "assoc",
            Step::Dhcp => "dhcp",
            Step::Dns => "dns",
        }
    }

    /// The step of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Step> {
        Step::ALL.into_iter().find(|step| step.name() == name)
    }

    /// Its number: what is stored of it.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The step of this number; of a number that is none's, by its last two bits.
    #[must_use]
    pub const fn of(number: u32) -> Step {
        Step::ALL[(number & 3) as usize]
    }
}

/// One step that a client took, and how it ended.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ConnectionEvent {
    /// The attempt that it belongs to.
    #[prost(string, tag = "1")]
    pub session_id: String,
    /// Who connects.
    #[prost(string, tag = "2")]
    pub client_id: String,
    /// [`Step::number`].
    #[prost(uint32, tag = "3")]
    pub step: u32,
    /// Whether it succeeded.
    #[prost(bool, tag = "4")]
    pub ok: bool,
    /// Why it did not.
    #[prost(string, optional, tag = "5")]
    pub reason: Option<String>,
    /// Event time, milliseconds since the Unix epoch.
    #[prost(int64, tag = "6")]
    pub event_time_ms: i64,
}

impl ConnectionEvent {
    /// The step.
    #[must_use]
    pub const fn step(&self) -> Step {
        Step::of(self.step)
    }
}

/// As it came.
impl Serialize for ConnectionEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("ConnectionEvent", 6)?;
        fields.serialize_field("sessionId", &self.session_id)?;
        fields.serialize_field("clientId", &self.client_id)?;
        fields.serialize_field("step", self.step().name())?;
        fields.serialize_field("status", status(self.ok))?;
        fields.serialize_field("reason", &self.reason)?;
        fields.serialize_field("eventTimeMs", &self.event_time_ms)?;
        fields.end()
    }
}

const fn status(ok: bool) -> &'static str {
    if ok { "ok" } else { "fail" }
}

/// Whether a session got through.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// Steps are missing, or their times contradict their order.
    Incomplete,
    /// Every step succeeded, one after the other.
    Success,
    /// A step failed.
    Failed,
}

impl Outcome {
    /// All outcomes by their numbers.
    const ALL: [Outcome; 3] = [Outcome::Incomplete, Outcome::Success, Outcome::Failed];

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Incomplete => "incomplete",
            Outcome::Success => "success",
            Outcome::Failed => "failed",
        }
    }

    /// Its number: what is stored of it.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The outcome of this number; [`Outcome::Incomplete`] for a number that is none's.
    #[must_use]
    pub fn of(number: u32) -> Outcome {
        usize::try_from(number).ok().and_then(|at| Outcome::ALL.get(at).copied()).unwrap_or(Outcome::Incomplete)
    }
}

/// What is said about a session. A later one of the same session and variant with a greater revision replaces it.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ConnectionVerdict {
    /// The session.
    #[prost(string, tag = "1")]
    pub session_id: String,
    /// Who connected.
    #[prost(string, tag = "2")]
    pub client_id: String,
    /// Who says so: `a` or `b`.
    #[prost(string, tag = "3")]
    pub variant: String,
    /// [`Outcome::number`].
    #[prost(uint32, tag = "4")]
    pub outcome: u32,
    /// [`Step::number`] of the step that failed.
    #[prost(uint32, optional, tag = "5")]
    pub failed_step: Option<u32>,
    /// Why it failed.
    #[prost(string, optional, tag = "6")]
    pub reason: Option<String>,
    /// The chain, a byte for each event: see [`ConnectionVerdict::code`].
    #[prost(bytes = "vec", tag = "7")]
    pub steps: Vec<u8>,
    /// Event time of the oldest event.
    #[prost(int64, tag = "8")]
    pub started_at_ms: i64,
    /// From the oldest event to the newest one, milliseconds.
    #[prost(int64, tag = "9")]
    pub duration_ms: i64,
    /// Events that came behind the watermark.
    #[prost(uint32, tag = "10")]
    pub late_events: u32,
    /// Whether the session was closed by a guard, with what it had.
    #[prost(bool, tag = "11")]
    pub evicted: bool,
    /// How often the verdict was changed before.
    #[prost(uint32, tag = "12")]
    pub revision: u32,
}

impl ConnectionVerdict {
    /// The byte of an event in [`ConnectionVerdict::steps`].
    #[must_use]
    pub const fn code(step: Step, ok: bool) -> u8 {
        (step as u8) | ((ok as u8) << 2)
    }

    /// The outcome.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        Outcome::of(self.outcome)
    }
}

/// The text of every [`ConnectionVerdict::code`].
const STEPS: [&str; 8] =
    ["auth:fail", "assoc:fail", "dhcp:fail", "dns:fail", "auth:ok", "assoc:ok", "dhcp:ok", "dns:ok"];

impl Serialize for ConnectionVerdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("ConnectionVerdict", 12)?;
        fields.serialize_field("sessionId", &self.session_id)?;
        fields.serialize_field("clientId", &self.client_id)?;
        fields.serialize_field("variant", &self.variant)?;
        fields.serialize_field("verdict", self.outcome().name())?;
        fields.serialize_field("failedStep", &self.failed_step.map(|step| Step::of(step).name()))?;
        fields.serialize_field("reason", &self.reason)?;
        fields.serialize_field("steps", &Steps(&self.steps))?;
        fields.serialize_field("startedAtMs", &self.started_at_ms)?;
        fields.serialize_field("durationMs", &self.duration_ms)?;
        fields.serialize_field("lateEvents", &self.late_events)?;
        fields.serialize_field("evicted", &self.evicted)?;
        fields.serialize_field("revision", &self.revision)?;
        fields.end()
    }
}

struct Steps<'a>(&'a [u8]);

impl Serialize for Steps<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut texts = serializer.serialize_seq(Some(self.0.len()))?;
        for code in self.0 {
            texts.serialize_element(STEPS[usize::from(code & 7)])?;
        }
        texts.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::to_json;

    #[test]
    fn names_and_numbers_name_one_step() {
        for (number, step) in (0..).zip(Step::ALL) {
            assert_eq!((Step::named(step.name()), Step::of(number), step.number()), (Some(step), step, number));
            for ok in [false, true] {
                let text = format!("{}:{}", step.name(), status(ok));
                assert_eq!(STEPS[usize::from(ConnectionVerdict::code(step, ok))], text);
            }
        }
        for outcome in Outcome::ALL {
            assert_eq!(Outcome::of(outcome.number()), outcome);
        }
        assert_eq!((Step::named("AUTH"), Outcome::of(7)), (None, Outcome::Incomplete));
    }

    #[test]
    fn records_are_written_as_they_are_specified() {
        let event = ConnectionEvent {
            session_id: "s-1".to_owned(),
            client_id: "c-1".to_owned(),
            step: Step::Dhcp.number(),
            ok: false,
            reason: Some("no lease".to_owned()),
            event_time_ms: 1_794_085_500_000,
        };
        let json = r#"{"sessionId":"s-1","clientId":"c-1","step":"dhcp","status":"fail","reason":"no lease","eventTimeMs":1794085500000}"#;
        assert_eq!(String::from_utf8(to_json(&event)).expect("text"), json);
        let verdict = ConnectionVerdict {
            session_id: "s-1".to_owned(),
            client_id: "c-1".to_owned(),
            variant: "b".to_owned(),
            outcome: Outcome::Failed.number(),
            failed_step: Some(Step::Dhcp.number()),
            reason: event.reason,
            steps: vec![ConnectionVerdict::code(Step::Auth, true), ConnectionVerdict::code(Step::Dhcp, false)],
            started_at_ms: 5,
            duration_ms: 7,
            late_events: 1,
            evicted: true,
            revision: 2,
        };
        let json = concat!(
            r#"{"sessionId":"s-1","clientId":"c-1","variant":"b","verdict":"failed","failedStep":"dhcp","#,
            r#""reason":"no lease","steps":["auth:ok","dhcp:fail"],"startedAtMs":5,"durationMs":7,"lateEvents":1,"#,
            r#""evicted":true,"revision":2}"#
        );
        assert_eq!(String::from_utf8(to_json(&verdict)).expect("text"), json);
        let bare = String::from_utf8(to_json(&ConnectionVerdict::default())).expect("text");
        assert!(bare.contains(r#""failedStep":null,"reason":null,"steps":[]"#), "{bare}");
    }
}
