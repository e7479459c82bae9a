//! Items: building attributes, reading them back, and what an item costs.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

/// An item as the SDK has it.
pub(super) type Item = HashMap<String, AttributeValue>;

/// The most an item may have: DynamoDB's 400 KB.
pub(super) const MAX_ITEM_BYTES: usize = 400 * 1024;

/// Bytes per write unit.
const WRITE_UNIT_BYTES: usize = 1024;

/// A string attribute.
pub(super) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

/// A number attribute.
pub(super) fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// A binary attribute.
pub(super) fn binary(value: Vec<u8>) -> AttributeValue {
    AttributeValue::B(Blob::new(value))
}

/// A string attribute of an item.
pub(super) fn get_text<'a>(item: &'a Item, name: &str) -> Option<&'a str> {
    item.get(name).and_then(|value| value.as_s().ok()).map(String::as_str)
}

/// A number attribute of an item, when it is there and fits.
pub(super) fn get_number<T: std::str::FromStr>(item: &Item, name: &str) -> Option<T> {
    item.get(name).and_then(|value| value.as_n().ok()).and_then(|digits| digits.parse().ok())
}

/// Takes a binary attribute out of an item.
pub(super) fn take_binary(item: &mut Item, name: &str) -> Option<Vec<u8>> {
    match item.remove(name) {
        Some(AttributeValue::B(blob)) => Some(blob.into_inner()),
        _ => None,
    }
}

/// Bytes of an item as DynamoDB counts them (numbers by their digits, an upper bound).
pub(super) fn item_bytes<'a>(attributes: impl IntoIterator<Item = (&'a String, &'a AttributeValue)>) -> usize {
    attributes.into_iter().map(|(name, value)| name.len() + value_bytes(value)).sum()
}

/// Write units of an item of so many bytes, outside a transaction.
pub(super) fn write_units(bytes: usize) -> u64 {
    bytes.div_ceil(WRITE_UNIT_BYTES).max(1) as u64
}

fn value_bytes(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(digits) => digits.len(),
        AttributeValue::B(blob) => blob.as_ref().len(),
        AttributeValue::Ss(texts) => texts.iter().map(String::len).sum(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_counted_with_its_names() {
        let item = Item::from([
            ("task".to_owned(), text("abc")),
            ("body".to_owned(), binary(vec![0; 100])),
            ("idle".to_owned(), AttributeValue::Bool(true)),
            ("seq".to_owned(), number(1234)),
        ]);
        assert_eq!(item_bytes(&item), 4 + 3 + 4 + 100 + 4 + 1 + 3 + 4);
    }

    #[test]
    fn write_units_are_rounded_up_and_never_zero() {
        for (bytes, units) in [(0, 1), (1, 1), (1024, 1), (1025, 2), (10_240, 10), (10_241, 11)] {
            assert_eq!(write_units(bytes), units, "{bytes} bytes");
        }
    }

    #[test]
    fn attributes_of_another_type_read_as_absent() {
        let mut item = Item::from([("seq".to_owned(), text("7")), ("body".to_owned(), number(1))]);
        assert_eq!(get_number::<u64>(&item, "seq"), None);
        assert_eq!(get_text(&item, "body"), None);
        assert_eq!(take_binary(&mut item, "body"), None);
    }
}
