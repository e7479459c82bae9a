//! Creates the tables and the bucket where no template does it: the embedded stack and tests.

use std::error::Error;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableStatus,
    TimeToLiveSpecification, TimeToLiveStatus,
};
use aws_sdk_s3::operation::create_bucket::CreateBucketError;
use payguard_engine::{StoreError, StoreErrorKind};

use crate::client::Clients;
use crate::dynamo::Tables;
use crate::sdk_error::{invalid, store_error};

/// Attribute of the state table that DynamoDB's clean-up goes by.
const TTL_ATTRIBUTE: &str = "expires_at";

/// Tries to see a new table active, and the wait between two.
const ACTIVE_TRIES: u32 = 60;
const ACTIVE_WAIT: Duration = Duration::from_millis(500);

/// Creates both tables if they do not exist, pay per request, and waits until they can be used.
///
/// # Errors
/// What the service said. Nothing has to be undone: calling again goes on where this call stopped.
pub async fn create_tables(client: &Client, tables: &Tables) -> Result<(), StoreError> {
    create_table(client, &tables.ledger, "task", "row").await?;
    create_table(client, &tables.state, "group", "page").await?;
    enable_ttl(client, &tables.state).await
}

/// Creates the bucket if it does not exist.
///
/// # Errors
/// What the service said; `Invalid` when the name belongs to another account.
pub async fn create_bucket(clients: &Clients, bucket: &str) -> Result<(), StoreError> {
    match clients.s3.create_bucket().bucket(bucket).send().await {
        Ok(_) => Ok(()),
        Err(err) => match err.as_service_error() {
            Some(CreateBucketError::BucketAlreadyOwnedByYou(_)) => Ok(()),
            _ => Err(store_error("create bucket", bucket, err)),
        },
    }
}

async fn create_table(client: &Client, table: &str, hash: &str, range: &str) -> Result<(), StoreError> {
    let request = client
        .create_table()
        .table_name(table)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(string_attribute(table, hash)?)
        .attribute_definitions(string_attribute(table, range)?)
        .key_schema(key_element(table, hash, KeyType::Hash)?)
        .key_schema(key_element(table, range, KeyType::Range)?);
    match request.send().await {
        Ok(_) => {}
        Err(err) if matches!(err.as_service_error(), Some(CreateTableError::ResourceInUseException(_))) => {}
        Err(err) => return Err(store_error("create table", table, err)),
    }
    wait_until_active(client, table).await
}

async fn wait_until_active(client: &Client, table: &str) -> Result<(), StoreError> {
    for _ in 0..ACTIVE_TRIES {
        let answer = client.describe_table().table_name(table).send().await;
        let described = answer.map_err(|err| store_error("describe table", table, err))?;
        if described.table().and_then(|table| table.table_status()) == Some(&TableStatus::Active) {
            return Ok(());
        }
        tokio::time::sleep(ACTIVE_WAIT).await;
    }
    Err(StoreError::new(StoreErrorKind::Unavailable, "create table", table, "the table does not become active"))
}

async fn enable_ttl(client: &Client, table: &str) -> Result<(), StoreError> {
    let answer = client.describe_time_to_live().table_name(table).send().await;
    let described = answer.map_err(|err| store_error("describe time to live", table, err))?;
    let status = described.time_to_live_description().and_then(|ttl| ttl.time_to_live_status());
    if matches!(status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)) {
        return Ok(());
    }
    let ttl = TimeToLiveSpecification::builder()
        .enabled(true)
        .attribute_name(TTL_ATTRIBUTE)
        .build()
        .map_err(|err| build_error(table, &err))?;
    let request = client.update_time_to_live().table_name(table).time_to_live_specification(ttl);
    request.send().await.map_err(|err| store_error("enable time to live", table, err))?;
    Ok(())
}

fn string_attribute(table: &str, name: &str) -> Result<AttributeDefinition, StoreError> {
    let definition = AttributeDefinition::builder().attribute_name(name).attribute_type(ScalarAttributeType::S);
    definition.build().map_err(|err| build_error(table, &err))
}

fn key_element(table: &str, name: &str, key_type: KeyType) -> Result<KeySchemaElement, StoreError> {
    let element = KeySchemaElement::builder().attribute_name(name).key_type(key_type);
    element.build().map_err(|err| build_error(table, &err))
}

fn build_error(table: &str, err: &dyn Error) -> StoreError {
    invalid("create table", table, err.to_string())
}
