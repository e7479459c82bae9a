//! What runs in AWS: clients configured by the environment, and wake-ups by invoking functions.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use aws_config::BehaviorVersion;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_lambda::types::InvocationType;
use aws_smithy_types::timeout::TimeoutConfig;
use payguard_engine::store::Waker;
use payguard_engine::{StageId, TaskId};
use serde::Serialize;

use crate::client::{Clients, custom_s3_endpoint, dynamodb_timeouts, retries, s3_timeouts};
use crate::event::{HeartbeatEvent, WakeEvent};
use crate::sdk_error::describe;

/// Environment variable: what stands before a stage's id in the name of its function.
pub const FUNCTION_PREFIX_VARIABLE: &str = "PAYGUARD_FUNCTION_PREFIX";

/// The SDK clients of a function.
#[derive(Clone, Debug)]
pub struct EnvClients {
    /// The stores.
    pub stores: Clients,
    /// For waking other stages.
    pub lambda: aws_sdk_lambda::Client,
    /// For what is not a client of the SDK.
    pub credentials: Option<SharedCredentialsProvider>,
}

/// Clients with region, credentials and endpoints from the environment.
///
/// `AWS_ENDPOINT_URL` and `AWS_ENDPOINT_URL_DYNAMODB`, `_S3`, `_LAMBDA` point to something other than AWS; such an S3
/// endpoint gets the bucket in the path.
pub async fn clients_from_env() -> EnvClients {
    let shared = aws_config::defaults(BehaviorVersion::latest()).retry_config(retries()).load().await;
    let dynamodb = aws_sdk_dynamodb::config::Builder::from(&shared).timeout_config(dynamodb_timeouts());
    let s3 = aws_sdk_s3::config::Builder::from(&shared).timeout_config(s3_timeouts());
    let lambda = aws_sdk_lambda::config::Builder::from(&shared).timeout_config(invoke_timeouts());
    let s3_endpoint = std::env::var("AWS_ENDPOINT_URL_S3").ok().or_else(|| shared.endpoint_url().map(str::to_owned));
    let s3_is_plain_http = s3_endpoint.as_deref().is_some_and(|url| url.starts_with("http://"));
    let s3 = match s3_endpoint {
        Some(_) => custom_s3_endpoint(s3, s3_is_plain_http),
        None => s3,
    };
    EnvClients {
        stores: Clients {
            dynamodb: aws_sdk_dynamodb::Client::from_conf(dynamodb.build()),
            s3: aws_sdk_s3::Client::from_conf(s3.build()),
            s3_is_plain_http,
        },
        lambda: aws_sdk_lambda::Client::from_conf(lambda.build()),
        credentials: shared.credentials_provider(),
    }
}

/// A wake-up is a hint: it must not hold its sender up.
fn invoke_timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(1))
        .operation_attempt_timeout(Duration::from_secs(2))
        .operation_timeout(Duration::from_secs(4))
        .build()
}

/// [`Waker`] that invokes the task's function asynchronously.
///
/// A failure is logged and counted, never returned: `clock` sweeps up what was missed.
#[derive(Debug)]
pub struct LambdaWaker {
    client: aws_sdk_lambda::Client,
    function_prefix: String,
    sent: AtomicU64,
    failed: AtomicU64,
}

impl LambdaWaker {
    /// Wakes stage `s` by invoking the function `<function_prefix>s`.
    #[must_use]
    pub fn new(client: aws_sdk_lambda::Client, function_prefix: &str) -> LambdaWaker {
        let function_prefix = function_prefix.to_owned();
        LambdaWaker { client, function_prefix, sent: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// With the prefix of [`FUNCTION_PREFIX_VARIABLE`]; none when it is not set.
    #[must_use]
    pub fn from_env(client: aws_sdk_lambda::Client) -> LambdaWaker {
        LambdaWaker::new(client, &std::env::var(FUNCTION_PREFIX_VARIABLE).unwrap_or_default())
    }

    /// Wake-ups that Lambda took.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Wake-ups that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Tells source tasks of `stage` that their partitions may be idle.
    pub async fn heartbeat(&self, stage: &StageId, tasks: &[TaskId]) {
        let event = HeartbeatEvent { heartbeat: tasks.iter().map(ToString::to_string).collect() };
        let outcome = self.invoke(stage, &event).await;
        self.count(stage, "heartbeat", outcome);
    }

    async fn invoke(&self, stage: &StageId, event: &impl Serialize) -> Result<(), String> {
        let payload = serde_json::to_vec(event).map_err(|err| err.to_string())?;
        self.client
            .invoke()
            .function_name(format!("{}{stage}", self.function_prefix))
            .invocation_type(InvocationType::Event)
            .payload(aws_sdk_lambda::primitives::Blob::new(payload))
            .send()
            .await
            .map(|_| ())
            .map_err(|err| describe(&err))
    }

    fn count(&self, target: &dyn Display, what: &str, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                self.sent.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%target, error, "{what} failed");
            }
        }
    }
}

#[async_trait]
impl Waker for LambdaWaker {
    async fn wake(&self, task: &TaskId) {
        let event = WakeEvent { wake: vec![task.to_string()] };
        let outcome = self.invoke(&task.stage, &event).await;
        self.count(task, "wake-up", outcome);
    }
}
