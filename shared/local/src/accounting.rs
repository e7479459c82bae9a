//! INV-6 from the outside: is every record accounted for?
//!
//! Every stream's records must be read as often as they were emitted, and every record of a source must be accepted,
//! refused with a reason, or a tombstone.

use std::collections::{BTreeMap, BTreeSet};

use payguard_engine::task::{ADDED, IN, OUT};
use payguard_engine::{Head, TaskId};
use payguard_model::{ConnectionReason, Reason};
use payguard_operators::connections::counter;
use payguard_topology::connections::VARIANTS;
use payguard_topology::{Topology, stage, stream};

/// A sum that does not come out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Discrepancy {
    /// What was counted.
    pub what: String,
    /// How many there should be.
    pub expected: u64,
    /// How many there are.
    pub found: u64,
}

/// The counters of all tasks of a stage, added up.
#[must_use]
pub fn totals(heads: &[(TaskId, Head)]) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut totals: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (task, head) in heads {
        let stage = totals.entry(task.stage.to_string()).or_default();
        for (name, count) in &head.counters {
            *stage.entry(name.clone()).or_default() += count;
        }
    }
    totals
}

/// Everything that does not add up; empty when all records are accounted for.
///
/// `lines` is what the sources were given.
#[must_use]
pub fn check(topology: &Topology, heads: &[(TaskId, Head)], lines: u64) -> Vec<Discrepancy> {
    let totals = totals(heads);
    let count = |stage: &str, name: &str| totals.get(stage).and_then(|c| c.get(name)).copied().unwrap_or(0);
    let mut discrepancies = Vec::new();
    let mut expect = |what: String, expected: u64, found: u64| {
        if expected != found {
            discrepancies.push(Discrepancy { what, expected, found });
        }
    };
    let read = count(stage::PARSE, "source.records_in");
    expect("records read by parse".to_owned(), lines, read);
    let reasons: BTreeSet<&str> =
        Reason::ALL.iter().map(|r| r.code()).chain(ConnectionReason::ALL.iter().map(|r| r.code())).collect();
    let refused: u64 = reasons.iter().map(|reason| count(stage::PARSE, &format!("parse.{reason}"))).sum();
    let accepted = ["parse.accepted", "parse.tombstones"];
    let confirmations =
        ["parse-confirmations.accepted", "parse-confirmations.skipped", "parse-confirmations.tombstones"];
    let others = accepted.iter().chain(&confirmations).map(|name| count(stage::PARSE, name));
    let decided = refused + others.sum::<u64>();
    expect("records accepted, refused or empty".to_owned(), read, decided);
    for stream in &topology.streams {
        let emitted = count(&stream.producer.0, &format!("{OUT}{}", stream.name));
        let taken = count(&stream.consumer.0, &format!("{IN}{}", stream.name));
        expect(format!("records of {} read by {}", stream.name, stream.consumer), emitted, taken);
    }
    let alerts: u64 =
        [stream::CARD_ALERTS, stream::UNCONFIRMED].iter().map(|s| count(stage::ENRICH, &format!("{IN}{s}"))).sum();
    let enriched = count(stage::ENRICH, &format!("{OUT}{}", stream::ALERTS));
    expect("alerts enriched".to_owned(), alerts, enriched);
    for variant in &VARIANTS {
        let counted = |name: &str| count(variant.stage, &format!("{}.{name}", variant.operator));
        let events = count(variant.stage, &format!("{IN}{}", variant.events));
        let found = counted(counter::EVENTS) + counted(counter::TOO_LATE);
        expect(format!("events that joined a session or were too late for {}", variant.stage), events, found);
        let verdicts = [counter::SUCCESS, counter::FAILED, counter::INCOMPLETE].map(counted).iter().sum();
        let emitted = count(variant.stage, &format!("{OUT}{}", variant.verdicts));
        expect(format!("verdicts emitted by {}", variant.stage), verdicts, emitted);
        let late = count(variant.stage, &format!("{OUT}{}", variant.late));
        expect(format!("late events emitted by {}", variant.stage), counted(counter::TOO_LATE), late);
    }
    let clean = count(stage::DEDUP, &format!("{IN}payments")) - count(stage::DEDUP, "deduplicate.duplicates");
    for stream in topology.streams.iter().filter(|s| &*s.producer.0 == stage::DEDUP) {
        if count(stage::DEDUP, &format!("{ADDED}{}", stream.name)) > 0 {
            // It has the copies since it was added.
            continue;
        }
        let emitted = count(stage::DEDUP, &format!("{OUT}{}", stream.name));
        expect(format!("first copies emitted to {}", stream.name), clean, emitted);
    }
    discrepancies
}
