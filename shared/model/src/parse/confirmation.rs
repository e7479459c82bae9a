//! From the bytes of a message of topic `payments.confirmations` to a [`PaymentConfirmation`].
//!
//! As the course's parser, Jackson with its default settings: any field may be missing, scalars are converted, an
//! unknown field is not accepted. What it does not take is skipped: the bank's messages have no DLQ.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{present, tolerant};
use crate::PaymentConfirmation;

/// All three fields seen.
const COMPLETE: u8 = 0b111;

/// Reads one confirmation; `None` when it cannot be read or names no payment (absent, empty or only whitespace).
///
/// Malformed UTF-8 is not repaired, unlike in payments: the course reads these messages as bytes. Text after the
/// closing brace is ignored.
#[must_use]
pub fn parse_confirmation(raw: &[u8]) -> Option<PaymentConfirmation> {
    let text = std::str::from_utf8(raw.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(raw)).ok()?;
    let fields = ordinary(text).or_else(|| {
        // Not checked for a tail, here and in `ordinary`: text after the object is allowed.
        serde_json::Deserializer::from_str(text).deserialize_map(Object).ok()
    })?;
    Some(PaymentConfirmation {
        payment_id: present(fields.payment_id)?.into_owned(),
        status: fields.status.map(Cow::into_owned),
        event_time_ms: fields.event_time_ms,
    })
}

/// The three fields as they were read: `None` for an absent or null text, 0 for an absent or null number.
#[derive(Default)]
struct Fields<'a> {
    payment_id: Option<Cow<'a, str>>,
    status: Option<Cow<'a, str>>,
    event_time_ms: i64,
}

/// The ordinary shape: every field once, texts as strings, the time as an integer.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Ordinary<'a> {
    #[serde(borrow)]
    payment_id: Cow<'a, str>,
    #[serde(borrow)]
    status: Cow<'a, str>,
    event_time_ms: i64,
}

/// Reads a message of the ordinary shape; `None` says nothing but that it has another one.
fn ordinary(text: &str) -> Option<Fields<'_>> {
    // A list of three values would be read too.
    text.trim_start().starts_with('{').then_some(())?;
    let read = Ordinary::deserialize(&mut serde_json::Deserializer::from_str(text)).ok()?;
    Some(Fields { payment_id: Some(read.payment_id), status: Some(read.status), event_time_ms: read.event_time_ms })
}

/// Reads any shape the course takes; see the tolerant reader of payments for what the values may look like.
struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a confirmation")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields::default();
        let mut seen = 0;
        while let Some(name) = map.next_key::<&'de RawValue>()? {
            let value = map.next_value::<&'de RawValue>()?.get();
            let read = tolerant::string(name.get()).and_then(|name| bind(&mut fields, &mut seen, &name, value));
            read.ok_or_else(|| A::Error::custom("not a confirmation"))?;
        }
        Ok(fields)
    }
}

/// Puts one value into its field; `None` when the message is thereby refused.
fn bind<'de>(fields: &mut Fields<'de>, seen: &mut u8, name: &str, value: &'de str) -> Option<()> {
    // A complete record takes none of its fields once more.
    if *seen == COMPLETE {
        return None;
    }
    match name {
        "paymentId" => {
            *seen |= 1;
            fields.payment_id = tolerant::text(value)?;
        }
        "status" => {
            *seen |= 2;
            fields.status = tolerant::text(value)?;
        }
        "eventTimeMs" => {
            *seen |= 4;
            fields.event_time_ms = tolerant::number(value)?;
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(raw: &str) -> Option<(String, Option<String>, i64)> {
        parse_confirmation(raw.as_bytes()).map(|c| (c.payment_id, c.status, c.event_time_ms))
    }

    fn some(id: &str, status: Option<&str>, time: i64) -> Option<(String, Option<String>, i64)> {
        Some((id.to_owned(), status.map(str::to_owned), time))
    }

    #[test]
    fn lesson_09_confirmations_that_are_read() {
        for (raw, expected) in [
            (r#"{"paymentId":"p1","status":"APPROVED","eventTimeMs":3000}"#, some("p1", Some("APPROVED"), 3_000)),
            (r#" {"eventTimeMs":-1,"status":"OK","paymentId":"p1"} tail"#, some("p1", Some("OK"), -1)),
            (r#"{"paymentId":"p1","eventTimeMs":3000}"#, some("p1", None, 3_000)),
            (r#"{"paymentId":"p1","status":null,"eventTimeMs":null}"#, some("p1", None, 0)),
            (r#"{"paymentId":"p1","status":""}"#, some("p1", Some(""), 0)),
            (r#"{"paymentId":5,"status":true,"eventTimeMs":"3000"}"#, some("5", Some("true"), 3_000)),
            (r#"{"paymentId":"p1","status":"OK","eventTimeMs":1.9}"#, some("p1", Some("OK"), 1)),
            (r#"{"paymentId":"a\u0041","status":"\ud800","eventTimeMs":1}"#, some("aA", Some("\u{fffd}"), 1)),
            (r#"{"paymentId":"p0","paymentId":"p1","status":"OK","eventTimeMs":1}"#, some("p1", Some("OK"), 1)),
            ("\u{feff}{\"paymentId\":\"p1\"}", some("p1", None, 0)),
        ] {
            assert_eq!(read(raw), expected, "{raw}");
        }
    }

    #[test]
    fn lesson_09_confirmations_that_are_skipped() {
        for raw in [
            "",
            "{broken",
            "null",
            "5",
            r#"["p1","OK",2000]"#,
            r#"{"paymentId":"p1","status":"OK","eventTimeMs":2000,"x":1}"#,
            r#"{"paymentId":"p1","status":"OK","eventTimeMs":2000,"status":"OK"}"#,
            r#"{"status":"OK","eventTimeMs":2000}"#,
            r#"{"paymentId":null,"status":"OK","eventTimeMs":2000}"#,
            r#"{"paymentId":"","status":"OK","eventTimeMs":2000}"#,
            r#"{"paymentId":" ","status":"OK","eventTimeMs":2000}"#,
            r#"{"paymentId":["p1"],"status":"OK","eventTimeMs":2000}"#,
            r#"{"paymentId":"p1","status":{},"eventTimeMs":2000}"#,
            r#"{"paymentId":"p1","status":"OK","eventTimeMs":"soon"}"#,
            r#"{"paymentId":"p1","status":"OK","eventTimeMs":true}"#,
        ] {
            assert_eq!(read(raw), None, "{raw}");
        }
        assert_eq!(parse_confirmation(b"{\"paymentId\":\"p\xff\"}"), None);
    }
}
