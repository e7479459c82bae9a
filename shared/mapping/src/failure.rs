//! Where records go that are given up: the mapping's on-failure destination.

use std::io;
use std::path::PathBuf;

use async_trait::async_trait;
use serde_json::json;

use crate::core::{Batch, Reason};

/// Keeps records that are given up.
#[async_trait]
pub trait FailureDestination: Send + Sync + 'static {
    /// Keeps a batch. It may be told of the same records again; nothing is committed before it has them.
    ///
    /// # Errors
    /// When it could not: it is asked again.
    async fn keep(&self, batch: &Batch, reason: Reason, bootstrap: &str) -> io::Result<()>;
}

/// A folder of JSON files: one a batch, with the event, and why it was given up, as Lambda writes them to S3.
pub struct FailureFolder {
    folder: PathBuf,
}

impl FailureFolder {
    /// The folder is made when it is needed.
    #[must_use]
    pub fn new(folder: PathBuf) -> FailureFolder {
        FailureFolder { folder }
    }
}

#[async_trait]
impl FailureDestination for FailureFolder {
    async fn keep(&self, batch: &Batch, reason: Reason, bootstrap: &str) -> io::Result<()> {
        let event = batch.event(bootstrap);
        let condition = match reason {
            Reason::RetriesExhausted => "RetryAttemptsExhausted",
            Reason::Expired => "MaximumRecordAgeExceeded",
            Reason::TooLarge => "MaximumPayloadSizeExceeded",
        };
        // The same records have the same name: a repetition replaces the file.
        let parts = event.records.iter().filter_map(|(partition, records)| {
            let (first, last) = (records.first()?.offset, records.last()?.offset);
            Some(format!("{partition}.{first}-{last}.{}", records.len()))
        });
        let name = parts.collect::<Vec<_>>().join("+");
        let name = if name.len() > 200 { format!("{}~{}", &name[..180], batch.len()) } else { name };
        let invocations = batch.retries() + u32::from(reason != Reason::TooLarge);
        let content = json!({
            "requestContext": {"condition": condition, "approximateInvokeCount": invocations},
            "payload": event,
        });
        tokio::fs::create_dir_all(&self.folder).await?;
        let unfinished = self.folder.join(format!("{name}.tmp"));
        tokio::fs::write(&unfinished, content.to_string()).await?;
        tokio::fs::rename(&unfinished, self.folder.join(format!("{name}.json"))).await
    }
}
