//! The state of one task as of one commit, while the task goes on.
//!
//! Key groups are read one after the other and written as of the newest commit known then. When a page turns out to be
//! younger than that (the task has flushed meanwhile), the deltas up to the newest head are taken in; what they change in
//! groups that are written already is applied to those files at the end. So every file ends up as of one commit, and
//! memory holds a few key groups and bounded changes, never all keys.
//!
//! Meanwhile pages are split, and what nobody needs any more is collected. A listing of pages during which a flush was
//! recorded may have missed both a page that was replaced and those that replaced it, so it is made again. A delta that
//! is gone is in the pages: the capture begins anew, from the newest head.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use futures_util::future::try_join_all;
use payguard_engine::export::Keys;
use payguard_engine::input::read_slice;
use payguard_engine::logic::DecodeError;
use payguard_engine::page::{Page, version};
use payguard_engine::resume::{Missing, missing};
use payguard_engine::row::Slice;
use payguard_engine::store::{FileStore, RowLimits};
use payguard_engine::task::Env;
use payguard_engine::task::retry::patiently;
use payguard_engine::{CommitRow, EngineError, Head, Seq, StageId, StoreErrorKind, TaskId};
use payguard_model::KeyGroup;
use payguard_topology::keys::encoding;

use crate::create::Meter;
use crate::error::{Refusal, SavepointError};
use crate::format::{DataFile, StateFile, decode_keys, encode_keys};
use crate::overlay::Overlay;

/// Key groups that are read side by side.
const GROUPS_AT_ONCE: usize = 8;
/// Changes that pile up in memory before they are got rid of, beside those of before the task's last flush, bytes.
const OVERLAY_BYTES: usize = 32 << 20;
/// Log rows read at once.
const ROWS: u32 = 64;
/// How often the capture of a task is begun before it is given up.
const TRIES: u32 = 5;

/// Captures the state of one task.
pub(crate) struct StateCapture<'a> {
    env: &'a Env,
    files: &'a dyn FileStore,
    folder: &'a str,
    task: &'a TaskId,
    /// What is written is as of this head, but for changes in `overlay`.
    head: Head,
    overlay: Overlay,
    /// Bytes of changes that could not be got rid of the last time: no page has them yet.
    kept: usize,
    written: BTreeMap<(u32, String), StateFile>,
    /// Groups below are written.
    next: u32,
}

impl<'a> StateCapture<'a> {
    /// The state of `task`, which is at `head` or beyond.
    pub(crate) fn of(
        env: &'a Env,
        files: &'a dyn FileStore,
        folder: &'a str,
        task: &'a TaskId,
        head: Head,
    ) -> StateCapture<'a> {
        let (overlay, written) = (Overlay::default(), BTreeMap::new());
        StateCapture { env, files, folder, task, head, overlay, kept: 0, written, next: 0 }
    }

    /// Writes the state of these key groups; returns the head it is as of, and the files.
    ///
    /// # Errors
    /// When a store fails or holds something damaged, or when rows are collected again and again before they are read.
    pub(crate) async fn run(
        mut self,
        groups: Range<u32>,
        meter: &mut Meter<'_>,
    ) -> Result<(Head, Vec<StateFile>), SavepointError> {
        for _ in 1..TRIES {
            match self.write_groups(groups.clone(), meter).await {
                Err(error) if error.is_collected() => self.begin_anew(groups.start, meter).await?,
                done => return done.map(|()| (self.head, self.written.into_values().collect())),
            }
        }
        self.write_groups(groups, meter).await?;
        Ok((self.head, self.written.into_values().collect()))
    }

    /// Forgets everything and goes on from the newest head.
    async fn begin_anew(&mut self, first: u32, meter: &mut Meter<'_>) -> Result<(), SavepointError> {
        let newest = self.newest_head().await?;
        if missing(&self.head, &newest) == Missing::Needed {
            let detail = "INV-5: rows that it needs for its own recovery are gone";
            return Err(self.inconsistent(detail.to_owned()));
        }
        meter.begins_anew(self.next.saturating_sub(first));
        for (_, StateFile { file, .. }) in std::mem::take(&mut self.written) {
            meter.take_back(&file);
            patiently(&self.env.settings, || self.files.delete_file(&file.path)).await?;
        }
        self.overlay = Overlay::default();
        self.head = newest;
        Ok(())
    }

    /// Begins with the deltas that no page has.
    async fn write_groups(&mut self, groups: Range<u32>, meter: &mut Meter<'_>) -> Result<(), SavepointError> {
        self.next = groups.start;
        self.take_in(self.head.flushed_seq, self.head.seq).await?;
        self.kept = self.overlay.bytes();
        let groups: Vec<u32> = groups.collect();
        for chunk in groups.chunks(GROUPS_AT_ONCE) {
            let pages = self.pages_of(chunk).await?;
            self.write_chunk(chunk, pages, meter).await?;
            self.next = chunk.last().map_or(self.next, |group| group + 1);
            meter.groups(self.task, chunk.len());
            // A pipeline that flushes after fewer bytes than usual wants less memory used, here as well.
            if self.overlay.bytes() > self.kept.saturating_add(self.env.settings.flush_bytes.min(OVERLAY_BYTES)) {
                self.shed(meter).await?;
            }
        }
        self.settle(meter).await
    }

    /// Gets rid of changes: those that pages yet to be read have, and those of groups that are written.
    async fn shed(&mut self, meter: &mut Meter<'_>) -> Result<(), SavepointError> {
        let newest = self.newest_head().await?;
        self.go_on_to(newest).await?;
        self.overlay.forget(self.next, self.head.flushed_seq);
        self.settle(meter).await?;
        self.kept = self.overlay.bytes();
        Ok(())
    }

    /// The pages of these key groups, none of them younger than the head that the capture is as of.
    async fn pages_of(&mut self, chunk: &[u32]) -> Result<Vec<Vec<Page>>, SavepointError> {
        loop {
            let flushed = self.head.flushed_seq;
            let read = chunk.iter().map(|group| load_pages(self.env, &self.task.stage, *group));
            let pages: Vec<Vec<Page>> = try_join_all(read).await?;
            let newest = self.newest_head().await?;
            // Pages that were replaced go after the commit that records the flush. As long as none is recorded, those
            // that go were replaced before the listing began.
            let is_whole = newest.flushed_seq == flushed;
            let youngest = pages.iter().flatten().max_by_key(|page| page.version);
            if !is_whole || youngest.is_some_and(|page| page.version > self.version()) {
                self.go_on_to(newest).await?;
            }
            if let Some(page) = youngest.filter(|page| page.version > self.version()) {
                // A page is written after the commit whose state it holds, and the head was read after the page.
                return Err(self.inconsistent(format!("INV-4: page {} is younger than the head", page.address)));
            }
            if is_whole {
                return Ok(pages);
            }
        }
    }

    fn version(&self) -> u64 {
        version(self.head.generation, self.head.seq)
    }

    async fn newest_head(&self) -> Result<Head, SavepointError> {
        let head = self.env.head(self.task).await?;
        let head = head.ok_or_else(|| self.inconsistent("its head is gone".to_owned()))?;
        match head.sealed {
            // Its pages are those of the tasks that take over.
            Some(_) => Err(Refusal::Redrawn { stage: self.task.stage.to_string() }.into()),
            None => Ok(head),
        }
    }

    async fn go_on_to(&mut self, newest: Head) -> Result<(), SavepointError> {
        self.take_in(self.head.seq, newest.seq).await?;
        self.head = newest;
        Ok(())
    }

    /// Takes the deltas of rows `after + 1 ..= until` in.
    async fn take_in(&mut self, after: u64, until: u64) -> Result<(), SavepointError> {
        let mut at = after;
        while at < until {
            for row in rows_after(self.env, self.task, at).await?.into_iter().take_while(|row| row.seq <= until) {
                if let Some(delta) = &row.delta {
                    let bytes = slice_of(self.env, self.task, &row, delta).await?;
                    self.overlay.add(row.seq, &bytes).map_err(|e| self.undecodable(&e))?;
                }
                at = row.seq;
            }
        }
        Ok(())
    }

    async fn write_chunk(
        &mut self,
        chunk: &[u32],
        pages: Vec<Vec<Page>>,
        meter: &mut Meter<'_>,
    ) -> Result<(), SavepointError> {
        let mut drafts = Vec::new();
        for (group, pages) in chunk.iter().zip(pages) {
            let mut by_operator: BTreeMap<String, Vec<Page>> = BTreeMap::new();
            for operator in self.overlay.operators(*group) {
                by_operator.entry(operator).or_default();
            }
            for page in pages {
                by_operator.entry(page.address.operator.clone()).or_default().push(page);
            }
            for (operator, pages) in by_operator {
                let mut keys = encoding(&operator).read_pages(pages).map_err(|e| self.undecodable(&e))?;
                self.overlay.apply(*group, &operator, &mut keys);
                drafts.extend(self.draft(*group, operator, keys));
            }
        }
        self.write(drafts, meter).await
    }

    /// Applies what has changed since to the files that are written.
    async fn settle(&mut self, meter: &mut Meter<'_>) -> Result<(), SavepointError> {
        let behind: Vec<u32> = self.overlay.groups().into_iter().filter(|group| *group < self.next).collect();
        for group in behind {
            let mut drafts = Vec::new();
            for operator in self.overlay.operators(group) {
                let mut keys = match self.written.remove(&(group, operator.clone())) {
                    None => Keys::new(),
                    Some(StateFile { file, .. }) => {
                        meter.take_back(&file);
                        let bytes = self.read(&file).await?;
                        decode_keys(encoding(&operator), &file, bytes)?
                    }
                };
                self.overlay.apply(group, &operator, &mut keys);
                drafts.extend(self.draft(group, operator, keys));
            }
            self.write(drafts, meter).await?;
        }
        Ok(())
    }

    async fn read(&self, file: &DataFile) -> Result<Bytes, SavepointError> {
        let bytes = patiently(&self.env.settings, || self.files.get_file(&file.path)).await?;
        let bytes = bytes.ok_or_else(|| Refusal::Disturbed { path: file.path.clone() })?;
        file.check(&bytes)?;
        Ok(bytes)
    }

    /// The file of an operator in a group; none when no key is left.
    fn draft(&self, group: u32, operator: String, keys: Keys) -> Option<(StateFile, Bytes)> {
        if keys.is_empty() {
            return None;
        }
        let stage = self.task.stage.to_string();
        let (bytes, entries) = encode_keys(keys);
        let path = format!("{}/state/{stage}/{operator}/{group:05}.pb", self.folder);
        Some((StateFile { stage, operator, group, file: DataFile::of(path, entries, &bytes) }, bytes))
    }

    async fn write(&mut self, drafts: Vec<(StateFile, Bytes)>, meter: &mut Meter<'_>) -> Result<(), SavepointError> {
        let (env, files) = (self.env, self.files);
        let writes = drafts
            .iter()
            .map(|(state, bytes)| patiently(&env.settings, || files.put_file(&state.file.path, bytes.clone())));
        try_join_all(writes).await?;
        for (state, _) in drafts {
            meter.wrote(&state.file);
            self.written.insert((state.group, state.operator.clone()), state);
        }
        Ok(())
    }

    fn undecodable(&self, error: &DecodeError) -> SavepointError {
        self.inconsistent(format!("INV-4: its state does not decode: {}", error.0))
    }

    fn inconsistent(&self, detail: String) -> SavepointError {
        SavepointError::Inconsistent { task: self.task.to_string(), detail }
    }
}

async fn load_pages(env: &Env, stage: &StageId, group: u32) -> Result<Vec<Page>, SavepointError> {
    Ok(patiently(&env.settings, || env.state.load_pages(stage, KeyGroup(group))).await?)
}

/// Reads a slice of a row, patiently.
///
/// # Errors
/// When the segment store fails for good, the segment was collected or the bytes are not those that were committed.
pub async fn slice_of(env: &Env, task: &TaskId, row: &CommitRow, slice: &Slice) -> Result<Bytes, SavepointError> {
    let read = || async {
        match read_slice(&*env.segments, task, row, slice).await {
            Ok(bytes) => Ok(Ok(bytes)),
            Err(EngineError::Store(error)) => Err(error),
            Err(other) => Ok(Err(other)),
        }
    };
    match patiently(&env.settings, read).await {
        Err(error) if error.kind == StoreErrorKind::Missing => Err(collected(task, row.seq)),
        read => Ok(read??),
    }
}

fn collected(task: &TaskId, seq: u64) -> SavepointError {
    Refusal::Collected { task: task.to_string(), seq }.into()
}

/// Some rows of a log after `at`, at least one: they are known to have been committed.
///
/// # Errors
/// When they are gone.
pub async fn rows_after(env: &Env, task: &TaskId, at: u64) -> Result<Vec<CommitRow>, SavepointError> {
    let limits = RowLimits { rows: ROWS };
    match env.rows(task, Seq(at), limits).await {
        Ok(rows) if rows.is_empty() => Err(collected(task, at + 1)),
        Err(error) if error.kind == StoreErrorKind::Missing => Err(collected(task, at + 1)),
        rows => Ok(rows?),
    }
}
