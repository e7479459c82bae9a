//! From the bytes of a raw record to a [`ConnectionEvent`], or to the reason why it is refused.
//!
//! Fields may come in any order; those that nobody knows are passed over. Ids and step are texts, the time is a whole
//! number: another type, a field given twice and text behind the object are `bad-json`.

use std::borrow::Cow;

use serde::Deserialize;

use super::{ConnectionEvent, Step};

/// Why a raw record is refused. The first reason that holds, in the order of the variants, is given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error)]
#[error("{}", self.code())]
pub enum ConnectionReason {
    /// Not JSON, or not an object of an event's shape.
    BadJson,
    /// Session or client id absent, empty or only whitespace.
    MissingId,
    /// Step absent or none of the four.
    BadStep,
    /// Status absent or neither `ok` nor `fail`.
    BadStatus,
    /// Event time absent, zero or negative.
    MissingEventTime,
}

impl ConnectionReason {
    /// Every reason, in the order they are looked for.
    pub const ALL: [ConnectionReason; 5] = [
        ConnectionReason::BadJson,
        ConnectionReason::MissingId,
        ConnectionReason::BadStep,
        ConnectionReason::BadStatus,
        ConnectionReason::MissingEventTime,
    ];

    /// The code that goes into [`crate::RejectedRecord::reason`] and into metrics.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            ConnectionReason::BadJson => "bad-json",
            ConnectionReason::MissingId => "missing-id",
            ConnectionReason::BadStep => "bad-step",
            ConnectionReason::BadStatus => "bad-status",
            ConnectionReason::MissingEventTime => "missing-event-time",
        }
    }
}

/// The fields as they were read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(borrow, default)]
    session_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    client_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    step: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    status: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    reason: Option<Cow<'a, str>>,
    #[serde(default)]
    event_time_ms: Option<i64>,
}

/// Reads and validates the record `raw` into an event that was used before, whose texts keep their room. After a
/// refusal its content is undefined.
///
/// # Errors
/// The reason of the refusal; the record then belongs in the DLQ.
pub fn parse_connection_into(raw: &[u8], event: &mut ConnectionEvent) -> Result<(), ConnectionReason> {
    let text = std::str::from_utf8(raw).map_err(|_| ConnectionReason::BadJson)?;
    // An array would be read as the fields in their order.
    if !text.trim_ascii_start().starts_with('{') {
        return Err(ConnectionReason::BadJson);
    }
    let fields: Fields<'_> = serde_json::from_str(text).map_err(|_| ConnectionReason::BadJson)?;
    let session_id = present(fields.session_id).ok_or(ConnectionReason::MissingId)?;
    let client_id = present(fields.client_id).ok_or(ConnectionReason::MissingId)?;
    let step = fields.step.and_then(|name| Step::named(&name)).ok_or(ConnectionReason::BadStep)?;
    event.ok = match fields.status.as_deref() {
        Some("ok") => true,
        Some("fail") => false,
        _ => return Err(ConnectionReason::BadStatus),
    };
    event.event_time_ms = fields.event_time_ms.filter(|time| *time > 0).ok_or(ConnectionReason::MissingEventTime)?;
    event.step = step.number();
    put(&session_id, &mut event.session_id);
    put(&client_id, &mut event.client_id);
    match fields.reason {
        Some(reason) => put(&reason, event.reason.get_or_insert_default()),
        None => event.reason = None,
    }
    Ok(())
}

/// An id that holds something.
fn present(id: Option<Cow<'_, str>>) -> Option<Cow<'_, str>> {
    id.filter(|id| !id.trim().is_empty())
}

fn put(text: &str, place: &mut String) {
    place.clear();
    place.push_str(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::to_json;

    fn read(raw: &[u8]) -> Result<ConnectionEvent, ConnectionReason> {
        // What was read before leaves no trace.
        let mut event = ConnectionEvent { reason: Some("old".to_owned()), step: 3, ..ConnectionEvent::default() };
        parse_connection_into(raw, &mut event).map(|()| event)
    }

    #[test]
    fn an_event_reads_back_from_what_is_written_of_it() {
        for step in Step::ALL {
            for (ok, reason) in [(true, None), (false, Some("läßt \"nicht\" zu".to_owned()))] {
                let (session_id, client_id) = ("s-1".to_owned(), "c-1".to_owned());
                let event =
                    ConnectionEvent { session_id, client_id, step: step.number(), ok, reason, event_time_ms: 1 };
                assert_eq!(read(&to_json(&event)), Ok(event));
            }
        }
    }

    #[test]
    fn the_order_of_fields_and_unknown_ones_do_not_matter() {
        let raw = br#" {"eventTimeMs":7,"x":[{}],"status":"ok","step":"dns","clientId":"c","sessionId":"s"} "#;
        let event = read(raw).expect("an event");
        assert_eq!((event.step(), event.ok, event.reason, event.event_time_ms), (Step::Dns, true, None, 7));
    }

    #[test]
    fn every_reason_is_given_and_the_first_one_wins() {
        use ConnectionReason::{BadJson, BadStatus, BadStep, MissingEventTime, MissingId};
        let good = r#"{"sessionId":"s","clientId":"c","step":"auth","status":"ok","reason":null,"eventTimeMs":5}"#;
        assert!(read(good.as_bytes()).is_ok());
        let cases: [(&str, &str, ConnectionReason); 20] = [
            (good, "", BadJson),
            (good, "{\"sessionId\": broken", BadJson),
            (good, "null", BadJson),
            (good, r#"["s","c","auth","ok",null,5]"#, BadJson),
            ("}", "} tail", BadJson),
            (r#""s""#, "5", BadJson),
            ("5}", r#""5"}"#, BadJson),
            ("5}", "1.5}", BadJson),
            (r#""clientId":"c""#, r#""clientId":"c","clientId":"c""#, BadJson),
            (r#""s""#, "null", MissingId),
            (r#""sessionId":"s","#, "", MissingId),
            (r#""c""#, r#"" \t""#, MissingId),
            (r#""auth""#, r#""Auth""#, BadStep),
            (r#""step":"auth","#, "", BadStep),
            (r#""ok""#, r#""OK""#, BadStatus),
            (r#""ok""#, "null", BadStatus),
            ("5}", "0}", MissingEventTime),
            ("5}", "-5}", MissingEventTime),
            ("5}", "null}", MissingEventTime),
            (r#","eventTimeMs":5"#, "", MissingEventTime),
        ];
        for (part, other, reason) in cases {
            let raw = good.replace(part, other);
            assert_eq!(read(raw.as_bytes()), Err(reason), "{raw}");
        }
        assert_eq!(read(b"{\"sessionId\":\"\xff\"}"), Err(BadJson));
        let all_wrong = r#"{"sessionId":"","clientId":"c","step":"x","status":"x","eventTimeMs":0}"#;
        let mut fixed = all_wrong.to_owned();
        for (reason, from, to) in [
            (MissingId, r#""sessionId":"""#, r#""sessionId":"s""#),
            (BadStep, r#""step":"x""#, r#""step":"dns""#),
            (BadStatus, r#""status":"x""#, r#""status":"fail""#),
            (MissingEventTime, ":0}", ":9}"),
        ] {
            assert_eq!(read(fixed.as_bytes()), Err(reason));
            fixed = fixed.replace(from, to);
        }
        assert!(read(fixed.as_bytes()).is_ok());
    }
}
