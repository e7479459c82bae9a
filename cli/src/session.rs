//! A pipeline over the embedded stack, opened for one command.

use std::path::Path;
use std::sync::Arc;

use payguard_aws::usage::Usage;
use payguard_local::embedded::{EmbeddedStack, StackOptions};
use payguard_local::endpoints::Endpoints;
use payguard_local::runner::LocalPipeline;
use payguard_local::stores;
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
        let env = stores::env(&stack, &config, &usage);
        let topics: Vec<&str> = payguard_publish::TOPICS.into_iter().chain([payguard_totals::TABLE]).collect();
        let sink = Arc::new(FileSink::open(out, &topics, observer)?);
        Ok(Session { pipeline: LocalPipeline::new(Arc::new(config), env, sink), usage, stack })
    }
}
