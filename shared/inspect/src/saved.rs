//! States of a savepoint, one key group at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use payguard_engine::StageId;
use payguard_engine::store::FileStore;
use payguard_engine::task::Settings;
use payguard_engine::task::retry::patiently;
use payguard_engine::{TaskId, layout};
use payguard_savepoint::format::{StateFile, decode_keys};
use payguard_savepoint::{Manifest, SavepointError, show};
use payguard_topology::keys::encoding;

use crate::error::InspectError;
use crate::source::{AsOf, GroupState};

/// A savepoint.
pub struct Saved<'a> {
    files: &'a dyn FileStore,
    settings: Settings,
    manifest: Manifest,
    /// The state that was asked for; all of them without one.
    state: Option<String>,
}

impl<'a> Saved<'a> {
    /// Opens savepoint `name`, to read one state or all.
    ///
    /// # Errors
    /// When there is none of this name, or it is damaged.
    pub async fn open(
        files: &'a dyn FileStore,
        settings: &Settings,
        name: &str,
        state: Option<&str>,
    ) -> Result<Saved<'a>, InspectError> {
        let manifest = show(files, settings, name).await?;
        Ok(Saved { files, settings: settings.clone(), manifest, state: state.map(str::to_owned) })
    }

    /// What it holds.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The stages with state.
    #[must_use]
    pub fn stages(&self) -> Vec<StageId> {
        let stages: BTreeSet<&str> = self.manifest.state.iter().map(|file| file.stage.as_str()).collect();
        let in_order = self.manifest.stages.iter().filter(|stage| stages.contains(stage.id.as_str()));
        in_order.map(|stage| StageId::new(&stage.id)).collect()
    }

    /// All key groups.
    #[must_use]
    pub fn groups(&self) -> Range<u32> {
        0..self.manifest.key_groups
    }

    /// The states of one key group.
    ///
    /// # Errors
    /// When a file is damaged, or the store fails.
    pub async fn group(&self, stage: &StageId, group: u32) -> Result<GroupState, InspectError> {
        let is_asked_for = |file: &&StateFile| {
            let is_state = self.state.as_ref().is_none_or(|state| *state == file.operator);
            file.group == group && *file.stage == *stage.0 && is_state
        };
        let mut states = BTreeMap::new();
        for StateFile { operator, file, .. } in self.manifest.state.iter().filter(is_asked_for) {
            let bytes = patiently(&self.settings, || self.files.get_file(&file.path)).await?;
            let missing = || SavepointError::Damaged { path: file.path.clone(), detail: "it is missing".to_owned() };
            let bytes = bytes.ok_or_else(missing)?;
            file.check(&bytes)?;
            states.insert(operator.clone(), decode_keys(encoding(operator), file, bytes)?);
        }
        Ok(GroupState { as_of: self.as_of(stage, group), states })
    }

    /// The commit that a key group was captured at: of the newest task that owns it.
    fn as_of(&self, stage: &StageId, group: u32) -> Option<AsOf> {
        let began_with = self.manifest.stages.iter().find(|saved| *saved.id == *stage.0)?;
        let first = layout::Layout::first(began_with.shards);
        let owned = self.manifest.tasks.iter().filter_map(|saved| {
            let task: TaskId = saved.task.parse().ok()?;
            let (layout, shard) = layout::place(&task, first).filter(|_| task.stage == *stage)?;
            layout.groups(shard).contains(&group).then_some((layout.generation, saved))
        });
        let (_, saved) = owned.max_by_key(|(generation, _)| *generation)?;
        Some(AsOf { task: saved.task.clone(), seq: saved.seq, at_ms: None })
    }
}
