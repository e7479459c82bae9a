//! Heads and rows as tasks read them: those that a newer release stored are refused.
//!
//! Older code does not know every field of them, nor of the state and records they lead to, and what it wrote next would
//! lack those fields for ever. So it stops instead, until the newer release is everywhere.

use super::Env;
use super::retry::patiently;
use crate::error::{StoreError, StoreErrorKind};
use crate::ids::{Seq, TaskId};
use crate::row::{CommitRow, Head};
use crate::store::RowLimits;

impl Env {
    /// The head of a task; `None` when it has never committed.
    ///
    /// # Errors
    /// When the ledger fails, or a newer release has made the task's commit.
    pub async fn head(&self, task: &TaskId) -> Result<Option<Head>, StoreError> {
        let head = patiently(&self.settings, || self.ledger.load_head(task)).await?;
        self.check_schema(&task.to_string(), head.as_ref().map_or(0, |head| head.schema))?;
        Ok(head)
    }

    /// Log rows of a task after `after`, ascending, possibly fewer than there are.
    ///
    /// # Errors
    /// When the ledger fails, or a newer release has made one of the commits. A gap is an error of kind `Missing`.
    pub async fn rows(&self, task: &TaskId, after: Seq, limits: RowLimits) -> Result<Vec<CommitRow>, StoreError> {
        let rows = patiently(&self.settings, || self.ledger.load_rows(task, after, limits)).await?;
        self.check_schema(&task.to_string(), rows.iter().map(|row| row.schema).max().unwrap_or(0))?;
        Ok(rows)
    }

    /// Refuses what was stored with a schema that this release does not know.
    ///
    /// # Errors
    /// Of kind [`StoreErrorKind::Newer`].
    pub fn check_schema(&self, target: &str, stored: u32) -> Result<(), StoreError> {
        let known = self.settings.schema;
        if stored <= known {
            return Ok(());
        }
        let detail = format!(
            "a newer release has worked on it (it stores schema {stored}, this one knows {known}) and this one would \
             drop what it does not know: go on with that release, or go back to this one by restoring a savepoint that \
             was taken before it"
        );
        Err(StoreError::new(StoreErrorKind::Newer, "read", target, detail))
    }
}
