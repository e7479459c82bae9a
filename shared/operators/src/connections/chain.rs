//! Reading a chain: whether the steps, one after the other, got the client through.

use payguard_model::{Outcome, Step};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// An event in a session: two small numbers.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ChainEvent {
    /// Event time less that of the session's first arrival, milliseconds.
    #[prost(sint64, tag = "1")]
    pub(super) at: i64,
    /// Two bits of the step's number, one for success, the rest the number of the reason (0: none).
    #[prost(uint32, tag = "2")]
    code: u32,
}

impl ChainEvent {
    /// An event whose reason is text number `reason` of its session, counted from 1.
    #[must_use]
    pub const fn new(at: i64, step: Step, ok: bool, reason: u32) -> ChainEvent {
        ChainEvent { at, code: step.number() | ((ok as u32) << 2) | (reason << 3) }
    }

    /// The step.
    #[must_use]
    pub const fn step(&self) -> Step {
        Step::of(self.code)
    }

    /// Whether it succeeded.
    #[must_use]
    pub const fn ok(&self) -> bool {
        self.code & 4 != 0
    }

    /// Number of its reason, from 1; 0: none.
    #[must_use]
    pub const fn reason(&self) -> u32 {
        self.code >> 3
    }
}

impl Serialize for ChainEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("ChainEvent", 3)?;
        fields.serialize_field("afterMs", &self.at)?;
        fields.serialize_field("step", self.step().name())?;
        fields.serialize_field("ok", &self.ok())?;
        fields.end()
    }
}

/// What a chain says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Judgement {
    /// Whether the client got through.
    pub outcome: Outcome,
    /// The first step, in the order of steps, that failed.
    pub failed: Option<Step>,
    /// Number of the reason why, from 1; 0: none.
    pub reason: u32,
}

/// Where a step stands while a chain is read.
#[derive(Clone, Copy)]
enum Standing {
    Missing,
    Succeeded { at: i64 },
    Failed { reason: u32 },
}

/// Reads a chain.
///
/// The last event of each step decides that step, with one exception: a success heals an earlier failure of its step only
/// if no later step had succeeded before it.
#[must_use]
pub fn judge(chain: &[ChainEvent]) -> Judgement {
    let mut steps = [Standing::Missing; 4];
    // The latest step that has succeeded so far, plus one.
    let mut reached = 0;
    for event in chain {
        let number = event.step().number();
        let step = &mut steps[number as usize];
        *step = match (event.ok(), *step) {
            (false, _) => Standing::Failed { reason: event.reason() },
            (true, Standing::Failed { reason }) if reached > number + 1 => Standing::Failed { reason },
            (true, _) => Standing::Succeeded { at: event.at },
        };
        if event.ok() {
            reached = reached.max(number + 1);
        }
    }
    let failed = Step::ALL.into_iter().zip(steps).find_map(|(step, standing)| match standing {
        Standing::Failed { reason } => Some((step, reason)),
        Standing::Missing | Standing::Succeeded { .. } => None,
    });
    match failed {
        Some((step, reason)) => Judgement { outcome: Outcome::Failed, failed: Some(step), reason },
        None => Judgement { outcome: in_order(&steps), failed: None, reason: 0 },
    }
}

/// Whether all steps succeeded, none before the one it follows.
fn in_order(steps: &[Standing; 4]) -> Outcome {
    let mut last = i64::MIN;
    for step in steps {
        match step {
            Standing::Succeeded { at } if *at >= last => last = *at,
            _ => return Outcome::Incomplete,
        }
    }
    Outcome::Success
}
