//! The state of one key group of a task as of a commit, from live tables, while the task goes on.
//!
//! **Now**: pages overlaid by the deltas up to the head that was read after them. A page is written after the commit
//! whose state it holds, so none is younger than that head; pages that a split replaces go after the commit that records
//! the flush, so a listing during which none is recorded is whole. Otherwise both are read again. So what is read is the
//! state as of a commit that was the newest at some moment of the reading, never a mixture of two.
//!
//! **The past**, as of commit `n`: when no page of the group is younger than `n`, the same with the deltas up to `n`:
//! what has been flushed since did not change the group. Otherwise the pages are of no use, and the log is replayed from
//! its first row (`replay`); a log that was collected cannot be, and the past is refused rather than guessed.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use payguard_engine::export::Keys;
use payguard_engine::layout::Layout;
use payguard_engine::page::{Page, version};
use payguard_engine::task::Env;
use payguard_engine::task::retry::patiently;
use payguard_engine::{Head, StageId, TaskId};
use payguard_model::{KEY_GROUPS, KeyGroup};
use payguard_savepoint::overlay::Overlay;
use payguard_savepoint::{rows_after, slice_of};
use payguard_topology::keys::encoding;
use payguard_topology::{Stage, Topology};

use crate::error::{InspectError, is_collected, undecodable};
use crate::owner::{Owner, Owners, Target, task_of};
use crate::replay::{Outcome, Replay, Replayed};
use crate::source::{AsOf, GroupState};
use crate::time::{parse_utc, utc};

/// How often a key group is read before it is given up: a task flushes every 15 s, so twice is rare.
const TRIES: u32 = 100;
/// Changes that a replay holds in memory at once, unless told otherwise.
const REPLAY_BYTES: usize = 256 << 20;

/// The moment that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Now.
    Newest,
    /// After this commit of the task that owns the key.
    Seq(u64),
    /// After the newest commit of each task that was made by then, milliseconds since the epoch.
    Time(i64),
}

/// What is looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// When.
    pub at: At,
    /// Of which task; without one, of the one that owned the key group then.
    pub task: Option<TaskId>,
    /// Which key groups.
    pub groups: Range<u32>,
    /// Which state; all of them without one.
    pub state: Option<String>,
}

impl Asked {
    /// Everything, now.
    #[must_use]
    pub fn everything() -> Asked {
        Asked { at: At::Newest, task: None, groups: 0..KEY_GROUPS, state: None }
    }
}

impl FromStr for At {
    type Err = InspectError;

    fn from_str(text: &str) -> Result<At, InspectError> {
        match (text.parse::<u64>(), parse_utc(text)) {
            (Ok(seq), _) if seq > 0 => Ok(At::Seq(seq)),
            (_, Some(ms)) => Ok(At::Time(ms)),
            _ => Err(InspectError::BadTime(text.to_owned())),
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Newest => f.write_str("the newest state"),
            At::Seq(seq) => write!(f, "the state after commit {seq}"),
            At::Time(ms) => match utc(*ms) {
                Some(time) => write!(f, "the state of {time}"),
                None => write!(f, "the state of {ms} ms"),
            },
        }
    }
}

/// Reads live tables.
pub struct Live<'a> {
    env: &'a Env,
    topology: &'a Topology,
    retention_ms: i64,
    asked: Asked,
    replay_bytes: usize,
    reader: Option<Reader>,
}

/// Reads the key groups of one task, ascending.
struct Reader {
    owner: Owner,
    layouts: Vec<Layout>,
    /// Deltas of the groups that are still to be read, up to `covered`.
    overlay: Overlay,
    covered: u64,
    replayed: Option<Replayed>,
    /// Groups below have been read.
    next: u32,
    at_ms: Option<i64>,
}

impl<'a> Live<'a> {
    /// A view of the stores of `env`, whose topology has the shards that the pipeline began with and whose rows are kept
    /// for `retention_ms`.
    #[must_use]
    pub fn new(env: &'a Env, topology: &'a Topology, retention_ms: i64, asked: Asked) -> Live<'a> {
        Live { env, topology, retention_ms, asked, replay_bytes: REPLAY_BYTES, reader: None }
    }

    /// With so many bytes of changes in memory at most while a log is replayed: with fewer the log is read more often.
    #[must_use]
    pub fn replaying_within(self, replay_bytes: usize) -> Live<'a> {
        Live { replay_bytes, ..self }
    }

    /// The stages with state.
    #[must_use]
    pub fn stages(&self) -> Vec<StageId> {
        self.topology.stages.iter().filter(|stage| !stage.states.is_empty()).map(|stage| stage.id.clone()).collect()
    }

    fn owners(&self) -> Owners<'_> {
        let (retention_ms, replay_bytes) = (self.retention_ms, self.replay_bytes);
        Owners { env: self.env, asked: &self.asked, retention_ms, replay_bytes }
    }

    /// The key groups that were asked for and that the task has that was asked for.
    ///
    /// # Errors
    /// When a commit was asked for without a task and there are several, when there is no such task, or a store fails.
    pub async fn groups(&self, stage: &StageId) -> Result<Range<u32>, InspectError> {
        let Some(stage) = self.topology.stage(stage) else { return Ok(0..0) };
        let owners = self.owners();
        let layouts = owners.layouts(stage).await?;
        let wanted = &self.asked.groups;
        match (&self.asked.task, self.asked.at) {
            (Some(task), _) => {
                let layout = owners.layout_of(stage, &layouts, task)?;
                let shard = layout.tasks(&stage.id).iter().position(|other| other == task).unwrap_or_default();
                let its = layout.groups(u32::try_from(shard).unwrap_or_default());
                Ok(its.start.max(wanted.start)..its.end.min(wanted.end))
            }
            (None, At::Seq(_)) => match layouts.last() {
                Some(newest) if newest.shards > 1 => Err(InspectError::NeedsTask {
                    stage: stage.id.to_string(),
                    tasks: newest.tasks(&stage.id).iter().map(ToString::to_string).collect(),
                }),
                _ => Ok(wanted.clone()),
            },
            (None, At::Newest | At::Time(_)) => Ok(wanted.clone()),
        }
    }

    /// The states of one key group, as of one commit.
    ///
    /// # Errors
    /// When it cannot be seen, the stores contradict themselves, or a store fails.
    pub async fn group(&mut self, stage: &StageId, group: u32) -> Result<GroupState, InspectError> {
        let Some(stage) = self.topology.stage(stage) else { return Ok(GroupState::default()) };
        let mut task = String::new();
        for _ in 0..TRIES {
            let is_current = |reader: &Reader| reader.owner.task.stage == stage.id && reader.has(group);
            let mut reader = match self.reader.take().filter(is_current) {
                Some(reader) => reader,
                None => match self.open(stage, group).await? {
                    Some(reader) => reader,
                    None => return Ok(GroupState::default()),
                },
            };
            match reader.read(&self.owners(), group).await {
                // The task has gone on: what was read is nothing whole.
                Ok(None) => task = reader.owner.task.to_string(),
                Ok(Some(state)) => {
                    self.reader = Some(reader);
                    return Ok(state);
                }
                Err(error) => return Err(error),
            }
        }
        Err(InspectError::Outrun { task, tries: TRIES })
    }

    async fn open(&self, stage: &Stage, group: u32) -> Result<Option<Reader>, InspectError> {
        let owners = self.owners();
        let Some(owner) = owners.find(stage, group).await? else { return Ok(None) };
        let at_ms = match owner.target {
            Target::Newest => None,
            Target::Commit(seq) if seq == owner.head.seq => Some(owner.head.committed_at_ms),
            Target::Commit(seq) => owners.row(&owner.task, seq).await?.map(|row| row.now_ms),
        };
        Ok(Some(Reader {
            covered: owner.head.flushed_seq,
            layouts: owners.layouts(stage).await?,
            owner,
            overlay: Overlay::default(),
            replayed: None,
            next: 0,
            at_ms,
        }))
    }
}

impl Reader {
    fn has(&self, group: u32) -> bool {
        group >= self.next && self.owner.groups.contains(&group)
    }

    /// The states of a key group; `None` when the task has gone on meanwhile so that it has to be found anew.
    async fn read(&mut self, owners: &Owners<'_>, group: u32) -> Result<Option<GroupState>, InspectError> {
        let Some(pages) = self.pages_of(owners, group).await? else { return Ok(None) };
        let head = &self.owner.head;
        let (seq, at_ms) = match self.owner.target {
            Target::Newest => (head.seq, Some(head.committed_at_ms)),
            Target::Commit(seq) => (seq, self.at_ms),
        };
        let youngest = pages.iter().map(|page| page.version).max().unwrap_or_default();
        let is_past = youngest > version(self.owner.generation, seq) || self.owner.keeps_ids && head.flushed_seq > seq;
        let states = if is_past {
            if self.owner.target == Target::Newest {
                return Ok(None);
            }
            self.replayed_to(owners, group, seq).await?
        } else {
            match self.take_in(owners, group, seq).await {
                Err(error) if is_collected(&error) => return Ok(None),
                done => done?,
            }
            // Pages of a flush that no commit has recorded are in the deltas as well.
            lay_over(&mut self.overlay, group, pages).map_err(|e| undecodable(&self.owner.task, &e))?
        };
        self.next = group + 1;
        Ok(Some(GroupState { as_of: Some(AsOf { task: self.owner.task.to_string(), seq, at_ms }), states }))
    }

    /// All pages of a key group, and the owner's head as it is after they were read; `None` when another task has taken
    /// over.
    async fn pages_of(&mut self, owners: &Owners<'_>, group: u32) -> Result<Option<Vec<Page>>, InspectError> {
        let (env, stage) = (owners.env, self.owner.task.stage.clone());
        for _ in 0..TRIES {
            let mut pages = patiently(&env.settings, || env.state.load_pages(&stage, KeyGroup(group))).await?;
            let (newest, before) = &self.owner.newest;
            let Some(after) = owners.head(newest).await? else { return Ok(None) };
            let is_whole = after.flushed_seq == before.flushed_seq;
            if has_followers(owners, &stage, &after, group).await? {
                return Ok(None);
            }
            if *newest == self.owner.task {
                self.owner.head = after.clone();
            }
            self.owner.newest.1 = after;
            if is_whole {
                pages.retain(|page| owners.asked.state.as_ref().is_none_or(|state| *state == page.address.operator));
                return Ok(Some(pages));
            }
        }
        Err(InspectError::Outrun { task: self.owner.newest.0.to_string(), tries: TRIES })
    }

    /// Takes the deltas up to commit `seq` in, of the groups from `group` on.
    async fn take_in(&mut self, owners: &Owners<'_>, group: u32, seq: u64) -> Result<(), InspectError> {
        let (env, task, all) = (owners.env, &self.owner.task, &owners.asked);
        let wanted = |id: &str, other: u32| {
            other >= group && all.groups.contains(&other) && all.state.as_ref().is_none_or(|state| state == id)
        };
        while self.covered < seq {
            for row in rows_after(env, task, self.covered).await?.into_iter().take_while(|row| row.seq <= seq) {
                if let Some(delta) = &row.delta {
                    let bytes = slice_of(env, task, &row, delta).await?;
                    self.overlay.add_only(row.seq, &bytes, wanted).map_err(|e| undecodable(task, &e))?;
                }
                self.covered = row.seq;
            }
        }
        // Pages that are read from here on have what is flushed. Those of a commit in the past may be older.
        if self.owner.target == Target::Newest {
            self.overlay.forget(group, self.owner.head.flushed_seq);
        }
        Ok(())
    }

    /// The states of a key group whose pages are younger than commit `seq`.
    async fn replayed_to(
        &mut self,
        owners: &Owners<'_>,
        group: u32,
        seq: u64,
    ) -> Result<BTreeMap<String, Keys>, InspectError> {
        if self.replayed.as_ref().is_none_or(|replayed| !replayed.groups.contains(&group)) {
            let groups = group..self.owner.groups.end.min(owners.asked.groups.end);
            let stage = &self.owner.task.stage;
            let (state, limit) = (owners.asked.state.as_deref(), owners.replay_bytes);
            let replay = Replay { owners, stage, layouts: &self.layouts, state, limit };

            self.replayed = match replay.run(&self.owner, groups, seq).await? {
                Outcome::Replayed(replayed) => Some(replayed),
                Outcome::Untold(why) => return Err(owners.refusal(&self.owner, why).await?),
            };
        }
        let Some(Replayed { overlay, .. }) = &mut self.replayed else { return Ok(BTreeMap::new()) };
        lay_over(overlay, group, Vec::new()).map_err(|e| undecodable(&self.owner.task, &e))
    }
}

/// Whether a task has begun that takes over a key group of a sealed one.
async fn has_followers(owners: &Owners<'_>, stage: &StageId, head: &Head, group: u32) -> Result<bool, InspectError> {
    match head.sealed {
        None => Ok(false),
        Some(next) => Ok(owners.head(&task_of(next, stage, group).0).await?.is_some()),
    }
}

/// Moves the changes of a key group over its pages; keys by state.
fn lay_over(
    overlay: &mut Overlay,
    group: u32,
    pages: Vec<Page>,
) -> Result<BTreeMap<String, Keys>, payguard_engine::logic::DecodeError> {
    let mut by_state: BTreeMap<String, Vec<Page>> = BTreeMap::new();
    for state in overlay.operators(group) {
        by_state.entry(state).or_default();
    }
    for page in pages {
        by_state.entry(page.address.operator.clone()).or_default().push(page);
    }
    let mut states = BTreeMap::new();
    for (state, pages) in by_state {
        let mut keys = encoding(&state).read_pages(pages)?;
        overlay.apply(group, &state, &mut keys);
        if !keys.is_empty() {
            states.insert(state, keys);
        }
    }
    Ok(states)
}

#[cfg(test)]
mod tests;
