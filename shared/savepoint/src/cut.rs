//! The cut: in which order tasks are captured, who reads a task's log, and how far all of them have read it.

use std::collections::BTreeMap;
use std::ops::Range;

use payguard_engine::layout::{Layout, Taken, View};
use payguard_engine::{StageId, TaskId};
use payguard_model::EventTime;
use payguard_topology::{Stage, StageKind, Topology};

use crate::format::{SavedInput, SavedTask};

/// The layout that each stage with shards has.
pub(crate) type Layouts = BTreeMap<StageId, Layout>;

/// The stages with logs, readers before those they read. The order of flow in the topology is the other way round.
pub(crate) fn capture_order(topology: &Topology) -> Vec<&Stage> {
    topology.stages.iter().rev().filter(|stage| stage.kind != StageKind::Schedule).collect()
}

/// Whether tasks of `stage` have `producer` as an input.
pub(crate) fn reads(topology: &Topology, stage: &StageId, producer: &TaskId) -> bool {
    let Some(plan) = topology.plan(&TaskId::shard(stage, 0)) else { return false };
    plan.upstreams.iter().any(|upstream| upstream.has(producer))
}

/// What is captured of a pipeline so far: enough to tell what of a log its readers need.
#[derive(Clone, Copy)]
pub(crate) struct Readers<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) layouts: &'a Layouts,
    /// The readers, all of them captured before.
    pub(crate) captured: &'a [SavedTask],
}

impl<'a> Readers<'a> {
    /// The tasks of `stage` that read: those of its layout, with what they are captured with.
    fn of_stage(self, stage: &'a Stage) -> impl Iterator<Item = (Range<u32>, Option<&'a SavedTask>)> {
        let layout = self.layouts.get(&stage.id).copied().unwrap_or(Layout::first(stage.shards));
        (0..layout.shards).map(move |shard| {
            let name = layout.task(&stage.id, shard).to_string();
            (layout.groups(shard), self.captured.iter().find(|task| task.task == name))
        })
    }

    /// The row up to which every reader has read the log of `producer`; its end when it has none.
    pub(crate) fn read_by_all(self, producer: &TaskId, end: u64) -> u64 {
        let stages = self.topology.stages.iter().filter(|stage| reads(self.topology, &stage.id, producer));
        let readers = stages.flat_map(|stage| self.of_stage(stage));
        readers.map(|(_, reader)| read_until(reader, producer, end)).min().unwrap_or(end).min(end)
    }

    /// Whether some reader needs the records of `groups` of row `seq`: to read them, or to count what was taken before.
    pub(crate) fn need(self, consumer: &StageId, producer: &TaskId, seq: u64, groups: &Range<u32>) -> bool {
        let Some(stage) = self.topology.stage(consumer) else { return false };
        let (input, row) = (producer.to_string(), i64::try_from(seq).unwrap_or(i64::MAX));
        self.of_stage(stage).any(|(mine, reader)| {
            let taken: Vec<Taken> =
                reader.into_iter().flat_map(|r| &r.taken).map(|taken| taken.taken(|_| true)).collect();
            let view = View { groups: &mine, taken: &taken };
            read_until(reader, producer, u64::MAX) < seq && view.needs(&input, row, groups)
        })
    }
}

/// The last row of `producer` that a reader has read to its end; `end` when no more will come.
///
/// A reader that does not name it has read nothing of it.
fn read_until(reader: Option<&SavedTask>, producer: &TaskId, end: u64) -> u64 {
    let state = reader.and_then(|reader| reader.inputs.get(&producer.to_string()).copied());
    let SavedInput { at, watermark_ms, .. } = state.unwrap_or_else(SavedInput::untouched);
    if watermark_ms == EventTime::MAX.0 { end } else { u64::try_from(at).unwrap_or(0) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use payguard_topology::{Config, payguard};

    use super::*;
    use crate::format::SavedTaken;

    #[test]
    fn readers_are_captured_before_what_they_read() {
        for salts in [0, 4] {
            let mut config = Config::default();
            config.stats.salts = salts;
            let topology = payguard(&config);
            let order = capture_order(&topology);
            let place = |id: &StageId| order.iter().position(|stage| stage.id == *id).unwrap();
            for stream in &topology.streams {
                assert!(place(&stream.consumer) < place(&stream.producer), "{}", stream.name);
            }
            for (reader, decider) in &topology.broadcasts {
                assert!(place(reader) < place(decider));
            }
        }
    }

    fn reader(task: &str, at: i64, within: u32) -> SavedTask {
        let inputs = BTreeMap::from([("dedup/0".to_owned(), SavedInput { at, within, ..SavedInput::untouched() })]);
        SavedTask { task: task.to_owned(), inputs, ..SavedTask::default() }
    }

    #[test]
    fn the_slowest_reader_decides_what_is_in_flight() {
        let mut config = Config::default();
        config.shards.rules = 2;
        let (topology, layouts) = (payguard(&config), Layouts::new());
        let dedup = TaskId::shard(&StageId::new("dedup"), 0);
        let mut captured: Vec<SavedTask> = [("rules/0", 7), ("rules/1", 5), ("window/0", 9), ("match/0", 8)]
            .map(|(name, at)| reader(name, at, 3))
            .into();
        let read_by_all = |captured: &[SavedTask], producer: &TaskId, end| {
            Readers { topology: &topology, layouts: &layouts, captured }.read_by_all(producer, end)
        };
        assert_eq!(read_by_all(&captured, &dedup, 11), 5);
        captured.pop();
        assert_eq!(read_by_all(&captured, &dedup, 11), 0, "match/0 has never committed");
        let sink = TaskId::shard(&StageId::new("publish"), 0);
        assert_eq!(read_by_all(&captured, &sink, 4), 4, "nobody reads a sink");
        let confirmations = TaskId::partition(&StageId::new("parse"), "payments.confirmations", 0);
        assert_eq!(read_by_all(&[reader("match/0", 1, 0)], &confirmations, 4), 0, "match/0 does not name it");
    }

    #[test]
    fn a_sealed_log_is_read_when_its_end_was_seen_and_only_the_newest_layout_reads() {
        let topology = payguard(&Config::default());
        let rules = StageId::new("rules");
        let layouts = Layouts::from([(rules.clone(), Layout { generation: 2, shards: 2 })]);
        let mut captured = vec![
            reader("rules/0", 3, 0),
            reader("rules/g2.0of2", 6, 0),
            reader("rules/g2.1of2", 4, 1),
            reader("window/0", 9, 0),
            reader("match/0", 9, 0),
        ];
        let dedup = TaskId::shard(&StageId::new("dedup"), 0);
        assert_eq!(Readers { topology: &topology, layouts: &layouts, captured: &captured }.read_by_all(&dedup, 9), 4);
        for task in &mut captured {
            task.inputs.values_mut().for_each(|input| input.watermark_ms = EventTime::MAX.0);
        }
        assert_eq!(Readers { topology: &topology, layouts: &layouts, captured: &captured }.read_by_all(&dedup, 9), 9);
    }

    #[test]
    fn a_slice_is_needed_by_those_who_read_it_and_by_those_who_count_in_it() {
        let topology = payguard(&Config::default());
        let (rules, dedup) = (StageId::new("rules"), TaskId::shard(&StageId::new("dedup"), 0));
        let layouts = Layouts::from([(rules.clone(), Layout { generation: 2, shards: 2 })]);
        let mut captured = vec![reader("rules/g2.0of2", 4, 0), reader("rules/g2.1of2", 6, 0)];
        let need = |captured: &[SavedTask], seq, groups| {
            Readers { topology: &topology, layouts: &layouts, captured }.need(&rules, &dedup, seq, &groups)
        };
        assert!(need(&captured, 5, 0..64) && need(&captured, 5, 0..128), "the first has not read it");
        assert!(!need(&captured, 5, 64..128), "the second has");
        assert!(!need(&captured, 4, 0..64), "both have");
        assert!(need(&captured, 7, 64..128), "nobody has");
        let inputs = BTreeMap::from([("dedup/0".to_owned(), (4, 3))]);
        captured[0].taken = vec![SavedTaken { generation: 1, from_group: 0, to_group: 128, inputs }];
        assert!(need(&captured, 5, 64..128), "the first counts what the task before both had taken");
        assert!(!need(&captured, 6, 64..128), "it had taken nothing of this row");
    }
}
