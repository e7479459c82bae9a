//! The slow path: reads an object the way Jackson's `ObjectMapper` with default settings reads a seven-field record.
//!
//! serde_json finds the tokens; what a value means is decided here, from its source text:
//!
//! - a text field takes any scalar, a number keeping the spelling it came with;
//! - a number field takes an integer, a fraction (cut towards zero) or a string with an integer in it; null, a blank
//!   string and the string `null` are 0;
//! - a repeated field replaces the earlier value until all seven have been seen. From then on the record is complete:
//!   one of the seven once more is an error under every policy.

use super::{Fields, UnknownFields};
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Digits of the longest number Jackson reads.
const MAX_NUMBER_LEN: usize = 1000;

/// All seven fields seen.
const COMPLETE: u8 = 0b111_1111;

/// Reads the object `text` starts with; `None` is `bad-json`.
pub(super) fn read(text: &str, unknown: UnknownFields) -> Option<Fields<'_>> {
    // Not checked for a tail: text after the object is allowed.
    serde_json::Deserializer::from_str(text).deserialize_map(Object { unknown }).ok()
}

struct Object {
    unknown: UnknownFields,
}

impl<'de> Visitor<'de> for Object {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a payment")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields::default();
        let mut seen = 0;
        while let Some(name) = map.next_key::<&'de RawValue>()? {
            let value = map.next_value::<&'de RawValue>()?.get();
            let read = string(name.get()).and_then(|name| self.bind(&mut fields, &mut seen, &name, value));
            read.ok_or_else(|| A::Error::custom("not a payment"))?;
        }
        Ok(fields)
    }
}

impl Object {
    /// Puts one value into its field; `None` when the record is thereby refused.
    fn bind<'de>(&self, fields: &mut Fields<'de>, seen: &mut u8, name: &str, value: &'de str) -> Option<()> {
        let complete = *seen == COMPLETE;
        let mut mark = |bit: u8| {
            *seen |= 1 << bit;
            (!complete).then_some(())
        };
        match name {
            "paymentId" => mark(0).and_then(|()| text(value)).map(|id| fields.payment_id = id),
            "cardId" => mark(1).and_then(|()| text(value)).map(|id| fields.card_id = id),
            "merchantId" => mark(2).and_then(|()| text(value)).map(|id| fields.merchant_id = id),
            "amountMinor" => mark(3).and_then(|()| number(value)).map(|amount| fields.amount_minor = amount),
            "currency" => mark(4).and_then(|()| text(value)).map(|code| fields.currency = code),
            "country" => mark(5).and_then(|()| text(value)).map(|country| fields.country = country),
            "eventTimeMs" => mark(6).and_then(|()| number(value)).map(|time| fields.event_time_ms = time),
            _ => (self.unknown == UnknownFields::Ignore && is_skippable(value)).then_some(()),
        }
    }
}

/// A text field: any scalar. `None` is a refusal, `Some(None)` is null.
pub(super) fn text(value: &str) -> Option<Option<Cow<'_, str>>> {
    match value.as_bytes().first()? {
        b'"' => string(value).map(Some),
        b'n' => Some(None),
        b'[' | b'{' => None,
        b't' | b'f' => Some(Some(Cow::Borrowed(value))),
        _ => is_short_enough(value).then_some(Some(Cow::Borrowed(value))),
    }
}

/// A number field; `None` is a refusal.
pub(super) fn number(value: &str) -> Option<i64> {
    match value.as_bytes().first()? {
        b'"' => number_in_string(&string(value)?),
        b'n' => Some(0),
        b'[' | b'{' | b't' | b'f' => None,
        _ if !is_short_enough(value) => None,
        _ if value.contains(['.', 'e', 'E']) => truncated(value.parse().ok()?),
        _ => value.parse().ok(),
    }
}

/// Whether Jackson gets past `value` without looking into it: a long number is refused there too.
fn is_skippable(value: &str) -> bool {
    !value.starts_with(|c: char| c == '-' || c.is_ascii_digit()) || is_short_enough(value)
}

fn is_short_enough(number: &str) -> bool {
    number.bytes().filter(u8::is_ascii_digit).count() <= MAX_NUMBER_LEN
}

/// A fraction without its part after the point. 2^63 itself, one more than the greatest long, is taken for it, as Java
/// does: as a double the two are the same number.
fn truncated(fraction: f64) -> Option<i64> {
    const LIMIT: f64 = i64::MAX as f64;
    (-LIMIT..=LIMIT).contains(&fraction).then_some(fraction as i64)
}

/// The integer a string holds: Java's `trim`, then nothing or `null` for 0, then `Long.parseLong`.
fn number_in_string(text: &str) -> Option<i64> {
    let text = text.trim_matches(|c| c <= ' ');
    if text.is_empty() || text == "null" {
        return Some(0);
    }
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() {
        return None;
    }
    // Negative all the way, since the least number has no opposite.
    let sum = digits.chars().try_fold(0i64, |sum, c| sum.checked_mul(10)?.checked_sub(java_digit(c)?))?;
    if negative { Some(sum) } else { sum.checked_neg() }
}

/// Java's `Character.digit(c, 10)` of one UTF-16 unit: the decimal digits of every script up to U+FFFF.
fn java_digit(c: char) -> Option<i64> {
    const ZEROS: [char; 37] = [
        '0', '\u{0660}', '\u{06F0}', '\u{07C0}', '\u{0966}', '\u{09E6}', '\u{0A66}', '\u{0AE6}', '\u{0B66}',
        '\u{0BE6}', '\u{0C66}', '\u{0CE6}', '\u{0D66}', '\u{0DE6}', '\u{0E50}', '\u{0ED0}', '\u{0F20}', '\u{1040}',
        '\u{1090}', '\u{17E0}', '\u{1810}', '\u{1946}', '\u{19D0}', '\u{1A80}', '\u{1A90}', '\u{1B50}', '\u{1BB0}',
        '\u{1C40}', '\u{1C50}', '\u{A620}', '\u{A8D0}', '\u{A900}', '\u{A9D0}', '\u{A9F0}', '\u{AA50}', '\u{ABF0}',
        '\u{FF10}',
    ];
    let zero = ZEROS[..ZEROS.partition_point(|&zero| zero <= c)].last()?;
    let digit = u32::from(c) - u32::from(*zero);
    (digit < 10).then_some(i64::from(digit))
}

/// The characters of a JSON string given with its quotes. A surrogate escape without its other half, which a Rust
/// string cannot hold, becomes U+FFFD.
pub(super) fn string(quoted: &str) -> Option<Cow<'_, str>> {
    let mut rest = quoted.strip_prefix('"')?.strip_suffix('"')?;
    if !rest.contains('\\') {
        return Some(Cow::Borrowed(rest));
    }
    let mut text = String::with_capacity(rest.len());
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let (c, after) = escape(&rest[at + 1..])?;
        text.push(c);
        rest = after;
    }
    text.push_str(rest);
    Some(Cow::Owned(text))
}

/// The character of the escape that `rest` starts with, its backslash taken off, and what follows it.
fn escape(rest: &str) -> Option<(char, &str)> {
    let c = match rest.as_bytes().first()? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unicode_escape(&rest[1..]),
        _ => return None,
    };
    Some((c, &rest[1..]))
}

/// As [`escape`], for `\u`: takes the second half of a surrogate pair along when it is there.
fn unicode_escape(rest: &str) -> Option<(char, &str)> {
    let (first, after) = code_unit(rest)?;
    if (0xD800..0xDC00).contains(&first)
        && let Some((second @ 0xDC00..0xE000, after)) = after.strip_prefix("\\u").and_then(code_unit)
    {
        let point = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
        return Some((char::from_u32(point)?, after));
    }
    Some((char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), after))
}

fn code_unit(rest: &str) -> Option<(u32, &str)> {
    let (digits, after) = rest.split_at_checked(4)?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((u32::from_str_radix(digits, 16).ok().filter(|_| is_hex)?, after))
}
