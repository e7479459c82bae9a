//! The figures of the connections pipeline.

use std::fmt::Write;

use payguard_operators::connections::counter;
use payguard_publish::connections::{DLQ_TOPIC, LATE_TOPIC, VARIANT_TOPICS, VERDICTS_TOPIC};
use payguard_topology::connections::variants;
use payguard_topology::{Config, stage, stream};
use serde_json::{Map, Value, json};

use crate::text::grouped;

/// The counters, in the order in which they are told.
const COUNTERS: [&str; 12] = [
    counter::EVENTS,
    counter::SUCCESS,
    counter::FAILED,
    counter::INCOMPLETE,
    counter::REVISIONS,
    counter::REOPENED,
    counter::LATE_JOINED,
    counter::TOO_LATE,
    counter::EVENTS_DROPPED,
    counter::EVICTED_SILENT,
    counter::EVICTED_FULL,
    counter::FORGOTTEN_EARLY,
];

/// The counters of every variant that ran.
pub(super) struct Variants(Vec<(&'static str, Vec<(&'static str, u64)>)>);

impl Variants {
    pub(super) fn of(config: &Config, count: &impl Fn(&str, &str) -> u64) -> Variants {
        let counters = |stage: &str, operator: &str| {
            COUNTERS.iter().map(|name| (*name, count(stage, &format!("{operator}.{name}")))).collect()
        };
        Variants(variants(config).map(|v| (v.name, counters(v.stage, v.operator))).collect())
    }

    pub(super) fn write(&self, text: &mut String) {
        for (name, counters) in &self.0 {
            let told: Vec<String> = counters
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(counter, count)| format!("{} {}", counter.replace('_', " "), grouped(*count)))
                .collect();
            let _ = writeln!(text, "variant {name}: {}", told.join(", "));
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let counters = |of: &[(&str, u64)]| {
            of.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect::<Map<String, Value>>()
        };
        self.0.iter().map(|(name, of)| ((*name).to_owned(), Value::from(counters(of)))).collect::<Map<_, _>>().into()
    }
}

/// The topics.
pub(super) fn outputs(config: &Config, written: &impl Fn(&str, &str) -> u64) -> Vec<(String, u64)> {
    let mut outputs = Vec::new();
    for variant in variants(config) {
        let verdicts = written(stage::PUBLISH, variant.verdicts);
        if config.connections.visible_variant == variant.name {
            outputs.push((VERDICTS_TOPIC.to_owned(), verdicts));
            outputs.push((LATE_TOPIC.to_owned(), written(stage::PUBLISH, variant.late)));
        }
        let own = VARIANT_TOPICS.iter().find(|(name, _)| *name == variant.name && config.connections.is_compared());
        outputs.extend(own.map(|(_, topic)| ((*topic).to_owned(), verdicts)));
    }
    outputs.push((DLQ_TOPIC.to_owned(), written(stage::PUBLISH, stream::REJECTED)));
    outputs
}
