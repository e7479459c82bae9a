//! A consumer task's inputs: which tasks they are, and the rows that are read ahead of them.

use std::collections::VecDeque;

use super::consumer::ConsumerTask;
use super::live::Live;
use super::retry::patiently;
use super::{Env, TaskPlan};
use crate::error::EngineError;
use crate::ids::{InputId, Seq, TaskId};
use crate::input::{Producers, Reader, Upstream, open_row};
use crate::layout::{Layout, View};
use crate::row::{CommitRow, InputState};
use crate::store::RowLimits;

/// Rows read from an upstream log at once.
const ROWS_PER_READ: u32 = 64;

impl ConsumerTask {
    /// Adds the upstream tasks that are not inputs yet.
    pub(super) async fn find_inputs(&self, live: &mut Live) -> Result<(), EngineError> {
        for (number, upstream) in self.plan.upstreams.iter().enumerate() {
            let known: Vec<TaskId> = live.merger.inputs().filter_map(|input| input.id().parse().ok()).collect();
            let known = known.into_iter().filter(|task| task.stage == upstream.stage);
            for task in self.upstream_tasks(upstream).await?.into_iter().chain(known) {
                let id = TaskPlan::input_id(&task);
                live.merger.add(&id, InputState::untouched(0));
                live.upstreams.insert(id, (task, number));
            }
        }
        Ok(())
    }

    async fn upstream_tasks(&self, upstream: &Upstream) -> Result<Vec<TaskId>, EngineError> {
        let registered = match upstream.producers {
            Producers::Shards(_) => Vec::new(),
            _ => patiently(&self.env.settings, || self.env.ledger.tasks(&upstream.stage)).await?,
        };
        Ok(upstream.tasks(registered))
    }

    /// Fills the buffers of the inputs that have run low; true when something new was found.
    pub(super) async fn fetch(&self, live: &mut Live) -> Result<bool, EngineError> {
        let low: Vec<(InputId, i64, usize)> = live
            .merger
            .inputs()
            .filter(|i| i.buffered() < self.env.settings.rows_ahead && !i.ended())
            .map(|i| (i.id().clone(), i.next_seq(), self.env.settings.rows_ahead - i.buffered()))
            .collect();
        let reads = low.iter().map(|(id, next, room)| self.fetch_input(live, id, *next, *room));
        let fetched = futures_util::future::try_join_all(reads).await?;
        let mut news = false;
        for ((id, _, _), (opened, unopened)) in low.into_iter().zip(fetched) {
            live.rows.insert(id.clone(), unopened);
            for row in opened {
                news = true;
                if let Some(next) = row.sealed {
                    self.follow(live, &id, next);
                }
                live.merger.push(&id, row).map_err(|e| EngineError::Broken {
                    task: self.plan.task.to_string(),
                    invariant: "INV-6",
                    detail: format!("rows of {id} do not parse: {e}"),
                })?;
            }
        }
        Ok(news)
    }

    /// Makes inputs of the tasks that take over from the one that `input` names.
    fn follow(&self, live: &mut Live, input: &InputId, next: Layout) {
        let Some((task, number)) = live.upstreams.get(input).cloned() else { return };
        for task in next.tasks(&task.stage) {
            let id = TaskPlan::input_id(&task);
            live.merger.add(&id, InputState::untouched(0));
            live.upstreams.insert(id, (task, number));
        }
    }

    /// Opens up to `room` rows of an input from seq `next`; the second part is what was read but not opened.
    async fn fetch_input(
        &self,
        live: &Live,
        id: &InputId,
        next: i64,
        room: usize,
    ) -> Result<(Vec<crate::merge::BufferedRow>, VecDeque<CommitRow>), EngineError> {
        let Some((task, number)) = live.upstreams.get(id) else { return Ok((Vec::new(), VecDeque::new())) };
        let upstream = &self.plan.upstreams[*number];
        let mut rows = live.rows.get(id).cloned().unwrap_or_default();
        if rows.is_empty() {
            let after = Seq(u64::try_from(next - 1).unwrap_or(0));
            let limits = RowLimits { rows: ROWS_PER_READ };
            rows = self.env.rows(task, after, limits).await?.into();
        }
        let (mut opened, mut records) = (Vec::new(), 0);
        while opened.len() < room.max(1) || records < self.env.settings.records_per_commit {
            let Some(row) = rows.pop_front() else { break };
            records += row.slices.iter().map(|s| s.count as usize).sum::<usize>();
            opened.push((&*self.env.segments, row));
            if opened.len() >= ROWS_PER_READ as usize {
                break;
            }
        }
        let groups = self.plan.groups();
        let key_group = |stream: usize, payload: &[u8]| live.body.key_group(stream, payload);
        let view = View { groups: &groups, taken: &live.head.taken };
        let reader = Reader { upstream, view, key_group: &key_group };
        let reads =
            opened.iter().map(|(store, row)| patiently_open(&self.env, move || open_row(*store, task, row, reader)));
        Ok((futures_util::future::try_join_all(reads).await?, rows))
    }
}

/// Repeats the opening of a row while the segment store is unavailable.
async fn patiently_open<T, F>(env: &Env, mut open: impl FnMut() -> F) -> Result<T, EngineError>
where
    F: Future<Output = Result<T, EngineError>>,
{
    patiently(&env.settings, || {
        let attempt = open();
        async move {
            match attempt.await {
                Ok(value) => Ok(Ok(value)),
                Err(EngineError::Store(error)) => Err(error),
                Err(other) => Ok(Err(other)),
            }
        }
    })
    .await?
}
