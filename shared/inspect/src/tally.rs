//! What is told of many keys: how many there are, the greatest, how large they are, and how two views of them differ.
//! All of it streams by key group: memory holds one group.

use std::collections::{BTreeMap, BTreeSet};

use payguard_engine::StageId;
use payguard_engine::export::{Keys, Value as Stored};
use payguard_savepoint::format::encode_keys;
use serde_json::Value;

use crate::error::InspectError;
use crate::source::{AsOf, GroupState, Source};
use crate::states::{Measure, Readable, StateKind};

/// The commits that were looked at: while a task goes on, its key groups are as of several of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Looked {
    /// By task: the first commit, the last one and when that was made.
    pub tasks: BTreeMap<String, (u64, u64, Option<i64>)>,
}

impl Looked {
    fn add(&mut self, as_of: Option<AsOf>) {
        let Some(AsOf { task, seq, at_ms }) = as_of else { return };
        let seen = self.tasks.entry(task).or_insert((seq, seq, at_ms));
        *seen = (seen.0.min(seq), seen.1.max(seq), if seq >= seen.1 { at_ms } else { seen.2 });
    }
}

/// A key with what is stored of it, readable.
#[derive(Clone, PartialEq, Debug)]
pub struct Ranked {
    /// What it was put in order by.
    pub number: i128,
    /// The key.
    pub key: String,
    /// Its state.
    pub state: Readable,
}

/// How many keys a state has, and the greatest of them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Top {
    /// All keys.
    pub keys: u64,
    /// The greatest, in descending order; equal ones by key.
    pub greatest: Vec<Ranked>,
    /// The commits that were looked at.
    pub looked: Looked,
}

/// Counts the keys of a state and finds the `count` greatest.
///
/// # Errors
/// When something cannot be read.
pub async fn top(
    source: &mut Source<'_>,
    kind: &StateKind,
    measure: Measure,
    count: usize,
) -> Result<Top, InspectError> {
    let (stage, mut top) = (StageId::new(kind.stage), Top::default());
    for group in source.groups(&stage).await? {
        let GroupState { as_of, mut states } = source.group(&stage, group).await?;
        top.looked.add(as_of);
        for (key, stored) in states.remove(kind.id).unwrap_or_default() {
            top.keys += 1;
            if count > 0 {
                top.rank(kind, measure, count, key, &stored)?;
            }
        }
    }
    Ok(top)
}

impl Top {
    fn rank(
        &mut self,
        kind: &StateKind,
        measure: Measure,
        count: usize,
        key: String,
        stored: &Stored,
    ) -> Result<(), InspectError> {
        let state = readable(kind, &key, stored)?;
        let number = measure.of(&key, stored, &state.value);
        let at = self.greatest.partition_point(|other| (-other.number, &other.key) < (-number, &key));
        if at < count {
            self.greatest.insert(at, Ranked { number, key, state });
            self.greatest.truncate(count);
        }
        Ok(())
    }
}

/// Keys and bytes of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Size {
    /// Keys.
    pub keys: u64,
    /// Bytes that a savepoint of them has.
    pub bytes: u64,
}

/// The sizes of all states, by stage and state, in the order of flow; and the commits that were looked at.
///
/// # Errors
/// When something cannot be read.
pub async fn sizes(
    source: &mut Source<'_>,
    stages: &[StageId],
) -> Result<(Vec<(StageId, String, Size)>, Looked), InspectError> {
    let (mut sizes, mut looked) = (Vec::new(), Looked::default());
    for stage in stages {
        let mut by_state: BTreeMap<String, Size> = BTreeMap::new();
        for group in source.groups(stage).await? {
            let GroupState { as_of, states } = source.group(stage, group).await?;
            looked.add(as_of);
            for (state, keys) in states {
                let (bytes, count) = encode_keys(keys);
                let size = by_state.entry(state).or_default();
                (size.keys, size.bytes) = (size.keys + count, size.bytes + bytes.len() as u64);
            }
        }
        sizes.extend(by_state.into_iter().map(|(state, size)| (stage.clone(), state, size)));
    }
    Ok((sizes, looked))
}

/// A key whose state differs.
#[derive(Clone, PartialEq, Debug)]
pub struct Difference {
    /// The key.
    pub key: String,
    /// Its state in the first view; `None` when it has none.
    pub a: Option<Readable>,
    /// In the second.
    pub b: Option<Readable>,
}

/// How a state differs in two views.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StateDiff {
    /// Keys with equal state and timers in both.
    pub equal: u64,
    /// Keys that only the first has.
    pub only_a: u64,
    /// Keys that only the second has.
    pub only_b: u64,
    /// Keys that both have, with other states or timers.
    pub differ: u64,
    /// The first of those that are not equal, by key group and key.
    pub examples: Vec<Difference>,
}

impl StateDiff {
    /// Whether both views hold the same.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.only_a + self.only_b + self.differ == 0
    }
}

/// Two views of the state of a pipeline, compared.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Diff {
    /// By stage and state, in the order of flow.
    pub states: Vec<(StageId, String, StateDiff)>,
    /// The commits that were looked at in the first view, and in the second.
    pub looked: (Looked, Looked),
}

/// Compares all states of two views, or those of one stage, with up to `examples` of each; of key groups those that both
/// views are of.
///
/// # Errors
/// When something cannot be read.
pub async fn diff(
    a: &mut Source<'_>,
    b: &mut Source<'_>,
    stage: Option<&StageId>,
    examples: usize,
) -> Result<Diff, InspectError> {
    let mut stages = a.stages();
    stages.extend(b.stages().into_iter().filter(|stage| !a.stages().contains(stage)));
    stages.retain(|other| stage.is_none_or(|stage| stage == other));
    let mut diff = Diff::default();
    for stage in stages {
        let mut by_state: BTreeMap<String, StateDiff> = BTreeMap::new();
        let (of_a, of_b) = (a.groups(&stage).await?, b.groups(&stage).await?);
        for group in of_a.start.max(of_b.start)..of_a.end.min(of_b.end) {
            let (mut left, mut right) = (a.group(&stage, group).await?, b.group(&stage, group).await?);
            diff.looked.0.add(left.as_of);
            diff.looked.1.add(right.as_of);
            let ids: BTreeSet<String> = left.states.keys().chain(right.states.keys()).cloned().collect();
            for id in ids {
                let keys = |states: &mut BTreeMap<String, Keys>| states.remove(&id).unwrap_or_default();
                let (left, right) = (keys(&mut left.states), keys(&mut right.states));
                by_state.entry(id.clone()).or_default().add(&id, left, right, examples)?;
            }
        }
        diff.states.extend(by_state.into_iter().map(|(id, found)| (stage.clone(), id, found)));
    }
    Ok(diff)
}

impl StateDiff {
    fn add(&mut self, id: &str, left: Keys, mut right: Keys, examples: usize) -> Result<(), InspectError> {
        let mut differences: BTreeMap<String, (Option<Stored>, Option<Stored>)> = BTreeMap::new();
        for (key, a) in left {
            match right.remove(&key) {
                Some(b) if a == b => self.equal += 1,
                Some(b) => {
                    self.differ += 1;
                    differences.insert(key, (Some(a), Some(b)));
                }
                None => {
                    self.only_a += 1;
                    differences.insert(key, (Some(a), None));
                }
            }
        }
        self.only_b += right.len() as u64;
        differences.extend(right.into_iter().map(|(key, b)| (key, (None, Some(b)))));
        for (key, (a, b)) in differences.into_iter().take(examples.saturating_sub(self.examples.len())) {
            let read = |stored: Option<Stored>| stored.map(|stored| any_readable(id, &key, &stored)).transpose();
            let (a, b) = (read(a)?, read(b)?);
            self.examples.push(Difference { key, a, b });
        }
        Ok(())
    }
}

/// What is stored of a key, readable.
///
/// # Errors
/// When it is not the operator's message.
pub fn readable(kind: &StateKind, key: &str, stored: &Stored) -> Result<Readable, InspectError> {
    kind.read(stored).map_err(|e| InspectError::Inconsistent {
        task: format!("stage {}", kind.stage),
        detail: format!("the state {} of key {key} does not decode: {}", kind.id, e.0),
    })
}

/// The same for a state that may be another program's: then its bytes are told.
fn any_readable(id: &str, key: &str, stored: &Stored) -> Result<Readable, InspectError> {
    match (StateKind::find(id), stored) {
        (Ok(kind), _) => readable(kind, key, stored),
        (Err(_), Stored::State(held)) => Ok(Readable {
            value: Value::from(held.state.clone()),
            event_timers: held.event_timers.clone(),
            processing_timers: held.processing_timers.clone(),
        }),
        (Err(error), Stored::WrittenAt(_)) => Err(error),
    }
}
