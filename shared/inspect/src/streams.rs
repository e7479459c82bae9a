//! The records of the streams as JSON.

use payguard_engine::logic::DecodeError;
use payguard_model::{
    CardProfileOf, CardSession, ConfirmedPayment, ConnectionEvent, ConnectionVerdict, FraudAlert, MerchantPart,
    MerchantStats, Payment, PaymentConfirmation, RejectedRecord, RejectedRule,
};
use payguard_topology::stream;
use prost::Message;
use serde::Serialize;
use serde_json::{Value, json};

use crate::time::with_utc;

/// A record of a stream, readable; `None` for a stream that is not known here.
///
/// # Errors
/// When the bytes are not the stream's message.
pub fn record(name: &str, payload: &[u8]) -> Option<Result<Value, DecodeError>> {
    let read: fn(&[u8]) -> Result<Value, DecodeError> = match name {
        stream::PAYMENTS
        | stream::CLEAN_BY_CARD
        | stream::CLEAN_BY_MERCHANT
        | stream::CLEAN_FOR_SESSIONS
        | stream::CLEAN_BY_PAYMENT
        | stream::TOO_LATE => json_of::<Payment>,
        stream::REJECTED => json_of::<RejectedRecord>,
        stream::CONFIRMATIONS => json_of::<PaymentConfirmation>,
        stream::REJECTED_RULES => json_of::<RejectedRule>,
        stream::MERCHANT_STATS => json_of::<MerchantStats>,
        stream::MERCHANT_PARTS => json_of::<MerchantPart>,
        stream::CARD_SESSIONS => json_of::<CardSession>,
        stream::CARD_PROFILES => profile,
        stream::CARD_ALERTS | stream::UNCONFIRMED | stream::ALERTS => alert,
        stream::CONFIRMED => json_of::<ConfirmedPayment>,
        stream::CONNECTIONS_A | stream::CONNECTIONS_B | stream::LATE_A | stream::LATE_B => json_of::<ConnectionEvent>,
        stream::VERDICTS_A | stream::VERDICTS_B => json_of::<ConnectionVerdict>,
        _ => return None,
    };
    Some(read(payload).map(with_utc))
}

fn json_of<M: Message + Default + Serialize>(payload: &[u8]) -> Result<Value, DecodeError> {
    serde_json::to_value(M::decode(payload)?).map_err(|e| DecodeError(e.to_string()))
}

fn profile(payload: &[u8]) -> Result<Value, DecodeError> {
    let CardProfileOf { card_id, profile } = CardProfileOf::decode(payload)?;
    Ok(json!({ "cardId": card_id, "profile": profile }))
}

/// With how it came about, which the published alert does not have.
fn alert(payload: &[u8]) -> Result<Value, DecodeError> {
    let alert = FraudAlert::decode(payload)?;
    let decision = json!(alert.decision);
    let mut value = serde_json::to_value(alert).map_err(|e| DecodeError(e.to_string()))?;
    value["decision"] = decision;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use payguard_topology::{Config, System, payguard};

    use super::*;

    #[test]
    fn every_stream_of_the_topology_is_readable() {
        for (system, salts) in [(System::Payments, 0), (System::Payments, 4), (System::Connections, 0)] {
            let mut config = Config { system, ..Config::default() };
            config.stats.salts = salts;
            for stream in payguard(&config).streams {
                let read = record(stream.name, &[]).unwrap_or_else(|| panic!("{} cannot be read", stream.name));
                assert!(read.is_ok_and(|value| value.is_object()), "{}: a message without fields", stream.name);
                assert!(record(stream.name, &[0xff]).is_some_and(|read| read.is_err()), "{}", stream.name);
            }
        }
        assert!(record("of-another-program", &[]).is_none());
    }

    #[test]
    fn an_alert_says_how_it_came_about() {
        let trigger = Payment { payment_id: "p1".into(), event_time_ms: 1_000, ..Payment::default() };
        let alert = FraudAlert::of("velocity", &trigger, "11 payments".into()).with_fact("limit", 10);
        let read = record(stream::ALERTS, &alert.encode_to_vec()).expect("known").expect("an alert");
        assert_eq!(read["decision"]["facts"], json!([{ "name": "limit", "value": 10 }]));
        assert_eq!((&read["alertId"], &read["eventTimeUtc"]), (&json!("velocity:p1"), &json!("1970-01-01T00:00:01Z")));
    }
}
