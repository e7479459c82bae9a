//! A pipeline over the embedded stack, opened for one command.

#[cfg(feature = "kafka")]
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use payguard_aws::usage::Usage;
use payguard_aws::{Clients, Tables};
use payguard_directory::{FileDirectory, MerchantDirectory, SeededDirectory};
use payguard_engine::store::SinkObserver;
use payguard_engine::task::Env;
#[cfg(feature = "kafka")]
use payguard_kafka::KafkaClients;
use payguard_local::embedded::{BUCKET, EmbeddedStack};
use payguard_local::runner::LocalPipeline;
use payguard_local::stores::{self, Connection};
#[cfg(feature = "kafka")]
use payguard_postgres::{DatabaseSettings, Patience, PostgresSink};
use payguard_sink_file::FileSink;
use payguard_topology::begun::as_begun;
#[cfg(feature = "kafka")]
use payguard_topology::stage;
use payguard_topology::{Config, System};

use crate::{Failure, config, savepoints};

/// Embedded stores, a pipeline over them, and what they were used for.
pub(crate) struct Session {
    pub(crate) pipeline: LocalPipeline,
    pub(crate) sink: Arc<FileSink>,
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
        Session::open_after(config, state, out, merchants, observer, async |_, _, config| Ok(config)).await
    }

    /// The same after `first` has been done to the stores, with the configuration that it makes of the one asked for.
    pub(crate) async fn open_after(
        config: Config,
        state: Option<&Path>,
        out: &Path,
        merchants: Option<&Path>,
        observer: Option<Arc<dyn SinkObserver>>,
        first: impl AsyncFnOnce(&EmbeddedStack, &Env, Config) -> Result<Config, Failure>,
    ) -> Result<Session, Failure> {
        let directory: Arc<dyn MerchantDirectory> = match merchants {
            Some(path) => Arc::new(FileDirectory::open(path)?),
            None => Arc::new(SeededDirectory),
        };
        let tables = (config.system == System::Payments).then_some(payguard_totals::TABLE);
        let topics: Vec<&str> = payguard_publish::topics(&config).iter().copied().chain(tables).collect();
        let sink = Arc::new(FileSink::open(out, &topics, observer)?);
        Session::open_with(config, state, (Outputs::Files, sink), directory, first).await
    }

    /// The same with these outputs and this directory of merchants.
    async fn open_with(
        config: Config,
        state: Option<&Path>,
        (outputs, sink): (Outputs, Arc<FileSink>),
        directory: Arc<dyn MerchantDirectory>,
        first: impl AsyncFnOnce(&EmbeddedStack, &Env, Config) -> Result<Config, Failure>,
    ) -> Result<Session, Failure> {
        let stack = stores::serve(state).await?;
        if let Some(dir) = state {
            outputs.keep(dir)?;
        }
        let usage = Arc::new(Usage::default());
        let env = stores::env(&stack, &config, &usage);
        let config = first(&stack, &env, config).await?;
        let config = as_begun(&env, config).await?;
        if let Some(dir) = state {
            config::keep(&config, dir)?;
        }
        let pipeline = LocalPipeline::new(Arc::new(config), env, sink.clone(), directory);
        Ok(Session { pipeline, sink, usage, stack })
    }

    /// The same with topics of Kafka, and with the database and the directory of merchants that the environment names; only
    /// what has no place there goes to `out`.
    #[cfg(feature = "kafka")]
    pub(crate) async fn open_outside(
        config: Config,
        state: &Path,
        out: &Path,
        kafka: KafkaClients,
        observer: Option<Arc<dyn SinkObserver>>,
    ) -> Result<Session, Failure> {
        let variables: BTreeMap<String, String> = std::env::vars().collect();
        let directory = payguard_enrich::directory::open(&variables)?;
        let outputs = (Outputs::Topics, Arc::new(FileSink::open(out, &[payguard_totals::TABLE], None)?));
        std::fs::create_dir_all(state).map_err(|e| format!("{}: {e}", state.display()))?;
        let session =
            Session::open_with(config, Some(state), outputs, directory, async |_, _, config| Ok(config)).await?;
        let config = session.pipeline.config.clone();
        let topics = payguard_publish::kafka::sink(kafka, &config, observer);
        let mut pipeline = session.pipeline.with_remote_sink(stage::PUBLISH, Arc::new(topics));
        if variables.get("PAYGUARD_DB_URL").is_some_and(|url| !url.is_empty()) {
            let settings = DatabaseSettings::read(&variables)?;
            let table = PostgresSink::new(&settings, &config.pipeline, Patience::default());
            pipeline = pipeline.with_remote_sink(stage::TOTALS, Arc::new(table));
        }
        Ok(Session { pipeline, ..session })
    }
}

/// Where the pipeline of a state folder writes. A command with other sinks must not even begin: it would read the
/// sources to their end, which nobody could take back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outputs {
    Files,
    #[cfg(feature = "kafka")]
    Topics,
}

/// Keeps an [`Outputs`] in the state folder.
const OUTPUTS_FILE: &str = "outputs";

impl Outputs {
    fn words(self) -> &'static str {
        match self {
            Outputs::Files => "files of an output folder",
            #[cfg(feature = "kafka")]
            Outputs::Topics => "topics of a Kafka cluster",
        }
    }

    fn keep(self, state: &Path) -> Result<(), Failure> {
        let file = state.join(OUTPUTS_FILE);
        match std::fs::read_to_string(&file) {
            Ok(kept) if kept.trim() == self.words() => Ok(()),
            Ok(kept) => Err(format!(
                "{}: this is the state of a pipeline that writes to {}, not to {}; choose another state folder",
                state.display(),
                kept.trim(),
                self.words()
            )
            .into()),
            Err(_) => std::fs::write(&file, format!("{}\n", self.words())).map_err(Into::into),
        }
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

/// The stores of a pipeline: those of a state folder, or those that the environment names.
pub(crate) struct Stores {
    pub(crate) env: Env,
    pub(crate) clients: Clients,
    bucket: String,
    folder: Option<Connection>,
}

impl Stores {
    /// Opens the stores of a state folder; without one those of a deployed pipeline, as its functions find them.
    pub(crate) async fn open(state: Option<&Path>, config: &Config) -> Result<Stores, Failure> {
        if let Some(state) = state {
            if !state.is_dir() {
                return Err(format!("{}: there is no such state folder", state.display()).into());
            }
            let connection = Connection::open(state, config).await?;
            let (env, clients) = (connection.env.clone(), connection.clients.clone());
            return Ok(Stores { env, clients, bucket: BUCKET.to_owned(), folder: Some(connection) });
        }
        let need = |name: &str| match std::env::var(name) {
            Ok(value) if !value.is_empty() => Ok(value),
            _ => Err(format!("say --state DIR, or name the deployed stores: {name} is not set")),
        };
        let tables = Tables { ledger: need("PAYGUARD_LEDGER_TABLE")?, state: need("PAYGUARD_STATE_TABLE")? };
        let bucket = need("PAYGUARD_SEGMENT_BUCKET")?;
        let clients = clients_from_env().await?;
        let env = stores::env_of(&clients, &tables, &bucket, config, &Arc::default());
        Ok(Stores { env, clients, bucket, folder: None })
    }

    /// Where savepoints of deployed stores are by default.
    pub(crate) fn default_savepoints(&self) -> String {
        format!("s3://{}/{}", self.bucket, savepoints::FOLDER)
    }

    /// Whether these are the stores of a folder that nobody else has open.
    pub(crate) fn is_alone(&self) -> bool {
        self.folder.as_ref().is_some_and(Connection::is_alone)
    }

    pub(crate) async fn close(self) {
        if let Some(connection) = self.folder {
            connection.close().await;
        }
    }
}

/// Clients of AWS, or of what the usual variables point to.
#[cfg(feature = "aws")]
async fn clients_from_env() -> Result<Clients, Failure> {
    Ok(payguard_aws::lambda::clients_from_env().await.stores)
}

/// Clients of local stores, as `payguard stack` serves them: without the feature `aws` there is no TLS.
#[cfg(not(feature = "aws"))]
async fn clients_from_env() -> Result<Clients, Failure> {
    let endpoint = |name: &str| match std::env::var(name) {
        Ok(url) if url.starts_with("http://") => Ok(url),
        _ => Err(format!("{name} is no http:// endpoint; for stores in AWS build payguard with --features aws")),
    };
    let (dynamodb, s3) = (endpoint("AWS_ENDPOINT_URL_DYNAMODB")?, endpoint("AWS_ENDPOINT_URL_S3")?);
    Ok(payguard_aws::embedded_clients(&dynamodb, &s3))
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
