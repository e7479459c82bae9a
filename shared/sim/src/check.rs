//! The invariants, checked over everything that is durable. What is decoded here is decoded by code of its own.

mod needed;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use payguard_engine::input::Upstream;
use payguard_engine::layout::FIRST;
use payguard_engine::row::{SegmentLocation, Slice};
use payguard_engine::segment::{SliceReader, open};
use payguard_engine::task::IN;
use payguard_engine::{CommitRow, Head, InputState, Position, StageId, TaskId};

use crate::world::{SimWorld, TaskLog, World};

/// Who reads what, as the topology has it.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    /// The streams that each stage reads.
    pub streams: BTreeMap<StageId, BTreeSet<String>>,
    /// Every task that reads the logs of others, whether it has begun or not, and whose it reads.
    pub readers: Vec<(TaskId, Vec<Upstream>)>,
    /// The stages with keyed state.
    pub stateful: BTreeSet<StageId>,
    /// The stages whose logs are kept whole.
    pub kept: BTreeSet<StageId>,
}

/// Checks INV-1 to INV-3 of a commit that is about to be made.
pub(crate) fn check_commit(log: &TaskLog, head: &Head, row: &CommitRow) -> Result<(), String> {
    let before = log.head.clone().unwrap_or_else(Head::empty);
    let newest = log.history.keys().next_back().copied().unwrap_or(0);
    if row.seq != newest + 1 || before.seq != newest {
        return Err(format!("INV-1: row {} follows row {newest} and head {}", row.seq, before.seq));
    }
    let mut inputs = before.inputs.clone();
    for (input, to) in &row.to {
        let from = row.from.get(input).ok_or_else(|| format!("INV-2: {input} moves from nowhere"))?;
        match inputs.insert(input.clone(), *to) {
            Some(old) if old.position != *from => {
                return Err(format!("INV-2: {input} continues at {from:?} after {:?}", old.position));
            }
            None if from.at > 0 || from.within > 0 => return Err(format!("INV-2: {input} begins at {from:?}")),
            Some(_) | None => {}
        }
        if to.position < *from {
            return Err(format!("INV-2: {input} goes back from {from:?} to {:?}", to.position));
        }
    }
    // Inputs that did not move may be listed in the head without a row.
    let listed = |s: &InputState| *s == InputState::untouched(0) || *s == InputState::untouched(-1);
    for (input, state) in &head.inputs {
        let new_and_untouched = listed(state) && !inputs.contains_key(input);
        // A task that takes over from others begins where they were, which is no row of its own.
        let is_inherited = newest == 0 && head.generation > FIRST && row.to.is_empty();
        if !new_and_untouched && !is_inherited && inputs.get(input) != Some(state) {
            return Err(format!("INV-2: head and rows differ on {input}"));
        }
    }
    if inputs.keys().any(|input| !head.inputs.contains_key(input)) {
        return Err("INV-2: the head forgot an input".to_owned());
    }
    if row.watermark_ms < before.watermark_ms || row.watermark_ms != head.watermark_ms {
        return Err(format!("INV-3: watermark {} follows {}", row.watermark_ms, before.watermark_ms));
    }
    if row.pinned < before.pinned || row.pinned != head.pinned {
        return Err(format!("a batch under version {} follows one under {}", row.pinned, before.pinned));
    }
    let version = |broadcast: &Option<payguard_engine::Broadcast>| broadcast.as_ref().map_or(0, |b| b.version);
    let expected = version(&before.broadcast) + u64::from(row.broadcast.is_some());
    if row.broadcast.as_ref().is_some_and(|b| b.version != expected) || version(&head.broadcast) != expected {
        return Err(format!("version {} is in force after {}", version(&head.broadcast), version(&before.broadcast)));
    }
    if head.flushed_seq < before.flushed_seq || head.flushed_seq > head.seq {
        return Err(format!("INV-4: flushed {} follows {}", head.flushed_seq, before.flushed_seq));
    }
    Ok(())
}

impl SimWorld {
    /// Checks every invariant over all that is durable.
    ///
    /// # Errors
    /// The first that is broken, with its id.
    pub fn check(&self, reads: &Reads) -> Result<(), String> {
        let world = self.lock();
        if let Some(violation) = world.violations.first() {
            return Err(violation.clone());
        }
        for (task, log) in &world.logs {
            let head_seq = log.head.as_ref().map_or(0, |h| h.seq);
            // A restored log begins with what was in flight, as if the rows before had been collected.
            let first = match log.head.as_ref().is_some_and(|head| !head.restored_from.is_empty()) {
                true => log.history.keys().next().copied().unwrap_or(0),
                false => 1,
            };
            if !log.history.keys().copied().eq(first..=head_seq) {
                return Err(format!("INV-1: {task}: the rows are not {first} to {head_seq}"));
            }
            for row in log.history.values() {
                world.check_row(task, row, reads)?;
            }
            world.check_needed(task, log, reads)?;
        }
        state::check_state(&world)
    }
}

impl World {
    fn check_row(&self, task: &TaskId, row: &CommitRow, reads: &Reads) -> Result<(), String> {
        for slice in &row.slices {
            let bytes = self.slice_bytes(row, slice).map_err(|e| format!("{task} seq {}: {e}", row.seq))?;
            let mut reader = SliceReader::new(bytes, slice.count).map_err(|e| format!("{task} {}: {e}", row.seq))?;
            let mut last = None;
            while let Some(record) = reader.take().map_err(|e| format!("{task} {}: {e}", row.seq))? {
                let reached = record.header.stamp.watermark;
                if last > Some(reached) || reached > row.watermark() {
                    return Err(format!("INV-3: {task} seq {}: stamps are out of order", row.seq));
                }
                last = Some(reached);
            }
        }
        let Some(streams) = reads.streams.get(&task.stage).filter(|streams| !streams.is_empty()) else { return Ok(()) };
        // Of a stage whose shards were redrawn, slices do not tell whose records are in them.
        if self.registry.get(&task.stage).into_iter().flatten().any(|task| task.redrawn().is_some()) {
            return Ok(());
        }
        let counted: u64 = row.counters.iter().filter(|(name, _)| name.starts_with(IN)).map(|(_, n)| n).sum();
        let taken = self.records_taken(task, row, streams)?;
        if taken != counted {
            return Err(format!("INV-6: {task} seq {} took {taken} records and counted {counted}", row.seq));
        }
        Ok(())
    }

    /// How many records lie between a row's `from` and `to`.
    fn records_taken(&self, task: &TaskId, row: &CommitRow, streams: &BTreeSet<String>) -> Result<u64, String> {
        let shard = task.shard_number().unwrap_or(0);
        let mut taken = 0;
        for (input, to) in &row.to {
            let upstream: TaskId = input.parse().map_err(|e| format!("INV-2: {task}: {e}"))?;
            let nothing = BTreeMap::new();
            let rows = self.logs.get(&upstream).map_or(&nothing, |log| &log.history);
            let before = |position: Position| -> u64 {
                let whole = rows.range(..=u64::try_from(position.at).unwrap_or(0)).map(|(_, row)| row);
                let mine = whole.flat_map(|r| &r.slices).filter(|s| s.shard == shard && streams.contains(&s.stream));
                mine.map(|s| u64::from(s.count)).sum::<u64>() + u64::from(position.within)
            };
            let newest = rows.keys().next_back().copied().unwrap_or(0);
            if u64::try_from(to.position.at).unwrap_or(0) + u64::from(to.position.within > 0) > newest {
                return Err(format!("INV-2: {task} has read {input} beyond its log"));
            }
            taken += before(to.position) - before(row.from.get(input).copied().unwrap_or_default());
        }
        Ok(taken)
    }

    /// The records of a slice as it was stored, checked and decompressed; also when it has been collected since.
    ///
    /// # Errors
    /// When they are missing or damaged.
    pub fn slice_bytes(&self, row: &CommitRow, slice: &Slice) -> Result<Bytes, String> {
        let segment = match &row.segment {
            None => Bytes::new(),
            Some(SegmentLocation::Inline(bytes)) => bytes.clone(),
            Some(SegmentLocation::Object(key)) => {
                self.stored.get(key).cloned().ok_or_else(|| format!("object {key} was never stored"))?
            }
        };
        let from = usize::try_from(slice.offset).unwrap_or(usize::MAX).min(segment.len());
        let to = from.saturating_add(usize::try_from(slice.len).unwrap_or(usize::MAX)).min(segment.len());
        open(slice, &segment.slice(from..to)).map_err(|e| e.to_string())
    }
}
