//! What savepoints are made of.

use std::collections::BTreeMap;

use bytes::Bytes;
use payguard_engine::Broadcast;
use payguard_engine::layout::Layout;
use payguard_savepoint::format::{
    DataFile, FORMAT, IdEntry, KeyedEntry, Manifest, SavedBroadcast, SavedInput, SavedLayout, SavedRecord, SavedRow,
    SavedRows, SavedSlice, SavedStage, SavedStream, SavedTaken, SavedTask, StateFile,
};

use crate::cases::{Case, message};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        message("savepoint-keyed-entry", |_| KeyedEntry {
            key: "c1".to_owned(),
            state: vec![8, 5],
            event_timers_ms: vec![-1, 60_000],
            processing_timers_ms: vec![7],
        }),
        message("savepoint-id-entry", |_| IdEntry { id: "p1".to_owned(), written_at_ms: 1_000 }),
        message("savepoint-row", row),
        manifest_case(),
    ]
}

fn row(_version: u32) -> SavedRow {
    let record =
        SavedRecord { stamp_ms: -10_001, order: 3, payload: Bytes::from_static(b"record"), partition: 2, offset: 17 };
    SavedRow {
        seq: 9,
        watermark_ms: 60_000,
        idle: true,
        now_ms: 1_000,
        broadcast: Some(Broadcast { version: 3, value: Bytes::from_static(b"rules") }),
        slices: vec![SavedSlice {
            stream: "clean-by-card".to_owned(),
            shard: 1,
            min_event_time_ms: -5,
            max_event_time_ms: 5,
            records: vec![record],
            shards: 2,
        }],
        sealed: Some(Layout { generation: 2, shards: 3 }),
    }
}

fn manifest(version: u32) -> Manifest {
    let file = |path: &str, bytes: &[u8]| DataFile::of(format!("s/data-1/{path}"), 1, bytes);
    let input = SavedInput { at: 7, within: 2, watermark_ms: -1, idle: true };
    let task = SavedTask {
        task: "rules/g2.0of3".to_owned(),
        seq: 9,
        watermark_ms: 60_000,
        idle: true,
        generation: 2,
        shards: 3,
        sealed: Some(SavedLayout { generation: 3, shards: 4 }),
        taken: vec![SavedTaken {
            generation: 1,
            from_group: 0,
            to_group: 64,
            inputs: BTreeMap::from([("dedup/0".to_owned(), (8, 1))]),
        }],
        inputs: BTreeMap::from([("dedup/0".to_owned(), input)]),
        next_timer_ms: Some(70_000),
        counters: BTreeMap::from([("in.clean-by-card".to_owned(), 12)]),
        gauges: BTreeMap::from([("lag".to_owned(), -4)]),
        broadcast: Some(SavedBroadcast { version: 3, value: "cnVsZXM=".to_owned() }),
        pinned: 3,
        rows: SavedRows {
            after: 8,
            records: BTreeMap::from([("card-alerts".to_owned(), 1)]),
            files: vec![file("rows/rules/g2.0of3/00000.pb", b"rows")],
        },
    };
    Manifest {
        format: FORMAT,
        name: "s".to_owned(),
        id: "1".to_owned(),
        pipeline: "payguard".to_owned(),
        created_at_ms: 1_000,
        code: "0.1.0".to_owned(),
        schema: if version < 2 { 0 } else { 1 },
        key_groups: 128,
        stages: vec![SavedStage { id: "rules".to_owned(), operators: vec!["card-profile".to_owned()], shards: 2 }],
        streams: vec![SavedStream {
            name: "card-alerts".to_owned(),
            producer: "rules".to_owned(),
            consumer: "enrich".to_owned(),
            keying: "merchantId".to_owned(),
        }],
        tasks: vec![task],
        registered: vec!["parse/payments.raw-0".to_owned()],
        state: vec![StateFile {
            stage: "rules".to_owned(),
            operator: "card-profile".to_owned(),
            group: 5,
            file: file("state/rules/card-profile/00005.pb", b"state"),
        }],
        checksum: String::new(),
    }
}

fn manifest_case() -> Case {
    Case {
        name: "savepoint-manifest",
        messages: Vec::new(),
        written: vec![("-".to_owned(), manifest(u32::MAX).write().expect("JSON").to_vec())],
        read: Box::new(|version, stored| {
            let read = Manifest::read("s", &stored[0].1).expect("a manifest");
            assert_eq!(Manifest { checksum: String::new(), ..read }, manifest(version), "version {version}");
        }),
    }
}
