//! JSON as the outside world gets it.
//!
//! Escaped are only `"`, `\` and what is below U+0020: the short forms where JSON has them, otherwise `\u001F` with
//! upper-case hexadecimal digits. Everything else, `/` and U+2028 included, is written as it is; an absent value is
//! `null`; no spaces.

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter};
use std::io::{self, Write};

/// `record` as one line of JSON.
///
/// # Panics
/// When `record` is of a type JSON cannot hold, such as a map whose keys are not strings. The records of this crate
/// always can be written.
#[must_use]
pub fn to_json<T: Serialize + ?Sized>(record: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write_json(&mut out, record);
    out
}

/// Appends `record` to `out` as [`to_json`] writes it.
///
/// # Panics
/// As [`to_json`].
pub fn write_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, record: &T) {
    let mut serializer = serde_json::Serializer::with_formatter(out, UpperHex);
    record.serialize(&mut serializer).expect("a record has a JSON form, and a vector takes every byte");
}

/// Compact JSON with `\u001F` where serde_json has `\u001f`.
struct UpperHex;

impl Formatter for UpperHex {
    fn write_char_escape<W: ?Sized + Write>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        match escape {
            CharEscape::Quote => writer.write_all(b"\\\""),
            CharEscape::ReverseSolidus => writer.write_all(b"\\\\"),
            CharEscape::Solidus => writer.write_all(b"\\/"),
            CharEscape::Backspace => writer.write_all(b"\\b"),
            CharEscape::FormFeed => writer.write_all(b"\\f"),
            CharEscape::LineFeed => writer.write_all(b"\\n"),
            CharEscape::CarriageReturn => writer.write_all(b"\\r"),
            CharEscape::Tab => writer.write_all(b"\\t"),
            CharEscape::AsciiControl(byte) => write!(writer, "\\u{byte:04X}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Payment, RejectedRecord};

    fn text<T: Serialize>(record: &T) -> String {
        String::from_utf8(to_json(record)).expect("JSON is text")
    }

    #[test]
    fn lesson_03_escaping() {
        for (value, json) in [
            ("a\\b \"q\" é中", r#""a\\b \"q\" é中""#),
            ("\u{8}\t\n\u{c}\r", r#""\b\t\n\f\r""#),
            ("\u{1f}\u{0}\u{1b}", r#""\u001F\u0000\u001B""#),
            ("/\u{7f}\u{2028}\u{2029}\u{fffd}😀", "\"/\u{7f}\u{2028}\u{2029}\u{fffd}😀\""),
        ] {
            assert_eq!(text(&value), json);
        }
    }

    #[test]
    fn lesson_03_dlq_record() {
        let record = RejectedRecord {
            raw: "{\"paymentId\": broken".to_owned(),
            reason: "bad-json".to_owned(),
            rejected_at_ms: 1_794_085_151_733,
            replays: 0,
        };
        let json = r#"{"raw":"{\"paymentId\": broken","reason":"bad-json","rejectedAtMs":1794085151733}"#;
        assert_eq!(text(&record), json);
        let again = RejectedRecord { replays: 2, ..record };
        assert_eq!(text(&again), json.replace("733}", r#"733,"replays":2}"#));
    }

    #[test]
    fn lesson_01_payment_is_written_as_the_generator_writes_it() {
        let json = concat!(
            r#"{"paymentId":"3d7afcf2-701e-3e1b-be95-6415e9444aa4","cardId":"c-2982","merchantId":"m-0048","#,
            r#""amountMinor":676,"currency":"EUR","country":"NL","eventTimeMs":1794084709909}"#
        );
        let payment: Payment = serde_json::from_str(json).expect("a payment");
        assert_eq!(text(&payment), json);
    }

    #[test]
    fn an_absent_country_is_null() {
        assert!(text(&Payment::default()).contains(r#""country":null"#));
    }
}
