//! The merchants of the demonstration.

use async_trait::async_trait;

use crate::{LookupError, MerchantDirectory};

/// How many merchants there are.
const MERCHANTS: u32 = 50;

/// The 50 merchants `m-0000` to `m-0049`, by formula: 5 HIGH, 15 MEDIUM, 30 LOW. The same as `infra/sql/04-demo-merchants.sql`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeededDirectory;

impl SeededDirectory {
    /// Every merchant and its level, ascending.
    pub fn merchants() -> impl Iterator<Item = (String, &'static str)> {
        (0..MERCHANTS).map(|n| (format!("m-{n:04}"), level(n)))
    }
}

#[async_trait]
impl MerchantDirectory for SeededDirectory {
    async fn risk_level(&self, merchant_id: &str) -> Result<Option<String>, LookupError> {
        Ok(number(merchant_id).map(|n| level(n).to_owned()))
    }
}

fn level(n: u32) -> &'static str {
    if n.is_multiple_of(10) {
        "HIGH"
    } else if n.is_multiple_of(3) {
        "MEDIUM"
    } else {
        "LOW"
    }
}

fn number(merchant_id: &str) -> Option<u32> {
    let digits = merchant_id.strip_prefix("m-").filter(|d| d.len() == 4 && d.bytes().all(|b| b.is_ascii_digit()))?;
    digits.parse().ok().filter(|n| *n < MERCHANTS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;

    use super::*;

    #[tokio::test]
    async fn levels_are_those_of_the_formula() {
        let mut counts = BTreeMap::new();
        for (merchant, expected) in SeededDirectory::merchants() {
            let level = SeededDirectory.risk_level(&merchant).await.unwrap().unwrap();
            assert_eq!(level, expected, "{merchant}");
            *counts.entry(level).or_insert(0) += 1;
        }
        assert_eq!(counts, [("HIGH", 5), ("LOW", 30), ("MEDIUM", 15)].map(|(l, n)| (l.to_owned(), n)).into());
        for (merchant, level) in
            [("m-0000", "HIGH"), ("m-0010", "HIGH"), ("m-0011", "LOW"), ("m-0045", "MEDIUM"), ("m-0028", "LOW")]
        {
            assert_eq!(SeededDirectory.risk_level(merchant).await.unwrap().as_deref(), Some(level), "{merchant}");
        }
    }

    #[tokio::test]
    async fn other_merchants_are_absent() {
        for merchant in ["m-0050", "m-9999", "m-1", "m-00001", "m-+001", "M-0001", "0001", "m-", "", "m-٠٠٠١"] {
            assert_eq!(SeededDirectory.risk_level(merchant).await.unwrap(), None, "{merchant}");
        }
    }
}
