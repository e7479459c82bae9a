//! The rules that change while payments flow, and the messages that change them (topic `rules.config`).
//!
//! A person writes these messages, so they are read strictly: what is not understood is refused with a reason and
//! changes nothing. The course read them leniently: there a message without a limit silently set it to 0, and every
//! card's next payment raised an alert. Here a field that is left out keeps its value.

use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most countries one message may block; there are fewer codes in use.
pub const MAX_BLOCKED_COUNTRIES: usize = 300;

/// Characters of a message's own text that a refusal repeats.
const QUOTED_CHARS: usize = 40;

/// The rules in force.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleConfig {
    /// Payments of a card within a minute that are still allowed; not negative.
    #[prost(int64, tag = "1")]
    pub velocity_max_payments: i64,
    /// Countries every payment of which raises an alert, each once, in the order they were given.
    #[prost(string, repeated, tag = "2")]
    pub blocked_countries: Vec<String>,
}

/// One accepted message: `None` keeps the value in force. At least one field is set.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleChange {
    /// See [`RuleConfig::velocity_max_payments`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub velocity_max_payments: Option<i64>,
    /// See [`RuleConfig::blocked_countries`]; an empty list blocks none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_countries: Option<Vec<String>>,
}

/// Why a rule message is refused. The first that holds is given: the shape of the message, the names of its fields,
/// the limit, the countries.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RuleRefusal {
    /// Not one JSON object and nothing else, or an object with a field twice.
    #[error("the message is not one JSON object with every field at most once")]
    BadJson,
    /// A field nobody knows.
    #[error("unknown field {0:?}; known are velocityMaxPayments and blockedCountries")]
    UnknownField(String),
    /// A value of another type than the field's.
    #[error("{field} must be {expected}")]
    WrongType {
        /// The field.
        field: &'static str,
        /// What belongs into it.
        expected: &'static str,
    },
    /// A limit below 0.
    #[error("velocityMaxPayments must not be negative, but is {0}")]
    NegativeLimit(i64),
    /// Not the shape of a country code.
    #[error("{0:?} is not a country code of two capital letters A to Z")]
    BadCountry(String),
    /// More countries than [`MAX_BLOCKED_COUNTRIES`].
    #[error("blockedCountries has {0} entries, at most {max} are allowed", max = MAX_BLOCKED_COUNTRIES)]
    TooManyCountries(usize),
    /// Neither field given, or both null.
    #[error("the message changes nothing: give velocityMaxPayments, blockedCountries or both")]
    NoChange,
}

impl RuleRefusal {
    /// The code that goes into [`crate::RejectedRule::reason`] and into metrics.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            RuleRefusal::BadJson => "bad-json",
            RuleRefusal::UnknownField(_) => "unknown-field",
            RuleRefusal::WrongType { .. } => "wrong-type",
            RuleRefusal::NegativeLimit(_) => "negative-limit",
            RuleRefusal::BadCountry(_) => "bad-country",
            RuleRefusal::TooManyCountries(_) => "too-many-countries",
            RuleRefusal::NoChange => "no-change",
        }
    }
}

impl RuleConfig {
    /// The rules after `change`: what it leaves out stays.
    #[must_use]
    pub fn apply(&self, change: &RuleChange) -> RuleConfig {
        RuleConfig {
            velocity_max_payments: change.velocity_max_payments.unwrap_or(self.velocity_max_payments),
            blocked_countries: change.blocked_countries.as_ref().unwrap_or(&self.blocked_countries).clone(),
        }
    }
}

/// Reads one message of topic `rules.config`.
///
/// A country is two capital letters A to Z and not looked up: codes a list does not have, such as the user-assigned
/// `XX`, do occur in payments and must be possible to block.
///
/// # Errors
/// The reason of the refusal; the message then belongs in topic `rules.rejected`, and the rules in force stay.
pub fn parse_rule_change(raw: &[u8]) -> Result<RuleChange, RuleRefusal> {
    let Fields(fields) = serde_json::from_slice(raw).map_err(|_| RuleRefusal::BadJson)?;
    let (mut limit, mut countries) = (None, None);
    for (name, value) in fields {
        let field = match name.as_str() {
            "velocityMaxPayments" => &mut limit,
            "blockedCountries" => &mut countries,
            _ => return Err(RuleRefusal::UnknownField(quoted(&name))),
        };
        if field.replace(value).is_some() {
            return Err(RuleRefusal::BadJson);
        }
    }
    let present = |value: Option<Value>| value.filter(|value| !value.is_null());
    let change = RuleChange {
        velocity_max_payments: present(limit).map(read_limit).transpose()?,
        blocked_countries: present(countries).map(read_countries).transpose()?,
    };
    if change == RuleChange::default() { Err(RuleRefusal::NoChange) } else { Ok(change) }
}

fn read_limit(value: Value) -> Result<i64, RuleRefusal> {
    let wrong = RuleRefusal::WrongType { field: "velocityMaxPayments", expected: "a whole number" };
    let limit = value.as_i64().ok_or(wrong)?;
    if limit < 0 { Err(RuleRefusal::NegativeLimit(limit)) } else { Ok(limit) }
}

fn read_countries(value: Value) -> Result<Vec<String>, RuleRefusal> {
    const WRONG: RuleRefusal = RuleRefusal::WrongType { field: "blockedCountries", expected: "a list of texts" };
    let Value::Array(entries) = value else { return Err(WRONG) };
    if entries.len() > MAX_BLOCKED_COUNTRIES {
        return Err(RuleRefusal::TooManyCountries(entries.len()));
    }
    let mut countries: Vec<String> = Vec::with_capacity(entries.len());
    for entry in entries {
        let Value::String(country) = entry else { return Err(WRONG) };
        if country.len() != 2 || !country.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(RuleRefusal::BadCountry(quoted(&country)));
        }
        if !countries.contains(&country) {
            countries.push(country);
        }
    }
    Ok(countries)
}

/// The beginning of a text of the message, so that a refusal stays short whatever was sent.
fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_CHARS).collect()
}

/// The fields of an object as they stand in it: a map would hide one that is repeated.
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        deserializer.deserialize_map(Object)
    }
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Fields(fields))
    }
}

#[cfg(test)]
mod tests;
