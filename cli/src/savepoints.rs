//! Where savepoints are, and how the commands take and restore them.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use indicatif::{ProgressBar, ProgressStyle};
use payguard_aws::{Clients, S3Files};
use payguard_engine::store::{FileStore, Sink, SinkPosition};
use payguard_engine::task::Env;
use payguard_engine::{StageId, StoreError, TaskId};
use payguard_local::dir_files::DirFiles;
use payguard_local::rescale::{Rescaled, rescale_restored};
use payguard_savepoint::{Create, Manifest, Progress, Restore, Restored, SinkPositions};
use payguard_topology::Config;
use payguard_topology::begun::as_begun;
use serde_json::{Value, json};

use crate::Failure;
use crate::text::{bytes, date_time, grouped};

/// What a place in S3 begins with.
const S3: &str = "s3://";
/// The folder of savepoints in a state folder or bucket.
pub(crate) const FOLDER: &str = "savepoints";

/// A savepoint by its name and the place where it is.
pub(crate) struct Named<'a> {
    place: String,
    pub(crate) name: &'a str,
}

impl<'a> Named<'a> {
    /// A name in a place, or the whole path of a savepoint, as it is printed when one is taken.
    pub(crate) fn of(
        name: &'a str,
        place: Option<&str>,
        default: impl FnOnce() -> Option<String>,
    ) -> Result<Named<'a>, Failure> {
        if let (None, Some((parent, name))) = (place, name.trim_end_matches('/').rsplit_once('/')) {
            return Ok(Named { place: parent.to_owned(), name });
        }
        let place = place.map(str::to_owned).or_else(default);
        let place = place.ok_or("where are the savepoints? Say --savepoints DIR, or give the path of the savepoint")?;
        Ok(Named { place, name })
    }

    /// The place, when it is a folder.
    pub(crate) fn folder(&self) -> Option<&Path> {
        (!self.place.starts_with(S3)).then(|| Path::new(&self.place))
    }

    /// The files of the place.
    pub(crate) fn files(&self, clients: &Clients) -> Result<Arc<dyn FileStore>, Failure> {
        open(&self.place, clients)
    }
}

/// The savepoints of a state folder.
pub(crate) fn folder_of(state: &Path) -> String {
    state.join(FOLDER).display().to_string()
}

/// The files of a place: a folder, or `s3://bucket/prefix`.
fn open(place: &str, clients: &Clients) -> Result<Arc<dyn FileStore>, Failure> {
    let Some(rest) = place.strip_prefix(S3) else { return Ok(Arc::new(DirFiles::new(Path::new(place)))) };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    match bucket {
        "" => Err(format!("{place}: expected s3://bucket/prefix").into()),
        bucket => Ok(Arc::new(S3Files::new(clients, bucket, prefix))),
    }
}

/// The sinks of a session.
pub(crate) struct SessionSinks(pub(crate) Arc<dyn Sink>);

#[async_trait]
impl SinkPositions for SessionSinks {
    async fn position(&self, task: &TaskId) -> Result<SinkPosition, StoreError> {
        self.0.position(task).await
    }
}

/// The output folder of a pipeline that another process may be running.
pub(crate) struct OutputFolder(pub(crate) PathBuf);

#[async_trait]
impl SinkPositions for OutputFolder {
    async fn position(&self, task: &TaskId) -> Result<SinkPosition, StoreError> {
        payguard_sink_file::position_in(&self.0, task)
    }
}

/// A savepoint that was taken, and how fast.
pub(crate) struct Taken {
    pub(crate) path: String,
    manifest: Manifest,
    bytes: u64,
    seconds: f64,
}

/// Takes a savepoint and shows how far it is.
pub(crate) async fn take(
    env: &Env,
    config: &Config,
    files: &dyn FileStore,
    name: &str,
    sinks: Option<&dyn SinkPositions>,
) -> Result<Taken, Failure> {
    let started = Instant::now();
    let bar = bar()?;
    let written = AtomicU64::new(0);
    let progress = |progress: &Progress| {
        let Progress { task, groups, keys, bytes: size, rows, anew } = progress;
        written.store(*size, Ordering::Relaxed);
        bar.set_length(u64::from(groups.1));
        bar.set_position(u64::from(groups.0));
        let rate = *keys as f64 / started.elapsed().as_secs_f64().max(1e-3);
        let (keys, rate, size) = (grouped(*keys), grouped(rate as u64), bytes(*size));
        let again = match anew {
            0 => String::new(),
            times => format!(", begun anew {times} times because rows were collected"),
        };
        bar.set_message(format!("{task}: {keys} keys ({rate} a second), {rows} rows in flight, {size}{again}"));
    };
    let config = &as_begun(env, config.clone()).await?;
    let request = Create { env, files, config, name, sinks, progress: &progress };
    let result = payguard_savepoint::create(&request).await;
    bar.finish_and_clear();
    let manifest = result?;
    let (path, seconds) = (format!("{}/{name}", files.location()), started.elapsed().as_secs_f64());
    Ok(Taken { path, manifest, bytes: written.into_inner(), seconds })
}

impl Taken {
    fn keys(&self) -> u64 {
        self.manifest.sizes().values().map(|(entries, _)| entries).sum()
    }

    fn rate(&self) -> u64 {
        (self.keys() as f64 / self.seconds.max(1e-3)) as u64
    }

    pub(crate) fn in_words(&self) -> String {
        format!(
            "{} keys and {} records in flight, {} in {:.1} s ({} keys a second)",
            grouped(self.keys()),
            grouped(self.manifest.records_in_flight()),
            bytes(self.bytes),
            self.seconds,
            grouped(self.rate())
        )
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "path": self.path,
            "name": self.manifest.name,
            "pipeline": self.manifest.pipeline,
            "drained": self.manifest.is_drained(),
            "keys": self.keys(),
            "records_in_flight": self.manifest.records_in_flight(),
            "bytes": self.bytes,
            "seconds": self.seconds,
            "keys_per_second": self.rate(),
        })
    }
}

/// A restored pipeline, and what became of its shards.
pub(crate) struct BroughtBack {
    pub(crate) restored: Restored,
    rescaled: Vec<(StageId, Rescaled)>,
}

/// Restores a savepoint into the stores of `env`, with the shards that were asked for.
pub(crate) async fn bring_back(
    env: &Env,
    config: &Config,
    files: &dyn FileStore,
    name: &str,
    allow_dropped: bool,
    asked: &[(&str, u32)],
) -> Result<BroughtBack, Failure> {
    let restored = payguard_savepoint::restore(&Restore { env, files, config, name, allow_dropped }).await?;
    let generation = |stage: &StageId| restored.manifest.generation(&stage.0);
    let rescaled = rescale_restored(&restored.config, asked, generation, env).await?;
    Ok(BroughtBack { restored, rescaled })
}

/// What was restored, in words.
pub(crate) fn restored_in_words(brought: &BroughtBack, pipeline: &str) -> String {
    let BroughtBack { restored: Restored { manifest, keys, records, dropped, was_done, .. }, rescaled } = brought;
    let mut text = match was_done {
        true => format!("pipeline {pipeline} was restored from {} before", manifest.name),
        false => format!(
            "pipeline {pipeline} restored from {} of {}: {} keys, {} records in flight",
            manifest.name,
            date_time(manifest.created_at_ms),
            grouped(*keys),
            grouped(*records)
        ),
    };
    for (stage, Rescaled { from, to }) in rescaled {
        text.push_str(&format!("\n{stage}: {} -> {} shards", from.shards, to.shards));
    }
    dropped.iter().for_each(|what| text.push_str(&format!("\ngiven up: {what}")));
    if manifest.is_drained() {
        text.push_str(
            "\nthe savepoint was drained: windows had been closed early; what comes for them now begins them anew and \
             replaces their totals",
        );
    }
    text
}

fn bar() -> Result<ProgressBar, Failure> {
    if !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let template = "{bar:30} {pos} of {len} key groups, {msg}";
    Ok(ProgressBar::new(0).with_style(ProgressStyle::with_template(template)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_savepoint_is_named_by_its_path_or_by_its_name_in_a_place() {
        let of = |name: &'static str, place: Option<&str>, default: Option<&str>| {
            let named = Named::of(name, place, || default.map(str::to_owned));
            named.map(|named| (named.place, named.name)).map_err(|e| e.to_string())
        };
        let is = |place: &str, name| Ok((place.to_owned(), name));
        assert_eq!(of("a", Some("x"), None), is("x", "a"));
        assert_eq!(of("a", None, Some("s/savepoints")), is("s/savepoints", "a"));
        assert_eq!(of("s/savepoints/a", None, Some("t")), is("s/savepoints", "a"));
        assert_eq!(of("s3://bucket/p/a/", None, None), is("s3://bucket/p", "a"));
        assert!(of("a", None, None).is_err_and(|e| e.contains("--savepoints")));
    }
}
