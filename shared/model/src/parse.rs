//! From the bytes of a raw record to a [`Payment`], or to the reason why it is refused.
//!
//! What is accepted is what the course's parser accepts: Jackson with its default settings, then a validator. The
//! ordinary shape goes through typed parsing (`ordinary`); whatever that does not take is read again by `tolerant`,
//! which knows every leniency. `ordinary` takes only what `tolerant` would read in the same way.
//!
//! No clock: the caller passes `now`.

mod confirmation;
mod ordinary;
mod tolerant;

pub use confirmation::parse_confirmation;

use crate::{Payment, ProcessingTime};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Why a raw record is refused. The first reason that holds, in the order of the variants, is given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error)]
#[error("{}", self.code())]
pub enum Reason {
    /// Not JSON, not an object of a payment's shape, or a field nobody knows.
    BadJson,
    /// Payment, card or merchant id absent, empty or only whitespace.
    MissingId,
    /// Amount absent, zero or negative.
    NonPositiveAmount,
    /// Currency absent or not three capital letters A to Z.
    BadCurrency,
    /// Event time absent, zero or negative.
    MissingEventTime,
    /// Event time further ahead of the clock than [`ParsePolicy::max_future_ms`] allows.
    FutureEventTime,
}

impl Reason {
    /// Every reason, in the order they are looked for.
    pub const ALL: [Reason; 6] = [
        Reason::BadJson,
        Reason::MissingId,
        Reason::NonPositiveAmount,
        Reason::BadCurrency,
        Reason::MissingEventTime,
        Reason::FutureEventTime,
    ];

    /// The code that goes into [`crate::RejectedRecord::reason`] and into metrics.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Reason::BadJson => "bad-json",
            Reason::MissingId => "missing-id",
            Reason::NonPositiveAmount => "non-positive-amount",
            Reason::BadCurrency => "bad-currency",
            Reason::MissingEventTime => "missing-event-time",
            Reason::FutureEventTime => "future-event-time",
        }
    }
}

/// What to do with a field that is not one of a payment's seven.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownFields {
    /// Refuse the record as `bad-json`: a partner's new field is noticed, at the price of his payments until then.
    #[default]
    Reject,
    /// Skip the field.
    Ignore,
}

/// The two decisions of the parser that an operator can change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParsePolicy {
    /// Whether an unknown field refuses the record.
    pub unknown_fields: UnknownFields,
    /// How far ahead of the clock an event time may be; `None` switches the check off. One record from the year 2100
    /// would otherwise carry the watermark there and make every other payment late.
    pub max_future_ms: Option<i64>,
}

impl Default for ParsePolicy {
    fn default() -> ParsePolicy {
        ParsePolicy { unknown_fields: UnknownFields::Reject, max_future_ms: Some(3_600_000) }
    }
}

/// Reads and validates the record `raw` as seen at `now`. Text after the closing brace is ignored.
///
/// # Errors
/// The reason of the refusal; the record then belongs in the DLQ, see [`raw_text`].
pub fn parse_payment(raw: &[u8], now: ProcessingTime, policy: &ParsePolicy) -> Result<Payment, Reason> {
    let mut payment = Payment::default();
    parse_payment_into(raw, now, policy, &mut payment).map(|()| payment)
}

/// The same into a payment that was used before, whose texts keep their room. After a refusal its content is undefined.
///
/// # Errors
/// As [`parse_payment`].
pub fn parse_payment_into(
    raw: &[u8],
    now: ProcessingTime,
    policy: &ParsePolicy,
    payment: &mut Payment,
) -> Result<(), Reason> {
    let text = decode(raw);
    let fields = ordinary::read(&text).or_else(|| tolerant::read(&text, policy.unknown_fields));
    fields.ok_or(Reason::BadJson)?.validate(now, policy, payment)
}

/// The text of `raw` as the parser reads it and the DLQ keeps it: UTF-8 with U+FFFD where it is malformed, one for
/// every malformed part that Java's `new String(bytes, UTF_8)` counts as one.
#[must_use]
pub fn raw_text(raw: &[u8]) -> String {
    decode(raw).into_owned()
}

fn decode(raw: &[u8]) -> Cow<'_, str> {
    let (mut rest, mut text) = (raw, String::new());
    loop {
        let error = match std::str::from_utf8(rest) {
            Ok(tail) if text.is_empty() => return Cow::Borrowed(tail),
            Ok(tail) => return Cow::Owned(text + tail),
            Err(error) => error,
        };
        let (valid, bad) = rest.split_at(error.valid_up_to());
        text.push_str(&String::from_utf8_lossy(valid));
        text.push(char::REPLACEMENT_CHARACTER);
        rest = &bad[malformed_len(bad, error.error_len())..];
    }
}

/// How many bytes one U+FFFD stands for. Rust counts each byte of an encoded surrogate by itself, Java all of them
/// together.
fn malformed_len(bad: &[u8], by_rust: Option<usize>) -> usize {
    match bad {
        [0xED, 0xA0..=0xBF, 0x80..=0xBF, ..] => 3,
        [0xED, 0xA0..=0xBF, ..] => 2,
        _ => by_rust.unwrap_or(bad.len()),
    }
}

/// The seven fields as they were read: `None` for an absent or null text, 0 for an absent or null number.
#[derive(PartialEq, Default, Debug)]
struct Fields<'a> {
    payment_id: Option<Cow<'a, str>>,
    card_id: Option<Cow<'a, str>>,
    merchant_id: Option<Cow<'a, str>>,
    amount_minor: i64,
    currency: Option<Cow<'a, str>>,
    country: Option<Cow<'a, str>>,
    event_time_ms: i64,
}

impl Fields<'_> {
    /// Makes the payment, or tells the first rule it breaks.
    fn validate(self, now: ProcessingTime, policy: &ParsePolicy, payment: &mut Payment) -> Result<(), Reason> {
        let payment_id = present(self.payment_id).ok_or(Reason::MissingId)?;
        let card_id = present(self.card_id).ok_or(Reason::MissingId)?;
        let merchant_id = present(self.merchant_id).ok_or(Reason::MissingId)?;
        if self.amount_minor <= 0 {
            return Err(Reason::NonPositiveAmount);
        }
        let currency = self.currency.filter(|code| is_currency(code)).ok_or(Reason::BadCurrency)?;
        if self.event_time_ms <= 0 {
            return Err(Reason::MissingEventTime);
        }
        if policy.max_future_ms.is_some_and(|ahead| self.event_time_ms > now.plus(ahead).0) {
            return Err(Reason::FutureEventTime);
        }
        put(&payment_id, &mut payment.payment_id);
        put(&card_id, &mut payment.card_id);
        put(&merchant_id, &mut payment.merchant_id);
        put(&currency, &mut payment.currency);
        match self.country {
            Some(country) => put(&country, payment.country.get_or_insert_default()),
            None => payment.country = None,
        }
        (payment.amount_minor, payment.event_time_ms) = (self.amount_minor, self.event_time_ms);
        (payment.source_partition, payment.source_offset) = (0, 0);
        Ok(())
    }
}

fn put(text: &str, place: &mut String) {
    place.clear();
    place.push_str(text);
}

/// An id that holds something.
fn present(id: Option<Cow<'_, str>>) -> Option<Cow<'_, str>> {
    id.filter(|id| !id.chars().all(is_java_whitespace))
}

/// `[A-Z]{3}`, matched against the whole text.
fn is_currency(code: &str) -> bool {
    code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Java's `Character.isWhitespace`. It is not [`char::is_whitespace`]: the no-break spaces and U+0085 are missing, the
/// separators U+001C to U+001F are in.
fn is_java_whitespace(c: char) -> bool {
    matches!(c,
        '\u{9}'..='\u{d}' | '\u{1c}'..='\u{20}' | '\u{1680}' | '\u{2000}'..='\u{2006}' | '\u{2008}'..='\u{200a}'
        | '\u{2028}' | '\u{2029}' | '\u{205f}' | '\u{3000}')
}

#[cfg(test)]
mod tests;
