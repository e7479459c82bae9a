//! Moments as people write them: RFC 3339, in UTC.

use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// What the names of moments end in, milliseconds since the epoch.
const MILLISECONDS: &str = "Ms";
/// What their readable twins end in.
const UTC: &str = "Utc";
/// Names that end like those of moments and are lengths of time.
const LENGTHS: [&str; 1] = ["confirmationDelayMs"];

/// A moment as UTC, for example `2026-11-07T21:04:54.92Z`; `None` outside the years that have four digits.
#[must_use]
pub fn utc(ms: i64) -> Option<String> {
    let moment = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).ok()?;
    moment.format(&Rfc3339).ok()
}

/// The milliseconds of a moment that is written with date, time and offset.
#[must_use]
pub fn parse_utc(text: &str) -> Option<i64> {
    let moment = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    i64::try_from(moment.unix_timestamp_nanos().div_euclid(1_000_000)).ok()
}

/// The same value, where each moment has its twin in UTC: beside `lastAlertMs` there is `lastAlertUtc`.
#[must_use]
pub fn with_utc(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut readable = Map::new();
            for (name, value) in fields {
                if let Some((name, twin)) = twin(&name, &value) {
                    readable.insert(name, twin);
                }
                readable.insert(name, with_utc(value));
            }
            Value::Object(readable)
        }
        Value::Array(values) => Value::Array(values.into_iter().map(with_utc).collect()),
        value => value,
    }
}

fn twin(name: &str, value: &Value) -> Option<(String, Value)> {
    let stem = name.strip_suffix(MILLISECONDS).filter(|_| !LENGTHS.contains(&name))?;
    let text = |value: &Value| value.as_i64().and_then(utc).map(Value::from);
    let twin = match value {
        Value::Array(times) => Value::Array(times.iter().map(text).collect::<Option<_>>()?),
        time => text(time)?,
    };
    Some((format!("{stem}{UTC}"), twin))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn moments_are_read_and_written() {
        let table = [
            (0, "1970-01-01T00:00:00Z"),
            (1_794_085_494_920, "2026-11-07T21:04:54.92Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ];
        for (ms, text) in table {
            assert_eq!(utc(ms).as_deref(), Some(text));
            assert_eq!(parse_utc(text), Some(ms));
        }
        assert_eq!(parse_utc("2026-11-07T22:04:54.92+01:00"), Some(1_794_085_494_920));
        for text in ["2026-11-07", "21:04", "2026-11-07T21:04:54", "yesterday", ""] {
            assert_eq!(parse_utc(text), None, "{text}");
        }
        assert_eq!((utc(i64::MAX), utc(i64::MIN)), (None, None));
    }

    #[test]
    fn every_moment_gets_a_twin_and_nothing_else_does() {
        let value = json!({
            "lastAlertMs": 0, "at": [{ "eventTimeMs": 1_000, "sum": 5 }], "noneMs": null, "confirmationDelayMs": 7,
            "otherTimersMs": [1, 2], "endMs": i64::MAX,
        });
        let expected = json!({
            "lastAlertMs": 0, "lastAlertUtc": "1970-01-01T00:00:00Z",
            "at": [{ "eventTimeMs": 1_000, "eventTimeUtc": "1970-01-01T00:00:01Z", "sum": 5 }],
            "noneMs": null, "confirmationDelayMs": 7, "otherTimersMs": [1, 2],
            "otherTimersUtc": ["1970-01-01T00:00:00.001Z", "1970-01-01T00:00:00.002Z"], "endMs": i64::MAX,
        });
        assert_eq!(with_utc(value), expected);
    }
}
