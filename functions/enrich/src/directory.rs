//! The directory that the variables of the function name.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use payguard_directory::{FileDirectory, Limits, MerchantDirectory, PostgresDirectory, SeededDirectory};
use payguard_lambda::StartError;
use payguard_postgres::DatabaseSettings;

const DIRECTORY: &str = "PAYGUARD_DIRECTORY";

/// Opens the directory of `PAYGUARD_DIRECTORY`: `seeded`, which holds when it is not set, a file as
/// `file:///path/merchants.csv`, or `postgres`, the database of `PAYGUARD_DB_URL`, `PAYGUARD_DB_USER` and
/// `PAYGUARD_DB_PASSWORD`. A database need not be up.
///
/// # Errors
/// When it is none of these, the file is not a directory of merchants, or the database is not named.
pub fn open(variables: &BTreeMap<String, String>) -> Result<Arc<dyn MerchantDirectory>, StartError> {
    let name = variables.get(DIRECTORY).map_or("", String::as_str);
    if let Some(path) = name.strip_prefix("file://").map(Path::new).filter(|path| path.is_absolute()) {
        return Ok(Arc::new(FileDirectory::open(path).map_err(wrong)?));
    }
    match name {
        "" | "seeded" => Ok(Arc::new(SeededDirectory)),
        "postgres" => {
            let settings = DatabaseSettings::read(variables).map_err(wrong)?;
            Ok(Arc::new(PostgresDirectory::new(&settings, Limits::default().timeout).map_err(wrong)?))
        }
        _ => {
            let detail = "expected seeded, postgres, or file:// and an absolute path, for example \
                          file:///var/task/merchants.csv";
            Err(StartError::Unusable { name: DIRECTORY, value: name.to_owned(), detail })
        }
    }
}

fn wrong(error: impl std::error::Error + Send + Sync + 'static) -> StartError {
    StartError::Directory(Box::new(error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn refusal(variables: &[(&str, &str)]) -> Option<String> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        open(&variables.collect()).err().map(|error| error.to_string())
    }

    #[test]
    fn the_directory_is_the_one_that_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("merchants.csv");
        std::fs::write(&file, "merchant_id,risk_level\nm-1,HIGH\n").unwrap();
        let file = format!("file://{}", file.display());
        for name in ["", "seeded", &file] {
            assert_eq!(refusal(&[(DIRECTORY, name)]), None, "{name}");
        }
        assert_eq!(refusal(&[]), None);
        let url = ("PAYGUARD_DB_URL", "postgresql://127.0.0.1:1/payguard");
        assert_eq!(refusal(&[(DIRECTORY, "postgres"), url, ("PAYGUARD_DB_USER", "reader")]), None, "it may be down");
    }

    #[test]
    fn a_directory_that_cannot_be_opened_is_named_without_its_password() {
        let secret = ("PAYGUARD_DB_PASSWORD", "s3cret");
        for (variables, reason) in [
            (vec![(DIRECTORY, "redis")], "PAYGUARD_DIRECTORY=redis: expected seeded"),
            (vec![(DIRECTORY, "file://merchants.csv")], "expected seeded"),
            (vec![(DIRECTORY, "file:///nowhere/merchants.csv")], "/nowhere/merchants.csv"),
            (vec![(DIRECTORY, "postgres"), secret], "PAYGUARD_DB_URL is not set"),
            (vec![(DIRECTORY, "postgres"), secret, ("PAYGUARD_DB_URL", "postgresql://h/d")], "PAYGUARD_DB_USER is not"),
        ] {
            let text = refusal(&variables).unwrap();
            assert!(text.contains(reason) && !text.contains(secret.1), "{text}");
        }
    }

    #[test]
    fn none_of_the_variables_is_taken_for_a_key_of_the_configuration() {
        for name in [DIRECTORY, "PAYGUARD_DB_URL", "PAYGUARD_DB_USER", "PAYGUARD_DB_PASSWORD", "PAYGUARD_DB_CA_FILE"] {
            assert!(payguard_topology::config::RESERVED.contains(&name), "{name}");
        }
    }
}
