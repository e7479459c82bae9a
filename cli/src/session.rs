//! A pipeline over the embedded stack, opened for one command.

use std::path::Path;
use std::sync::Arc;

use payguard_aws::dynamo::{DynamoLedger, DynamoStateTable};
use payguard_aws::s3::S3Segments;
use payguard_aws::system::{RandomAttempts, SystemClock};
use payguard_aws::usage::Usage;
use payguard_engine::task::Env;
use payguard_local::embedded::{EmbeddedStack, StackOptions};
use payguard_local::endpoints::Endpoints;
use payguard_local::runner::{LocalPipeline, LocalWaker};
use payguard_sink_file::{FileSink, SinkObserver};
use payguard_topology::Config;

use crate::Failure;

/// Embedded stores, a pipeline over them, and what they were used for.
pub(crate) struct Session {
    pub(crate) pipeline: LocalPipeline,
    pub(crate) usage: Arc<Usage>,
    pub(crate) stack: EmbeddedStack,
}

impl Session {
    /// Opens the stores in `state` (in memory without it) and the outputs in `out`.
    pub(crate) async fn open(
        config: Config,
        state: Option<&Path>,
        out: &Path,
        observer: Option<Arc<dyn SinkObserver>>,
    ) -> Result<Session, Failure> {
        let options = StackOptions { dir: state.map(Path::to_owned), ..StackOptions::default() };
        let stack = EmbeddedStack::start(options).await?;
        if let Some(dir) = state {
            Endpoints::of(&stack).write(dir)?;
        }
        let usage = Arc::new(Usage::default());
        let env = env(&stack, &config, &usage);
        let topics: Vec<&str> = payguard_publish::TOPICS.into_iter().chain([payguard_totals::TABLE]).collect();
        let sink = Arc::new(FileSink::open(out, &topics, observer)?);
        Ok(Session { pipeline: LocalPipeline::new(Arc::new(config), env, sink), usage, stack })
    }
}

/// What tasks are run with, over the stores of `stack`.
fn env(stack: &EmbeddedStack, config: &Config, usage: &Arc<Usage>) -> Env {
    let (clients, tables, pipeline) = (stack.clients(), stack.tables(), config.pipeline.as_str());
    Env {
        ledger: Arc::new(DynamoLedger::new(clients.dynamodb.clone(), tables, pipeline, usage.clone())),
        state: Arc::new(DynamoStateTable::new(clients.dynamodb.clone(), tables, pipeline, usage.clone())),
        segments: Arc::new(S3Segments::new(clients, stack.bucket(), pipeline, usage.clone())),
        waker: Arc::new(LocalWaker::default()),
        clock: Arc::new(SystemClock),
        attempts: Arc::new(RandomAttempts),
        settings: config.settings(),
    }
}
