//! What a savepoint becomes in a pipeline of these stages: decided before anything is written.

use std::collections::{BTreeMap, BTreeSet};

use payguard_engine::page::version;
use payguard_engine::task::ADDED;
use payguard_engine::{Head, InputState, Position, StageId, TaskId};
use payguard_model::{EventTime, KEY_GROUPS};
use payguard_topology::keys::keying;
use payguard_topology::{Config, Stage, StageKind, Topology, payguard};

use crate::cut::reads;
use crate::error::{Refusal, SavepointError};
use crate::format::{Manifest, SavedLayout, SavedStream, SavedTask, StateFile};

/// Everything to install.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The tasks.
    pub(crate) tasks: Vec<PlannedTask>,
    /// The files of state that are kept.
    pub(crate) state: Vec<PlannedState>,
    /// Tasks to register.
    pub(crate) registered: BTreeSet<TaskId>,
    /// The streams whose records in flight are kept: producer and name.
    pub(crate) streams: BTreeSet<(String, String)>,
    /// What is given up.
    pub(crate) dropped: Vec<String>,
}

/// A task of the new pipeline.
#[derive(Debug)]
pub(crate) struct PlannedTask {
    /// Its id.
    pub(crate) id: TaskId,
    /// Its head, without what the act of restoring stamps on it.
    pub(crate) head: Head,
    /// The saved task whose records in flight are the last rows of its log; `None` when it has none.
    pub(crate) of: Option<SavedTask>,
}

/// A file of state and the version its pages get.
#[derive(Clone, Debug)]
pub(crate) struct PlannedState {
    pub(crate) file: StateFile,
    pub(crate) version: u64,
}

/// The configuration with the shards that the saved pipeline began with.
pub(crate) fn as_saved(manifest: &Manifest, config: &Config) -> Config {
    let mut config = config.clone();
    for stage in &manifest.stages {
        config.shards.set(&stage.id, stage.shards);
    }
    config
}

/// Decides what to install for `config`, which has the shards that the saved pipeline began with ([`as_saved`]).
///
/// # Errors
/// When something must not be restored like this.
pub(crate) fn plan(manifest: &Manifest, config: &Config, allow_dropped: bool) -> Result<Plan, SavepointError> {
    let topology = payguard(config);
    check_keys(manifest, config, &topology)?;
    let planner = Planner::new(manifest, &topology)?;
    planner.check_counted()?;
    let dropped = planner.dropped();
    if !dropped.is_empty() && !allow_dropped {
        return Err(Refusal::Dropped(dropped).into());
    }
    let mut plan = Plan { dropped, streams: planner.kept.clone(), ..Plan::default() };
    for (id, saved) in &planner.tasks {
        if let Some(stage) = planner.stage_of(id) {
            plan.tasks.push(planner.planned(stage, id, saved)?);
        }
    }
    for stage in topology.stages.iter().filter(|stage| stage.kind.reads_logs()) {
        planner.begin(stage, &mut plan);
    }
    planner.place_state(&mut plan);
    plan.registered = planner.registered(&plan);
    Ok(plan)
}

/// Refuses key groups that could not be shared out like this, whatever is restored.
pub(crate) fn check_groups(manifest: &Manifest, wanted: &Topology) -> Result<(), Refusal> {
    let groups = manifest.key_groups;
    if let Some(stage) = wanted.stages.iter().find(|stage| stage.shards > groups) {
        return Err(Refusal::MoreShardsThanGroups { stage: stage.id.to_string(), shards: stage.shards, groups });
    }
    match groups {
        KEY_GROUPS => Ok(()),
        saved => Err(Refusal::OtherKeyGroups { saved, here: KEY_GROUPS }),
    }
}

/// Refuses other keys of a stream that both sides have.
fn check_keys(manifest: &Manifest, config: &Config, topology: &Topology) -> Result<(), Refusal> {
    for stream in &topology.streams {
        let here = keying(config, stream);
        if let Some(saved) = manifest.streams.iter().find(|s| s.name == stream.name && s.keying != here) {
            let (stream, saved) = (stream.name.to_owned(), saved.keying.clone());
            return Err(Refusal::OtherKeys { stream, saved, here });
        }
    }
    Ok(())
}

struct Planner<'a> {
    manifest: &'a Manifest,
    topology: &'a Topology,
    tasks: BTreeMap<TaskId, &'a SavedTask>,
    /// Streams that are the same on both sides: producer and name.
    kept: BTreeSet<(String, String)>,
}

impl<'a> Planner<'a> {
    fn new(manifest: &'a Manifest, topology: &'a Topology) -> Result<Planner<'a>, SavepointError> {
        let mut tasks = BTreeMap::new();
        for task in &manifest.tasks {
            tasks.insert(parse(&task.task)?, task);
        }
        let is_kept = |saved: &&SavedStream| {
            let same = topology.streams.iter().find(|stream| stream.name == saved.name);
            same.is_some_and(|s| *s.producer.0 == *saved.producer && *s.consumer.0 == *saved.consumer)
        };
        let kept = manifest.streams.iter().filter(is_kept).map(|s| (s.producer.clone(), s.name.clone())).collect();
        Ok(Planner { manifest, topology, tasks, kept })
    }

    /// The stage of a saved task, if it has a place here.
    fn stage_of(&self, id: &TaskId) -> Option<&'a Stage> {
        self.topology.stage(&id.stage).filter(|stage| is_task_of(stage, id))
    }

    /// Refuses to give up one of several streams that somebody reads of a producer, when he stands within a row: records
    /// of all of them are counted there.
    fn check_counted(&self) -> Result<(), Refusal> {
        let between = |producer: &str, consumer: &str| {
            let of_pair = self.manifest.streams.iter().filter(|s| s.producer == producer && s.consumer == consumer);
            let kept = of_pair.clone().filter(|s| self.kept.contains(&(s.producer.clone(), s.name.clone()))).count();
            kept > 0 && kept < of_pair.count()
        };
        for (id, task) in &self.tasks {
            let here = task.inputs.iter().map(|(input, state)| (input, state.within));
            let taken = task.taken.iter().flat_map(|t| &t.inputs).map(|(input, (_, within))| (input, *within));
            for (input, _) in here.chain(taken).filter(|(_, within)| *within > 0) {
                let Some((producer, _)) = input.split_once('/') else { continue };
                if between(producer, &id.stage.0) {
                    return Err(Refusal::WithinRow { task: id.to_string(), producer: producer.to_owned() });
                }
            }
        }
        Ok(())
    }

    /// What the new pipeline has no place for.
    fn dropped(&self) -> Vec<String> {
        let mut dropped = Vec::new();
        for ((stage, operator), (entries, _)) in self.manifest.sizes() {
            let known = self.topology.stage(&StageId::new(&stage)).is_some_and(|s| s.states.contains(&&*operator));
            if !known && entries > 0 {
                dropped.push(format!("{entries} keys of operator {operator} of stage {stage}"));
            }
        }
        let mut records: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for (id, task) in &self.tasks {
            for (stream, count) in &task.rows.records {
                if !self.kept.contains(&(id.stage.to_string(), stream.clone())) {
                    *records.entry((&id.stage.0, stream)).or_default() += count;
                }
            }
        }
        let of_stream = |((stage, stream), count): (&(&str, &str), &u64)| {
            format!("{count} records in flight of stream {stream} of stage {stage}")
        };
        dropped.extend(records.iter().filter(|(_, count)| **count > 0).map(of_stream));
        let sources = self.tasks.keys().filter(|id| {
            let stage = self.topology.stage(&id.stage);
            id.topic_partition().is_some() && stage.is_some_and(|stage| !is_task_of(stage, id))
        });
        dropped.extend(sources.map(|id| format!("the position in partition {} of stage {}", id.instance, id.stage)));
        dropped
    }

    /// The task as it was, at the same commit; a sink's at its first.
    fn planned(&self, stage: &Stage, id: &TaskId, saved: &SavedTask) -> Result<PlannedTask, SavepointError> {
        let damaged = |detail| SavepointError::Damaged { path: "manifest.json".to_owned(), detail };
        let broadcast = saved.broadcast().map_err(damaged)?;
        let is_input = |input: &str| match stage.kind.reads_logs() {
            true => input.parse().is_ok_and(|input: TaskId| reads(self.topology, &stage.id, &input)),
            false => true,
        };
        // Nobody reads the log of a sink, and its outputs begin anew with it.
        let is_sink = stage.kind == StageKind::Sink;
        let seq = if is_sink { 1 } else { saved.seq };
        let inputs = saved.inputs.iter().filter(|(input, _)| is_input(input));
        let mut head = Head {
            seq,
            // Its state goes into pages as of this commit.
            flushed_seq: seq,
            watermark_ms: saved.watermark_ms,
            idle: saved.idle,
            generation: saved.generation,
            shards: saved.shards,
            sealed: saved.sealed.map(SavedLayout::layout),
            taken: saved.taken.iter().map(|taken| taken.taken(is_input)).collect(),
            inputs: inputs.map(|(id, input)| (id.clone(), input.state())).collect(),
            next_timer_ms: saved.next_timer_ms,
            counters: saved.counters.clone(),
            gauges: saved.gauges.clone(),
            broadcast,
            pinned: saved.pinned,
            ..Head::default()
        };
        if stage.kind.reads_logs() {
            head.inputs.extend(self.new_inputs(stage));
        }
        for stream in self.topology.outputs(&stage.id) {
            if !self.manifest.streams.iter().any(|s| s.name == stream.name && *s.producer == *stage.id.0) {
                head.counters.insert(format!("{ADDED}{}", stream.name), 1);
            }
        }
        if self.manifest.is_drained() && head.sealed.is_none() {
            self.begin_time_anew(&mut head);
        }
        Ok(PlannedTask { id: id.clone(), head, of: (!is_sink).then(|| saved.clone()) })
    }

    /// Time had come to its end, and everything was read; what comes now comes after that.
    fn begin_time_anew(&self, head: &mut Head) {
        head.watermark_ms = EventTime::MIN.0;
        for (id, input) in &mut head.inputs {
            let producer = id.parse().ok().and_then(|id: TaskId| self.tasks.get(&id));
            if producer.is_some_and(|producer| producer.sealed.is_some()) {
                continue;
            }
            input.watermark_ms = EventTime::MIN.0;
            if let Some(producer) = producer {
                input.position = end_of(producer);
            }
        }
    }

    /// Where a stage begins in the logs that it has not read so far: at their ends, because nothing in them is for it.
    fn new_inputs(&self, stage: &Stage) -> BTreeMap<String, InputState> {
        let had_stream = |producer: &TaskId| {
            let between = |s: &SavedStream| *s.producer == *producer.stage.0 && *s.consumer == *stage.id.0;
            self.manifest.streams.iter().any(between)
        };
        let producers = self.tasks.iter().filter(|(id, _)| reads(self.topology, &stage.id, id) && !had_stream(id));
        producers
            .map(|(id, saved)| {
                let SavedTask { watermark_ms, idle, .. } = **saved;
                // A sealed log's end has been seen when no more is read of it.
                let watermark_ms = if saved.sealed.is_some() { EventTime::MAX.0 } else { watermark_ms };
                (id.to_string(), InputState { position: end_of(saved), watermark_ms, idle })
            })
            .collect()
    }

    /// Plans the tasks of a stage that the savepoint does not know, where they have logs to read that began before them.
    fn begin(&self, stage: &Stage, plan: &mut Plan) {
        let is_known = self.tasks.keys().any(|id| id.stage == stage.id);
        let inputs = self.new_inputs(stage);
        if is_known || inputs.is_empty() {
            return;
        }
        for shard in 0..stage.shards {
            let id = TaskId::shard(&stage.id, shard);
            let (shards, inputs) = (stage.shards, inputs.clone());
            let mut head = Head { seq: 1, flushed_seq: 1, shards, inputs, ..Head::empty() };
            if self.manifest.is_drained() {
                self.begin_time_anew(&mut head);
            }
            plan.tasks.push(PlannedTask { id, head, of: None });
        }
    }

    fn place_state(&self, plan: &mut Plan) {
        for file in &self.manifest.state {
            let Some(stage) = self.topology.stage(&StageId::new(&file.stage)) else { continue };
            if !stage.states.contains(&&*file.operator) {
                continue;
            }
            let layout = self.topology.layout(stage, self.tasks.keys());
            let owner = (0..layout.shards).find(|shard| layout.groups(*shard).contains(&file.group));
            let owner = owner.map(|shard| layout.task(&stage.id, shard));
            let head = plan.tasks.iter().find(|task| Some(&task.id) == owner.as_ref()).map(|task| &task.head);
            if let Some(Head { generation, seq, .. }) = head {
                plan.state.push(PlannedState { file: file.clone(), version: version(*generation, *seq) });
            }
        }
    }

    fn registered(&self, plan: &Plan) -> BTreeSet<TaskId> {
        let planned = plan.tasks.iter().map(|task| task.id.clone());
        let saved = self.manifest.registered.iter().filter_map(|id| id.parse::<TaskId>().ok());
        let partitions =
            saved.filter(|id| self.topology.stage(&id.stage).is_some_and(|stage| is_partition_of(stage, id)));
        planned.chain(partitions).collect()
    }
}

fn end_of(producer: &SavedTask) -> Position {
    Position { at: i64::try_from(producer.seq).unwrap_or(i64::MAX), within: 0 }
}

/// Whether `id` can be a task of the stage.
fn is_task_of(stage: &Stage, id: &TaskId) -> bool {
    match &stage.kind {
        StageKind::Source { .. } => is_partition_of(stage, id),
        _ => true,
    }
}

fn is_partition_of(stage: &Stage, id: &TaskId) -> bool {
    let StageKind::Source { topics } = &stage.kind else { return false };
    id.topic_partition().is_some_and(|(topic, _)| topics.iter().any(|known| known.partitions.topic == topic))
}

fn parse(task: &str) -> Result<TaskId, SavepointError> {
    task.parse().map_err(|e: payguard_engine::ids::BadTaskId| SavepointError::Damaged {
        path: "manifest.json".to_owned(),
        detail: e.to_string(),
    })
}
