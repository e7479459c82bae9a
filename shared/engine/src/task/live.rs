//! What a consumer task holds in memory.

use std::collections::{BTreeMap, VecDeque};

use payguard_model::ProcessingTime;

use super::TaskPlan;
use super::batch;
use super::consumer::Body;
use super::flush::Replaced;
use super::load::Load;
use crate::ids::{InputId, TaskId};
use crate::merge::Merger;
use crate::row::{CommitRow, Head};
use crate::segment::SegmentBuilder;
use crate::teeth::{Mutant, bites};

/// What a task holds in memory: always exactly the state as of `head`, between batches.
pub(super) struct Live {
    pub(super) head: Head,
    pub(super) body: Body,
    pub(super) merger: Merger,
    pub(super) builder: SegmentBuilder,
    /// Rows read but not opened yet, by input.
    pub(super) rows: BTreeMap<InputId, VecDeque<CommitRow>>,
    /// Upstream task of every input.
    pub(super) upstreams: BTreeMap<InputId, (TaskId, usize)>,
    /// Whether what is in memory is known to be the state as of `head` (see [`crate::resume::resume`]).
    pub(super) whole: bool,
    pub(super) flushed_at: ProcessingTime,
    pub(super) flushed_seq: u64,
    /// Pages that the last flush replaced, to be removed after the next commit.
    pub(super) replaced: Replaced,
    /// Version of the broadcast value the body has.
    pub(super) pinned: u64,
    pub(super) load: Load,
}

impl Live {
    /// Nothing but the head; the state is to be loaded, the inputs to be added.
    pub(super) fn new(head: Head, body: Body, plan: &TaskPlan, now: ProcessingTime) -> Live {
        Live {
            flushed_seq: head.flushed_seq,
            head,
            body,
            merger: Merger::new(plan.alignment),
            builder: batch::builder(plan),
            rows: BTreeMap::new(),
            upstreams: BTreeMap::new(),
            whole: false,
            flushed_at: now,
            replaced: Replaced::default(),
            pinned: 0,
            load: Load::since(now),
        }
    }

    /// Reads on where the head's positions are.
    pub(super) fn add_inputs(&mut self) {
        for (id, state) in &self.head.inputs {
            self.merger.add(id, *state);
        }
    }

    /// Stands at a later head, whose deltas the body has got: what was read after the earlier one is dropped.
    pub(super) fn go_on_from(&mut self, head: Head, plan: &TaskPlan) {
        if !bites(Mutant::KeepPositions) {
            self.merger = Merger::new(plan.alignment);
            self.rows.clear();
        }
        self.flushed_seq = head.flushed_seq;
        self.head = head;
        self.add_inputs();
    }
}
