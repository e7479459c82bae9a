//! The sink that the variables of the function name.

use std::collections::BTreeMap;
use std::sync::Arc;

use payguard_engine::store::Sink;
use payguard_lambda::{Options, StartError};
use payguard_postgres::{DatabaseSettings, Patience, PostgresSink};

use crate::TABLE;

const SINK: &str = "PAYGUARD_SINK";
/// Where all functions have the same variables, this one goes before.
const OWN_SINK: &str = "PAYGUARD_TOTALS_SINK";

/// Opens the sink of `PAYGUARD_TOTALS_SINK`, or else of `PAYGUARD_SINK`: a folder, as `file:///mnt/payguard`, or `postgres`, the database of
/// `PAYGUARD_DB_URL`, `PAYGUARD_DB_USER` and `PAYGUARD_DB_PASSWORD`, where the positions are `pipeline`'s. A database need
/// not be up.
///
/// # Errors
/// When it is neither, the folder cannot be written, or the database is not named.
pub fn open(
    options: &Options,
    pipeline: &str,
    variables: &BTreeMap<String, String>,
) -> Result<Arc<dyn Sink>, StartError> {
    let own = variables.get(OWN_SINK).filter(|sink| !sink.is_empty());
    let name = if own.is_some() { OWN_SINK } else { SINK };
    let options = Options { sink: own.or(options.sink.as_ref()).cloned(), ..options.clone() };
    match options.sink.as_deref() {
        Some("postgres") => {
            let settings = DatabaseSettings::read(variables).map_err(|e| StartError::Database(Box::new(e)))?;
            Ok(Arc::new(PostgresSink::new(&settings, pipeline, Patience::default())))
        }
        Some(other) if !other.starts_with("file://") => {
            let detail = "expected postgres, or file:// and an absolute folder, for example file:///mnt/payguard";
            Err(StartError::Unusable { name, value: other.to_owned(), detail })
        }
        _ => options.open_sink(&[TABLE]),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn refusal(sink: &str, variables: &[(&str, &str)]) -> Option<String> {
        let base = [("PAYGUARD_LEDGER_TABLE", "l"), ("PAYGUARD_STATE_TABLE", "s"), ("PAYGUARD_SEGMENT_BUCKET", "b")];
        let named = [(SINK, sink)];
        let all = base.iter().chain(&named).chain(variables);
        let variables = all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let options = Options::read(&variables).unwrap();
        open(&options, "payguard", &variables).err().map(|error| error.to_string())
    }

    #[test]
    fn the_sink_is_the_one_that_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(refusal(&format!("file://{}", folder.path().display()), &[]), None);
        assert!(folder.path().join("merchant_stats.jsonl").exists());
        let database = [("PAYGUARD_DB_URL", "postgresql://127.0.0.1:1/payguard"), ("PAYGUARD_DB_USER", "writer")];
        assert_eq!(refusal("postgres", &database), None, "it may be down");
        let own = [&database[..], &[(OWN_SINK, "postgres")]].concat();
        assert_eq!(refusal("kafka", &own), None, "the other sink is the one of publish");
        assert!(payguard_topology::config::RESERVED.contains(&OWN_SINK));
    }

    #[test]
    fn a_sink_that_cannot_be_opened_is_named_without_its_password() {
        let secret = ("PAYGUARD_DB_PASSWORD", "s3cret");
        for (sink, variables, reason) in [
            ("", vec![], "PAYGUARD_SINK is not set"),
            ("kafka://b:9092", vec![], "PAYGUARD_SINK=kafka://b:9092: expected postgres, or file://"),
            ("file://relative", vec![], "PAYGUARD_SINK=file://relative: expected"),
            ("postgres", vec![secret], "the database cannot be used: PAYGUARD_DB_URL is not set"),
            ("postgres", vec![secret, ("PAYGUARD_DB_URL", "postgresql://h/d")], "PAYGUARD_DB_USER is not set"),
        ] {
            let text = refusal(sink, &variables).unwrap();
            assert!(text.contains(reason) && !text.contains(secret.1), "{text}");
        }
    }

    #[test]
    fn the_table_is_the_one_that_the_database_has() {
        assert_eq!(TABLE, payguard_postgres::TABLE);
    }
}
