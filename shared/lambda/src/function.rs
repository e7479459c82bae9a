//! A function's life: start once, then answer events.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_credential_types::provider::SharedCredentialsProvider;
use lambda_runtime::{Diagnostic, LambdaEvent, service_fn};
use payguard_aws::dynamo::{DynamoLedger, DynamoStateTable};
use payguard_aws::event::{StageEvent, time_left};
use payguard_aws::lambda::{LambdaWaker, clients_from_env};
use payguard_aws::system::{RandomAttempts, SystemClock};
use payguard_aws::{S3Segments, Usage};
use payguard_engine::logic::BroadcastLogic;
use payguard_engine::store::Clock;
use payguard_engine::task::consumer::MakeBody;
use payguard_engine::task::source::MakeSource;
use payguard_engine::task::{Env, Settings};
use payguard_topology::begun::as_begun;
use payguard_topology::config::RESERVED;
use payguard_topology::{Config, Topology, payguard};
use serde::Serialize;
use tracing_subscriber::EnvFilter;

use crate::broadcast::BroadcastHost;
use crate::consumer::ConsumerHost;
use crate::error::{HostError, StartError};
use crate::options::Options;
use crate::source::SourceHost;

/// Time for an invocation whose deadline is not to be believed, as with local emulators.
const TIME_WITHOUT_DEADLINE: Duration = Duration::from_mins(1);

/// What a function works with.
pub struct Function {
    /// The configuration.
    pub config: Arc<Config>,
    /// Stages and streams.
    pub topology: Arc<Topology>,
    /// What its tasks are run with.
    pub env: Env,
    /// For invoking other functions; the same as in `env`.
    pub waker: Arc<LambdaWaker>,
    /// Where its stores, sink and neighbours are.
    pub options: Options,
    /// The environment, for settings of what it talks to.
    pub variables: BTreeMap<String, String>,
    /// Its role's credentials, for what is not a client of the SDK.
    pub credentials: Option<SharedCredentialsProvider>,
}

/// Does the work of events.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// What is answered.
    type Answer: Serialize + Send;

    /// Does the work of one event in `left` at most; when it returns, nothing goes on.
    ///
    /// # Errors
    /// When Lambda has to deliver the event again.
    async fn handle(&self, event: StageEvent, left: Duration) -> Result<Self::Answer, HostError>;
}

impl Function {
    /// Configuration and clients of this process's environment.
    async fn from_env() -> Result<Function, StartError> {
        let variables: BTreeMap<String, String> = std::env::vars().collect();
        let config = Config::default().load(None, variables.clone(), &RESERVED, &[])?;
        let options = Options::read(&variables)?;
        let clients = clients_from_env().await;
        let (stores, tables, pipeline) = (&clients.stores, &options.tables, config.pipeline.as_str());
        let usage = Arc::new(Usage::default());
        let waker = Arc::new(LambdaWaker::new(clients.lambda, &options.function_prefix));
        let owner = uuid::Uuid::new_v4().to_string();
        let env = Env {
            ledger: Arc::new(DynamoLedger::new(stores.dynamodb.clone(), tables, pipeline, usage.clone())),
            state: Arc::new(DynamoStateTable::new(stores.dynamodb.clone(), tables, pipeline, usage.clone())),
            segments: Arc::new(S3Segments::new(stores, &options.bucket, pipeline, usage)),
            waker: waker.clone(),
            clock: Arc::new(SystemClock),
            attempts: Arc::new(RandomAttempts),
            settings: Settings { lease_owner: Some(owner), ..config.settings() },
        };
        let config = as_begun(&env, config).await?;
        let topology = Arc::new(payguard(&config));
        let credentials = clients.credentials;
        Ok(Function { config: Arc::new(config), topology, env, waker, options, variables, credentials })
    }

    /// The host of a stage that is given records of Kafka.
    #[must_use]
    pub fn source(&self, stage: &str, make: MakeSource) -> SourceHost {
        let host = SourceHost::new(self.topology.clone(), self.env.clone(), stage, make);
        host.report_batch_item_failures(self.options.report_batch_item_failures)
    }

    /// The host of a stage that decides a broadcast value.
    #[must_use]
    pub fn broadcast(&self, stage: &str, logic: Arc<dyn BroadcastLogic>) -> BroadcastHost {
        let host = BroadcastHost::new(self.topology.clone(), self.env.clone(), stage, logic);
        host.report_batch_item_failures(self.options.report_batch_item_failures)
    }

    /// The host of a stage that reads upstream logs.
    #[must_use]
    pub fn consumer(&self, stage: &str, make: MakeBody) -> ConsumerHost {
        ConsumerHost::new(self.topology.clone(), self.env.clone(), stage, make)
    }
}

/// Starts a function and answers events until Lambda ends the process.
pub fn run<H: Host>(start: impl FnOnce(&Function) -> Result<H, StartError>) -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().json().flatten_event(true).with_span_list(false).with_env_filter(filter).init();
    match serve(start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the function does not start");
            ExitCode::FAILURE
        }
    }
}

fn serve<H: Host>(start: impl FnOnce(&Function) -> Result<H, StartError>) -> Result<(), StartError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let host = Arc::new(start(&Function::from_env().await?)?);
        let service = service_fn(move |event: LambdaEvent<StageEvent>| answer(host.clone(), event));
        lambda_runtime::run(service).await.map_err(StartError::Runtime)
    })
}

async fn answer<H: Host>(host: Arc<H>, event: LambdaEvent<StageEvent>) -> Result<H::Answer, Diagnostic> {
    let now = u64::try_from(SystemClock.now().0).unwrap_or(0);
    let left = time_left(event.context.deadline, now, TIME_WITHOUT_DEADLINE);
    host.handle(event.payload, left).await.map_err(|error| {
        tracing::error!(%error, kind = error.kind(), "the invocation failed");
        error.into()
    })
}
