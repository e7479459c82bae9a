//! The engine's store traits on the world.

use async_trait::async_trait;
use bytes::Bytes;
use payguard_engine::gc::Collected;
use payguard_engine::lease::may_take;
use payguard_engine::page::{Page, PageAddress, is_replaced, replaces};
use payguard_engine::store::{
    AttemptIds, Clock, CommitReply, FileInfo, FileStore, LeaseReply, Ledger, MAX_INSTALLED, PutReply, RowLimits,
    SegmentStore, Sink, SinkBatch, SinkPosition, SinkReply, StateTable, Waker,
};
use payguard_engine::teeth::{Mutant, bites};
use payguard_engine::{Attempt, CommitRow, Head, Seq, StageId, StoreError, StoreErrorKind, TaskId};
use payguard_model::{KeyGroup, ProcessingTime};
use prost::Message;

use crate::check::check_commit;
use crate::faults::OpKind;
use crate::world::{SimWorld, World};

fn corrupt(operation: &'static str, target: impl Into<String>, detail: impl ToString) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, operation, target, detail.to_string())
}

fn missing(operation: &'static str, target: impl Into<String>, detail: impl ToString) -> StoreError {
    StoreError::new(StoreErrorKind::Missing, operation, target, detail.to_string())
}

#[async_trait]
impl Ledger for SimWorld {
    async fn load_head(&self, task: &TaskId) -> Result<Option<Head>, StoreError> {
        let wanted = task.clone();
        let load = move |world: &mut World| Ok(world.logs.get(&wanted).and_then(|log| log.head.clone()));
        self.operate(OpKind::LoadHead, task.to_string(), load, None).await
    }

    async fn commit(&self, task: &TaskId, head: &Head, row: &CommitRow) -> Result<CommitReply, StoreError> {
        // Through their stored form, as with a real table.
        let target = format!("{task} {} by {}", row.seq, row.attempt);
        let (owner, head, row) = (task.clone(), head.encode_to_vec(), row.encode_to_vec());
        let commit = move |world: &mut World| {
            let bad = |e: prost::DecodeError| corrupt("commit", owner.to_string(), e);
            world.commit(&owner, Head::decode(&head[..]).map_err(bad)?, CommitRow::decode(&row[..]).map_err(bad)?)
        };
        let unknown = CommitReply::Unknown("simulated".into());
        self.operate(OpKind::Commit, target, commit, Some(unknown)).await
    }

    async fn install_row(&self, task: &TaskId, row: &CommitRow) -> Result<CommitReply, StoreError> {
        let (owner, row) = (task.clone(), row.encode_to_vec());
        let install = move |world: &mut World| {
            let row = CommitRow::decode(&row[..]).map_err(|e| corrupt("install row", owner.to_string(), e))?;
            let rows = &mut world.logs.entry(owner).or_default().rows;
            if rows.get(&row.seq).is_some_and(|old| old.attempt != row.attempt) {
                return Ok(CommitReply::Refused);
            }
            rows.insert(row.seq, row);
            Ok(CommitReply::Committed)
        };
        self.operate(OpKind::InstallRow, task.to_string(), install, None).await
    }

    async fn install_heads(&self, heads: &[(TaskId, Head)]) -> Result<CommitReply, StoreError> {
        if heads.len() > MAX_INSTALLED {
            return Err(StoreError::new(StoreErrorKind::Invalid, "install heads", "ledger", "too many at once"));
        }
        let heads: Vec<_> = heads.iter().map(|(task, head)| (task.clone(), head.encode_to_vec())).collect();
        let install = move |world: &mut World| {
            if heads.iter().any(|(task, _)| world.logs.get(task).is_some_and(|log| log.head.is_some())) {
                return Ok(CommitReply::Refused);
            }
            for (task, head) in &heads {
                let head = Head::decode(&head[..]).map_err(|e| corrupt("install heads", task.to_string(), e))?;
                world.install(task, head);
            }
            Ok(CommitReply::Committed)
        };
        let unknown = Some(CommitReply::Unknown("simulated".into()));
        self.operate(OpKind::InstallHeads, "heads".to_owned(), install, unknown).await
    }

    async fn load_row(&self, task: &TaskId, seq: Seq) -> Result<Option<CommitRow>, StoreError> {
        let wanted = task.clone();
        let load = move |world: &mut World| Ok(world.logs.get(&wanted).and_then(|log| log.rows.get(&seq.0).cloned()));
        self.operate(OpKind::LoadRow, format!("{task} {seq}"), load, None).await
    }

    async fn load_rows(&self, task: &TaskId, after: Seq, limits: RowLimits) -> Result<Vec<CommitRow>, StoreError> {
        let wanted = task.clone();
        let load = move |world: &mut World| {
            let Some(log) = world.logs.get(&wanted) else { return Ok(Vec::new()) };
            let rows: Vec<_> =
                log.rows.range(after.0 + 1..).take(limits.rows as usize).map(|(_, r)| r.clone()).collect();
            match (after.0 + 1..).zip(&rows).find(|(seq, row)| *seq != row.seq) {
                Some((seq, _)) => Err(missing("load rows", format!("{wanted} {seq}"), "the row is missing")),
                None => Ok(rows),
            }
        };
        self.operate(OpKind::LoadRows, format!("{task} after {after}"), load, None).await
    }

    async fn remaining_rows(&self, task: &TaskId, after: Seq, limits: RowLimits) -> Result<Vec<CommitRow>, StoreError> {
        let wanted = task.clone();
        let load = move |world: &mut World| {
            let rows = world.logs.get(&wanted).into_iter().flat_map(|log| log.rows.range(after.0 + 1..));
            Ok(rows.take(limits.rows as usize).map(|(_, row)| row.clone()).collect())
        };
        self.operate(OpKind::RemainingRows, format!("{task} after {after}"), load, None).await
    }

    async fn delete_rows(&self, task: &TaskId, seqs: &[Seq]) -> Result<(), StoreError> {
        // One by one, and every second one first: a table promises no order.
        let (even, odd) = (seqs.iter().step_by(2), seqs.iter().skip(1).step_by(2));
        for seq in even.chain(odd).copied() {
            let owner = task.clone();
            let delete = move |world: &mut World| {
                world.check_row_removal(&owner, seq);
                world.logs.get_mut(&owner).and_then(|log| log.rows.remove(&seq.0));
                Ok(())
            };
            self.operate(OpKind::DeleteRow, format!("{task} {seq}"), delete, None).await?;
        }
        Ok(())
    }

    async fn add_collected(&self, done: &Collected) -> Result<(), StoreError> {
        let done = *done;
        let add = move |world: &mut World| {
            let sum = &mut world.collected;
            sum.rows += done.rows;
            sum.objects += done.objects;
            sum.orphans += done.orphans;
            sum.pages += done.pages;
            sum.groups += done.groups;
            Ok(())
        };
        self.operate(OpKind::AddCollected, "collected".to_owned(), add, None).await
    }

    async fn collected(&self) -> Result<Collected, StoreError> {
        self.operate(OpKind::LoadCollected, "collected".to_owned(), |world: &mut World| Ok(world.collected), None).await
    }

    async fn register(&self, task: &TaskId) -> Result<(), StoreError> {
        let task = task.clone();
        let target = task.to_string();
        let register = move |world: &mut World| {
            world.registry.entry(task.stage.clone()).or_default().insert(task);
            Ok(())
        };
        self.operate(OpKind::Register, target, register, None).await
    }

    async fn tasks(&self, stage: &StageId) -> Result<Vec<TaskId>, StoreError> {
        let wanted = stage.clone();
        let load = move |world: &mut World| Ok(world.registry.get(&wanted).into_iter().flatten().cloned().collect());
        self.operate(OpKind::Tasks, stage.to_string(), load, None).await
    }

    async fn acquire_lease(
        &self,
        task: &TaskId,
        owner: &str,
        now: ProcessingTime,
        until: ProcessingTime,
    ) -> Result<LeaseReply, StoreError> {
        let (target, task, owner) = (task.to_string(), task.clone(), owner.to_owned());
        let acquire = move |world: &mut World| {
            let lease = &mut world.logs.entry(task).or_default().lease;
            if may_take(lease.as_ref().map(|(holder, until)| (holder.as_str(), *until)), &owner, now) {
                *lease = Some((owner, until));
                return Ok(LeaseReply::Acquired);
            }
            let until = lease.as_ref().map_or(now, |(_, until)| *until);
            Ok(LeaseReply::Held { until })
        };
        self.operate(OpKind::AcquireLease, target, acquire, None).await
    }

    async fn release_lease(&self, task: &TaskId, owner: &str) -> Result<(), StoreError> {
        let (target, task, owner) = (task.to_string(), task.clone(), owner.to_owned());
        let release = move |world: &mut World| {
            if let Some(log) = world.logs.get_mut(&task) {
                log.lease.take_if(|(holder, _)| *holder == owner);
            }
            Ok(())
        };
        self.operate(OpKind::ReleaseLease, target, release, None).await
    }
}

impl World {
    fn install(&mut self, task: &TaskId, head: Head) {
        let pages = self.pages.values().filter(|page| page.address.stage == task.stage);
        self.restored.insert(task.stage.clone(), pages.cloned().collect());
        let log = self.logs.entry(task.clone()).or_default();
        log.history = log.rows.clone();
        log.head = Some(head);
    }

    fn commit(&mut self, task: &TaskId, head: Head, row: CommitRow) -> Result<CommitReply, StoreError> {
        if head.seq != row.seq || head.attempt != row.attempt || row.seq == 0 {
            return Err(StoreError::new(StoreErrorKind::Invalid, "commit", task.to_string(), "head and row differ"));
        }
        let remembers_tokens = self.plan.remembers_tokens;
        let log = self.logs.entry(task.clone()).or_default();
        if remembers_tokens && log.history.get(&row.seq).is_some_and(|r| r.attempt == row.attempt) {
            return Ok(CommitReply::Committed);
        }
        let at = log.head.as_ref().map_or(0, |h| h.seq);
        let follows = at + 1 == row.seq || bites(Mutant::NoHeadCondition);
        if !(follows && !log.rows.contains_key(&row.seq) || bites(Mutant::OverwriteRows)) {
            self.story.tell(|| format!("        refused: {task} is at {at}"));
            return Ok(CommitReply::Refused);
        }
        if let Err(violation) = check_commit(log, &head, &row) {
            self.violations.push(format!("{task} seq {}: {violation}", row.seq));
        }
        let seq = row.seq;
        log.history.insert(seq, row.clone());
        log.rows.insert(seq, row);
        log.head = Some(head);
        self.commits.push((task.clone(), seq));
        Ok(CommitReply::Committed)
    }
}

#[async_trait]
impl StateTable for SimWorld {
    async fn load_pages(&self, stage: &StageId, group: KeyGroup) -> Result<Vec<Page>, StoreError> {
        let wanted = stage.clone();
        let load = move |world: &mut World| {
            let first =
                PageAddress { stage: wanted.clone(), group: group.0, operator: String::new(), page: String::new() };
            let pages = world.pages.range(first..).map(|(_, page)| page);
            Ok(pages.take_while(|p| p.address.stage == wanted && p.address.group == group.0).cloned().collect())
        };
        self.operate(OpKind::LoadPages, format!("{stage}#{}", group.0), load, None).await
    }

    async fn put_page(&self, page: &Page) -> Result<PutReply, StoreError> {
        let (target, page) = (page.address.to_string(), page.clone());
        let put = move |world: &mut World| {
            let held = world.pages.get(&page.address).map(|held| held.version);
            if !replaces(held, page.version) && !bites(Mutant::NoVersionCheck) {
                return Ok(PutReply::Stale);
            }
            world.pages.insert(page.address.clone(), page);
            Ok(PutReply::Written)
        };
        self.operate(OpKind::PutPage, target, put, None).await
    }

    async fn delete_page(&self, address: &PageAddress, version: u64) -> Result<(), StoreError> {
        let address = address.clone();
        let target = address.to_string();
        let delete = move |world: &mut World| {
            if is_replaced(world.pages.get(&address).map(|held| held.version), version) {
                world.pages.remove(&address);
            }
            Ok(())
        };
        self.operate(OpKind::DeletePage, target, delete, None).await
    }
}

#[async_trait]
impl SegmentStore for SimWorld {
    async fn put(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        let key = key.to_owned();
        let target = key.clone();
        let put = move |world: &mut World| {
            if let Some(old) = world.objects.get(&key)
                && *old != bytes
            {
                world.violations.push(format!("object {key} is overwritten with other bytes"));
            }
            world.stored.insert(key.clone(), bytes.clone());
            world.objects.insert(key, bytes);
            Ok(())
        };
        self.operate(OpKind::PutObject, target, put, None).await
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<String>, StoreError> {
        let wanted = prefix.to_owned();
        let list = move |world: &mut World| {
            let keys = world.objects.range(wanted.clone()..).map(|(key, _)| key);
            Ok(keys.take_while(|key| key.starts_with(&wanted)).take(limit.min(1000)).cloned().collect())
        };
        self.operate(OpKind::ListObjects, prefix.to_owned(), list, None).await
    }

    async fn delete(&self, keys: &[String]) -> Result<(), StoreError> {
        let (even, odd) = (keys.iter().step_by(2), keys.iter().skip(1).step_by(2));
        for key in even.chain(odd) {
            let wanted = key.clone();
            let delete = move |world: &mut World| {
                world.check_object_removal(&wanted);
                world.objects.remove(&wanted);
                Ok(())
            };
            self.operate(OpKind::DeleteObject, key.clone(), delete, None).await?;
        }
        Ok(())
    }

    async fn get(&self, key: &str, offset: u64, len: u64) -> Result<Bytes, StoreError> {
        let wanted = key.to_owned();
        let get = move |world: &mut World| {
            let object = world.objects.get(&wanted).ok_or_else(|| missing("get object", &wanted, "object missing"))?;
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(object.len());
            let len = usize::try_from(len).unwrap_or(usize::MAX).min(object.len() - from);
            Ok(object.slice(from..from + len))
        };
        self.operate(OpKind::GetObject, key.to_owned(), get, None).await
    }
}

#[async_trait]
impl Sink for SimWorld {
    async fn position(&self, task: &TaskId) -> Result<SinkPosition, StoreError> {
        let wanted = task.clone();
        let load =
            move |world: &mut World| Ok(world.sinks.get(&wanted).map(|sink| sink.position.clone()).unwrap_or_default());
        self.operate(OpKind::SinkPosition, task.to_string(), load, None).await
    }

    async fn write(&self, task: &TaskId, batch: &SinkBatch) -> Result<SinkReply, StoreError> {
        let (target, owner, batch) = (task.to_string(), task.clone(), batch.clone());
        let position = SinkPosition { seq: batch.seq, inputs: batch.inputs, counters: batch.counters };
        let moved = position.clone();
        let write = move |world: &mut World| {
            let forgetful = world.forgetful;
            let sink = world.sinks.entry(owner).or_default();
            let goes_on = forgetful && batch.records.is_empty() && sink.position.seq < moved.seq;
            if sink.position.seq.next() != moved.seq && !goes_on {
                return Ok(SinkReply::Elsewhere(sink.position.clone()));
            }
            sink.records.extend(batch.records);
            sink.ends.insert(batch.seq.0, sink.records.len());
            if !bites(Mutant::PositionApart) {
                sink.position = moved;
            }
            Ok(SinkReply::Written)
        };
        let reply = self.operate(OpKind::SinkWrite, target.clone(), write, None).await?;
        if bites(Mutant::PositionApart) && reply == SinkReply::Written {
            let owner = task.clone();
            let follow = move |world: &mut World| {
                world.sinks.entry(owner).or_default().position = position;
                Ok(())
            };
            self.operate(OpKind::SinkWrite, target, follow, None).await?;
        }
        Ok(reply)
    }

    fn can_forget(&self) -> bool {
        self.lock().forgetful
    }
}

#[async_trait]
impl FileStore for SimWorld {
    fn location(&self) -> String {
        "world".to_owned()
    }

    async fn put_file(&self, path: &str, bytes: Bytes) -> Result<(), StoreError> {
        let name = path.to_owned();
        let put = move |world: &mut World| {
            world.files.insert(name, bytes);
            Ok(())
        };
        self.operate(OpKind::PutFile, path.to_owned(), put, None).await
    }

    async fn get_file(&self, path: &str) -> Result<Option<Bytes>, StoreError> {
        let name = path.to_owned();
        self.operate(OpKind::GetFile, path.to_owned(), move |world| Ok(world.files.get(&name).cloned()), None).await
    }

    async fn list_files(&self, prefix: &str) -> Result<Vec<FileInfo>, StoreError> {
        let wanted = prefix.to_owned();
        let list = move |world: &mut World| {
            let files = world.files.iter().filter(|(path, _)| path.starts_with(&wanted));
            Ok(files.map(|(path, bytes)| FileInfo { path: path.clone(), bytes: bytes.len() as u64 }).collect())
        };
        self.operate(OpKind::ListFiles, prefix.to_owned(), list, None).await
    }

    async fn delete_file(&self, path: &str) -> Result<(), StoreError> {
        let name = path.to_owned();
        let delete = move |world: &mut World| {
            world.files.remove(&name);
            Ok(())
        };
        self.operate(OpKind::DeleteFile, path.to_owned(), delete, None).await
    }
}

#[async_trait]
impl Waker for SimWorld {
    async fn wake(&self, task: &TaskId) {
        self.lock().woken.push(task.clone());
    }
}

impl Clock for SimWorld {
    fn now(&self) -> ProcessingTime {
        ProcessingTime(self.lock().now_ms)
    }
}

impl AttemptIds for SimWorld {
    fn next(&self) -> Attempt {
        let mut world = self.lock();
        world.attempts += 1;
        Attempt(format!("attempt-{}", world.attempts))
    }
}
