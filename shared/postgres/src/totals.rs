//! The rows of a batch.

use std::collections::BTreeMap;

use payguard_engine::store::SinkRecord;
use payguard_model::MerchantStats;
use sha2::{Digest, Sha256};

/// The table that is written.
pub const TABLE: &str = "merchant_stats";

/// A longer text may not fit into the index of the primary key, bytes.
const LONGEST_ID: usize = 2_000;
/// What is left of such a text, bytes.
const KEPT_OF_LONG: usize = 1_800;

/// Rows by column, each key once, in the order of the keys: so no two writers of a table ever wait for each other in a
/// circle.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) merchant_ids: Vec<String>,
    pub(crate) starts: Vec<i64>,
    pub(crate) ends: Vec<i64>,
    pub(crate) counts: Vec<i64>,
    pub(crate) amounts: Vec<i64>,
}

struct Total {
    end: i64,
    count: i64,
    amount: i64,
}

impl Totals {
    /// The rows that writing the records one after the other would leave.
    pub(crate) fn of(records: &[SinkRecord]) -> Result<Totals, String> {
        let mut totals: BTreeMap<(String, i64), Total> = BTreeMap::new();
        for record in records {
            if record.topic != TABLE {
                return Err(format!("{} has no table: only {TABLE} is written here", record.topic));
            }
            let stats: MerchantStats = serde_json::from_slice(&record.value)
                .map_err(|e| format!("the record of {} is no total of a merchant: {e}", record.key))?;
            let (count, amount) = (stats.payment_count, stats.amount_minor);
            let total = totals.entry((storable(stats.merchant_id), stats.window_start_ms));
            // An update leaves the end as it is.
            let total = total.or_insert(Total { end: stats.window_end_ms, count, amount });
            (total.count, total.amount) = (count, amount);
        }
        let mut rows = Totals::default();
        for ((merchant_id, start), total) in totals {
            rows.merchant_ids.push(merchant_id);
            rows.starts.push(start);
            rows.ends.push(total.end);
            rows.counts.push(total.count);
            rows.amounts.push(total.amount);
        }
        Ok(rows)
    }
}

/// A merchant's id as the table can hold it: another text for another id, and the id itself but for few.
///
/// A text of PostgreSQL holds no NUL, and an index no long one. Such ids come from outside, and refusing them would hold up
/// the stage for ever. So an id with a NUL, or one that looks like what is made here, becomes `json:` and the id as a
/// JSON string; what is too long becomes `long:`, its beginning, and the SHA-256 of the id.
fn storable(id: String) -> String {
    let is_plain = !id.contains('\0') && !id.starts_with("json:") && !id.starts_with("long:");
    if is_plain && id.len() <= LONGEST_ID {
        return id;
    }
    let text = match is_plain {
        true => id.clone(),
        false => format!("json:{}", serde_json::Value::from(id.as_str())),
    };
    if text.len() <= LONGEST_ID {
        return text;
    }
    let digest: String = Sha256::digest(&id).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("long:{}#{digest}", &text[..text.floor_char_boundary(KEPT_OF_LONG)])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use super::*;

    fn record(merchant: &str, numbers: [i64; 4]) -> SinkRecord {
        let [start, end, count, amount] = numbers;
        let value = serde_json::json!({
            "merchantId": merchant, "windowStartMs": start, "windowEndMs": end, "paymentCount": count,
            "amountMinor": amount,
        });
        SinkRecord { topic: TABLE, key: format!("{merchant}:{start}"), value: value.to_string().into_bytes() }
    }

    #[test]
    fn of_two_records_with_one_key_the_later_counts_and_the_end_stays() {
        let records = [record("b", [0, 60, 1, 10]), record("a", [0, 60, 5, 50]), record("b", [0, 61, 2, 30])];
        let totals = Totals::of(&records).unwrap();
        assert_eq!(totals.merchant_ids, ["a", "b"]);
        assert_eq!((totals.starts, totals.ends), (vec![0, 0], vec![60, 60]));
        assert_eq!((totals.counts, totals.amounts), (vec![5, 2], vec![50, 30]));
    }

    #[test]
    fn what_is_no_total_is_refused_by_name() {
        let other = SinkRecord { topic: "fraud.alerts", ..record("a", [0, 60, 1, 1]) };
        assert!(Totals::of(&[other]).unwrap_err().contains("fraud.alerts has no table"));
        let broken = SinkRecord { value: b"{}".to_vec(), ..record("a", [0, 60, 1, 1]) };
        assert!(Totals::of(&[broken]).unwrap_err().contains("the record of a:0 is no total"));
    }

    #[test]
    fn every_id_has_a_text_of_its_own_that_fits() {
        let long = "x".repeat(LONGEST_ID);
        for same in ["", "m-1", "о'Нил \"\\\u{1f600}", "JSON:\"", &long] {
            assert_eq!(storable(same.to_owned()), same);
        }
        let nul = storable("a\0b".to_owned());
        assert_eq!(nul, "json:\"a\\u0000b\"");
        let (longer, ends) = (format!("{long}1"), format!("{long}2"));
        let ids = [
            "a\0b",
            "a\\u0000b",
            "\"a\\u0000b\"",
            &nul,
            "a\u{fffd}b",
            "ab",
            "a\0\0b",
            "json:",
            "long:",
            "json:\"json:\"",
            &longer,
            &ends,
            &format!("\0{long}"),
            &format!("json:{long}"),
            &"\0".repeat(3_000),
            &"я".repeat(3_000),
            &storable(longer.clone()),
            &storable("\0".repeat(3_000)),
        ];
        let texts: BTreeSet<String> = ids.iter().map(|id| storable((*id).to_owned())).collect();
        assert_eq!(texts.len(), ids.len());
        assert!(texts.iter().all(|text| !text.contains('\0') && text.len() <= LONGEST_ID));
    }
}
