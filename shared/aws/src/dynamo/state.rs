//! The state table on DynamoDB.
//!
//! One table, key (`group`, `page`): `<pipeline>#<stage>#<key group>` and `<operator>#<page>`. A page is replaced only
//! by a younger version, so a crash in a flush, a zombie's late flush and a repeated flush are harmless.

use std::sync::Arc;

use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::types::ReturnConsumedCapacity;
use bytes::Bytes;
use payguard_engine::page::{Page, PageAddress};
use payguard_engine::store::{PutReply, StateTable};
use payguard_engine::{StageId, StoreError};
use payguard_model::KeyGroup;

use super::Tables;
use super::item::{
    Item, MAX_ITEM_BYTES, binary, get_number, get_text, item_bytes, number, take_binary, text, write_units,
};
use crate::sdk_error::{corrupt, invalid, store_error};
use crate::usage::Usage;

/// [`StateTable`] on DynamoDB.
#[derive(Clone, Debug)]
pub struct DynamoStateTable {
    client: Client,
    table: String,
    pipeline: String,
    usage: Arc<Usage>,
}

impl DynamoStateTable {
    /// The state of `pipeline` in the state table of `tables`.
    #[must_use]
    pub fn new(client: Client, tables: &Tables, pipeline: &str, usage: Arc<Usage>) -> DynamoStateTable {
        DynamoStateTable { client, table: tables.state.clone(), pipeline: pipeline.to_owned(), usage }
    }

    fn group_key(&self, stage: &StageId, group: u32) -> String {
        format!("{}#{stage}#{group}", self.pipeline)
    }

    fn target(&self, address: &PageAddress) -> String {
        format!("{}/{}#{address}", self.table, self.pipeline)
    }

    fn item(&self, page: &Page) -> Result<Item, StoreError> {
        let address = &page.address;
        if address.operator.contains('#') {
            return Err(invalid("put page", self.target(address), "an operator id must not contain `#`"));
        }
        let mut item = Item::from([
            ("group".to_owned(), text(self.group_key(&address.stage, address.group))),
            ("page".to_owned(), text(page_key(address))),
            ("version".to_owned(), number(page.version)),
            ("body".to_owned(), binary(page.body.to_vec())),
        ]);
        if let Some(seconds) = page.expires_at_s {
            item.insert("expires_at".to_owned(), number(seconds));
        }
        let bytes = item_bytes(&item);
        if bytes > MAX_ITEM_BYTES {
            let detail = format!("the page has {bytes} bytes; an item may have {MAX_ITEM_BYTES}");
            return Err(invalid("put page", self.target(address), detail));
        }
        Ok(item)
    }

    fn decode(&self, stage: &StageId, group: KeyGroup, mut item: Item) -> Result<Page, StoreError> {
        let key = get_text(&item, "page").unwrap_or_default().to_owned();
        let damaged = |detail: &str| {
            let target = format!("{}/{} {key}", self.table, self.group_key(stage, group.0));
            corrupt("load pages", target, detail)
        };
        let (operator, page) = key.split_once('#').ok_or_else(|| damaged("the key names no operator"))?;
        let version = get_number(&item, "version").ok_or_else(|| damaged("the page has no version"))?;
        let body = take_binary(&mut item, "body").ok_or_else(|| damaged("the page has no body"))?;
        let expires_at_s = match item.contains_key("expires_at") {
            true => Some(get_number(&item, "expires_at").ok_or_else(|| damaged("expires_at is not a number"))?),
            false => None,
        };
        let address =
            PageAddress { stage: stage.clone(), group: group.0, operator: operator.to_owned(), page: page.to_owned() };
        Ok(Page { address, version, body: Bytes::from(body), expires_at_s })
    }
}

#[async_trait]
impl StateTable for DynamoStateTable {
    async fn load_pages(&self, stage: &StageId, group: KeyGroup) -> Result<Vec<Page>, StoreError> {
        let key = self.group_key(stage, group.0);
        let mut pages = Vec::new();
        let mut start = None;
        loop {
            self.usage.read_request();
            let answer = self
                .client
                .query()
                .table_name(&self.table)
                .key_condition_expression("#group = :group")
                .expression_attribute_names("#group", "group")
                .expression_attribute_values(":group", text(&key))
                .consistent_read(true)
                .set_exclusive_start_key(start)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(|err| store_error("load pages", format!("{}/{key}", self.table), err))?;
            self.usage.read(answer.consumed_capacity());
            for item in answer.items.unwrap_or_default() {
                pages.push(self.decode(stage, group, item)?);
            }
            start = answer.last_evaluated_key;
            if start.is_none() {
                return Ok(pages);
            }
        }
    }

    async fn put_page(&self, page: &Page) -> Result<PutReply, StoreError> {
        let item = self.item(page)?;
        let units = write_units(item_bytes(&item));
        self.usage.write_request();
        let answer = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(item))
            .condition_expression("attribute_not_exists(#version) OR #version < :version")
            .expression_attribute_names("#version", "version")
            .expression_attribute_values(":version", number(page.version))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        match answer {
            Ok(done) => {
                self.usage.wrote(done.consumed_capacity());
                Ok(PutReply::Written)
            }
            Err(err) => match err.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(_)) => {
                    self.usage.refused_write(units);
                    Ok(PutReply::Stale)
                }
                _ => Err(store_error("put page", self.target(&page.address), err)),
            },
        }
    }

    async fn delete_page(&self, address: &PageAddress, version: u64) -> Result<(), StoreError> {
        self.usage.write_request();
        let answer = self
            .client
            .delete_item()
            .table_name(&self.table)
            .key("group", text(self.group_key(&address.stage, address.group)))
            .key("page", text(page_key(address)))
            .condition_expression("attribute_not_exists(#version) OR #version <= :version")
            .expression_attribute_names("#version", "version")
            .expression_attribute_values(":version", number(version))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        match answer {
            Ok(done) => {
                self.usage.wrote(done.consumed_capacity());
                Ok(())
            }
            Err(err) => match err.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(_)) => {
                    self.usage.refused_write(1);
                    Ok(())
                }
                _ => Err(store_error("delete page", self.target(address), err)),
            },
        }
    }
}

fn page_key(address: &PageAddress) -> String {
    format!("{}#{}", address.operator, address.page)
}
