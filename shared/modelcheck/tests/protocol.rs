//! The protocol holds in every run within the bounds, and a protocol with one rule broken does not.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

use payguard_modelcheck::{Config, Event, Mutant, Rule, check, noticed_by};

#[test]
fn every_run_keeps_every_property_and_everything_happens_somewhere() {
    let mut counts: BTreeMap<Event, u64> = BTreeMap::new();
    for config in Config::short() {
        let checked = check(config);
        println!("{checked}");
        assert!(checked.holds(), "{checked}");
        for (event, count) in checked.counts {
            *counts.entry(event).or_default() += count;
        }
    }
    let never: Vec<&str> = counts.iter().filter(|(_, count)| **count == 0).map(|(event, _)| event.text()).collect();
    assert!(never.is_empty(), "never: {never:?}");
}

#[test]
fn every_broken_rule_is_noticed_by_its_property() {
    for mutant in Mutant::ALL {
        let checked = check(mutant.model());
        let rule = noticed_by(mutant);
        let found = checked.broken.get(rule.name());
        assert!(found.is_some(), "{mutant:?} is not noticed by `{}`\n{checked}", rule.name());
        assert!(found.is_some_and(|story| story.text.lines().count() >= story.steps), "{mutant:?}: the run is told");
    }
}

#[test]
fn every_property_notices_something() {
    let noticed: BTreeSet<&str> = Mutant::ALL.into_iter().map(|mutant| noticed_by(mutant).name()).collect();
    for rule in Rule::ALL {
        assert!(noticed.contains(rule.name()), "no broken rule for `{}`", rule.name());
    }
}
