//! The fast path: an object of at most the seven fields, each at most once, texts as strings, numbers as integers.

use super::Fields;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Reads a record of the ordinary shape; `None` says nothing but that it has another one.
pub(super) fn read(text: &str) -> Option<Fields<'_>> {
    // Not checked for a tail: text after the object is allowed.
    serde_json::Deserializer::from_str(text).deserialize_map(Object).ok()
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a payment")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields::default();
        let mut seen = 0u8;
        while let Some(field) = map.next_key::<Field>()? {
            // What a repeated field means depends on its place: left to the tolerant reader.
            let bit = 1 << field as u8;
            if seen & bit != 0 {
                return Err(A::Error::custom("repeated field"));
            }
            seen |= bit;
            match field {
                Field::PaymentId => fields.payment_id = text(&mut map)?,
                Field::CardId => fields.card_id = text(&mut map)?,
                Field::MerchantId => fields.merchant_id = text(&mut map)?,
                Field::AmountMinor => fields.amount_minor = map.next_value()?,
                Field::Currency => fields.currency = text(&mut map)?,
                Field::Country => fields.country = text(&mut map)?,
                Field::EventTimeMs => fields.event_time_ms = map.next_value()?,
            }
        }
        Ok(fields)
    }
}

fn text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<Cow<'de, str>>, A::Error> {
    Ok(map.next_value::<Option<Text<'de>>>()?.map(|text| text.0))
}

/// The name of a known field; any other name is an error.
#[derive(Clone, Copy)]
enum Field {
    PaymentId,
    CardId,
    MerchantId,
    AmountMinor,
    Currency,
    Country,
    EventTimeMs,
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Field, D::Error> {
        deserializer.deserialize_str(Name)
    }
}

struct Name;

impl Visitor<'_> for Name {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field of a payment")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Field, E> {
        match name {
            "paymentId" => Ok(Field::PaymentId),
            "cardId" => Ok(Field::CardId),
            "merchantId" => Ok(Field::MerchantId),
            "amountMinor" => Ok(Field::AmountMinor),
            "currency" => Ok(Field::Currency),
            "country" => Ok(Field::Country),
            "eventTimeMs" => Ok(Field::EventTimeMs),
            _ => Err(E::custom("unknown field")),
        }
    }
}

/// A string, borrowed from the input unless it has escapes.
struct Text<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<'de>, D::Error> {
        deserializer.deserialize_str(Characters)
    }
}

struct Characters;

impl<'de> Visitor<'de> for Characters {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}
