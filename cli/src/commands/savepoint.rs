//! `payguard savepoint`: save a pipeline without stopping it, look at what was saved, begin a new pipeline from it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use payguard_engine::store::FileStore;
use payguard_engine::task::{Env, Settings};
use payguard_local::bounded;
use payguard_local::dir_files::DirFiles;
use payguard_local::runner::fresh_operators;
use payguard_model::EventTime;
use payguard_savepoint::{Listed, Manifest, SinkPositions, delete, list, show, verify};
use payguard_topology::{Config, payguard};
use serde_json::json;

use crate::Failure;
use crate::config::{self, ConfigArgs};
use crate::inspect::config_of;
use crate::savepoints::{Named, OutputFolder, SessionSinks, Taken, bring_back, folder_of, restored_in_words, take};
use crate::session::{Session, Stores};
use crate::text::{bytes, date_time, grouped, print, time_of_day};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Save all tasks of a pipeline as of one consistent cut, while it goes on; prints the savepoint's path
    Create {
        /// Name of the savepoint
        name: String,
        #[command(flatten)]
        place: Place,
        /// The pipeline's output folder: makes the cut exact where a process died between an output and its commit
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Take a pipeline that is stopped to its end first: all windows close, incomplete ones too. Never for a release
        #[arg(long, requires = "out")]
        drain: bool,
        /// With --drain: file of merchants and their risks [default: the 50 generated merchants]
        #[arg(long, value_name = "FILE")]
        merchants: Option<PathBuf>,
    },
    /// List the savepoints there are
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Show what a savepoint holds: operators, tasks, positions
    Show {
        /// Name of the savepoint, or its path
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Read a savepoint whole: checksums, counts, keys, positions, and whether these operators can read it
    Verify {
        /// Name of the savepoint, or its path
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Delete a savepoint; nothing else ever does
    Delete {
        /// Name of the savepoint, or its path
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Make a new pipeline of a savepoint, at its positions, with any number of shards; then start it
    ///
    /// For example: savepoint restore before-2.0 --state DIR --to payguard-2 --shards 4
    Restore {
        /// Name of the savepoint, or its path
        name: String,
        #[command(flatten)]
        place: Place,
        /// Name of the new pipeline [default: that of the configuration]
        #[arg(long, visible_alias = "pipeline", value_name = "PIPELINE")]
        to: Option<String>,
        /// Give up, for good, what the new pipeline has no place for: state of operators, records, positions
        #[arg(long)]
        allow_dropped: bool,
    },
}

#[derive(clap::Args)]
struct Place {
    /// Folder with the durable state [default: the deployed stores that the environment names]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Where savepoints are [default: savepoints/ in the state folder, or in the bucket of the segments]
    #[arg(long, value_name = "DIR|s3://BUCKET/PREFIX")]
    savepoints: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, given: &ConfigArgs) -> Result<ExitCode, Failure> {
    let (Action::Create { place, .. }
    | Action::List { place }
    | Action::Show { place, .. }
    | Action::Verify { place, .. }
    | Action::Delete { place, .. }
    | Action::Restore { place, .. }) = &args.action;
    let mut config = config_of(place.state.as_deref(), given)?;
    let asked = given.asked_shards()?;
    if let Action::Restore { to: Some(to), .. } = &args.action {
        config = ConfigArgs::renamed(config, to)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(act(&args.action, place, config, &asked))?;
    Ok(ExitCode::SUCCESS)
}

async fn act(action: &Action, place: &Place, config: Config, asked: &[(&str, u32)]) -> Result<(), Failure> {
    match action {
        Action::Create { name, out, drain: true, merchants, .. } => {
            let (state, out) = place.state.as_deref().zip(out.as_deref()).ok_or(
                "--drain needs --state and --out: the sources of a deployed pipeline cannot be stopped from here; \
                 deploy it with Active=false instead",
            )?;
            drained(place, name, state, out, merchants.as_deref(), config).await
        }
        Action::Create { name, out, .. } => {
            let sinks = out.clone().map(OutputFolder);
            let sinks = sinks.as_ref().map(|sinks| sinks as &dyn SinkPositions);
            with_stores(place, name, &config, async |env, files, name| {
                let taken = take(env, &config, files, name, sinks).await?;
                tell(&taken, place.json);
                Ok(())
            })
            .await
        }
        Action::List { .. } => with_files(place, "", &config, async |files, _| listing(files, place.json).await).await,
        Action::Show { name, .. } => {
            with_files(place, name, &config, async |files, name| {
                let manifest = show(files, &Settings::default(), name).await?;
                match place.json {
                    true => say!("{}", serde_json::to_string(&manifest)?),
                    false => print(&describe(&manifest)),
                }
                Ok(())
            })
            .await
        }
        Action::Verify { name, .. } => {
            with_files(place, name, &config, async |files, name| verified(files, name, &config, place.json).await).await
        }
        Action::Delete { name, .. } => {
            with_files(place, name, &config, async |files, name| {
                delete(files, &Settings::default(), name).await?;
                say!("deleted {}/{name}", files.location());
                Ok(())
            })
            .await
        }
        Action::Restore { name, allow_dropped, .. } => restore(place, name, *allow_dropped, &config, asked).await,
    }
}

/// Does something with the stores of a pipeline and with savepoint `name`.
async fn with_stores(
    place: &Place,
    name: &str,
    config: &Config,
    work: impl AsyncFnOnce(&Env, &dyn FileStore, &str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let stores = Stores::open(place.state.as_deref(), config).await?;
    let default = || place.state.as_deref().map_or_else(|| stores.default_savepoints(), folder_of);
    let named = Named::of(name, place.savepoints.as_deref(), || Some(default()));
    let result = match named.and_then(|named| Ok((named.files(&stores.clients)?, named.name))) {
        Ok((files, name)) => work(&stores.env, &*files, name).await,
        Err(error) => Err(error),
    };
    stores.close().await;
    result
}

/// Does something with savepoint `name` alone: in a folder that needs no stores.
async fn with_files(
    place: &Place,
    name: &str,
    config: &Config,
    work: impl AsyncFnOnce(&dyn FileStore, &str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let named = Named::of(name, place.savepoints.as_deref(), || place.state.as_deref().map(folder_of));
    if let Ok(named) = &named
        && let Some(folder) = named.folder()
    {
        return work(&DirFiles::new(folder), named.name).await;
    }
    with_stores(place, name, config, async |_, files, name| work(files, name).await).await
}

/// Takes a stopped pipeline to its end, then the savepoint.
async fn drained(
    place: &Place,
    name: &str,
    state: &Path,
    out: &Path,
    merchants: Option<&Path>,
    config: Config,
) -> Result<(), Failure> {
    let session = Session::open(config, Some(state), out, merchants, None).await?;
    let named = Named::of(name, place.savepoints.as_deref(), || Some(folder_of(state)))?;
    let files = named.files(session.stack.clients())?;
    bounded::drain(&session.pipeline).await?;
    let sinks = SessionSinks(session.sink.clone());
    let taken = take(&session.pipeline.env, &session.pipeline.config, &*files, name, Some(&sinks)).await?;
    session.stack.stop().await;
    tell(&taken, place.json);
    Ok(())
}

/// Standard output is the path alone, so that scripts can use it.
pub(crate) fn tell(taken: &Taken, as_json: bool) {
    if as_json {
        say!("{}", taken.to_json());
    } else {
        eprintln!("{}", taken.in_words());
        say!("{}", taken.path);
    }
}

async fn restore(
    place: &Place,
    name: &str,
    allow_dropped: bool,
    config: &Config,
    asked: &[(&str, u32)],
) -> Result<(), Failure> {
    if let Some(state) = &place.state {
        std::fs::create_dir_all(state).map_err(|e| format!("{}: {e}", state.display()))?;
    }
    with_stores(place, name, config, async |env, files, name| {
        let brought = bring_back(env, config, files, name, allow_dropped, asked).await?;
        let restored = &brought.restored;
        if let Some(state) = &place.state {
            config::keep_first(&restored.config, state)?;
        }
        let pipeline = &config.pipeline;
        match place.json {
            true => say!(
                "{}",
                json!({
                    "pipeline": pipeline,
                    "savepoint": format!("{}/{name}", files.location()),
                    "keys": restored.keys,
                    "records_in_flight": restored.records,
                    "dropped": restored.dropped,
                    "was_done": restored.was_done,
                })
            ),
            false => say!("{}", restored_in_words(&brought, pipeline)),
        }
        Ok(())
    })
    .await
}

async fn listing(files: &dyn FileStore, as_json: bool) -> Result<(), Failure> {
    let savepoints = list(files, &Settings::default()).await?;
    if as_json {
        let savepoints = savepoints.iter().map(|Listed { name, bytes, manifest }| match manifest {
            Ok(m) => json!({
                "name": name, "path": format!("{}/{name}", files.location()), "bytes": bytes, "pipeline": m.pipeline,
                "created_at_ms": m.created_at_ms, "drained": m.is_drained(),
            }),
            Err(error) => json!({ "name": name, "bytes": bytes, "error": error }),
        });
        say!("{}", serde_json::Value::from(savepoints.collect::<Vec<_>>()));
        return Ok(());
    }
    if savepoints.is_empty() {
        say!("no savepoints in {}", files.location());
    }
    for Listed { name, bytes: size, manifest } in savepoints {
        match manifest {
            Ok(m) => say!("{name:24} {:>10}  {}  pipeline {}", bytes(size), date_time(m.created_at_ms), m.pipeline),
            Err(error) => say!("{name:24} {:>10}  {error}", bytes(size)),
        }
    }
    Ok(())
}

async fn verified(files: &dyn FileStore, name: &str, config: &Config, as_json: bool) -> Result<(), Failure> {
    let topology = payguard(config);
    let found = verify(files, &Settings::default(), name, &|stage| fresh_operators(config, &topology, stage)).await?;
    match as_json {
        true => say!(
            "{}",
            json!({
                "ok": true, "files": found.files, "bytes": found.bytes, "keys": found.keys, "rows_in_flight": found.rows,
                "records_in_flight": found.records,
            })
        ),
        false => say!(
            "{name} is whole: {} files, {}, {} keys, {} rows in flight with {} records",
            grouped(found.files),
            bytes(found.bytes),
            grouped(found.keys),
            grouped(found.rows),
            grouped(found.records)
        ),
    }
    Ok(())
}

fn describe(manifest: &Manifest) -> String {
    let mut text = format!(
        "savepoint {} of pipeline {}, {} (format {}, code {}, {} key groups){}\n\n",
        manifest.name,
        manifest.pipeline,
        date_time(manifest.created_at_ms),
        manifest.format,
        manifest.code,
        manifest.key_groups,
        if manifest.is_drained() { ", drained" } else { "" }
    );
    text.push_str(&format!("{:10} {:24} {:>12} {:>12}\n", "stage", "state of", "keys", "bytes"));
    for ((stage, operator), (entries, size)) in manifest.sizes() {
        text.push_str(&format!("{stage:10} {operator:24} {:>12} {:>12}\n", grouped(entries), bytes(size)));
    }
    text.push_str(&format!("\n{:32} {:>8} {:>13} {:>14}  {}\n", "task", "commit", "watermark", "in flight", "read"));
    for task in &manifest.tasks {
        let read: Vec<String> = task
            .inputs
            .iter()
            .map(|(input, read)| match read.within {
                0 => format!("{input} to {}", read.at),
                within => format!("{input} to {} and {within} records", read.at),
            })
            .collect();
        text.push_str(&format!(
            "{:32} {:>8} {:>13} {:>14}  {}\n",
            task.task,
            grouped(task.seq),
            time_of_day(EventTime(task.watermark_ms)),
            grouped(task.rows.records.values().sum()),
            read.join(", ")
        ));
    }
    text
}
