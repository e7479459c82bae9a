//! Which shard owns a key: key → key group → shard, with Flink's arithmetic.
//!
//! The group of a key depends on nothing but the key and the number of groups, so it never moves; a change of the
//! number of shards moves whole groups with their state. The number of groups is fixed by the first run with state.

use std::ops::Range;

/// Key groups of a keyed stage unless it was created with another number.
pub const KEY_GROUPS: u32 = 128;

/// Most key groups a stage may have.
const MAX_KEY_GROUPS: u64 = 32_768;

/// The unit in which keys and their state move between shards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyGroup(pub u32);

/// Java's `String.hashCode`: `31 * h + unit` over the UTF-16 code units, wrapping at 32 bits.
#[must_use]
pub fn java_string_hash(text: &str) -> i32 {
    let step = |hash: i32, unit: i32| hash.wrapping_mul(31).wrapping_add(unit);
    if text.is_ascii() {
        // One byte is one code unit.
        text.bytes().fold(0, |hash, byte| step(hash, i32::from(byte)))
    } else {
        text.encode_utf16().fold(0, |hash, unit| step(hash, i32::from(unit)))
    }
}

/// Flink's `MathUtils.murmurHash`: spreads a hash code over the non-negative 32-bit numbers.
#[must_use]
pub fn murmur_hash(code: i32) -> i32 {
    // Bit patterns are unsigned here: a Java `>>>` is a plain shift, a Java `*` wraps.
    let mut bits = code.cast_unsigned();
    bits = bits.wrapping_mul(0xcc9e_2d51).rotate_left(15);
    bits = bits.wrapping_mul(0x1b87_3593).rotate_left(13);
    bits = bits.wrapping_mul(5).wrapping_add(0xe654_6b64);
    bits ^= 4; // the length of the input in bytes
    bits ^= bits >> 16;
    bits = bits.wrapping_mul(0x85eb_ca6b);
    bits ^= bits >> 13;
    bits = bits.wrapping_mul(0xc2b2_ae35);
    bits ^= bits >> 16;
    // Negative results are negated; the one that has no opposite becomes 0.
    bits.cast_signed().checked_abs().unwrap_or(0)
}

/// The group of `key` among `groups`.
///
/// # Panics
/// When `groups` is 0.
#[must_use]
pub fn key_group(key: &str, groups: u32) -> KeyGroup {
    KeyGroup(murmur_hash(java_string_hash(key)).cast_unsigned() % groups)
}

/// The shard that owns `group` when `groups` are spread over `shards`: contiguous, `group * shards / groups`.
///
/// # Panics
/// When `groups` is 0.
#[must_use]
pub fn shard_of(group: KeyGroup, shards: u32, groups: u32) -> u32 {
    let shard = u64::from(group.0) * u64::from(shards) / u64::from(groups);
    u32::try_from(shard).unwrap_or(u32::MAX) // only a group outside 0..groups comes near
}

/// The groups that `shard` owns: exactly those that [`shard_of`] sends to it. With more shards than groups some ranges
/// are empty.
///
/// # Panics
/// When `shards` is 0.
#[must_use]
pub fn groups_of_shard(shard: u32, shards: u32, groups: u32) -> Range<u32> {
    let first = |shard: u64| {
        let group = (shard * u64::from(groups)).div_ceil(u64::from(shards));
        u32::try_from(group).unwrap_or(u32::MAX)
    };
    first(u64::from(shard))..first(u64::from(shard) + 1)
}

/// The number of key groups for a stage that starts with `parallelism` shards and names none: half as much again,
/// rounded up to a power of two, within 128..=32768.
#[must_use]
pub fn default_max_parallelism(parallelism: u32) -> u32 {
    let reserved = u64::from(parallelism) + u64::from(parallelism / 2);
    let groups = reserved.next_power_of_two().clamp(u64::from(KEY_GROUPS), MAX_KEY_GROUPS);
    u32::try_from(groups).unwrap_or(KEY_GROUPS) // at most 32768 by the clamp
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lesson_04_two_merchants_by_step() {
        for (merchant, hash, murmur, group, shards) in [
            ("m-0000", -1_131_353_760, 1_049_440_786, 18, [0, 0, 1]),
            ("m-0007", -1_131_353_753, 1_500_536_744, 40, [0, 1, 2]),
        ] {
            assert_eq!(java_string_hash(merchant), hash);
            assert_eq!(murmur_hash(hash), murmur);
            assert_eq!(key_group(merchant, KEY_GROUPS), KeyGroup(group));
            assert_eq!([2, 4, 8].map(|p| shard_of(KeyGroup(group), p, KEY_GROUPS)), shards);
        }
    }

    #[test]
    fn lesson_04_groups_of_the_fifty_merchants() {
        let groups: Vec<u32> = (0..50).map(|i| key_group(&format!("m-{i:04}"), KEY_GROUPS).0).collect();
        assert_eq!(
            groups,
            [
                18, 120, 69, 64, 96, 37, 84, 40, 60, 54, 78, 124, 1, 34, 86, 4, 22, 116, 21, 122, 120, 49, 41, 82, 91,
                119, 71, 26, 103, 114, 74, 82, 72, 98, 103, 12, 51, 122, 109, 122, 53, 124, 121, 49, 32, 54, 29, 100,
                33, 32
            ]
        );
    }

    #[test]
    fn lesson_04_default_max_parallelism() {
        for (parallelism, groups) in [
            (1, 128),
            (85, 128),
            (86, 256),
            (100, 256),
            (128, 256),
            (170, 256),
            (171, 256),
            (200, 512),
            (300, 512),
            (30_000, 32_768),
            (u32::MAX, 32_768),
        ] {
            assert_eq!(default_max_parallelism(parallelism), groups, "parallelism {parallelism}");
        }
    }

    #[test]
    fn lesson_04_ranges_of_four_shards() {
        let ranges: Vec<_> = (0..4).map(|shard| groups_of_shard(shard, 4, KEY_GROUPS)).collect();
        assert_eq!(ranges, [0..32, 32..64, 64..96, 96..128]);
    }

    #[test]
    fn hash_counts_utf16_units_as_java_does() {
        // Values of `String.hashCode` on a JVM.
        for (text, hash) in [("", 0), ("é", 233), ("Ж1", 32_475), ("😀", 1_772_899), ("a😀b", 57_849_694)] {
            assert_eq!(java_string_hash(text), hash, "{text}");
        }
    }

    #[test]
    fn murmur_is_never_negative() {
        for code in [0, 1, -1, i32::MIN, i32::MAX, 0x1234_5678] {
            assert!(murmur_hash(code) >= 0);
        }
    }

    proptest! {
        #[test]
        fn ranges_are_the_exact_inverse_of_shard_of(groups in 1u32..600, part in 0.0f64..1.0) {
            let shards = 1 + (part * f64::from(groups - 1)) as u32;
            let mut next = 0;
            for shard in 0..shards {
                let range = groups_of_shard(shard, shards, groups);
                prop_assert_eq!(range.start, next, "no gap and no overlap");
                prop_assert!(!range.is_empty(), "a shard without groups would idle");
                for group in range.clone() {
                    prop_assert_eq!(shard_of(KeyGroup(group), shards, groups), shard);
                }
                next = range.end;
            }
            prop_assert_eq!(next, groups);
        }

        #[test]
        fn ascii_and_utf16_hashes_agree(text in "[ -~]{0,40}") {
            let slow = text.encode_utf16().fold(0i32, |h, u| h.wrapping_mul(31).wrapping_add(i32::from(u)));
            prop_assert_eq!(java_string_hash(&text), slow);
        }
    }
}
