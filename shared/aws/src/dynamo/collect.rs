//! What the collector asks of the ledger.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::{DeleteRequest, ReturnConsumedCapacity, WriteRequest};
use payguard_engine::gc::Collected;
use payguard_engine::store::RowLimits;
use payguard_engine::{CommitRow, Seq, StoreError, StoreErrorKind, TaskId};

use super::item::{Item, get_number, get_text, number, text};
use super::ledger::{DynamoLedger, log_row, log_seq};
use crate::sdk_error::{corrupt, invalid, store_error};

/// The stage that collects; what it did is counted under its name.
const COLLECTOR: &str = "clock";

/// Row of what was collected.
const COLLECTED_ROW: &str = "collected";

/// Items that one request may write.
const BATCH: usize = 25;

impl DynamoLedger {
    pub(super) async fn query_remaining(
        &self,
        task: &TaskId,
        after: Seq,
        limits: RowLimits,
    ) -> Result<Vec<CommitRow>, StoreError> {
        let items = self.query_rows(task, after, limits.rows as usize).await?;
        let decode = |item: Item| {
            let name = get_text(&item, "row").unwrap_or_default().to_owned();
            let strange = || corrupt("load rows", self.target(task, &name), "the key names no seq");
            self.decode_row(task, log_seq(&name).ok_or_else(strange)?, item)
        };
        items.into_iter().map(decode).collect()
    }

    pub(super) async fn delete_in_batches(&self, task: &TaskId, seqs: &[Seq]) -> Result<(), StoreError> {
        for batch in seqs.chunks(BATCH) {
            let target = || self.target(task, &format!("{} and {} more", log_row(batch[0].0), batch.len() - 1));
            let delete = |seq: &Seq| {
                let request = DeleteRequest::builder()
                    .key("task", text(self.task_key(task)))
                    .key("row", text(log_row(seq.0)))
                    .build();
                let request = request.map_err(|err| invalid("delete rows", target(), err.to_string()))?;
                Ok(WriteRequest::builder().delete_request(request).build())
            };
            let requests = batch.iter().map(delete).collect::<Result<Vec<WriteRequest>, StoreError>>()?;
            self.write_batch(requests, &target).await?;
        }
        Ok(())
    }

    /// Writes a batch. What the service leaves unprocessed is an error: under so much load the collector gives way.
    async fn write_batch(&self, requests: Vec<WriteRequest>, target: &impl Fn() -> String) -> Result<(), StoreError> {
        self.usage.write_request();
        let answer = self
            .client
            .batch_write_item()
            .request_items(&self.table, requests)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|err| store_error("delete rows", target(), err))?;
        answer.consumed_capacity().iter().for_each(|capacity| self.usage.wrote(Some(capacity)));
        if answer.unprocessed_items().is_none_or(HashMap::is_empty) {
            return Ok(());
        }
        let detail = "the table is under too much load to remove them";
        Err(StoreError::new(StoreErrorKind::Unavailable, "delete rows", target(), detail))
    }

    pub(super) async fn count_collected(&self, done: &Collected) -> Result<(), StoreError> {
        self.usage.write_request();
        let mut request = self
            .client
            .update_item()
            .table_name(&self.table)
            .key("task", text(self.stage_key(COLLECTOR)))
            .key("row", text(COLLECTED_ROW))
            .update_expression("ADD #rows :rows, #objects :objects, #orphans :orphans, #pages :pages, #groups :groups")
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        for (name, count) in counts(done) {
            request = request
                .expression_attribute_names(format!("#{name}"), name)
                .expression_attribute_values(format!(":{name}"), number(count));
        }
        let answer =
            request.send().await.map_err(|err| store_error("count collected", self.collected_target(), err))?;
        self.usage.wrote(answer.consumed_capacity());
        Ok(())
    }

    pub(super) async fn load_collected(&self) -> Result<Collected, StoreError> {
        self.usage.read_request();
        let answer = self
            .client
            .get_item()
            .table_name(&self.table)
            .key("task", text(self.stage_key(COLLECTOR)))
            .key("row", text(COLLECTED_ROW))
            .consistent_read(true)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|err| store_error("load collected", self.collected_target(), err))?;
        self.usage.read(answer.consumed_capacity());
        let item: Item = answer.item.unwrap_or_default();
        let count = |name: &str| get_number(&item, name).unwrap_or(0);
        Ok(Collected {
            rows: count("rows"),
            objects: count("objects"),
            orphans: count("orphans"),
            pages: count("pages"),
            groups: count("groups"),
        })
    }

    fn collected_target(&self) -> String {
        format!("{}/{} {COLLECTED_ROW}", self.table, self.stage_key(COLLECTOR))
    }
}

fn counts(done: &Collected) -> [(&'static str, u64); 5] {
    [
        ("rows", done.rows),
        ("objects", done.objects),
        ("orphans", done.orphans),
        ("pages", done.pages),
        ("groups", done.groups),
    ]
}
