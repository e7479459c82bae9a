//! How far the log of every task may be collected: derived from the heads alone.

use std::collections::BTreeMap;

use payguard_engine::gc::collectable_through;
use payguard_engine::task::TaskPlan;
use payguard_engine::{Head, Position, Seq, StageId, TaskId};
use payguard_operators::dedup;

use crate::{StageKind, Topology};

/// The tasks whose logs are collected, each with the last row that nobody needs any more (0: none).
///
/// The log of a stage that decides a broadcast value is not among them: it is the history of that value, and a message
/// of a person, which has no offset, is told from a repeated one by its row alone.
#[must_use]
pub fn of(topology: &Topology, heads: &[(TaskId, Head)]) -> Vec<(TaskId, Seq)> {
    let by_task: BTreeMap<&TaskId, &Head> = heads.iter().map(|(task, head)| (task, head)).collect();
    // Of a stage whose shards were redrawn the tasks of the newest layout: each begins where those before it had read to.
    let consumers = topology.stages.iter().filter(|stage| stage.kind.reads_logs());
    let newest = consumers.flat_map(|s| topology.layout(s, by_task.keys().copied()).tasks(&s.id));
    let readers: Vec<TaskPlan> = newest.filter_map(|task| topology.plan(&task)).collect();
    let positions = |task: &TaskId| {
        let id = TaskPlan::input_id(task);
        let of_reader = |plan: &&TaskPlan| plan.upstreams.iter().any(|upstream| upstream.has(task));
        let position = |plan: &TaskPlan| by_task.get(&plan.task)?.inputs.get(&id).map(|state| state.position);
        readers.iter().filter(of_reader).map(|plan| position(plan).unwrap_or_default()).collect::<Vec<Position>>()
    };
    let through = |(task, head): &(TaskId, Head)| {
        let kind = &topology.stage(&task.stage)?.kind;
        let is_collected = !matches!(kind, StageKind::Broadcast { .. } | StageKind::Schedule);
        is_collected.then(|| (task.clone(), collectable_through(head, *kind == StageKind::Operators, positions(task))))
    };
    heads.iter().filter_map(through).collect()
}

/// The stages that keep pages which expire in the state table: those of deduplication.
#[must_use]
pub fn stages_with_expiring_pages(topology: &Topology) -> Vec<StageId> {
    topology.stages.iter().filter(|stage| stage.operators.contains(&dedup::ID)).map(|stage| stage.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use payguard_engine::InputState;

    use super::*;
    use crate::{Config, payguard};

    fn head(seq: u64, flushed_seq: u64, read: &[(&str, i64)]) -> Head {
        let inputs = read.iter().map(|(id, at)| {
            let position = Position { at: *at, within: 0 };
            ((*id).to_owned(), InputState { position, watermark_ms: 0, idle: false })
        });
        Head { seq, flushed_seq, inputs: inputs.collect(), ..Head::empty() }
    }

    fn through(config: &Config, heads: &[(&str, Head)]) -> BTreeMap<String, u64> {
        let heads: Vec<_> = heads.iter().filter_map(|(task, head)| Some((task.parse().ok()?, head.clone()))).collect();
        of(&payguard(config), &heads).into_iter().map(|(task, seq)| (task.to_string(), seq.0)).collect()
    }

    #[test]
    fn every_reader_holds_its_input_and_a_task_without_a_head_holds_everything() {
        let mut config = Config::default();
        config.source.confirmations_topic.clear();
        config.shards.rules = 2;
        let payments = "parse/payments.raw-0";
        let mut heads = vec![
            (payments, head(20, 20, &[])),
            ("dedup/0", head(9, 8, &[(payments, 17)])),
            ("window/0", head(4, 4, &[("dedup/0", 9)])),
            ("rules/0", head(5, 0, &[("dedup/0", 7)])),
            ("publish/0", head(30, 0, &[(payments, 19)])),
            ("control/0", head(7, 7, &[])),
        ];
        let found = through(&config, &heads);
        assert_eq!(found[payments], 17, "dedup is behind publish");
        assert_eq!(found["dedup/0"], 0, "the second shard of rules has not begun");
        assert_eq!(found["window/0"], 0, "totals has not begun");
        assert_eq!(found["publish/0"], 29, "nobody reads a sink");
        assert!(!found.contains_key("control/0"), "the history of the rules is kept");
        heads.push(("rules/1", head(3, 3, &[("dedup/0", 8)])));
        heads.push(("totals/0", head(1, 0, &[("window/0", 4)])));
        heads[4].1 = head(30, 0, &[(payments, 3), ("window/0", 2)]);
        let found = through(&config, &heads);
        assert_eq!((found[payments], found["dedup/0"], found["window/0"]), (3, 7, 2));
        assert_eq!(found["rules/0"], 0, "its state is not flushed");
    }

    #[test]
    fn who_does_not_read_a_topic_does_not_hold_its_partitions() {
        let confirmations = "parse/payments.confirmations-0";
        let heads = [
            (confirmations, head(20, 20, &[])),
            ("match/0", head(9, 8, &[(confirmations, 12)])),
            ("dedup/0", head(9, 8, &[])),
        ];
        assert_eq!(through(&Config::default(), &heads)[confirmations], 12, "dedup reads payments only");
    }

    #[test]
    fn pages_expire_where_ids_are_remembered() {
        let stages = stages_with_expiring_pages(&payguard(&Config::default()));
        assert_eq!(stages, [StageId::new("dedup")]);
    }
}
