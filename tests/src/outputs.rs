//! What a simulated pipeline has published, and how that is compared.

use std::collections::BTreeMap;

use payguard_engine::store::SinkRecord;
use payguard_sim::SimWorld;
use payguard_sim::reference::Published;
use payguard_topology::stage;

/// The first record that differs, if one does.
#[must_use]
pub fn difference(found: &Outputs, expected: &Outputs) -> Option<String> {
    for (found, expected) in [(&found.publish, &expected.publish), (&found.totals, &expected.totals)] {
        let show = |r: Option<&SinkRecord>| r.map(|r| format!("{}: {}", r.topic, String::from_utf8_lossy(&r.value)));
        let at = (0..found.len().max(expected.len())).find(|i| found.get(*i) != expected.get(*i));
        if let Some(at) = at {
            let (got, wanted) = (show(found.get(at)), show(expected.get(at)));
            let (of, instead) = (found.len(), expected.len());
            return Some(format!("record {at} of {of} (expected {instead}):\n{got:?}\n{wanted:?}"));
        }
    }
    None
}

/// Fails a test with the first record that differs.
///
/// # Panics
/// When the run failed or published something else.
#[track_caller]
pub fn assert_same(found: &Result<Outputs, String>, expected: &Outputs, context: &str) {
    match found {
        Ok(found) => {
            if let Some(difference) = difference(found, expected) {
                panic!("{context}: {difference}");
            }
        }
        Err(error) => panic!("{context}: {error}"),
    }
}

/// What the sinks hold.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outputs {
    /// Records of all topics in the order they were published.
    pub publish: Vec<SinkRecord>,
    /// Records of the table of totals in order.
    pub totals: Vec<SinkRecord>,
}

impl Outputs {
    /// Reads the sinks of a world.
    #[must_use]
    pub fn of(world: &SimWorld) -> Outputs {
        let world = world.lock();
        let of = |stage: &str| -> Vec<SinkRecord> {
            world.sinks.iter().filter(|(t, _)| &*t.stage.0 == stage).flat_map(|(_, s)| s.records.clone()).collect()
        };
        Outputs { publish: of(stage::PUBLISH), totals: of(stage::TOTALS) }
    }

    /// By topic or table, each in order.
    #[must_use]
    pub fn by_topic(&self) -> Published {
        let mut published = Published::new();
        for record in self.publish.iter().chain(&self.totals) {
            published.entry(record.topic).or_default().push(record.clone());
        }
        published
    }

    /// By topic or table, each sorted.
    #[must_use]
    pub fn sets(&self) -> Published {
        let mut published = self.by_topic();
        published.values_mut().for_each(|r| r.sort_by(|a, b| (&a.key, &a.value).cmp(&(&b.key, &b.value))));
        published
    }

    /// The last emission of every window, by merchant and start.
    #[must_use]
    pub fn final_totals(&self) -> BTreeMap<String, Vec<u8>> {
        self.totals.iter().map(|r| (r.key.clone(), r.value.clone())).collect()
    }
}
