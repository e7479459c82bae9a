//! The ledger on DynamoDB.
//!
//! One table, key (`task`, `row`):
//!
//! | `task` | `row` | holds |
//! |---|---|---|
//! | `<pipeline>#<stage>/<instance>` | `head` | newest commit, progress, lease |
//! | `<pipeline>#<stage>/<instance>` | `log#<seq, 20 digits>` | one commit, immutable |
//! | `<pipeline>#<stage>` | `tasks` | the stage's tasks |
//! | `<pipeline>#clock` | `collected` | counts of what was collected |
//!
//! Some fields of a head are attributes of their own, readable without this code; `body` alone is the truth. The lease
//! lives in the head item in attributes that a commit does not touch, and the other way round, so the lease may create
//! the item: a head exists when it has a `seq`.

use std::sync::Arc;

use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, Put, ReturnConsumedCapacity, ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update,
};
use payguard_engine::gc::Collected;
use payguard_engine::store::{CommitReply, LeaseReply, Ledger, RowLimits};
use payguard_engine::{CommitRow, Head, Seq, StageId, StoreError, StoreErrorKind, TaskId};
use payguard_model::ProcessingTime;
use prost::Message;

use super::Tables;
use super::cancellation::{Cancellation, read_cancellation};
use super::item::{
    Item, MAX_ITEM_BYTES, binary, get_number, get_text, item_bytes, number, take_binary, text, write_units,
};
use crate::sdk_error::{corrupt, describe, invalid, kind, missing, store_error};
use crate::usage::Usage;

/// Row of the head.
const HEAD_ROW: &str = "head";

/// Row of a stage's registry.
const TASKS_ROW: &str = "tasks";

/// Longest `ClientRequestToken` DynamoDB takes.
const MAX_TOKEN: usize = 36;

/// Writes every field of a head and none of the lease.
const SET_HEAD: &str =
    "SET #seq = :seq, #attempt = :attempt, #watermark = :watermark, #at = :at, #idle = :idle, #body = :body";

/// [`Ledger`] on DynamoDB.
#[derive(Clone, Debug)]
pub struct DynamoLedger {
    pub(super) client: Client,
    pub(super) table: String,
    pipeline: String,
    pub(super) usage: Arc<Usage>,
}

impl DynamoLedger {
    /// The ledger of `pipeline` in the ledger table of `tables`.
    #[must_use]
    pub fn new(client: Client, tables: &Tables, pipeline: &str, usage: Arc<Usage>) -> DynamoLedger {
        DynamoLedger { client, table: tables.ledger.clone(), pipeline: pipeline.to_owned(), usage }
    }

    pub(super) fn task_key(&self, task: &TaskId) -> String {
        format!("{}#{task}", self.pipeline)
    }

    pub(super) fn stage_key(&self, stage: &str) -> String {
        format!("{}#{stage}", self.pipeline)
    }

    pub(super) fn target(&self, task: &TaskId, row: &str) -> String {
        format!("{}/{}#{task} {row}", self.table, self.pipeline)
    }

    async fn get(&self, operation: &'static str, task: &TaskId, row: &str) -> Result<Option<Item>, StoreError> {
        self.usage.read_request();
        let answer = self
            .client
            .get_item()
            .table_name(&self.table)
            .key("task", text(self.task_key(task)))
            .key("row", text(row))
            .consistent_read(true)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|err| store_error(operation, self.target(task, row), err))?;
        self.usage.read(answer.consumed_capacity());
        Ok(answer.item)
    }

    /// The write of a head over the one with seq `previous`; 0 stands for none.
    fn head_update(&self, task: &TaskId, head: &Head, previous: u64) -> Result<Update, StoreError> {
        let update = Update::builder()
            .table_name(&self.table)
            .key("task", text(self.task_key(task)))
            .key("row", text(HEAD_ROW))
            .update_expression(SET_HEAD)
            .expression_attribute_names("#seq", "seq")
            .expression_attribute_names("#attempt", "attempt")
            .expression_attribute_names("#watermark", "watermark")
            .expression_attribute_names("#at", "committed_at")
            .expression_attribute_names("#idle", "idle")
            .expression_attribute_names("#body", "body")
            .expression_attribute_values(":seq", number(head.seq))
            .expression_attribute_values(":attempt", text(&head.attempt))
            .expression_attribute_values(":watermark", number(head.watermark_ms))
            .expression_attribute_values(":at", number(head.committed_at_ms))
            .expression_attribute_values(":idle", AttributeValue::Bool(head.idle))
            .expression_attribute_values(":body", binary(head.encode_to_vec()));
        let update = match previous {
            // The lease may have created the item already.
            0 => update.condition_expression("attribute_not_exists(#seq)"),
            previous => update
                .condition_expression("#seq = :previous")
                .expression_attribute_values(":previous", number(previous)),
        };
        update.build().map_err(|err| invalid("commit", self.target(task, HEAD_ROW), err.to_string()))
    }

    fn row_put(&self, task: &TaskId, row: &CommitRow) -> Result<Put, StoreError> {
        Put::builder()
            .table_name(&self.table)
            .item("task", text(self.task_key(task)))
            .item("row", text(log_row(row.seq)))
            .item("attempt", text(&row.attempt))
            .item("body", binary(row.encode_to_vec()))
            .condition_expression("attribute_not_exists(#row)")
            .expression_attribute_names("#row", "row")
            .build()
            .map_err(|err| invalid("commit", self.target(task, &log_row(row.seq)), err.to_string()))
    }

    fn commit_reply(
        &self,
        task: &TaskId,
        seq: u64,
        units: u64,
        err: SdkError<TransactWriteItemsError>,
    ) -> Result<CommitReply, StoreError> {
        let reasons = match err.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                self.usage.refused_write(units);
                cancelled.cancellation_reasons()
            }
            _ => &[],
        };
        let target = || self.target(task, &log_row(seq));
        match read_cancellation(reasons) {
            Cancellation::Condition => Ok(CommitReply::Refused),
            Cancellation::BadRequest(reason) => Err(invalid("commit", target(), reason)),
            Cancellation::Other(reason) => Ok(CommitReply::Unknown(reason)),
            Cancellation::NotCancelled if kind(&err) == StoreErrorKind::Invalid => {
                Err(store_error("commit", target(), err))
            }
            Cancellation::NotCancelled => Ok(CommitReply::Unknown(describe(&err))),
        }
    }

    /// Follows the pages of a query until it has `limit` rows or the log ends.
    pub(super) async fn query_rows(&self, task: &TaskId, after: Seq, limit: usize) -> Result<Vec<Item>, StoreError> {
        let mut items: Vec<Item> = Vec::new();
        let mut start = None;
        while items.len() < limit {
            self.usage.read_request();
            let missing = i32::try_from(limit - items.len()).unwrap_or(i32::MAX);
            let answer = self
                .client
                .query()
                .table_name(&self.table)
                .key_condition_expression("#task = :task AND #row BETWEEN :first AND :last")
                .expression_attribute_names("#task", "task")
                .expression_attribute_names("#row", "row")
                .expression_attribute_values(":task", text(self.task_key(task)))
                .expression_attribute_values(":first", text(log_row(after.0.saturating_add(1))))
                .expression_attribute_values(":last", text(log_row(u64::MAX)))
                .consistent_read(true)
                .limit(missing)
                .set_exclusive_start_key(start)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(|err| store_error("load rows", self.target(task, &format!("after {after}")), err))?;
            self.usage.read(answer.consumed_capacity());
            items.extend(answer.items.unwrap_or_default());
            start = answer.last_evaluated_key;
            if start.is_none() {
                break;
            }
        }
        Ok(items)
    }

    pub(super) fn decode_row(&self, task: &TaskId, seq: u64, mut item: Item) -> Result<CommitRow, StoreError> {
        let damaged = |detail: String| corrupt("load row", self.target(task, &log_row(seq)), detail);
        let body = take_binary(&mut item, "body").ok_or_else(|| damaged("the row has no body".to_owned()))?;
        let row = CommitRow::decode(body.as_slice())
            .map_err(|err| damaged(format!("task {task} seq {seq} does not decode: {err}")))?;
        if row.seq != seq {
            return Err(damaged(format!("task {task} seq {seq} holds the row of seq {}", row.seq)));
        }
        Ok(row)
    }
}

#[async_trait]
impl Ledger for DynamoLedger {
    async fn load_head(&self, task: &TaskId) -> Result<Option<Head>, StoreError> {
        let Some(mut item) = self.get("load head", task, HEAD_ROW).await? else {
            return Ok(None);
        };
        if !item.contains_key("seq") {
            return Ok(None);
        }
        let damaged = |detail: String| corrupt("load head", self.target(task, HEAD_ROW), detail);
        let seq: u64 = get_number(&item, "seq").ok_or_else(|| damaged("seq is not a number".to_owned()))?;
        let body = take_binary(&mut item, "body").ok_or_else(|| damaged("the head has no body".to_owned()))?;
        let head = Head::decode(body.as_slice())
            .map_err(|err| damaged(format!("task {task} seq {seq}: the head does not decode: {err}")))?;
        if head.seq != seq {
            return Err(damaged(format!("task {task}: seq is {seq} but the body says {}", head.seq)));
        }
        Ok(Some(head))
    }

    async fn commit(&self, task: &TaskId, head: &Head, row: &CommitRow) -> Result<CommitReply, StoreError> {
        check_commit(head, row).map_err(|detail| invalid("commit", self.target(task, &log_row(row.seq)), detail))?;
        let update = self.head_update(task, head, row.seq - 1)?;
        let put = self.row_put(task, row)?;
        let (head_bytes, row_bytes) = (head_item_bytes(&update), item_bytes(put.item()));
        for (name, bytes) in [("head", head_bytes), ("row", row_bytes)] {
            check_size(name, bytes)
                .map_err(|detail| invalid("commit", self.target(task, &log_row(row.seq)), detail))?;
        }
        self.usage.write_request();
        let answer = self
            .client
            .transact_write_items()
            .client_request_token(&row.attempt)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .transact_items(TransactWriteItem::builder().update(update).build())
            .transact_items(TransactWriteItem::builder().put(put).build())
            .send()
            .await;
        match answer {
            Ok(done) => {
                done.consumed_capacity().iter().for_each(|capacity| self.usage.wrote(Some(capacity)));
                Ok(CommitReply::Committed)
            }
            Err(err) => {
                let transaction_units = 2 * (write_units(head_bytes) + write_units(row_bytes));
                self.commit_reply(task, row.seq, transaction_units, err)
            }
        }
    }

    async fn install_row(&self, task: &TaskId, row: &CommitRow) -> Result<CommitReply, StoreError> {
        let target = || self.target(task, &log_row(row.seq));
        let put = self.row_put(task, row)?;
        let bytes = item_bytes(put.item());
        check_size("row", bytes).map_err(|detail| invalid("install row", target(), detail))?;
        self.usage.write_request();
        let answer = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(put.item().clone()))
            .condition_expression("attribute_not_exists(#row) OR #attempt = :attempt")
            .expression_attribute_names("#row", "row")
            .expression_attribute_names("#attempt", "attempt")
            .expression_attribute_values(":attempt", text(&row.attempt))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        match answer {
            Ok(done) => {
                self.usage.wrote(done.consumed_capacity());
                Ok(CommitReply::Committed)
            }
            Err(err) if matches!(err.as_service_error(), Some(PutItemError::ConditionalCheckFailedException(_))) => {
                self.usage.refused_write(write_units(bytes));
                Ok(CommitReply::Refused)
            }
            Err(err) => Err(store_error("install row", target(), err)),
        }
    }

    async fn install_heads(&self, heads: &[(TaskId, Head)]) -> Result<CommitReply, StoreError> {
        let Some((first, _)) = heads.first() else { return Ok(CommitReply::Committed) };
        let (mut request, mut units) = (self.client.transact_write_items(), 0);
        for (task, head) in heads {
            let update = self.head_update(task, head, 0)?;
            let bytes = head_item_bytes(&update);
            let target = || self.target(task, HEAD_ROW);
            check_size("head", bytes).map_err(|detail| invalid("install heads", target(), detail))?;
            units += 2 * write_units(bytes);
            request = request.transact_items(TransactWriteItem::builder().update(update).build());
        }
        self.usage.write_request();
        match request.return_consumed_capacity(ReturnConsumedCapacity::Total).send().await {
            Ok(done) => {
                done.consumed_capacity().iter().for_each(|capacity| self.usage.wrote(Some(capacity)));
                Ok(CommitReply::Committed)
            }
            Err(err) => self.commit_reply(first, heads[0].1.seq, units, err),
        }
    }

    async fn load_row(&self, task: &TaskId, seq: Seq) -> Result<Option<CommitRow>, StoreError> {
        match self.get("load row", task, &log_row(seq.0)).await? {
            Some(item) => self.decode_row(task, seq.0, item).map(Some),
            None => Ok(None),
        }
    }

    async fn load_rows(&self, task: &TaskId, after: Seq, limits: RowLimits) -> Result<Vec<CommitRow>, StoreError> {
        let items = self.query_rows(task, after, limits.rows as usize).await?;
        let mut rows = Vec::with_capacity(items.len());
        for (seq, item) in (after.0.saturating_add(1)..).zip(items) {
            let found = get_text(&item, "row").unwrap_or_default();
            if found != log_row(seq) {
                let detail = format!("task {task} seq {seq} is missing: the next row is `{found}`");
                return Err(missing("load rows", self.target(task, &log_row(seq)), detail));
            }
            rows.push(self.decode_row(task, seq, item)?);
        }
        Ok(rows)
    }

    async fn remaining_rows(&self, task: &TaskId, after: Seq, limits: RowLimits) -> Result<Vec<CommitRow>, StoreError> {
        self.query_remaining(task, after, limits).await
    }

    async fn delete_rows(&self, task: &TaskId, seqs: &[Seq]) -> Result<(), StoreError> {
        self.delete_in_batches(task, seqs).await
    }

    async fn add_collected(&self, done: &Collected) -> Result<(), StoreError> {
        self.count_collected(done).await
    }

    async fn collected(&self) -> Result<Collected, StoreError> {
        self.load_collected().await
    }

    async fn register(&self, task: &TaskId) -> Result<(), StoreError> {
        self.usage.write_request();
        let answer = self
            .client
            .update_item()
            .table_name(&self.table)
            .key("task", text(self.stage_key(&task.stage.0)))
            .key("row", text(TASKS_ROW))
            .update_expression("ADD #tasks :task")
            .expression_attribute_names("#tasks", "tasks")
            .expression_attribute_values(":task", AttributeValue::Ss(vec![task.to_string()]))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|err| store_error("register task", self.target(task, TASKS_ROW), err))?;
        self.usage.wrote(answer.consumed_capacity());
        Ok(())
    }

    async fn tasks(&self, stage: &StageId) -> Result<Vec<TaskId>, StoreError> {
        self.usage.read_request();
        let target = || format!("{}/{}#{stage} {TASKS_ROW}", self.table, self.pipeline);
        let answer = self
            .client
            .get_item()
            .table_name(&self.table)
            .key("task", text(self.stage_key(&stage.0)))
            .key("row", text(TASKS_ROW))
            .consistent_read(true)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|err| store_error("load tasks", target(), err))?;
        self.usage.read(answer.consumed_capacity());
        let names = answer.item.as_ref().and_then(|item| item.get("tasks")).and_then(|set| set.as_ss().ok());
        let parse =
            |name: &String| name.parse::<TaskId>().map_err(|err| corrupt("load tasks", target(), err.to_string()));
        let mut tasks = names.into_iter().flatten().map(parse).collect::<Result<Vec<TaskId>, StoreError>>()?;
        tasks.sort();
        Ok(tasks)
    }

    async fn acquire_lease(
        &self,
        task: &TaskId,
        owner: &str,
        now: ProcessingTime,
        until: ProcessingTime,
    ) -> Result<LeaseReply, StoreError> {
        self.usage.write_request();
        let answer = self
            .lease_update(task, owner)
            .update_expression("SET #owner = :owner, #until = :until")
            .condition_expression("attribute_not_exists(#owner) OR #owner = :owner OR #until <= :now")
            .expression_attribute_values(":until", number(until.0))
            .expression_attribute_values(":now", number(now.0))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        let err = match answer {
            Ok(done) => {
                self.usage.wrote(done.consumed_capacity());
                return Ok(LeaseReply::Acquired);
            }
            Err(err) => err,
        };
        match err.as_service_error() {
            Some(UpdateItemError::ConditionalCheckFailedException(refused)) => {
                let holder = refused.item();
                self.usage.refused_write(holder.map_or(1, |item| write_units(item_bytes(item))));
                let until = holder.and_then(|item| get_number(item, "lease_until")).map_or(now, ProcessingTime);
                Ok(LeaseReply::Held { until })
            }
            // Somebody commits at this very moment, so somebody works on the task.
            Some(UpdateItemError::TransactionConflictException(_)) => Ok(LeaseReply::Held { until: now }),
            _ => Err(store_error("acquire lease", self.target(task, HEAD_ROW), err)),
        }
    }

    async fn release_lease(&self, task: &TaskId, owner: &str) -> Result<(), StoreError> {
        self.usage.write_request();
        let answer = self
            .lease_update(task, owner)
            .update_expression("REMOVE #owner, #until")
            .condition_expression("#owner = :owner")
            .send()
            .await;
        match answer {
            Ok(done) => {
                self.usage.wrote(done.consumed_capacity());
                Ok(())
            }
            Err(err) => match err.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(_)) => {
                    self.usage.refused_write(1);
                    Ok(())
                }
                _ => Err(store_error("release lease", self.target(task, HEAD_ROW), err)),
            },
        }
    }
}

impl DynamoLedger {
    fn lease_update(
        &self,
        task: &TaskId,
        owner: &str,
    ) -> aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder {
        self.client
            .update_item()
            .table_name(&self.table)
            .key("task", text(self.task_key(task)))
            .key("row", text(HEAD_ROW))
            .expression_attribute_names("#owner", "lease_owner")
            .expression_attribute_names("#until", "lease_until")
            .expression_attribute_values(":owner", text(owner))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
    }
}

/// Sort key of a log row: seqs sort as numbers do.
pub(super) fn log_row(seq: u64) -> String {
    format!("log#{seq:020}")
}

/// The seq that a log row's sort key names.
pub(super) fn log_seq(row: &str) -> Option<u64> {
    row.strip_prefix("log#")?.parse().ok()
}

/// Bytes of the head item that `update` writes: its keys and its values, with names of about the right length.
fn head_item_bytes(update: &Update) -> usize {
    let values = update.expression_attribute_values().into_iter().flatten();
    item_bytes(update.key()) + item_bytes(values)
}

/// What is wrong with an item of so many bytes.
fn check_size(name: &str, bytes: usize) -> Result<(), String> {
    match bytes <= MAX_ITEM_BYTES {
        true => Ok(()),
        false => Err(format!("the {name} has {bytes} bytes; an item may have {MAX_ITEM_BYTES}")),
    }
}

/// What is wrong with a commit before it is sent.
fn check_commit(head: &Head, row: &CommitRow) -> Result<(), String> {
    if row.seq == 0 || head.seq != row.seq {
        return Err(format!("head seq {} does not go with row seq {}", head.seq, row.seq));
    }
    if head.attempt != row.attempt {
        return Err(format!("head attempt `{}` is not row attempt `{}`", head.attempt, row.attempt));
    }
    if row.attempt.is_empty() || row.attempt.len() > MAX_TOKEN {
        return Err(format!("attempt `{}` must have 1 to {MAX_TOKEN} characters", row.attempt));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_rows_sort_as_numbers() {
        assert_eq!(log_row(9), "log#00000000000000000009");
        assert!(log_row(9) < log_row(10) && log_row(10) < log_row(u64::MAX));
        assert_eq!([9, u64::MAX].map(|seq| log_seq(&log_row(seq))), [Some(9), Some(u64::MAX)]);
        assert_eq!(log_seq("head"), None);
    }

    #[test]
    fn a_commit_that_contradicts_itself_is_not_sent() {
        let head = Head { seq: 3, attempt: "a".to_owned(), ..Head::default() };
        let row = CommitRow { seq: 3, attempt: "a".to_owned(), ..CommitRow::default() };
        assert!(check_commit(&head, &row).is_ok());
        for (head, row) in [
            (head.clone(), CommitRow { seq: 4, ..row.clone() }),
            (head.clone(), CommitRow { attempt: "b".to_owned(), ..row.clone() }),
            (Head { seq: 0, ..head.clone() }, CommitRow { seq: 0, ..row.clone() }),
            (Head { attempt: "x".repeat(37), ..head.clone() }, CommitRow { attempt: "x".repeat(37), ..row.clone() }),
        ] {
            assert!(check_commit(&head, &row).is_err(), "{head:?} {row:?}");
        }
    }
}
