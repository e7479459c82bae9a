//! Where states are read: live tables, or a savepoint.

use std::collections::BTreeMap;
use std::ops::Range;

use payguard_engine::StageId;
use payguard_engine::export::Keys;

use crate::error::InspectError;
use crate::live::Live;
use crate::saved::Saved;

/// A commit that states are as of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AsOf {
    /// The task.
    pub task: String,
    /// The commit.
    pub seq: u64,
    /// When it was made, milliseconds since the epoch; `None` when its row is gone.
    pub at_ms: Option<i64>,
}

/// The states of one key group of a stage, as of one commit.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GroupState {
    /// The commit; `None` when the task had committed nothing.
    pub as_of: Option<AsOf>,
    /// The keys by state id; a state without keys is missing.
    pub states: BTreeMap<String, Keys>,
}

/// Live tables or a savepoint.
pub enum Source<'a> {
    /// Live tables.
    Live(Live<'a>),
    /// A savepoint.
    Saved(Saved<'a>),
}

impl Source<'_> {
    /// The stages with state.
    #[must_use]
    pub fn stages(&self) -> Vec<StageId> {
        match self {
            Source::Live(live) => live.stages(),
            Source::Saved(saved) => saved.stages(),
        }
    }

    /// The key groups of a stage that were asked for.
    ///
    /// # Errors
    /// When what was asked for is ambiguous or not there, or a store fails.
    pub async fn groups(&self, stage: &StageId) -> Result<Range<u32>, InspectError> {
        match self {
            Source::Live(live) => live.groups(stage).await,
            Source::Saved(saved) => Ok(saved.groups()),
        }
    }

    /// The states of one key group. Cheapest when groups are asked for in ascending order.
    ///
    /// # Errors
    /// When it cannot be seen (see [`InspectError`]), or a store fails.
    pub async fn group(&mut self, stage: &StageId, group: u32) -> Result<GroupState, InspectError> {
        match self {
            Source::Live(live) => live.group(stage, group).await,
            Source::Saved(saved) => saved.group(stage, group).await,
        }
    }
}
