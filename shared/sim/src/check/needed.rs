//! INV-5: whatever a reader may still need is there, and is not removed.

use payguard_engine::input::Upstream;
use payguard_engine::row::SegmentLocation;
use payguard_engine::{Seq, TaskId};

use super::Reads;
use crate::world::{TaskLog, World};

impl World {
    /// The last row of a task that nobody needs: every reader has committed that it has read it to its end, and the
    /// task itself recovers without it.
    #[must_use]
    pub fn passed(&self, task: &TaskId, reads: &Reads) -> u64 {
        let Some(head) = self.logs.get(task).and_then(|log| log.head.as_ref()) else { return 0 };
        if reads.kept.contains(&task.stage) {
            return 0;
        }
        let mut passed = head.seq - 1;
        if reads.stateful.contains(&task.stage) {
            passed = passed.min(head.flushed_seq);
        }
        for (reader, upstreams) in &self.readers(reads) {
            let of_stage = upstreams.iter().filter(|upstream| upstream.stage == task.stage);
            if of_stage.into_iter().any(|upstream| upstream.tasks(vec![task.clone()]).contains(task)) {
                let head = self.logs.get(reader).and_then(|log| log.head.as_ref());
                let state = head.and_then(|head| head.inputs.get(&task.to_string()));
                passed = passed.min(state.map_or(0, |state| u64::try_from(state.position.at).unwrap_or(0)));
            }
        }
        passed
    }

    /// Who reads the logs of others now: of a stage whose shards were redrawn, the tasks of its newest layout that has
    /// begun as a whole. Until then those before it stand for them: it begins where they had read to.
    fn readers(&self, reads: &Reads) -> Vec<(TaskId, Vec<Upstream>)> {
        let has_head = |task: &TaskId| self.logs.get(task).is_some_and(|log| log.head.is_some());
        let mut readers = Vec::new();
        for (task, upstreams) in &reads.readers {
            let redrawn = self.registry.get(&task.stage).into_iter().flatten().filter_map(TaskId::redrawn);
            let begun =
                redrawn.map(|(layout, _)| layout).filter(|layout| layout.tasks(&task.stage).iter().all(has_head));
            match begun.max_by_key(|layout| layout.generation) {
                None => readers.push((task.clone(), upstreams.clone())),
                Some(newest) => {
                    readers.extend(newest.tasks(&task.stage).into_iter().map(|task| (task, upstreams.clone())));
                }
            }
        }
        readers
    }

    pub(super) fn check_needed(&self, task: &TaskId, log: &TaskLog, reads: &Reads) -> Result<(), String> {
        let passed = self.passed(task, reads);
        for (seq, row) in log.history.range(passed + 1..) {
            if log.rows.get(seq) != Some(row) {
                return Err(format!("INV-5: {task}: row {seq} is gone, and only those to {passed} may be"));
            }
            let Some(SegmentLocation::Object(key)) = &row.segment else { continue };
            if self.objects.get(key) != self.stored.get(key) {
                return Err(format!("INV-5: {task} seq {seq}: object {key} is missing or damaged"));
            }
        }
        match log.rows.keys().find(|seq| !log.history.contains_key(seq)) {
            Some(seq) => Err(format!("INV-1: {task}: row {seq} comes from nowhere")),
            None => Ok(()),
        }
    }

    /// Notes a violation when a row that somebody needs is about to be removed.
    pub(crate) fn check_row_removal(&mut self, task: &TaskId, seq: Seq) {
        let Some(reads) = self.reads.clone() else { return };
        let passed = self.passed(task, &reads);
        if seq.0 > passed {
            self.violations.push(format!("INV-5: {task}: row {seq} is removed, and only those to {passed} may be"));
        }
    }

    /// Notes a violation when an object is about to be removed that somebody needs or that may still be committed.
    pub(crate) fn check_object_removal(&mut self, key: &str) {
        let Some(reads) = self.reads.clone() else { return };
        let is_row = |log: &TaskLog, seq: u64| {
            let row = log.history.get(&seq);
            row.is_some_and(|row| row.segment.as_ref().is_some_and(|s| *s == SegmentLocation::Object(key.to_owned())))
        };
        let found = key.rsplit_once('/').and_then(|(task, name)| {
            let seq: u64 = name.split_once('-')?.0.parse().ok()?;
            Some((task.parse::<TaskId>().ok()?, seq))
        });
        let wrong = match &found {
            None => Some("it is no segment".to_owned()),
            Some((task, seq)) => match self.logs.get(task) {
                Some(log) if log.head.as_ref().is_some_and(|head| head.seq >= *seq) => {
                    let passed = self.passed(task, &reads);
                    (is_row(log, *seq) && *seq > passed).then(|| format!("rows after {passed} are needed"))
                }
                _ => Some("it may still be committed".to_owned()),
            },
        };
        self.violations.extend(wrong.map(|why| format!("INV-5: object {key} is removed: {why}")));
    }
}
