//! What tasks are run with, over the embedded stores.

use std::sync::Arc;

use payguard_aws::dynamo::{DynamoLedger, DynamoStateTable};
use payguard_aws::s3::S3Segments;
use payguard_aws::system::{RandomAttempts, SystemClock};
use payguard_aws::usage::Usage;
use payguard_engine::task::Env;
use payguard_topology::Config;

use crate::embedded::EmbeddedStack;
use crate::runner::LocalWaker;

/// The stores of `stack`, the machine's clock and random attempt ids; what they consume is counted in `usage`.
#[must_use]
pub fn env(stack: &EmbeddedStack, config: &Config, usage: &Arc<Usage>) -> Env {
    let (clients, tables, pipeline) = (stack.clients(), stack.tables(), config.pipeline.as_str());
    Env {
        ledger: Arc::new(DynamoLedger::new(clients.dynamodb.clone(), tables, pipeline, usage.clone())),
        state: Arc::new(DynamoStateTable::new(clients.dynamodb.clone(), tables, pipeline, usage.clone())),
        segments: Arc::new(S3Segments::new(clients, stack.bucket(), pipeline, usage.clone())),
        waker: Arc::new(LocalWaker::default()),
        clock: Arc::new(SystemClock),
        attempts: Arc::new(RandomAttempts),
        settings: config.settings(),
    }
}
