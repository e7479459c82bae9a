//! The variables that say where a function's stores, sink and neighbours are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use payguard_aws::Tables;
use payguard_aws::lambda::FUNCTION_PREFIX_VARIABLE;
use payguard_engine::store::Sink;
use payguard_sink_file::FileSink;

use crate::error::StartError;

const LEDGER_TABLE: &str = "PAYGUARD_LEDGER_TABLE";
const STATE_TABLE: &str = "PAYGUARD_STATE_TABLE";
const SEGMENT_BUCKET: &str = "PAYGUARD_SEGMENT_BUCKET";
const SINK: &str = "PAYGUARD_SINK";
const REPORT_BATCH_ITEM_FAILURES: &str = "PAYGUARD_REPORT_BATCH_ITEM_FAILURES";

/// Where a function's stores, sink and neighbours are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The tables.
    pub tables: Tables,
    /// The bucket of the segments.
    pub bucket: String,
    /// What stands before a stage's id in the name of its function.
    pub function_prefix: String,
    /// Where sinks write.
    pub sink: Option<String>,
    /// Whether single records are reported as failed, or the whole batch.
    pub report_batch_item_failures: bool,
}

impl Options {
    /// Reads the variables of an environment.
    ///
    /// # Errors
    /// When one is missing or has a value that cannot be used.
    pub fn read(variables: &BTreeMap<String, String>) -> Result<Options, StartError> {
        let get = |name: &str| variables.get(name).filter(|value| !value.is_empty());
        let need = |name, purpose| get(name).cloned().ok_or(StartError::Missing { name, purpose });
        let report = match get(REPORT_BATCH_ITEM_FAILURES).map(String::as_str) {
            None | Some("false") => false,
            Some("true") => true,
            Some(value) => {
                let (name, value) = (REPORT_BATCH_ITEM_FAILURES, value.to_owned());
                return Err(StartError::Unusable { name, value, detail: "expected true or false" });
            }
        };
        Ok(Options {
            tables: Tables {
                ledger: need(LEDGER_TABLE, "the name of the ledger table")?,
                state: need(STATE_TABLE, "the name of the state table")?,
            },
            bucket: need(SEGMENT_BUCKET, "the name of the bucket of segments")?,
            function_prefix: get(FUNCTION_PREFIX_VARIABLE).cloned().unwrap_or_default(),
            sink: get(SINK).cloned(),
            report_batch_item_failures: report,
        })
    }

    /// Opens the sink, with a file for each of `topics`.
    ///
    /// # Errors
    /// When no sink is set, it is of an unknown kind, or it cannot be written.
    pub fn open_sink(&self, topics: &[&str]) -> Result<Arc<dyn Sink>, StartError> {
        let Some(url) = &self.sink else {
            let purpose = "this function writes outside the pipeline; say where, for example file:///mnt/payguard";
            return Err(StartError::Missing { name: SINK, purpose });
        };
        let detail =
            "expected file:// and an absolute folder, for example file:///mnt/payguard; there is no other sink";
        let folder = sink_folder(url).ok_or(StartError::Unusable { name: SINK, value: url.clone(), detail })?;
        Ok(Arc::new(FileSink::shared(&folder, topics)?))
    }
}

fn sink_folder(url: &str) -> Option<PathBuf> {
    let folder = Path::new(url.strip_prefix("file://")?);
    folder.is_absolute().then(|| folder.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(extra: &[(&str, &str)]) -> Result<Options, StartError> {
        let base = [(LEDGER_TABLE, "l"), (STATE_TABLE, "s"), (SEGMENT_BUCKET, "b")];
        let all = base.iter().chain(extra).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Options::read(&all.collect())
    }

    #[test]
    fn none_of_the_variables_is_taken_for_a_key_of_the_configuration() {
        let names = [LEDGER_TABLE, STATE_TABLE, SEGMENT_BUCKET, SINK, REPORT_BATCH_ITEM_FAILURES];
        for name in names.into_iter().chain([FUNCTION_PREFIX_VARIABLE]) {
            assert!(payguard_topology::config::RESERVED.contains(&name), "{name}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        for missing in [LEDGER_TABLE, STATE_TABLE, SEGMENT_BUCKET] {
            let error = read(&[(missing, "")]).unwrap_err().to_string();
            assert!(error.starts_with(missing), "{error}");
        }
        assert!(!read(&[]).unwrap().report_batch_item_failures);
        assert!(read(&[(REPORT_BATCH_ITEM_FAILURES, "true")]).unwrap().report_batch_item_failures);
        assert!(read(&[(REPORT_BATCH_ITEM_FAILURES, "yes")]).is_err());
    }

    #[test]
    fn a_sink_is_an_absolute_folder() {
        assert_eq!(sink_folder("file:///mnt/payguard"), Some(PathBuf::from("/mnt/payguard")));
        for url in ["/mnt/payguard", "file://mnt/payguard", "kafka://broker:9092", "file:", ""] {
            assert_eq!(sink_folder(url), None, "{url}");
        }
        let missing = read(&[]).unwrap().open_sink(&[]).err().unwrap().to_string();
        assert!(missing.starts_with("PAYGUARD_SINK is not set"), "{missing}");
        let other = read(&[(SINK, "kafka://x")]).unwrap().open_sink(&[]).err().unwrap().to_string();
        assert!(other.contains("kafka://x") && other.contains("file://"), "{other}");
    }
}
