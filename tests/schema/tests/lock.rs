//! What is stored is what `schema.lock` says.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use payguard_engine::StageId;
use payguard_engine::row::SCHEMA;
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_schema::source::{Declared, read_crate};
use payguard_schema::{Id, IdKind, Schema, compare};
use payguard_topology::{Config, System, Topology, payguard, stage};

/// Crates that imitate stores to check the others; what they write is kept by nobody.
const IMITATIONS: [&str; 2] = ["sim", "modelcheck"];

const WRITE: &str = "PAYGUARD_SCHEMA=write cargo test --release -p payguard-schema";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What all crates of `shared` and `functions` declare.
fn declared() -> Declared {
    let mut all = Declared::default();
    for folder in ["shared", "functions"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if IMITATIONS.contains(&name.as_str()) {
                continue;
            }
            let of_crate = read_crate(&name, &entry.path().join("src/lib.rs")).unwrap();
            all.messages.extend(of_crate.messages);
            all.page_formats.extend(of_crate.page_formats);
            for (id, state) in of_crate.keyed {
                let other = all.keyed.insert(id.clone(), state);
                assert_eq!(other, None, "two operators have the id {id}");
            }
        }
    }
    all
}

/// Every stage with keyed state, as its function makes it.
fn stateful(config: &Config, topology: &Topology) -> Vec<(&'static str, MakeBody)> {
    vec![
        (stage::DEDUP, payguard_dedup::make(config, topology)),
        (stage::WINDOW, payguard_window::make(config, topology)),
        (stage::COMBINE, payguard_combine::make(config, topology)),
        (stage::RULES, payguard_rules::make(config, topology)),
        (stage::MATCH, payguard_match::make(config, topology)),
        (stage::REORDER_A, payguard_reorder::make_a(config, topology)),
        (stage::REORDER_B, payguard_reorder::make_b(config, topology)),
    ]
}

/// Configurations that have every stage, operator and stream between them.
fn configs() -> Vec<Config> {
    let with = |system, salts| {
        let mut config = Config { system, ..Config::default() };
        config.stats.salts = salts;
        config
    };
    vec![with(System::Payments, 1), with(System::Payments, 4), with(System::Connections, 1)]
}

/// The ids of a pipeline, and the message that each state is stored in.
fn ids(config: &Config, keyed: &BTreeMap<String, String>) -> Vec<Id> {
    let topology = payguard(config);
    let id = |kind, name: &str, of: String| Id { kind, name: name.to_owned(), of };
    let mut ids = Vec::new();
    for stage in &topology.stages {
        let kind = format!("{:?}", stage.kind);
        let kind = kind.split([' ', '{']).next().unwrap_or_default().to_lowercase();
        ids.push(id(IdKind::Stage, &stage.id.0, kind));
        ids.extend(stage.operators.iter().map(|o| id(IdKind::Operator, o, stage.id.to_string())));
    }
    for s in &topology.streams {
        ids.push(id(IdKind::Stream, s.name, format!("{} -> {} by {}", s.producer, s.consumer, s.key)));
    }
    for (stage, make) in stateful(config, &topology) {
        if topology.stage(&StageId::new(stage)).is_none() {
            continue;
        }
        let Body::Operators(mut logic) = make() else { panic!("{stage} has no operators") };
        for state in logic.states() {
            // What is no keyed operator's is a set of ids.
            let held = keyed.get(state.operator()).map_or("WrittenRuns".to_owned(), |s| format!("Entries of {s}"));
            ids.push(id(IdKind::State, state.operator(), format!("{stage}: {held}")));
        }
    }
    ids
}

fn schema() -> Schema {
    let declared = declared();
    let formats: Vec<&str> = declared.page_formats.iter().map(String::as_str).collect();
    assert_eq!(formats, ["KeyedRunner", "TtlSet"], "`ids` has to tell what the states of a new format are stored in");
    let ids = configs().iter().flat_map(|config| ids(config, &declared.keyed)).collect();
    Schema { ids, messages: declared.messages, ..Schema::default() }
}

#[test]
fn the_lock_describes_what_is_stored() {
    let path = root().join("schema.lock");
    let is_writing = std::env::var("PAYGUARD_SCHEMA").is_ok_and(|mode| mode == "write");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(_) if is_writing => String::new(),
        Err(error) => panic!("schema.lock: {error}; restore it from the repository's history"),
    };
    let lock: Schema = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let result = compare(&lock, &schema());
    assert!(result.refused.is_empty(), "stored data would be lost or misread:\n- {}", result.refused.join("\n- "));
    let recorded = result.lock.to_string();
    let number = result.lock.number;
    if is_writing {
        std::fs::write(&path, &recorded).unwrap();
    }
    assert_eq!(SCHEMA, number, "the lock has number {number}: set SCHEMA in shared/engine/src/row.rs to it");
    if is_writing {
        return;
    }
    let changes = result.unrecorded.join("\n- ");
    assert!(result.unrecorded.is_empty(), "compatible, but not recorded; run `{WRITE}`:\n- {changes}");
    assert_eq!(text, recorded, "schema.lock is not as it is written; run `{WRITE}`");
}

#[test]
fn every_stage_with_state_is_looked_at() {
    let mut expected: Vec<String> = Vec::new();
    let mut looked_at: Vec<&str> = Vec::new();
    for config in configs() {
        let topology = payguard(&config);
        let with_operators = topology.stages.iter().filter(|s| s.kind == payguard_topology::StageKind::Operators);
        expected.extend(with_operators.map(|s| s.id.to_string()));
        looked_at.extend(stateful(&config, &topology).into_iter().map(|(stage, _)| stage));
    }
    expected.sort_unstable();
    expected.dedup();
    looked_at.sort_unstable();
    looked_at.dedup();
    assert_eq!(looked_at, expected);
}
