//! A pipeline over the embedded stack, opened for one command.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use payguard_aws::usage::Usage;
use payguard_directory::{FileDirectory, MerchantDirectory, SeededDirectory};
use payguard_engine::task::Env;
use payguard_local::embedded::{EmbeddedStack, StackOptions};
use payguard_local::endpoints::Endpoints;
use payguard_local::runner::LocalPipeline;
use payguard_local::stores::{self, Connection};
use payguard_sink_file::{FileSink, SinkObserver};
use payguard_topology::Config;

use crate::{Failure, config};

/// Embedded stores, a pipeline over them, and what they were used for.
pub(crate) struct Session {
    pub(crate) pipeline: LocalPipeline,
    pub(crate) usage: Arc<Usage>,
    pub(crate) stack: EmbeddedStack,
}

impl Session {
    /// Opens the stores in `state` (in memory without it), the outputs in `out` and the file of merchants' risks (the
    /// 50 generated merchants without it).
    pub(crate) async fn open(
        config: Config,
        state: Option<&Path>,
        out: &Path,
        merchants: Option<&Path>,
        observer: Option<Arc<dyn SinkObserver>>,
    ) -> Result<Session, Failure> {
        let directory: Arc<dyn MerchantDirectory> = match merchants {
            Some(path) => Arc::new(FileDirectory::open(path)?),
            None => Arc::new(SeededDirectory),
        };
        let options = StackOptions { dir: state.map(Path::to_owned), ..StackOptions::default() };
        let stack = EmbeddedStack::start(options).await?;
        if let Some(dir) = state {
            Endpoints::of(&stack).write(dir)?;
            config::keep(&config, dir)?;
        }
        let usage = Arc::new(Usage::default());
        let env = stores::env(&stack, &config, &usage);
        let topics: Vec<&str> = payguard_publish::TOPICS.into_iter().chain([payguard_totals::TABLE]).collect();
        let sink = Arc::new(FileSink::open(out, &topics, observer)?);
        Ok(Session { pipeline: LocalPipeline::new(Arc::new(config), env, sink, directory), usage, stack })
    }
}

/// The arguments of a command that looks into a pipeline.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// Folder with the durable state, of a run that goes on or has ended
    #[arg(long, value_name = "DIR")]
    pub(crate) state: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Does something with the stores of a state folder, in use or not.
pub(crate) fn on_folder<T>(
    state: &Path,
    config: &Config,
    work: impl AsyncFnOnce(&Env) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if !state.is_dir() {
        return Err(format!("{}: there is no such state folder", state.display()).into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let connection = Connection::open(state, config).await?;
        let result = work(&connection.env).await;
        connection.close().await;
        result
    })
}
