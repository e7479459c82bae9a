//! How evenly a set of keys spreads over shards, computed before anything runs.

use crate::key_group::{key_group, shard_of};
use std::collections::BTreeMap;

/// Sums the weight of `keys` by the shard that owns them. A shard without a key is not in the map.
///
/// # Panics
/// When `groups` is 0.
#[must_use]
pub fn load_by_shard<K: AsRef<str>>(
    keys: impl IntoIterator<Item = K>,
    weight: impl Fn(&str) -> u64,
    shards: u32,
    groups: u32,
) -> BTreeMap<u32, u64> {
    let mut load = BTreeMap::new();
    for key in keys {
        let key = key.as_ref();
        let shard = shard_of(key_group(key, groups), shards, groups);
        *load.entry(shard).or_insert(0) += weight(key);
    }
    load
}

/// The load of the busiest shard over the average of all `shards`, idle ones included: 1.0 is even, 0.0 means no load.
#[must_use]
pub fn skew(load: &BTreeMap<u32, u64>, shards: u32) -> f64 {
    let total: u64 = load.values().sum();
    let max = load.values().copied().max().unwrap_or(0);
    if total == 0 || shards == 0 {
        return 0.0;
    }
    max as f64 / (total as f64 / f64::from(shards))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KEY_GROUPS;

    fn merchants() -> Vec<String> {
        (0..50).map(|i| format!("m-{i:04}")).collect()
    }

    /// The weights of the load generator: 30 % of the stream on one merchant.
    fn generator_weight(key: &str) -> u64 {
        if key == "m-0000" { 21 } else { 1 }
    }

    fn loads(shards: u32, weight: impl Fn(&str) -> u64) -> (Vec<u64>, f64) {
        let load = load_by_shard(merchants(), weight, shards, KEY_GROUPS);
        let skew = skew(&load, shards);
        (load.into_values().collect(), skew)
    }

    #[test]
    fn lesson_04_generator_weights() {
        for (shards, keys, load, expected_skew) in [
            (2, vec![22, 28], vec![42, 28], 1.20),
            (4, vec![8, 14, 11, 17], vec![28, 14, 11, 17], 1.60),
            (8, vec![3, 5, 7, 7, 6, 5, 6, 11], vec![3, 25, 7, 7, 6, 5, 6, 11], 2.86),
        ] {
            assert_eq!(loads(shards, |_| 1).0, keys, "keys on {shards} shards");
            let (actual, skew) = loads(shards, generator_weight);
            assert_eq!(actual, load, "load of {shards} shards");
            assert!((skew - expected_skew).abs() < 0.005, "skew {skew} of {shards} shards");
        }
    }

    #[test]
    fn lesson_04_equal_weights_spread_well() {
        let (_, skew) = loads(4, |_| 1);
        assert!((skew - 1.36).abs() < 1e-9, "{skew}");
    }

    #[test]
    fn lesson_04_one_merchant_with_most_of_the_stream() {
        let (load, skew) = loads(4, |key| if key == "m-0000" { 1029 } else { 1 });
        assert_eq!(load, [1036, 14, 11, 17]);
        assert!((skew - 3.844).abs() < 0.001, "{skew}");
    }

    #[test]
    fn lesson_04_the_same_key_twice_gives_the_same_shard() {
        let once = || load_by_shard(["m-0007"], |_| 1, 4, KEY_GROUPS);
        assert_eq!(once(), once());
        assert_eq!(once(), BTreeMap::from([(1, 1)]));
    }

    #[test]
    fn idle_shards_count_in_the_average_and_no_load_is_zero() {
        assert_eq!(skew(&BTreeMap::from([(3, 10)]), 4), 4.0);
        assert_eq!(skew(&BTreeMap::new(), 4), 0.0);
        assert_eq!(skew(&BTreeMap::from([(0, 0)]), 4), 0.0);
    }
}
