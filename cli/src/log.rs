//! A task's log, row by row from the oldest one that has not been collected.

use std::collections::VecDeque;

use payguard_engine::store::RowLimits;
use payguard_engine::task::Env;
use payguard_engine::{CommitRow, Seq, StoreError, TaskId};

/// Rows that are read at once.
const ROWS_PER_READ: u32 = 256;

/// Reads the log of one task.
pub(crate) struct Log<'a> {
    env: &'a Env,
    task: &'a TaskId,
    read: Seq,
    rows: VecDeque<CommitRow>,
}

impl<'a> Log<'a> {
    pub(crate) fn of(env: &'a Env, task: &'a TaskId) -> Log<'a> {
        Log { env, task, read: Seq(0), rows: VecDeque::new() }
    }

    /// The next row; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<CommitRow>, StoreError> {
        if self.rows.is_empty() {
            let limits = RowLimits { rows: ROWS_PER_READ };
            self.rows = self.env.ledger.remaining_rows(self.task, self.read, limits).await?.into();
        }
        let row = self.rows.pop_front();
        self.read = row.as_ref().map_or(self.read, |row| Seq(row.seq));
        Ok(row)
    }
}
