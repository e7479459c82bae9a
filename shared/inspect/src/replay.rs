//! The state of key groups as of a commit from the log alone: every change from the first row on, and of the tasks that
//! owned the groups before those of the tasks before them.

use std::ops::Range;

use payguard_engine::layout::Layout;
use payguard_engine::{Head, StageId, TaskId};
use payguard_savepoint::overlay::Overlay;
use payguard_savepoint::{rows_after, slice_of};

use crate::error::{InspectError, undecodable};
use crate::owner::{Log, Owner, Owners};

/// A part of a log.
struct Part {
    task: TaskId,
    head: Head,
    until: u64,
}

/// Replays logs.
pub(crate) struct Replay<'a> {
    pub(crate) owners: &'a Owners<'a>,
    pub(crate) stage: &'a StageId,
    pub(crate) layouts: &'a [Layout],
    /// The state that is wanted; all of them without one.
    pub(crate) state: Option<&'a str>,
    /// Changes held in memory at once, bytes: with more, fewer key groups are replayed at a time.
    pub(crate) limit: usize,
}

/// What is left of a replay: the newest change of every key of these groups.
pub(crate) struct Replayed {
    pub(crate) groups: Range<u32>,
    pub(crate) overlay: Overlay,
}

/// What came of a replay.
pub(crate) enum Outcome {
    /// The first of the groups, at least one of them.
    Replayed(Replayed),
    /// A log does not tell what was before its first row.
    Untold(Log),
}

impl Replay<'_> {
    /// Replays the first of the key groups `groups` of `owner`, as many as fit into memory, up to commit `seq`.
    pub(crate) async fn run(&self, owner: &Owner, groups: Range<u32>, seq: u64) -> Result<Outcome, InspectError> {
        let parts = self.parts(owner, &groups, seq).await?;
        if let Some(part) = parts.iter().find(|part| !part.head.restored_from.is_empty()) {
            return Ok(Outcome::Untold(Log::Restored(part.head.restored_from.clone())));
        }
        let mut replayed = Replayed { groups, overlay: Overlay::default() };
        for part in parts {
            match self.take_in(&part, &mut replayed).await {
                Err(error) if crate::error::is_collected(&error) => return Ok(Outcome::Untold(Log::Collected)),
                done => done?,
            }
        }
        Ok(Outcome::Replayed(replayed))
    }

    /// The logs with changes of these key groups, in order.
    async fn parts(&self, owner: &Owner, groups: &Range<u32>, seq: u64) -> Result<Vec<Part>, InspectError> {
        let mut parts = Vec::new();
        for layout in self.layouts.iter().filter(|layout| layout.generation < owner.generation) {
            for (shard, task) in (0..).zip(layout.tasks(self.stage)) {
                let its = layout.groups(shard);
                if its.start < groups.end
                    && groups.start < its.end
                    && let Some(head) = self.owners.head(&task).await?
                {
                    parts.push(Part { task, until: head.seq, head });
                }
            }
        }
        parts.push(Part { task: owner.task.clone(), until: seq, head: owner.head.clone() });
        Ok(parts)
    }

    async fn take_in(&self, part: &Part, replayed: &mut Replayed) -> Result<(), InspectError> {
        let (env, task) = (self.owners.env, &part.task);
        let mut at = 0;
        while at < part.until {
            for row in rows_after(env, task, at).await?.into_iter().take_while(|row| row.seq <= part.until) {
                if let Some(delta) = &row.delta {
                    let bytes = slice_of(env, task, &row, delta).await?;
                    self.add(task, row.seq, &bytes, replayed)?;
                }
                at = row.seq;
            }
        }
        Ok(())
    }

    fn add(&self, task: &TaskId, seq: u64, delta: &[u8], replayed: &mut Replayed) -> Result<(), InspectError> {
        let Replayed { groups, overlay } = replayed;
        let wanted = |id: &str, group: u32| groups.contains(&group) && self.state.is_none_or(|state| state == id);
        overlay.add_only(seq, delta, wanted).map_err(|e| undecodable(task, &e))?;
        while overlay.bytes() > self.limit && groups.len() > 1 {
            groups.end = groups.start + (groups.end - groups.start) / 2;
            overlay.forget(groups.end, u64::MAX);
        }
        Ok(())
    }
}
