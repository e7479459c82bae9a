//! The states there are: where each is kept, what its key is, how its bytes become JSON, and which numbers it has.

use payguard_engine::export::{Held, Value as Stored};
use payguard_engine::logic::DecodeError;
use payguard_model::CardProfile;
use payguard_operators::amount_spike::{self, AmountSpikeRule};
use payguard_operators::buckets::BucketSize;
use payguard_operators::card_profile::CardProfiles;
use payguard_operators::card_sessions::CardSessionWindow;
use payguard_operators::connections::{ArrivalOrder, EventTimeOrder};
use payguard_operators::matching::PaymentMatching;
use payguard_operators::merchant_stats::MerchantStatsWindow;
use payguard_operators::salted_stats::{CombineParts, SaltedStatsWindow};
use payguard_operators::sequences::SequenceRules;
use payguard_operators::velocity::{self, VelocityRule};
use payguard_operators::{KeyedOperator, RuleState, dedup};
use payguard_topology::stage;
use prost::Message;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::InspectError;
use crate::time::with_utc;

/// A state of the pipeline.
#[derive(Debug)]
pub struct StateKind {
    /// Permanent id under which it is kept.
    pub id: &'static str,
    /// The stage that keeps it.
    pub stage: &'static str,
    /// What its key is.
    pub key: &'static str,
    /// Its numbers, the default one first.
    pub fields: &'static [Field],
    read: fn(&[u8]) -> Result<Value, DecodeError>,
}

/// A number of a state, by which its keys can be put in order.
#[derive(PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Where it is in the JSON; of the elements of a list the sum.
    path: &'static [&'static str],
}

/// A number that every state has: the bytes of a key with its state and timers, roughly as they are stored.
const BYTES: &str = "bytes";

const BUCKETS: &[Field] =
    &[field("sum", &["buckets", "sum"]), field("buckets", &["buckets"]), field("lastAlertMs", &["lastAlertMs"])];
const WINDOWS: &[Field] = &[
    field("paymentCount", &["windows", "paymentCount"]),
    field("amountMinor", &["windows", "amountMinor"]),
    field("windows", &["windows"]),
];
const SESSIONS: &[Field] = &[field("events", &["events"]), field("lateEvents", &["lateEvents"])];

/// Every state, in the order of flow.
pub const STATES: [StateKind; 12] = [
    StateKind {
        id: dedup::ID,
        stage: stage::DEDUP,
        key: "payment id",
        fields: &[field("writtenAtMs", &["writtenAtMs"])],
        read: no_state,
    },
    StateKind {
        id: MerchantStatsWindow::ID,
        stage: stage::WINDOW,
        key: "merchant id",
        fields: WINDOWS,
        read: json_of::<<MerchantStatsWindow as KeyedOperator>::State>,
    },
    StateKind {
        id: SaltedStatsWindow::ID,
        stage: stage::WINDOW,
        key: "merchant id, #, salt",
        fields: WINDOWS,
        read: json_of::<<SaltedStatsWindow as KeyedOperator>::State>,
    },
    StateKind {
        id: CardSessionWindow::ID,
        stage: stage::WINDOW,
        key: "card id",
        fields: &[
            field("paymentCount", &["sessions", "paymentCount"]),
            field("amountMinor", &["sessions", "amountMinor"]),
            field("sessions", &["sessions"]),
        ],
        read: json_of::<<CardSessionWindow as KeyedOperator>::State>,
    },
    StateKind {
        id: CombineParts::ID,
        stage: stage::COMBINE,
        key: "merchant id",
        fields: &[
            field("paymentCount", &["windows", "parts", "paymentCount"]),
            field("amountMinor", &["windows", "parts", "amountMinor"]),
            field("windows", &["windows"]),
        ],
        read: json_of::<<CombineParts as KeyedOperator>::State>,
    },
    StateKind {
        id: VelocityRule::ID,
        stage: stage::RULES,
        key: "card id",
        fields: BUCKETS,
        read: |bytes| buckets_of(bytes, BucketSize::from_ms(velocity::BUCKET_MS)),
    },
    StateKind {
        id: AmountSpikeRule::ID,
        stage: stage::RULES,
        key: "card id",
        fields: BUCKETS,
        read: |bytes| buckets_of(bytes, BucketSize::from_ms(amount_spike::BUCKET_MS)),
    },
    StateKind {
        id: SequenceRules::ID,
        stage: stage::RULES,
        key: "card id",
        fields: &[field("pending", &["pending"]), field("probes", &["probes", "probes"])],
        read: json_of::<<SequenceRules as KeyedOperator>::State>,
    },
    StateKind {
        id: CardProfiles::ID,
        stage: stage::RULES,
        key: "card id",
        fields: &[field("paymentCount", &["paymentCount"]), field("totalAmountMinor", &["totalAmountMinor"])],
        read: json_of::<CardProfile>,
    },
    StateKind {
        id: PaymentMatching::ID,
        stage: stage::MATCH,
        key: "payment id",
        fields: &[
            field("payments", &["join", "payments"]),
            field("confirmations", &["join", "confirmations"]),
            field("amountMinor", &["join", "payments", "amountMinor"]),
        ],
        read: json_of::<<PaymentMatching as KeyedOperator>::State>,
    },
    StateKind {
        id: ArrivalOrder::ID,
        stage: stage::REORDER_A,
        key: "session id",
        fields: SESSIONS,
        read: json_of::<<ArrivalOrder as KeyedOperator>::State>,
    },
    StateKind {
        id: EventTimeOrder::ID,
        stage: stage::REORDER_B,
        key: "session id",
        fields: SESSIONS,
        read: json_of::<<EventTimeOrder as KeyedOperator>::State>,
    },
];

/// What is stored of a key, readable.
#[derive(Clone, PartialEq, Debug)]
pub struct Readable {
    /// The state.
    pub value: Value,
    /// Event-time timers, milliseconds.
    pub event_timers: Vec<i64>,
    /// Processing-time timers, milliseconds.
    pub processing_timers: Vec<i64>,
}

impl StateKind {
    /// The state of this id.
    ///
    /// # Errors
    /// When there is none; lists those there are.
    pub fn find(id: &str) -> Result<&'static StateKind, InspectError> {
        STATES.iter().find(|state| state.id == id).ok_or_else(|| InspectError::UnknownState {
            id: id.to_owned(),
            there_are: STATES.iter().map(|state| state.id).collect(),
        })
    }

    /// The number of this name, or the default one. `bytes` is a number of every state.
    ///
    /// # Errors
    /// When there is none; lists those there are.
    pub fn field(&self, name: Option<&str>) -> Result<Measure, InspectError> {
        let found = match name {
            None => self.fields.first(),
            Some(BYTES) => return Ok(Measure::Bytes),
            Some(name) => self.fields.iter().find(|field| field.name == name),
        };
        found.map(Measure::Of).ok_or_else(|| InspectError::UnknownField {
            state: self.id,
            field: name.unwrap_or_default().to_owned(),
            there_are: self.fields.iter().map(|field| field.name).chain([BYTES]).collect(),
        })
    }

    /// What is stored of a key, readable: names, and times in UTC beside milliseconds.
    ///
    /// # Errors
    /// When the bytes are not the operator's message.
    pub fn read(&self, stored: &Stored) -> Result<Readable, DecodeError> {
        let (value, event_timers, processing_timers) = match stored {
            Stored::WrittenAt(at) => (json!({ "writtenAtMs": at.0 }), Vec::new(), Vec::new()),
            Stored::State(Held { state, event_timers, processing_timers }) => {
                ((self.read)(state)?, event_timers.clone(), processing_timers.clone())
            }
        };
        Ok(Readable { value: with_utc(value), event_timers, processing_timers })
    }
}

/// What the keys of a state are put in order by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// A number of the state.
    Of(&'static Field),
    /// How much is stored of a key.
    Bytes,
}

impl Measure {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Measure::Of(field) => field.name,
            Measure::Bytes => BYTES,
        }
    }

    /// The number of a key.
    #[must_use]
    pub fn of(self, key: &str, stored: &Stored, value: &Value) -> i128 {
        match (self, stored) {
            (Measure::Of(field), _) => number_at(value, field.path),
            (Measure::Bytes, Stored::WrittenAt(_)) => key.len() as i128 + 8,
            (Measure::Bytes, Stored::State(held)) => {
                let timers = held.event_timers.len() + held.processing_timers.len();
                (key.len() + held.state.len() + 8 * timers) as i128
            }
        }
    }
}

const fn field(name: &'static str, path: &'static [&'static str]) -> Field {
    Field { name, path }
}

/// The number at a path. Of a list: the sum of its elements', or at the path's end how many they are. What is absent
/// is 0.
fn number_at(value: &Value, path: &[&str]) -> i128 {
    match (value, path) {
        (Value::Array(values), []) => values.len() as i128,
        (Value::Array(values), path) => values.iter().map(|value| number_at(value, path)).sum(),
        (Value::Number(number), []) => number.as_i128().unwrap_or_default(),
        (value, [name, rest @ ..]) => value.get(name).map_or(0, |value| number_at(value, rest)),
        (_, []) => 0,
    }
}

fn json_of<M: Message + Default + Serialize>(bytes: &[u8]) -> Result<Value, DecodeError> {
    serde_json::to_value(M::decode(bytes)?).map_err(|e| DecodeError(e.to_string()))
}

fn buckets_of(bytes: &[u8], size: BucketSize) -> Result<Value, DecodeError> {
    serde_json::to_value(RuleState::decode(bytes)?.view(size)).map_err(|e| DecodeError(e.to_string()))
}

fn no_state(_: &[u8]) -> Result<Value, DecodeError> {
    Err(DecodeError("ids have no state but when they were written".to_owned()))
}

#[cfg(test)]
mod tests;
