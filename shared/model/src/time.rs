//! The two time scales as types, so that one is never compared with the other.

use std::fmt;

/// Event time: when something happened, in milliseconds since the Unix epoch. Also the type of a watermark.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EventTime(pub i64);

/// Processing time: what a machine's clock showed, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessingTime(pub i64);

impl EventTime {
    /// Before every event: the watermark of an input that has shown nothing yet.
    pub const MIN: EventTime = EventTime(i64::MIN);
    /// After every event: the watermark of an input that has ended.
    pub const MAX: EventTime = EventTime(i64::MAX);

    /// This time plus `ms`, stopping at the ends of the scale.
    #[must_use]
    pub fn plus(self, ms: i64) -> EventTime {
        EventTime(self.0.saturating_add(ms))
    }

    /// This time minus `ms`, stopping at the ends of the scale.
    #[must_use]
    pub fn minus(self, ms: i64) -> EventTime {
        EventTime(self.0.saturating_sub(ms))
    }
}

impl ProcessingTime {
    /// This time plus `ms`, stopping at the ends of the scale.
    #[must_use]
    pub fn plus(self, ms: i64) -> ProcessingTime {
        ProcessingTime(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this time; negative when a clock was set back.
    #[must_use]
    pub fn since(self, earlier: ProcessingTime) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for EventTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            EventTime::MIN => f.write_str("none"),
            EventTime::MAX => f.write_str("end"),
            EventTime(ms) => write!(f, "{ms}"),
        }
    }
}
