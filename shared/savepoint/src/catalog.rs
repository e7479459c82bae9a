//! The savepoints there are.

use payguard_engine::store::FileStore;
use payguard_engine::task::Settings;
use payguard_engine::task::retry::patiently;

use crate::error::{Refusal, SavepointError};
use crate::format::{MANIFEST, Manifest, check_name};

/// A savepoint in a list.
#[derive(Clone, PartialEq, Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Bytes of all its files.
    pub bytes: u64,
    /// What it holds; an error text when its manifest cannot be read here.
    pub manifest: Result<Manifest, String>,
}

/// All savepoints, by name. Tries that died are none.
///
/// # Errors
/// When the store fails.
pub async fn list(files: &dyn FileStore, settings: &Settings) -> Result<Vec<Listed>, SavepointError> {
    let all = patiently(settings, || files.list_files("")).await?;
    let mut listed = Vec::new();
    for name in all.iter().filter_map(|file| name_of(&file.path)) {
        let manifest = match show(files, settings, name).await {
            Ok(manifest) => Ok(manifest),
            Err(SavepointError::Store(error)) => return Err(error.into()),
            Err(other) => Err(other.to_string()),
        };
        let below = all.iter().filter(|file| file.path.split_once('/').is_some_and(|(first, _)| first == name));
        listed.push(Listed { name: name.to_owned(), bytes: below.map(|file| file.bytes).sum(), manifest });
    }
    Ok(listed)
}

/// The manifest of a savepoint.
///
/// # Errors
/// When there is none of this name, it is of another format or was renamed, or it is damaged.
pub async fn show(files: &dyn FileStore, settings: &Settings, name: &str) -> Result<Manifest, SavepointError> {
    check_name(name)?;
    let path = format!("{name}/{MANIFEST}");
    let Some(bytes) = patiently(settings, || files.get_file(&path)).await? else {
        return Err(not_found(files, settings, name).await?.into());
    };
    let manifest = Manifest::read(name, &bytes)?;
    if manifest.name != name {
        return Err(Refusal::Renamed { name: name.to_owned(), was: manifest.name }.into());
    }
    Ok(manifest)
}

/// Removes a savepoint, the manifest first: so it is there whole or not at all.
///
/// # Errors
/// When there is none of this name, or the store fails: what is left then is removed by the next try.
pub async fn delete(files: &dyn FileStore, settings: &Settings, name: &str) -> Result<(), SavepointError> {
    check_name(name)?;
    let prefix = format!("{name}/");
    let all = patiently(settings, || files.list_files(&prefix)).await?;
    if all.is_empty() {
        return Err(not_found(files, settings, name).await?.into());
    }
    let manifest = format!("{prefix}{MANIFEST}");
    let rest = all.iter().map(|file| &file.path).filter(|path| **path != manifest);
    for path in std::iter::once(&manifest).chain(rest) {
        patiently(settings, || files.delete_file(path)).await?;
    }
    Ok(())
}

async fn not_found(files: &dyn FileStore, settings: &Settings, name: &str) -> Result<Refusal, SavepointError> {
    let all = patiently(settings, || files.list_files("")).await?;
    let there_are = all.iter().filter_map(|file| name_of(&file.path)).map(str::to_owned).collect();
    Ok(Refusal::NotFound { name: name.to_owned(), location: files.location(), there_are })
}

/// The name of the savepoint whose manifest is at `path`.
fn name_of(path: &str) -> Option<&str> {
    path.strip_suffix(MANIFEST)?.strip_suffix('/').filter(|name| !name.contains('/'))
}
