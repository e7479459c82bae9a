//! A new pipeline made of a savepoint.
//!
//! Pages and rows first, then all heads: a task without a head does not exist for anybody. The act itself has a log,
//! `restore/0`: its first row claims the pipeline's name for this savepoint and these stages, its second says that it
//! is done. So a restore that died is repeated by the same command, and another one is refused.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use payguard_engine::page::{Page, PageAddress};
use payguard_engine::row::{CommitRow, SegmentLocation};
use payguard_engine::segment::{Arrival, Segment, SegmentBuilder, Stamp};
use payguard_engine::store::{CommitReply, FileStore, MAX_INSTALLED};
use payguard_engine::task::Env;
use payguard_engine::task::retry::patiently;
use payguard_engine::{Head, Seq, StageId, TaskId};
use payguard_model::{EventTime, KEY_GROUPS, key_group};
use payguard_topology::begun::RESTORE;
use payguard_topology::keys::encoding;
use payguard_topology::{Config, Topology, payguard};

use crate::catalog::show;
use crate::error::{Refusal, SavepointError};
use crate::format::{DataFile, Manifest, SavedRecord, SavedRow, SavedSlice, SavedTask, checksum, decode_keys};
use crate::plan::{Plan, PlannedState, PlannedTask, as_saved, check_groups, plan};

/// Files of state that are restored side by side.
const FILES_AT_ONCE: usize = 4;
/// Pages of a file that are written side by side.
const PAGES_AT_ONCE: usize = 8;
/// Digits of a checksum.
const CHECKSUM: usize = 16;

/// What is restored, and where.
pub struct Restore<'a> {
    /// The stores of the new pipeline.
    pub env: &'a Env,
    /// Where savepoints are.
    pub files: &'a dyn FileStore,
    /// The configuration of the new pipeline; its name is the one the stores are opened with.
    pub config: &'a Config,
    /// The savepoint's name.
    pub name: &'a str,
    /// Whether what the new pipeline has no place for is given up.
    pub allow_dropped: bool,
}

/// What was restored.
#[derive(Clone, PartialEq, Debug)]
pub struct Restored {
    /// The savepoint.
    pub manifest: Manifest,
    /// The configuration of the new pipeline: with the shards that the saved one began with, whatever was wanted.
    pub config: Config,
    /// Keys restored.
    pub keys: u64,
    /// Records in flight restored.
    pub records: u64,
    /// What was given up.
    pub dropped: Vec<String>,
    /// Whether an earlier call had restored it already; nothing was done now.
    pub was_done: bool,
}

/// Makes a pipeline of a savepoint, so that its tasks simply start. Repeating it finishes what a call that died began.
///
/// # Errors
/// When it is refused (see [`Refusal`]), a file is damaged, or a store fails. Until the heads are there, nothing is.
pub async fn restore(request: &Restore<'_>) -> Result<Restored, SavepointError> {
    let Restore { env, files, config, name, allow_dropped } = *request;
    let manifest = show(files, &env.settings, name).await?;
    env.check_schema(&format!("savepoint {name}"), manifest.schema)?;
    check_groups(&manifest, &payguard(config))?;
    let config = as_saved(&manifest, config);
    let plan = plan(&manifest, &config, allow_dropped)?;
    let topology = payguard(&config);
    let attempt = checksum(manifest.checksum.as_bytes()) + &checksum(fingerprint(&config, &topology).as_bytes());
    let from = format!("{}/{name}", files.location());
    let created_at_ms = manifest.created_at_ms;
    let installer = Installer { request, attempt, from, created_at_ms, plan: &plan };
    let was_done = match installer.claim().await? {
        Claim::Done => true,
        Claim::New => {
            installer.install().await?;
            false
        }
    };
    let keys = plan.state.iter().map(|state| state.file.file.entries).sum();
    let kept = |task: &SavedTask, stream: &String| {
        let producer = task.task.split_once('/').map_or("", |(stage, _)| stage);
        plan.streams.contains(&(producer.to_owned(), stream.clone()))
    };
    let in_flight = manifest.tasks.iter().flat_map(|task| task.rows.records.iter().map(move |(s, n)| (task, s, n)));
    let records = in_flight.filter(|(task, stream, _)| kept(task, stream)).map(|(_, _, count)| count).sum();
    Ok(Restored { manifest, config, keys, records, dropped: plan.dropped, was_done })
}

/// What must be the same for a restore to be the same: where it goes and what has a place there.
fn fingerprint(config: &Config, topology: &Topology) -> String {
    let stages = topology.stages.iter().map(|stage| format!("{} {} {:?}", stage.id, stage.shards, stage.states));
    let streams = topology.streams.iter().map(|s| format!("{} {} {}", s.name, s.producer, s.consumer));
    let parts: Vec<String> = stages.chain(streams).collect();
    format!("{} {} {}", config.pipeline, config.stats.salts, parts.join(";"))
}

/// What the log of restoring says.
enum Claim {
    /// The name is ours: go on.
    New,
    /// All heads are installed.
    Done,
}

struct Installer<'a> {
    request: &'a Restore<'a>,
    /// The same for every call that restores this savepoint into this topology.
    attempt: String,
    from: String,
    created_at_ms: i64,
    plan: &'a Plan,
}

impl Installer<'_> {
    fn env(&self) -> &Env {
        self.request.env
    }

    async fn head(&self, task: &TaskId) -> Result<Option<Head>, SavepointError> {
        Ok(self.env().head(task).await?)
    }

    /// Claims the pipeline's name, or finds that it is claimed.
    async fn claim(&self) -> Result<Claim, SavepointError> {
        let task = TaskId::shard(&StageId::new(RESTORE), 0);
        let pipeline = || self.request.config.pipeline.clone();
        if self.head(&task).await?.is_none() {
            self.check_name_is_free().await?;
            self.mark(&task, 1).await?;
        }
        let claim = patiently(&self.env().settings, || self.env().ledger.load_row(&task, Seq(1))).await?;
        let is_done = self.head(&task).await?.is_some_and(|head| head.seq > 1);
        // Of a pipeline that is whole it only matters that it was made of this savepoint.
        let of_savepoint = &self.attempt[..CHECKSUM];
        match claim {
            Some(row) if row.attempt == self.attempt || is_done && row.attempt.starts_with(of_savepoint) => {}
            Some(row) => return Err(Refusal::OtherRestore { pipeline: pipeline(), from: row.code }.into()),
            None => {
                let detail = "it was claimed, but nothing says by whom".to_owned();
                return Err(SavepointError::Inconsistent { task: task.to_string(), detail });
            }
        }
        Ok(if is_done { Claim::Done } else { Claim::New })
    }

    async fn check_name_is_free(&self) -> Result<(), SavepointError> {
        let tasks = self.plan.tasks.iter().map(|task| &task.id).chain(&self.plan.registered);
        for task in tasks {
            if self.head(task).await?.is_some() {
                let pipeline = self.request.config.pipeline.clone();
                return Err(Refusal::NameTaken { pipeline, task: task.to_string() }.into());
            }
        }
        Ok(())
    }

    /// Commits row `seq` of the log of restoring. Whoever was faster has written it.
    async fn mark(&self, task: &TaskId, seq: u64) -> Result<(), SavepointError> {
        // The log is looked at by its attempts; what is restored is told where rows name the code.
        let (attempt, code) = (self.attempt.clone(), self.from.clone());
        let attempt = if seq == 1 { attempt } else { format!("{:.30}-done", attempt) };
        let row = CommitRow { seq, attempt: attempt.clone(), code: code.clone(), ..CommitRow::default() };
        // Whoever writes this row writes the same: the ledger takes one attempt for one write.
        let committed_at_ms = self.created_at_ms;
        let head = Head { seq, attempt, code, committed_at_ms, ..Head::empty() };
        let row = CommitRow { watermark_ms: head.watermark_ms, generation: head.generation, ..row };
        self.until_known(|| self.env().ledger.commit(task, &head, &row)).await
    }

    /// Repeats a conditional write until it is made, by this call or another.
    async fn until_known<F>(&self, mut write: impl FnMut() -> F) -> Result<(), SavepointError>
    where
        F: Future<Output = Result<CommitReply, payguard_engine::StoreError>>,
    {
        let mut tries = 1;
        loop {
            match patiently(&self.env().settings, &mut write).await? {
                CommitReply::Committed | CommitReply::Refused => return Ok(()),
                CommitReply::Unknown(detail) if tries >= self.env().settings.store_tries => {
                    return Err(SavepointError::Inconsistent { task: RESTORE.to_owned(), detail });
                }
                CommitReply::Unknown(_) => tries += 1,
            }
        }
    }

    async fn install(&self) -> Result<(), SavepointError> {
        if !self.is_installed().await? {
            self.install_all().await?;
        }
        self.mark(&TaskId::shard(&StageId::new(RESTORE), 0), 2).await
    }

    /// Whether an earlier call has come to its end but for saying so. The pipeline may run, and what has been collected
    /// of it must not come back.
    async fn is_installed(&self) -> Result<bool, SavepointError> {
        for task in &self.plan.tasks {
            if !self.is_ours(&task.id).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a task has a head that was restored from this savepoint.
    ///
    /// # Errors
    /// When it has begun by itself: then rows and pages of two pipelines are mixed.
    async fn is_ours(&self, task: &TaskId) -> Result<bool, SavepointError> {
        match self.head(task).await? {
            None => Ok(false),
            Some(head) if head.restored_from == self.from => Ok(true),
            Some(_) => {
                let pipeline = self.request.config.pipeline.clone();
                Err(Refusal::NameTaken { pipeline, task: task.to_string() }.into())
            }
        }
    }

    async fn install_all(&self) -> Result<(), SavepointError> {
        let files = stream::iter(&self.plan.state).map(|state| self.install_state(state));
        files.buffer_unordered(FILES_AT_ONCE).try_collect::<()>().await?;
        for task in &self.plan.tasks {
            self.install_log(task).await?;
        }
        for task in &self.plan.registered {
            patiently(&self.env().settings, || self.env().ledger.register(task)).await?;
        }
        self.install_heads().await
    }

    async fn install_state(&self, state: &PlannedState) -> Result<(), SavepointError> {
        let PlannedState { file, version } = state;
        let bytes = read_file(self.request, &file.file).await?;
        let encoding = encoding(&file.operator);
        let keys = decode_keys(encoding, &file.file, bytes)?;
        if let Some(stray) = keys.keys().find(|key| key_group(key, KEY_GROUPS).0 != file.group) {
            let detail = format!("key {stray} does not belong to key group {}", file.group);
            return Err(SavepointError::Damaged { path: file.file.path.clone(), detail });
        }
        let pages = encoding.lay_out(file.group, keys, *version).into_iter().map(|body| Page {
            address: PageAddress {
                stage: StageId::new(&file.stage),
                group: file.group,
                operator: file.operator.clone(),
                page: body.page,
            },
            version: *version,
            body: body.body.into(),
            expires_at_s: body.expires_at_s,
        });
        // A page that is there already was written by an earlier call, from the same file.
        let write = |page: Page| async move {
            patiently(&self.env().settings, || self.env().state.put_page(&page)).await.map(drop)
        };
        stream::iter(pages).map(write).buffer_unordered(PAGES_AT_ONCE).try_collect::<()>().await?;
        Ok(())
    }

    async fn install_log(&self, task: &PlannedTask) -> Result<(), SavepointError> {
        let last = task.head.seq;
        let Some(of) = task.of.as_ref().filter(|of| of.rows.count(of.seq) > 0) else {
            return self.install_row(&task.id, self.row_of_head(task, last), Segment::default()).await;
        };
        let mut next = of.rows.after + 1;
        let mut has_broadcast = false;
        for file in &of.rows.files {
            let bytes = read_file(self.request, file).await?;
            for saved in file.decode::<SavedRow>(bytes)? {
                check_row(of, file, &saved, next)?;
                next += 1;
                has_broadcast |= saved.broadcast.is_some();
                let segment = segment(&saved, |stream| {
                    self.plan.streams.contains(&(task.id.stage.to_string(), stream.to_owned()))
                });
                // The value in force is in the log, if only in its last row.
                let in_force = task.head.broadcast.clone().filter(|_| saved.seq == last && !has_broadcast);
                let row = CommitRow {
                    watermark_ms: saved.watermark_ms,
                    idle: saved.idle,
                    now_ms: saved.now_ms,
                    broadcast: saved.broadcast.or(in_force),
                    sealed: saved.sealed,
                    ..self.row_of_head(task, saved.seq)
                };
                self.install_row(&task.id, row, segment).await?;
            }
        }
        if next != last + 1 {
            let detail = format!("rows {next} to {last} of {} are missing", of.task);
            let path = of.rows.files.first().map_or("manifest.json", |file| &file.path).to_owned();
            return Err(SavepointError::Damaged { path, detail });
        }
        Ok(())
    }

    /// A row without records that tells what the head does.
    fn row_of_head(&self, task: &PlannedTask, seq: u64) -> CommitRow {
        let Head { watermark_ms, idle, generation, pinned, broadcast, sealed, .. } = task.head.clone();
        let (code, now_ms) = (self.env().settings.code.clone(), self.env().clock.now().0);
        let attempt = self.attempt.clone();
        CommitRow {
            seq,
            attempt,
            watermark_ms,
            idle,
            generation,
            pinned,
            broadcast,
            sealed,
            code,
            now_ms,
            schema: self.env().settings.schema,
            ..CommitRow::default()
        }
    }

    async fn install_row(&self, task: &TaskId, row: CommitRow, segment: Segment) -> Result<(), SavepointError> {
        let env = self.env();
        let location = match segment.bytes.len() {
            0 => None,
            len if len <= env.settings.inline_bytes => Some(SegmentLocation::Inline(segment.bytes)),
            _ => {
                let key = format!("{task}/{:020}-{}", row.seq, self.attempt);
                patiently(&env.settings, || env.segments.put(&key, segment.bytes.clone())).await?;
                Some(SegmentLocation::Object(key))
            }
        };
        let row = CommitRow { segment: location, slices: segment.slices, ..row };
        let mut tries = 0;
        loop {
            tries += 1;
            match patiently(&env.settings, || env.ledger.install_row(task, &row)).await? {
                CommitReply::Committed => return Ok(()),
                CommitReply::Unknown(_) if tries < env.settings.store_tries => {}
                CommitReply::Refused | CommitReply::Unknown(_) => {
                    let pipeline = self.request.config.pipeline.clone();
                    return Err(Refusal::NameTaken { pipeline, task: task.to_string() }.into());
                }
            }
        }
    }

    /// Installs all heads, as many in one transaction as it takes.
    async fn install_heads(&self) -> Result<(), SavepointError> {
        let heads: Vec<(TaskId, Head)> = self.plan.tasks.iter().map(|task| self.stamped(task)).collect();
        for chunk in heads.chunks(MAX_INSTALLED) {
            self.until_known(|| self.env().ledger.install_heads(chunk)).await?;
            for (task, _) in chunk {
                // Refused: an earlier call has installed them, or somebody has started the pipeline without them.
                if !self.is_ours(task).await? {
                    let detail = "its head was refused although it has none: another task was started".to_owned();
                    return Err(SavepointError::Inconsistent { task: task.to_string(), detail });
                }
            }
        }
        Ok(())
    }

    fn stamped(&self, task: &PlannedTask) -> (TaskId, Head) {
        let now = self.env().clock.now().0;
        let head = Head {
            attempt: self.attempt.clone(),
            code: self.env().settings.code.clone(),
            committed_at_ms: now,
            // Silence is counted from here: nobody could have sent anything meanwhile.
            last_input_at_ms: now,
            restored_from: self.from.clone(),
            schema: self.env().settings.schema,
            ..task.head.clone()
        };
        (task.id.clone(), head)
    }
}

/// The records in flight of a row, of the streams that are `kept`, in the order they were emitted.
fn segment(row: &SavedRow, kept: impl Fn(&str) -> bool) -> Segment {
    let slices: Vec<&SavedSlice> = row.slices.iter().filter(|slice| kept(&slice.stream)).collect();
    let outputs: BTreeMap<&str, u32> = slices.iter().map(|slice| (slice.stream.as_str(), slice.shards)).collect();
    let output = |stream: &str| outputs.keys().position(|name| *name == stream).expect("every stream is an output");
    let placed = slices.iter().flat_map(|s| s.records.iter().map(|record| (output(&s.stream), s.shard, record)));
    let mut placed: Vec<(usize, u32, &SavedRecord)> = placed.collect();
    placed.sort_by_key(|(_, _, record)| record.order);
    let mut builder = SegmentBuilder::new(outputs.iter().map(|(stream, shards)| (*stream, *shards)));
    for (output, shard, record) in placed {
        let SavedRecord { stamp_ms, partition, offset, ref payload, .. } = *record;
        let stamp = Stamp { watermark: EventTime(stamp_ms), arrival: Arrival { partition, offset } };
        builder
            .push(output, shard, stamp, EventTime(stamp_ms), payload.len(), |bytes| bytes.extend_from_slice(payload));
    }
    let mut segment = builder.finish(&[]);
    for slice in &mut segment.slices {
        if let Some(saved) = slices.iter().find(|saved| saved.stream == slice.stream && saved.shard == slice.shard) {
            (slice.min_event_time_ms, slice.max_event_time_ms) = (saved.min_event_time_ms, saved.max_event_time_ms);
        }
    }
    segment
}

fn check_row(of: &SavedTask, file: &DataFile, row: &SavedRow, expected: u64) -> Result<(), SavepointError> {
    match row.seq == expected {
        true => Ok(()),
        false => {
            let detail = format!("row {} of {} where {expected} should be", row.seq, of.task);
            Err(SavepointError::Damaged { path: file.path.clone(), detail })
        }
    }
}

async fn read_file(request: &Restore<'_>, file: &DataFile) -> Result<Bytes, SavepointError> {
    let bytes = patiently(&request.env.settings, || request.files.get_file(&file.path)).await?;
    let missing = || SavepointError::Damaged { path: file.path.clone(), detail: "it is missing".to_owned() };
    let bytes = bytes.ok_or_else(missing)?;
    file.check(&bytes)?;
    Ok(bytes)
}
