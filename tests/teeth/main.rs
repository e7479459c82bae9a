//! The checks have teeth: whatever rule of the engine or of the stores is broken (`shared/engine/src/teeth.rs`), the
//! simulation notices, by the invariant that the rule is there for or by what is published.
#![allow(missing_docs)]

mod scenario;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use payguard_engine::teeth::Mutant;
use scenario::{DIFFERS, Scenario};

/// The name under which a difference in what is published is noticed.
const OUTPUTS: &str = "outputs";

/// The scenario that shows a broken rule, and what notices it.
fn shown_by(mutant: Mutant) -> (Scenario, &'static str) {
    match mutant {
        Mutant::NoHeadCondition => (Scenario::Collected, "INV-1"),
        Mutant::OverwriteRows => (Scenario::Sleeper, "INV-1"),
        Mutant::TakeForMine => (Scenario::Interleaved, "INV-6"),
        Mutant::KeepPositions => (Scenario::Turns, "INV-6"),
        Mutant::TakeAgain => (Scenario::Interleaved, "INV-2"),
        Mutant::WatermarkOfBatch => (Scenario::Joining, "INV-3"),
        Mutant::WatermarkFirst => (Scenario::Crashes, OUTPUTS),
        Mutant::FlushUncommitted => (Scenario::Crashes, "INV-4"),
        Mutant::NoVersionCheck => (Scenario::Sleeper, "INV-4"),
        Mutant::PagesOverDeltas => (Scenario::Crashes, OUTPUTS),
        Mutant::RemoveAtOnce => (Scenario::Splitting, "INV-4"),
        Mutant::TrustLoaded => (Scenario::Splitting, "INV-4"),
        Mutant::CollectUnread => (Scenario::Collected, "INV-5"),
        Mutant::CollectUnflushed => (Scenario::Collected, "INV-5"),
        Mutant::AcknowledgeFirst => (Scenario::Failures, "INV-6"),
        Mutant::KeepAfterLost => (Scenario::Interleaved, "INV-6"),
        Mutant::GoOnAfterUnknown => (Scenario::Failures, "INV-6"),
        Mutant::PositionApart => (Scenario::Crashes, "INV-6"),
        Mutant::PassTooMany => (Scenario::Crashes, "INV-6"),
        Mutant::TakeTwice => (Scenario::Redrawn, "INV-6"),
        Mutant::HandOverUnflushed => (Scenario::Redrawn, "INV-4"),
    }
}

/// What notices an error: the invariant it names last, which is the cause where several are named; a difference in what
/// is published; or nothing but the error.
fn noticed_by(error: &str) -> &str {
    match error.rfind("INV-") {
        Some(at) => &error[at..at + "INV-n".len()],
        None if error.starts_with(DIFFERS) => OUTPUTS,
        None => "an error",
    }
}

fn run(scenario: Scenario, seed: u64, broken: Option<Mutant>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    // What the engine asserts, and what the world does not let happen, ends a run too.
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(scenario.run(seed, broken))));
    ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        Err(panic.downcast_ref::<String>().cloned().or(text).unwrap_or_default())
    })
}

#[test]
fn every_broken_rule_is_noticed() {
    let mut table = format!("{:<18} {:<8} {:<12} {:>4}  what is said\n", "broken rule", "by", "scenario", "seed");
    let mut wrong = Vec::new();
    for mutant in Mutant::ALL {
        let (scenario, expected) = shown_by(mutant);
        let first = (0..scenario.seeds()).find_map(|seed| Some((seed, run(scenario, seed, Some(mutant)).err()?)));
        let Some((seed, error)) = first else {
            wrong.push(format!("{mutant:?} is not noticed in {scenario:?}"));
            continue;
        };
        let by = noticed_by(&error);
        let said: String = error.replace('\n', " ").chars().take(110).collect();
        table += &format!("{:<18} {by:<8} {:<12} {seed:>4}  {said}\n", format!("{mutant:?}"), format!("{scenario:?}"));
        if by != expected {
            wrong.push(format!("{mutant:?} is noticed by {by} instead of {expected}: {error}"));
        }
    }
    println!("\n{table}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_not_broken_is_not_noticed() {
    for scenario in Scenario::ALL {
        for seed in 0..scenario.seeds() {
            run(scenario, seed, None).unwrap_or_else(|e| panic!("{scenario:?} {seed}: {e}"));
        }
    }
}

#[test]
fn every_invariant_notices_something() {
    let noticed: BTreeSet<&str> = Mutant::ALL.into_iter().map(|mutant| shown_by(mutant).1).collect();
    assert_eq!(noticed, BTreeSet::from(["INV-1", "INV-2", "INV-3", "INV-4", "INV-5", "INV-6", OUTPUTS]));
}
