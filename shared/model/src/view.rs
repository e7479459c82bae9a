//! A payment's fields read in place from its protobuf bytes, for stages that pass the bytes on.

use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The fields that route a payment, borrowed from its encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PaymentView<'a> {
    /// See [`crate::Payment::payment_id`].
    pub payment_id: &'a str,
    /// See [`crate::Payment::card_id`].
    pub card_id: &'a str,
    /// See [`crate::Payment::merchant_id`].
    pub merchant_id: &'a str,
    /// See [`crate::Payment::amount_minor`].
    pub amount_minor: i64,
    /// See [`crate::Payment::event_time_ms`].
    pub event_time_ms: i64,
}

impl<'a> PaymentView<'a> {
    /// Reads the encoding of a [`crate::Payment`]; fields it does not know are skipped.
    ///
    /// # Errors
    /// When the bytes are not such an encoding.
    pub fn decode(mut bytes: &'a [u8]) -> Result<PaymentView<'a>, prost::DecodeError> {
        let mut view = PaymentView::default();
        while bytes.has_remaining() {
            let (tag, wire_type) = decode_key(&mut bytes)?;
            match (tag, wire_type) {
                (1, WireType::LengthDelimited) => view.payment_id = text(&mut bytes)?,
                (2, WireType::LengthDelimited) => view.card_id = text(&mut bytes)?,
                (3, WireType::LengthDelimited) => view.merchant_id = text(&mut bytes)?,
                (4, WireType::Varint) => view.amount_minor = decode_varint(&mut bytes)? as i64,
                (7, WireType::Varint) => view.event_time_ms = decode_varint(&mut bytes)? as i64,
                _ => skip_field(wire_type, tag, &mut bytes, DecodeContext::default())?,
            }
        }
        Ok(view)
    }
}

fn text<'a>(bytes: &mut &'a [u8]) -> Result<&'a str, prost::DecodeError> {
    let len = usize::try_from(decode_varint(bytes)?).unwrap_or(usize::MAX);
    let (text, rest) = bytes.split_at_checked(len).ok_or_else(cut)?;
    *bytes = rest;
    std::str::from_utf8(text).map_err(|_| cut())
}

/// The error of the generated decoders for input that ends too early or is not text.
#[allow(deprecated)]
fn cut() -> prost::DecodeError {
    prost::DecodeError::new("a text field is cut short or not UTF-8")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::Payment;

    #[test]
    fn a_view_shows_what_was_encoded() {
        let payment = Payment {
            payment_id: "p-1".into(),
            card_id: "карта".into(),
            merchant_id: String::new(),
            amount_minor: -5,
            currency: "EUR".into(),
            country: Some("DE".into()),
            event_time_ms: i64::MAX,
            source_partition: 7,
            source_offset: 1 << 40,
        };
        let bytes = payment.encode_to_vec();
        let view = PaymentView::decode(&bytes).unwrap();
        assert_eq!((view.payment_id, view.card_id, view.merchant_id), ("p-1", "карта", ""));
        assert_eq!((view.amount_minor, view.event_time_ms), (-5, i64::MAX));
        for cut in 1..bytes.len() {
            let whole = Payment::decode(&bytes[..cut]);
            assert_eq!(PaymentView::decode(&bytes[..cut]).is_ok(), whole.is_ok(), "cut at {cut}");
        }
    }
}
