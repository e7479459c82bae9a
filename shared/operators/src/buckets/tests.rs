use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message;

use super::*;

const TEN_SECONDS: BucketSize = BucketSize::from_ms(10_000);

fn filled(entries: &[(i64, i64)]) -> BucketedSum {
    let mut buckets = BucketedSum::default();
    for &(t, value) in entries {
        buckets.add(TEN_SECONDS, EventTime(t), value);
    }
    buckets
}

#[test]
fn lesson_7_buckets_are_aligned_to_the_epoch() {
    let table = [(0, 0, 10_000), (1, 0, 10_000), (9_999, 0, 10_000), (10_000, 10_000, 20_000), (-1, -10_000, 0)];
    for (t, start, end) in table {
        assert_eq!(TEN_SECONDS.bucket_start(EventTime(t)), EventTime(start), "start of {t}");
        assert_eq!(TEN_SECONDS.bucket_end(EventTime(t)), EventTime(end), "end of {t}");
    }
}

#[test]
fn lesson_7_a_bucket_that_touches_the_border_counts_whole() {
    let buckets = filled(&[(2_000, 6), (65_000, 5)]);
    assert_eq!(buckets.sum_since(TEN_SECONDS, EventTime(5_000)), 11);
    assert_eq!(buckets.sum_since(TEN_SECONDS, EventTime(9_999)), 11);
    assert_eq!(buckets.sum_since(TEN_SECONDS, EventTime(10_000)), 5);
    assert_eq!(buckets.sum_since(TEN_SECONDS, EventTime(70_000)), 0);
}

#[test]
fn lesson_7_eviction_keeps_a_bucket_that_ends_after_the_border() {
    for (from, left) in [(9_999, 2), (10_000, 1), (69_999, 1), (70_000, 0)] {
        let mut buckets = filled(&[(2_000, 6), (65_000, 5)]);
        buckets.evict_before(TEN_SECONDS, EventTime(from));
        assert_eq!(buckets.len(), left, "from {from}");
    }
}

#[test]
fn an_emptied_sum_is_the_default() {
    let mut buckets = filled(&[(65_000, 5)]);
    buckets.evict_before(TEN_SECONDS, EventTime(70_000));
    assert_eq!(buckets, BucketedSum::default());
}

#[test]
fn add_tells_whether_the_bucket_is_new() {
    let mut buckets = BucketedSum::default();
    let added: Vec<bool> =
        [25_000, 29_000, 5_000, 15_000, 0].map(|t| buckets.add(TEN_SECONDS, EventTime(t), 1)).to_vec();
    assert_eq!(added, [true, false, true, true, false]);
}

#[test]
fn ten_buckets_are_stored_in_60_bytes() {
    let start = 1_794_085_500_000;
    let counts: Vec<(i64, i64)> = (0..10).map(|bucket| (start + bucket * 10_000, 3)).collect();
    assert_eq!(filled(&counts).encoded_len(), 29);
    let amounts: Vec<(i64, i64)> = (0..10).map(|bucket| (start + bucket * 10_000, 50_000)).collect();
    assert_eq!(filled(&amounts).encoded_len(), 49);
}

#[test]
fn the_stored_form_is_fixed() {
    let stored = [0x08, 0x01, 0x12, 0x02, 0x00, 0x05, 0x1a, 0x02, 0x06, 0x05];
    assert_eq!(filled(&[(10_000, 6), (65_000, 5)]).encode_to_vec(), stored);
    assert_eq!(BucketedSum::decode(stored.as_slice()), Ok(filled(&[(10_000, 6), (65_000, 5)])));
}

#[test]
fn sums_stop_at_the_end_of_the_scale() {
    let mut buckets = filled(&[(1, i64::MAX), (2, i64::MAX), (20_000, i64::MAX)]);
    assert_eq!(buckets.sum_since(TEN_SECONDS, EventTime::MIN), i64::MAX);
    buckets.evict_before(TEN_SECONDS, EventTime::MAX);
    assert!(buckets.is_empty());
}

fn any_time() -> impl Strategy<Value = i64> {
    prop_oneof![8 => 0..200_000_i64, 1 => -50_000..0_i64, 1 => Just(i64::MAX), 1 => Just(i64::MIN), 1 => any::<i64>()]
}

proptest! {
    /// Against a map of bucket start to sum, with the lesson's formulas in 128 bits.
    #[test]
    fn agrees_with_a_plain_map(
        size in prop_oneof![Just(1_i64), Just(7), Just(10_000), Just(60_000)],
        steps in prop::collection::vec((0..3_u8, any_time(), 0..1_000_i64), 0..60),
    ) {
        let (mut buckets, mut plain) = (BucketedSum::default(), BTreeMap::<i128, i64>::new());
        let bucket = BucketSize::from_ms(size);
        for (step, t, value) in steps {
            let wide = i128::from(t);
            match step {
                0 | 1 => {
                    let start = wide - wide.rem_euclid(i128::from(size));
                    prop_assert_eq!(buckets.add(bucket, EventTime(t), value), !plain.contains_key(&start));
                    *plain.entry(start).or_default() += value;
                }
                _ => {
                    buckets.evict_before(bucket, EventTime(t));
                    plain.retain(|start, _| start + i128::from(size) > wide);
                }
            }
            let expected: i64 = plain.iter().filter(|(s, _)| **s + i128::from(size) > wide).map(|(_, v)| v).sum();
            prop_assert_eq!(buckets.sum_since(bucket, EventTime(t)), expected);
            prop_assert_eq!(buckets.len(), plain.len());
            prop_assert_eq!(buckets == BucketedSum::default(), plain.is_empty());
            prop_assert_eq!(&BucketedSum::decode(buckets.encode_to_vec().as_slice()).unwrap(), &buckets);
        }
    }
}
