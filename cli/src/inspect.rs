//! Where the commands that look into a pipeline look: live tables or a savepoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use payguard_engine::store::FileStore;
use payguard_engine::task::Settings;
use payguard_inspect::error::InspectError;
use payguard_inspect::states::StateKind;
use payguard_inspect::tally::Looked;
use payguard_inspect::{Asked, Live, Saved, Source};
use payguard_local::dir_files::DirFiles;
use payguard_topology::begun::as_begun;
use payguard_topology::{Config, Topology, payguard};
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::config::ConfigArgs;
use crate::savepoints::{Named, folder_of};
use crate::session::Stores;
use crate::text::date_time;

/// The configuration of the pipeline in a state folder, or of a deployed one.
pub(crate) fn config_of(state: Option<&Path>, config: &ConfigArgs) -> Result<Config, Failure> {
    Ok(match state {
        Some(state) => config.load_of(state)?,
        None => config.load(Config::default())?,
    })
}

/// The stores of a pipeline and its topology, with the shards that it began with.
pub(crate) struct Pipeline {
    pub(crate) stores: Stores,
    pub(crate) config: Config,
    pub(crate) topology: Topology,
}

impl Pipeline {
    pub(crate) async fn open(state: Option<&Path>, config: &Config) -> Result<Pipeline, Failure> {
        let stores = Stores::open(state, config).await?;
        match as_begun(&stores.env, config.clone()).await {
            Ok(config) => Ok(Pipeline { stores, topology: payguard(&config), config }),
            Err(error) => {
                stores.close().await;
                Err(error.into())
            }
        }
    }

    pub(crate) fn live(&self, asked: Asked) -> Result<Live<'_>, InspectError> {
        if let Some(id) = &asked.state {
            self.check_kept(StateKind::find(id)?)?;
        }
        Ok(Live::new(&self.stores.env, &self.topology, self.config.gc.retention_ms, asked))
    }

    /// Refuses a state whose operator this pipeline does not have.
    fn check_kept(&self, kind: &StateKind) -> Result<(), InspectError> {
        let there_are: Vec<&str> = self.topology.stages.iter().flat_map(|stage| stage.states.clone()).collect();
        match there_are.contains(&kind.id) {
            true => Ok(()),
            false => Err(InspectError::NotKept { id: kind.id, there_are }),
        }
    }
}

/// Where a savepoint is.
pub(crate) struct SavedPlace {
    files: Arc<dyn FileStore>,
    name: String,
    stores: Option<Stores>,
}

impl SavedPlace {
    /// Finds a savepoint by name or path; only one that is in S3 needs stores.
    pub(crate) async fn open(
        name: &str,
        savepoints: Option<&str>,
        state: Option<&Path>,
        config: &Config,
    ) -> Result<SavedPlace, Failure> {
        let named = Named::of(name, savepoints, || state.map(folder_of));
        if let Ok(named) = &named
            && let Some(folder) = named.folder()
        {
            return Ok(SavedPlace {
                files: Arc::new(DirFiles::new(folder)),
                name: named.name.to_owned(),
                stores: None,
            });
        }
        let stores = Stores::open(state, config).await?;
        let named = Named::of(name, savepoints, || Some(stores.default_savepoints()));
        match named.and_then(|named| Ok((named.files(&stores.clients)?, named.name.to_owned()))) {
            Ok((files, name)) => Ok(SavedPlace { files, name, stores: Some(stores) }),
            Err(error) => {
                stores.close().await;
                Err(error)
            }
        }
    }

    pub(crate) async fn saved(&self, state: Option<&str>) -> Result<Saved<'_>, InspectError> {
        Saved::open(&*self.files, &Settings::default(), &self.name, state).await
    }

    pub(crate) async fn close(self) {
        if let Some(stores) = self.stores {
            stores.close().await;
        }
    }
}

/// The arguments of a command that reads states.
#[derive(clap::Args)]
pub(crate) struct View {
    /// Folder with the durable state, of a run that goes on or has ended [default: the deployed stores that the
    /// environment names]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Look into a savepoint, by its name or its path
    #[arg(long, value_name = "NAME|PATH", conflicts_with_all = ["at", "task"])]
    pub(crate) savepoint: Option<String>,
    /// Where savepoints are [default: savepoints/ in the state folder, or in the bucket of the segments]
    #[arg(long, value_name = "DIR|s3://BUCKET/PREFIX", requires = "savepoint")]
    pub(crate) savepoints: Option<String>,
    /// Look into the past: after this commit of the task, or after what was committed by a time such as
    /// 2026-11-30T12:00:00Z; as far back as the log has not been collected (gc.retention_ms)
    #[arg(long, value_name = "SEQ|TIME")]
    pub(crate) at: Option<String>,
    /// Look at this task alone, for example rules/0 or, of former shards, rules/g2.1of4
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl View {
    pub(crate) fn asked(&self, state: Option<&str>) -> Result<Asked, Failure> {
        let mut asked = Asked { state: state.map(str::to_owned), ..Asked::everything() };
        if let Some(at) = &self.at {
            asked.at = at.parse()?;
        }
        if let Some(task) = &self.task {
            asked.task = Some(task.parse()?);
        }
        Ok(asked)
    }

    /// Does something with what these arguments name.
    pub(crate) async fn look<T>(
        &self,
        config: &Config,
        asked: Asked,
        work: impl AsyncFnOnce(&mut Source<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (state, savepoints) = (self.state.as_deref(), self.savepoints.as_deref());
        if let Some(name) = &self.savepoint {
            let place = SavedPlace::open(name, savepoints, state, config).await?;
            let result = match place.saved(asked.state.as_deref()).await {
                Ok(saved) => work(&mut Source::Saved(saved)).await,
                Err(error) => Err(error.into()),
            };
            place.close().await;
            return result;
        }
        let pipeline = Pipeline::open(state, config).await?;
        let result = match pipeline.live(asked) {
            Ok(live) => work(&mut Source::Live(live)).await,
            Err(error) => Err(error.into()),
        };
        pipeline.stores.close().await;
        result
    }
}

/// The commits that were looked at, a line each.
pub(crate) fn looked_in_words(looked: &Looked) -> String {
    let line = |(task, (first, last, at_ms)): (&String, &(u64, u64, Option<i64>))| {
        let at = at_ms.map_or_else(String::new, |ms| format!(" ({})", date_time(ms)));
        match first == last {
            true => format!("as of commit {last} of {task}{at}"),
            false => format!("as of commits {first} to {last} of {task}, which went on meanwhile{at}"),
        }
    };
    match looked.tasks.is_empty() {
        true => "nothing had been committed".to_owned(),
        false => looked.tasks.iter().map(line).collect::<Vec<_>>().join("\n"),
    }
}

pub(crate) fn looked_as_json(looked: &Looked) -> Value {
    let task = |(task, (first, last, at_ms)): (&String, &(u64, u64, Option<i64>))| {
        (
            task.clone(),
            json!({ "from": first, "to": last, "committed_at_ms": at_ms, "committed_at": at_ms.map(date_time) }),
        )
    };
    Value::Object(looked.tasks.iter().map(task).collect::<Map<_, _>>())
}
