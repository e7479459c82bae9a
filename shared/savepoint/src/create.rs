//! Taking a savepoint of a running pipeline.

use async_trait::async_trait;
use payguard_engine::input::partitions;
use payguard_engine::layout::FIRST;
use payguard_engine::store::{FileStore, SinkPosition};
use payguard_engine::task::Env;
use payguard_engine::task::retry::patiently;
use payguard_engine::{Head, Seq, StoreError, TaskId};
use payguard_model::KEY_GROUPS;
use payguard_topology::keys::keying;
use payguard_topology::{Config, Stage, StageKind, Topology, payguard};

use crate::capture::StateCapture;
use crate::cut::{Layouts, Readers, capture_order, reads};
use crate::error::{Refusal, SavepointError};
use crate::format::{
    DataFile, FORMAT, MANIFEST, Manifest, SavedRows, SavedStage, SavedStream, SavedTask, StateFile, check_name,
};
use crate::rows::RowCapture;

/// Where the sinks of a pipeline stand. A sink may be one batch ahead of the ledger, and it is the truth.
#[async_trait]
pub trait SinkPositions: Send + Sync {
    /// Where the sink stands for `task`.
    async fn position(&self, task: &TaskId) -> Result<SinkPosition, StoreError>;
}

/// How often a savepoint is begun before it is given up.
const TRIES: u32 = 5;

/// What a savepoint is taken of, and where it goes.
pub struct Create<'a> {
    /// The pipeline's stores.
    pub env: &'a Env,
    /// Where savepoints are.
    pub files: &'a dyn FileStore,
    /// The configuration the pipeline runs with.
    pub config: &'a Config,
    /// The savepoint's name.
    pub name: &'a str,
    /// The pipeline's sinks, where they can be looked at; otherwise the ledger says where they stand, which is the
    /// same unless a process has died between a sink's write and its commit.
    pub sinks: Option<&'a dyn SinkPositions>,
    /// Is told how far it is.
    pub progress: &'a (dyn Fn(&Progress) + Sync),
}

/// How far the making of a savepoint is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// The task at hand.
    pub task: String,
    /// Key groups of state that are written, and all there are.
    pub groups: (u32, u32),
    /// Keys written.
    pub keys: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Rows in flight written.
    pub rows: u64,
    /// How often a part or the whole was begun anew, because rows were collected before they were read. The other
    /// counts go back then.
    pub anew: u32,
}

/// Counts and tells.
pub(crate) struct Meter<'a> {
    progress: Progress,
    tell: &'a (dyn Fn(&Progress) + Sync),
}

impl Meter<'_> {
    pub(crate) fn groups(&mut self, task: &TaskId, groups: usize) {
        self.progress.task = task.to_string();
        self.progress.groups.0 += u32::try_from(groups).unwrap_or(0);
        (self.tell)(&self.progress);
    }

    /// What was written of these key groups is dropped.
    pub(crate) fn begins_anew(&mut self, groups: u32) {
        self.progress.groups.0 = self.progress.groups.0.saturating_sub(groups);
        self.progress.anew += 1;
        (self.tell)(&self.progress);
    }

    pub(crate) fn wrote(&mut self, file: &DataFile) {
        self.progress.keys += file.entries;
        self.progress.bytes += file.bytes;
    }

    /// A file is written anew.
    pub(crate) fn take_back(&mut self, file: &DataFile) {
        self.progress.keys -= file.entries;
        self.progress.bytes -= file.bytes;
    }

    pub(crate) fn wrote_rows(&mut self, file: &DataFile) {
        self.progress.rows += file.entries;
        self.progress.bytes += file.bytes;
        (self.tell)(&self.progress);
    }
}

/// Takes a savepoint. What an earlier try of the same name left behind is removed; until the manifest is written there
/// is no savepoint.
///
/// # Errors
/// When there is a savepoint of this name, there is nothing to save, rows are collected again and again before they are
/// read, or a store fails.
pub async fn create(request: &Create<'_>) -> Result<Manifest, SavepointError> {
    check_name(request.name)?;
    let topology = payguard(request.config);
    let with_state = topology.stages.iter().filter(|stage| stage.kind == StageKind::Operators).count();
    let groups = (0, u32::try_from(with_state).unwrap_or(0) * KEY_GROUPS);
    let mut meter = Meter { progress: Progress { groups, ..Progress::default() }, tell: request.progress };
    for _ in 1..TRIES {
        match attempt(request, &topology, &mut meter).await {
            // Readers have gone on since they were captured, and what they have passed is gone, or they are others.
            Err(error) if error.is_outrun() => {
                let anew = meter.progress.anew;
                meter.progress = Progress { groups, anew, ..Progress::default() };
                meter.begins_anew(0);
            }
            done => return done,
        }
    }
    attempt(request, &topology, &mut meter).await
}

async fn attempt(request: &Create<'_>, topology: &Topology, meter: &mut Meter<'_>) -> Result<Manifest, SavepointError> {
    clear(request.env, request.files, request.name).await?;
    let layouts = layouts(request, topology).await?;
    let id = request.env.attempts.next().0;
    let folder = format!("{}/data-{id}", request.name);
    let mut cut = Cut { request, topology, layouts, folder, tasks: Vec::new(), state: Vec::new() };
    for stage in capture_order(topology) {
        for task in cut.tasks_of(stage).await? {
            cut.capture(stage, task, meter).await?;
        }
    }
    if cut.tasks.is_empty() {
        return Err(Refusal::NothingToSave(request.config.pipeline.clone()).into());
    }
    let (tasks, state) = (cut.tasks, cut.state);
    let manifest = describe(request, topology, id, tasks, state).await?;
    publish(request, manifest).await
}

/// Refuses a name that is taken and removes what is left of a try that died.
async fn clear(env: &Env, files: &dyn FileStore, name: &str) -> Result<(), SavepointError> {
    let manifest = format!("{name}/{MANIFEST}");
    let prefix = format!("{name}/");
    let left = patiently(&env.settings, || files.list_files(&prefix)).await?;
    if left.iter().any(|file| file.path == manifest) {
        return Err(Refusal::Exists { name: name.to_owned(), location: files.location() }.into());
    }
    for file in left {
        patiently(&env.settings, || files.delete_file(&file.path)).await?;
    }
    Ok(())
}

/// The layouts that stages have now.
///
/// # Errors
/// When a store fails, or a stage is being given another one: some of its tasks have not begun.
async fn layouts(request: &Create<'_>, topology: &Topology) -> Result<Layouts, SavepointError> {
    let Create { env, .. } = *request;
    let mut layouts = Layouts::new();
    for stage in topology.stages.iter().filter(|stage| stage.kind.can_be_redrawn()) {
        let registered = patiently(&env.settings, || env.ledger.tasks(&stage.id)).await?;
        let layout = topology.layout(stage, &registered);
        for task in layout.tasks(&stage.id).iter().filter(|_| layout.generation > FIRST) {
            if env.head(task).await?.is_none() {
                return Err(Refusal::Redrawn { stage: stage.id.to_string() }.into());
            }
        }
        layouts.insert(stage.id.clone(), layout);
    }
    Ok(layouts)
}

/// What is captured so far.
struct Cut<'a> {
    request: &'a Create<'a>,
    topology: &'a Topology,
    layouts: Layouts,
    folder: String,
    tasks: Vec<SavedTask>,
    state: Vec<StateFile>,
}

impl Cut<'_> {
    /// The tasks of a stage, those that are sealed included: their readers may not have read them to the end.
    async fn tasks_of(&self, stage: &Stage) -> Result<Vec<TaskId>, SavepointError> {
        let env = self.request.env;
        let registered = patiently(&env.settings, || env.ledger.tasks(&stage.id)).await?;
        Ok(match &stage.kind {
            StageKind::Source { topics } => {
                let topics: Vec<_> = topics.iter().map(|topic| topic.partitions.clone()).collect();
                partitions(&stage.id, &topics, registered)
            }
            StageKind::Broadcast { .. } => registered,
            StageKind::Operators | StageKind::Lookup | StageKind::Sink => self.topology.tasks_of(stage, &registered),
            StageKind::Schedule => Vec::new(),
        })
    }

    async fn capture(&mut self, stage: &Stage, task: TaskId, meter: &mut Meter<'_>) -> Result<(), SavepointError> {
        let Create { env, files, .. } = *self.request;
        let mut head = env.head(&task).await?.unwrap_or_else(Head::empty);
        if stage.kind == StageKind::Sink
            && let Some(sinks) = self.request.sinks
        {
            head = follow(env, sinks, &task, head).await?;
        }
        if head.seq == 0 {
            return Ok(());
        }
        self.check_layout(stage, &task, &head)?;
        self.check_inputs(stage, &task, &head)?;
        if stage.kind == StageKind::Operators
            && head.sealed.is_none()
            && let Some(plan) = self.topology.plan(&task)
        {
            let capture = StateCapture::of(env, files, &self.folder, &task, head);
            let (as_of, state) = capture.run(plan.groups(), meter).await?;
            head = as_of;
            self.state.extend(state);
        }
        let readers = Readers { topology: self.topology, layouts: &self.layouts, captured: &self.tasks };
        let rows = RowCapture { env, files, folder: &self.folder, readers };
        let rows = rows.run(&task, head.seq, meter).await?;
        self.tasks.push(SavedTask { rows, ..SavedTask::of(&task, &head) });
        Ok(())
    }

    /// Refuses a task with inputs that would not be part of the savepoint.
    fn check_inputs(&self, stage: &Stage, task: &TaskId, head: &Head) -> Result<(), Refusal> {
        let plan = self.topology.plan(task);
        let is_upstream = |id: &TaskId| plan.iter().flat_map(|p| &p.upstreams).any(|u| u.stage == id.stage);
        let is_known = |input: &str| {
            input.parse().is_ok_and(|id: TaskId| match id.topic_partition() {
                Some(_) => reads(self.topology, &stage.id, &id),
                // Of other shards than these is told by the stage itself.
                None => is_upstream(&id),
            })
        };
        match head.inputs.keys().find(|input| stage.kind.reads_logs() && !is_known(input)) {
            Some(input) => Err(Refusal::OtherTopology { task: task.to_string(), input: input.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses a task of shards that the configuration does not know, and one that is just being sealed.
    fn check_layout(&self, stage: &Stage, task: &TaskId, head: &Head) -> Result<(), Refusal> {
        let Some(layout) = self.layouts.get(&stage.id) else { return Ok(()) };
        if task.shard_number().is_some() && head.shards != stage.shards {
            let (stage, running, here) = (stage.id.to_string(), head.shards, stage.shards);
            return Err(Refusal::OtherShards { stage, running, here });
        }
        match head.generation == layout.generation && head.sealed.is_some() {
            true => Err(Refusal::Redrawn { stage: stage.id.to_string() }),
            false => Ok(()),
        }
    }
}

/// The head as the sink has it: its own, or the one that its newest batch will lead to.
async fn follow(env: &Env, sinks: &dyn SinkPositions, task: &TaskId, mut head: Head) -> Result<Head, SavepointError> {
    // One that has committed nothing may have written its first batch.
    head.shards = head.shards.max(1);
    loop {
        let position = patiently(&env.settings, || sinks.position(task)).await?;
        if position.seq <= head.seq() {
            // Behind it is only while it is looked at: batches go to the sink first.
            return Ok(head);
        }
        if position.seq == head.seq().next() {
            for (name, by) in position.counters {
                *head.counters.entry(name).or_default() += by;
            }
            return Ok(Head { seq: position.seq.0, inputs: position.inputs, ..head });
        }
        let newer = env.head(task).await?;
        match newer.filter(|newer| newer.seq > head.seq) {
            Some(newer) => head = newer,
            None => return Err(foreign_outputs(task, position.seq, &head)),
        }
    }
}

fn foreign_outputs(task: &TaskId, sink: Seq, head: &Head) -> SavepointError {
    let detail = format!(
        "the sink holds batch {sink} and the ledger commit {}: the outputs do not belong to this state; name the \
         output folder of this run",
        head.seq
    );
    SavepointError::Inconsistent { task: task.to_string(), detail }
}

async fn describe(
    request: &Create<'_>,
    topology: &Topology,
    id: String,
    tasks: Vec<SavedTask>,
    mut state: Vec<StateFile>,
) -> Result<Manifest, SavepointError> {
    let (env, config) = (request.env, request.config);
    state.sort_by(|a, b| (&a.stage, &a.operator, a.group).cmp(&(&b.stage, &b.operator, b.group)));
    let mut registered = Vec::new();
    for stage in &topology.stages {
        let tasks = patiently(&env.settings, || env.ledger.tasks(&stage.id)).await?;
        registered.extend(tasks.iter().map(ToString::to_string));
    }
    let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let stages = topology.stages.iter().map(|stage| SavedStage {
        id: stage.id.to_string(),
        operators: own(&stage.operators),
        shards: stage.shards,
    });
    let streams = topology.streams.iter().map(|stream| SavedStream {
        name: stream.name.to_owned(),
        producer: stream.producer.to_string(),
        consumer: stream.consumer.to_string(),
        keying: keying(config, stream),
    });
    Ok(Manifest {
        format: FORMAT,
        name: request.name.to_owned(),
        id,
        pipeline: config.pipeline.clone(),
        created_at_ms: env.clock.now().0,
        code: env.settings.code.clone(),
        schema: env.settings.schema,
        key_groups: KEY_GROUPS,
        stages: stages.collect(),
        streams: streams.collect(),
        tasks,
        registered,
        state,
        checksum: String::new(),
    })
}

/// Makes the savepoint exist, if all its files are there.
async fn publish(request: &Create<'_>, manifest: Manifest) -> Result<Manifest, SavepointError> {
    let Create { env, files, name, .. } = *request;
    let prefix = format!("{name}/");
    let there = patiently(&env.settings, || files.list_files(&prefix)).await?;
    let is_there = |file: &DataFile| {
        there.binary_search_by(|info| info.path.cmp(&file.path)).is_ok_and(|at| there[at].bytes == file.bytes)
    };
    if let Some(missing) = manifest.files().find(|file| !is_there(file)) {
        return Err(Refusal::Disturbed { path: missing.path.clone() }.into());
    }
    let path = format!("{name}/{MANIFEST}");
    let written =
        manifest.write().map_err(|e| SavepointError::Damaged { path: path.clone(), detail: e.to_string() })?;
    patiently(&env.settings, || files.put_file(&path, written.clone())).await?;
    Manifest::read(name, &written)
}

impl SavedRows {
    /// Rows in flight of a task that is captured at `seq`.
    #[must_use]
    pub fn count(&self, seq: u64) -> u64 {
        seq - self.after.min(seq)
    }
}
