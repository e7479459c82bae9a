//! What became of records that were sent.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::Message;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;

use crate::KafkaContext;

/// A producer's context that also hears what became of its records.
pub struct Deliveries {
    /// Of the connection.
    pub context: KafkaContext,
    failed: Mutex<Option<KafkaError>>,
}

impl Deliveries {
    /// For one producer.
    #[must_use]
    pub fn new(context: KafkaContext) -> Deliveries {
        Deliveries { context, failed: Mutex::default() }
    }

    /// Why the first record failed that did since this was last asked.
    pub fn take_failure(&self) -> Option<KafkaError> {
        self.first().take()
    }

    fn first(&self) -> MutexGuard<'_, Option<KafkaError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Deliveries {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = KafkaContext::ENABLE_REFRESH_OAUTH_TOKEN;

    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        self.context.log(level, fac, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.context.error(error, reason);
    }

    fn generate_oauth_token(&self, config: Option<&str>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        self.context.generate_oauth_token(config)
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, message)) = result {
            let mut first = self.first();
            if first.is_none() {
                let bytes = message.payload_len();
                tracing::error!(topic = message.topic(), bytes, %error, "a record was not written");
                *first = Some(error.clone());
            }
        }
    }
}
