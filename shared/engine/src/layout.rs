//! How the key groups of a stage are shared out among its tasks, and what a task takes over from those before it.
//!
//! A stage begins with the layout of its configuration, generation 1. To redraw the shards every task of a generation is
//! *sealed*: it flushes its state and makes a last commit that names the next layout. The tasks of the next generation
//! are new ones, with logs of their own; pages of state need not move, because they belong to key groups.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use payguard_model::{EventTime, KEY_GROUPS, key_group::groups_of_shard};

use crate::ids::{InputId, StageId, TaskId};
use crate::row::{Head, InputState, Position};
use crate::teeth::{Mutant, bites};

/// The generation a stage begins with.
pub const FIRST: u32 = 1;

/// The shards of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Layout {
    /// Grows by one whenever the shards are redrawn; the first is [`FIRST`].
    #[prost(uint32, tag = "1")]
    pub generation: u32,
    /// Tasks of the stage.
    #[prost(uint32, tag = "2")]
    pub shards: u32,
}

impl Layout {
    /// What a stage begins with.
    #[must_use]
    pub fn first(shards: u32) -> Layout {
        Layout { generation: FIRST, shards }
    }

    /// The layout after this one.
    #[must_use]
    pub fn next(self, shards: u32) -> Layout {
        Layout { generation: self.generation + 1, shards }
    }

    /// The newest layout of a stage that began with `first`, by its registered tasks.
    #[must_use]
    pub fn newest(first: Layout, registered: &[TaskId]) -> Layout {
        let later = registered.iter().filter_map(TaskId::redrawn).map(|(layout, _)| layout);
        later.max_by_key(|layout| layout.generation).unwrap_or(first)
    }

    /// The task of a shard.
    #[must_use]
    pub fn task(self, stage: &StageId, shard: u32) -> TaskId {
        if self.generation == FIRST { TaskId::shard(stage, shard) } else { TaskId::of_layout(stage, self, shard) }
    }

    /// All tasks, by shard.
    #[must_use]
    pub fn tasks(self, stage: &StageId) -> Vec<TaskId> {
        (0..self.shards).map(|shard| self.task(stage, shard)).collect()
    }

    /// The key groups of a shard.
    #[must_use]
    pub fn groups(self, shard: u32) -> Range<u32> {
        groups_of_shard(shard, self.shards, KEY_GROUPS)
    }
}

/// The layout and the shard of a task of a stage that began with `first`.
#[must_use]
pub fn place(task: &TaskId, first: Layout) -> Option<(Layout, u32)> {
    task.redrawn().or_else(|| Some((first, task.shard_number()?))).filter(|(layout, shard)| *shard < layout.shards)
}

/// What a task of an earlier generation has taken of its inputs, for key groups that a later one owns.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Taken {
    /// Its generation.
    #[prost(uint32, tag = "1")]
    pub generation: u32,
    /// First key group.
    #[prost(uint32, tag = "2")]
    pub from_group: u32,
    /// Last key group, exclusive.
    #[prost(uint32, tag = "3")]
    pub to_group: u32,
    /// How far it had read; an input that it did not know is missing.
    #[prost(btree_map = "string, message", tag = "4")]
    pub inputs: BTreeMap<InputId, Position>,
}

impl Taken {
    /// Whether it is ahead of a task that has read `inputs`: its records must be told apart as long as it is.
    #[must_use]
    pub fn is_ahead_of(&self, inputs: &BTreeMap<InputId, InputState>) -> bool {
        self.inputs.iter().any(|(id, taken)| {
            let state = inputs.get(id).copied().unwrap_or(InputState::untouched(0));
            // Of what has ended nothing more is read.
            let (read, ended) = (state.position.at, state.watermark() == EventTime::MAX);
            !ended && (taken.at > read || taken.at == read && taken.within > 0)
        })
    }

    fn position(&self, input: &str) -> Position {
        self.inputs.get(input).copied().unwrap_or(Position { at: 0, within: 0 })
    }

    fn has(&self, group: u32) -> bool {
        (self.from_group..self.to_group).contains(&group)
    }
}

/// The records of an upstream row that a task reads: those of its key groups, but for those that a task before it had
/// taken.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The task's key groups.
    pub groups: &'a Range<u32>,
    /// What earlier tasks have taken, the first generation first: a later one counts what that had left.
    pub taken: &'a [Taken],
}

impl View<'_> {
    /// Whether an earlier task has taken records of row `seq` of `input`.
    #[must_use]
    pub fn is_partly_taken(&self, input: &str, seq: i64) -> bool {
        self.taken.iter().any(|taken| {
            let position = taken.position(input);
            seq <= position.at || seq == position.at + 1 && position.within > 0
        })
    }

    /// Whether the row's records of `groups` are needed: to be read, or to count what has been taken.
    #[must_use]
    pub fn needs(&self, input: &str, seq: i64, groups: &Range<u32>) -> bool {
        let meets = |from: u32, to: u32| groups.start < to && from < groups.end;
        meets(self.groups.start, self.groups.end)
            || self.is_partly_taken(input, seq)
                && self.taken.iter().any(|taken| meets(taken.from_group, taken.to_group))
    }

    /// Which of the records of row `seq`, given as (order of emission, key group), are the task's, in the same order.
    #[must_use]
    pub fn select(&self, input: &str, seq: i64, records: &[(u64, u32)]) -> Vec<bool> {
        let mut in_order: Vec<usize> = (0..records.len()).collect();
        in_order.sort_unstable_by_key(|i| records[*i].0);
        let mut met = vec![0u32; self.taken.len()];
        let mut mine = vec![false; records.len()];
        for i in in_order {
            let group = records[i].1;
            let mut layers = self.taken.iter().zip(&mut met).filter(|(taken, _)| taken.has(group));
            let gone = layers.any(|(taken, met)| {
                let position = taken.position(input);
                *met += 1;
                seq <= position.at || seq == position.at + 1 && *met <= position.within
            });
            mine[i] = (!gone || bites(Mutant::TakeTwice)) && self.groups.contains(&group);
        }
        mine
    }
}

/// The head that a task of a redrawn layout begins with, from the heads of the sealed tasks whose key groups it takes
/// over: of every input the least that one of them has read, and what the others have read beyond that.
///
/// `sealed` gives the key groups of each task with its head. The watermark is the least of theirs: no key's time goes
/// back by that, because what was not taken yet of the keys that are ahead bears later stamps.
#[must_use]
pub fn inherit(layout: Layout, sealed: &[(Range<u32>, Head)]) -> Head {
    let ids: BTreeSet<&InputId> = sealed.iter().flat_map(|(_, head)| head.inputs.keys()).collect();
    let state = |id: &InputId| {
        let untouched = InputState::untouched(0);
        let all = || sealed.iter().map(|(_, head)| head.inputs.get(id).copied().unwrap_or(untouched));
        let at = all().map(|s| s.position.at).min().unwrap_or_default();
        let watermark_ms = all().map(|s| s.watermark_ms).min().unwrap_or(EventTime::MIN.0);
        let idle = all().filter(|s| s.position.at == at).all(|s| s.idle);
        InputState { position: Position { at, within: 0 }, watermark_ms, idle }
    };
    // Tasks before those may have been further still, for some of the key groups.
    let earlier =
        sealed.iter().flat_map(|(_, head)| head.taken.iter().filter(|t| t.is_ahead_of(&head.inputs)).cloned());
    let last = sealed.iter().map(|(groups, head)| Taken {
        generation: head.generation,
        from_group: groups.start,
        to_group: groups.end,
        inputs: head.inputs.iter().map(|(id, state)| (id.clone(), state.position)).collect(),
    });
    let mut taken: Vec<Taken> = earlier.chain(last).collect();
    taken.sort_by_key(|taken| (taken.generation, taken.from_group));
    taken.dedup();
    Head {
        generation: layout.generation,
        shards: layout.shards,
        watermark_ms: sealed.iter().map(|(_, head)| head.watermark_ms).min().unwrap_or(EventTime::MIN.0),
        idle: sealed.iter().all(|(_, head)| head.idle),
        last_input_at_ms: sealed.iter().map(|(_, head)| head.last_input_at_ms).max().unwrap_or_default(),
        pinned: sealed.iter().map(|(_, head)| head.pinned).max().unwrap_or_default(),
        inputs: ids.into_iter().map(|id| (id.clone(), state(id))).collect(),
        taken,
        ..Head::empty()
    }
}

#[cfg(test)]
mod tests;
