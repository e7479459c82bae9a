#![allow(clippy::unwrap_used)]

use payguard_engine::export::{Encoding, Held, Keys, Value};
use payguard_model::ProcessingTime;
use proptest::prelude::*;

use super::*;

/// Stamp, partition, offset.
type SavedAt = (i64, u32, i64);
/// Places in time and payloads.
type Records = Vec<(SavedAt, Vec<u8>)>;

prop_compose! {
    fn held()(
        state in prop::collection::vec(any::<u8>(), 0..40),
        event_timers in prop::collection::vec(any::<i64>(), 0..4),
        processing_timers in prop::collection::vec(any::<i64>(), 0..3),
    ) -> Value {
        Value::State(Held { state, event_timers, processing_timers })
    }
}

prop_compose! {
    fn input()(at in -1i64..1_000, within in 0u32..9, watermark_ms in any::<i64>(), idle in any::<bool>()) -> SavedInput {
        SavedInput { at, within, watermark_ms, idle }
    }
}

prop_compose! {
    fn taken()(
        generation in 1u32..9,
        (from_group, to_group) in (0u32..64, 64u32..129),
        inputs in prop::collection::btree_map("[a-z]{1,8}/[0-9]", (0i64..1_000, 0u32..9), 0..3),
    ) -> SavedTaken {
        SavedTaken { generation, from_group, to_group, inputs }
    }
}

prop_compose! {
    fn task()(
        task in "[a-z]{1,8}/[a-z0-9.]{1,8}",
        seq in 0u64..u64::MAX,
        watermark_ms in any::<i64>(),
        inputs in prop::collection::btree_map("[a-z]{1,8}/[0-9]", input(), 0..4),
        next_timer_ms in prop::option::of(any::<i64>()),
        counters in prop::collection::btree_map("[a-z.]{1,9}", any::<u64>(), 0..4),
        gauges in prop::collection::btree_map("[a-z.]{1,9}", any::<i64>(), 0..3),
        sealed in prop::option::of((1u32..9, 1u32..129).prop_map(|(generation, shards)| SavedLayout { generation, shards })),
        taken in prop::collection::vec(taken(), 0..3),
        value in prop::option::of(prop::collection::vec(any::<u8>(), 0..9)),
        files in prop::collection::vec("[a-z]{1,9}", 0..3),
    ) -> SavedTask {
        let broadcast = value.map(|bytes| SavedBroadcast { version: 3, value: BASE64_STANDARD.encode(bytes) });
        let files = files.into_iter().map(|path| DataFile::of(path, 1, b"x")).collect();
        let rows = SavedRows { after: seq / 2, records: counters.clone(), files };
        SavedTask {
            task, seq, watermark_ms, sealed, taken, shards: 3, inputs, next_timer_ms, counters, gauges, broadcast, rows, ..SavedTask::default()
        }
    }
}

proptest! {
    #[test]
    fn keys_come_back_as_they_were(
        keyed in prop::collection::btree_map("[a-zé]{0,9}", held(), 0..40),
        ids in prop::collection::btree_map("[a-z0-9-]{0,40}", any::<i64>(), 0..40),
        damage in any::<prop::sample::Index>(),
    ) {
        let ids: Keys = ids.into_iter().map(|(id, at)| (id, Value::WrittenAt(ProcessingTime(at)))).collect();
        for (encoding, keys) in [(Encoding::Keyed, keyed), (Encoding::Ids, ids)] {
            let (bytes, entries) = encode_keys(keys.clone());
            let file = DataFile::of("f".to_owned(), entries, &bytes);
            prop_assert_eq!(entries, keys.len() as u64);
            file.check(&bytes).unwrap();
            prop_assert_eq!(&decode_keys(encoding, &file, bytes.clone()).unwrap(), &keys);
            if bytes.is_empty() {
                continue;
            }
            let mut damaged = bytes.to_vec();
            damaged[damage.index(bytes.len())] ^= 4;
            prop_assert!(file.check(&damaged).is_err());
            prop_assert!(file.check(&bytes[..damage.index(bytes.len())]).is_err());
            let fewer = DataFile { entries: entries - 1, ..file };
            prop_assert!(decode_keys(encoding, &fewer, bytes).is_err(), "a count that differs");
        }
    }

    #[test]
    fn a_manifest_comes_back_as_it_was(tasks in prop::collection::vec(task(), 0..5), damage in any::<prop::sample::Index>()) {
        let manifest = Manifest { format: FORMAT, name: "n".to_owned(), key_groups: 128, tasks, ..Manifest::default() };
        let document = manifest.clone().write().unwrap();
        let read = Manifest::read("n", &document).unwrap();
        prop_assert_eq!(&Manifest { checksum: String::new(), ..read.clone() }, &manifest);
        for task in &read.tasks {
            prop_assert!(task.broadcast().is_ok());
        }
        // Another digit or letter anywhere: an error, never another manifest.
        let at = damage.index(document.len());
        let mut damaged = document.to_vec();
        if damaged[at].is_ascii_digit() {
            damaged[at] = b'0' + (damaged[at] - b'0' + 1) % 10;
            prop_assert!(Manifest::read("n", &damaged).is_err());
        }
    }

    #[test]
    fn rows_come_back_as_they_were(
        rows in prop::collection::vec(
            (any::<i64>(), prop::collection::vec((any::<SavedAt>(), prop::collection::vec(any::<u8>(), 0..20)), 0..6)),
            0..6,
        ),
    ) {
        let row = |(seq, (watermark_ms, records)): (u64, (i64, Records))| {
            let record = |(order, ((stamp_ms, partition, offset), payload)): (u64, (SavedAt, Vec<u8>))| {
                SavedRecord { stamp_ms, order, payload: payload.into(), partition, offset }
            };
            let records = (0..).zip(records).map(record).collect();
            let slice = SavedSlice { stream: "s".to_owned(), shard: 2, shards: 3, records, ..SavedSlice::default() };
            SavedRow { seq, watermark_ms, sealed: (seq % 2 == 0).then_some(payguard_engine::layout::Layout { generation: 2, shards: 5 }), slices: vec![slice], ..SavedRow::default() }
        };
        let rows: Vec<SavedRow> = (1..).zip(rows).map(row).collect();
        let (bytes, entries) = encode(rows.clone());
        let file = DataFile::of("f".to_owned(), entries, &bytes);
        prop_assert_eq!(file.decode::<SavedRow>(bytes).unwrap(), rows);
    }
}

#[test]
fn what_is_no_manifest_is_said_to_be_damaged() {
    for text in ["", "{", "{}", "[]", r#"{"format":"one"}"#] {
        let error = Manifest::read("n", text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("n/manifest.json is damaged"), "{text}: {error}");
    }
    let future = Manifest::read("n", br#"{"format":7,"whatever":true}"#).unwrap_err().to_string();
    assert!(future.contains("format 7") && future.contains("reads format 1"), "{future}");
}

#[test]
fn names_are_names_of_folders() {
    for name in ["a", "before-2.0", "A_1", "0"] {
        assert_eq!(check_name(name), Ok(()));
    }
    for name in ["", ".", "..", ".a", "-a", "a/b", "a b", "ä", "a\u{0}"] {
        assert!(check_name(name).is_err(), "{name}");
    }
}
