//! Who does the work of a batch.

use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;
use payguard_aws::event::{BatchResponse, KafkaEvent};
use serde_json::Value;

use crate::core::Outcome;

/// Invokes a function.
#[async_trait]
pub trait Invoker: Send + Sync + 'static {
    /// Hands over an event and waits for the answer; why a function failed is logged here.
    async fn invoke(&self, event: KafkaEvent) -> Outcome;
}

type Work = dyn Fn(KafkaEvent) -> Pin<Box<dyn Future<Output = Result<BatchResponse, String>> + Send>> + Send + Sync;

/// A function of this process.
pub struct FnInvoker {
    work: Box<Work>,
}

impl FnInvoker {
    /// A function that answers with the records that it did not process, or fails as a whole.
    pub fn new<F, W>(work: F) -> FnInvoker
    where
        F: Fn(KafkaEvent) -> W + Send + Sync + 'static,
        W: Future<Output = Result<BatchResponse, String>> + Send + 'static,
    {
        FnInvoker { work: Box::new(move |event| Box::pin(work(event))) }
    }
}

#[async_trait]
impl Invoker for FnInvoker {
    async fn invoke(&self, event: KafkaEvent) -> Outcome {
        match (self.work)(event).await {
            Ok(answer) => Outcome::Unprocessed(answer.batch_item_failures),
            Err(error) => {
                tracing::warn!(error, "the function failed");
                Outcome::Failed
            }
        }
    }
}

/// What a function's answer means to Lambda. Without `report`, which is `ReportBatchItemFailures`, every answer means that
/// all is done. With it, an answer that is empty, null or without a list does too.
///
/// # Errors
/// When there is a list that cannot be read: the whole batch failed.
pub fn outcome_of(answer: &[u8], report: bool) -> Result<Outcome, String> {
    if !report || answer.is_empty() {
        return Ok(Outcome::Done);
    }
    let answer: Value = serde_json::from_slice(answer).map_err(|err| format!("the answer is not JSON: {err}"))?;
    let list = match &answer {
        Value::Null => &Value::Null,
        Value::Object(fields) => fields.get("batchItemFailures").unwrap_or(&Value::Null),
        Value::String(text) if text.is_empty() => &Value::Null,
        _ => return Err("the answer is not an object".to_owned()),
    };
    if list.is_null() {
        return Ok(Outcome::Done);
    }
    let response: BatchResponse = serde_json::from_value(answer).map_err(|err| format!("the answer: {err}"))?;
    Ok(Outcome::Unprocessed(response.batch_item_failures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_lambda_reads_them() {
        let failure = payguard_aws::event::BatchItemFailure { partition: "payments.raw-0".to_owned(), offset: 100 };
        let one = br#"{"batchItemFailures":[{"itemIdentifier":{"partition":"payments.raw-0","offset":100}}]}"#;
        for (answer, expected) in [
            (&b""[..], Some(Outcome::Done)),
            (b"null", Some(Outcome::Done)),
            (b"\"\"", Some(Outcome::Done)),
            (b"{}", Some(Outcome::Done)),
            (br#"{"batchItemFailures":null}"#, Some(Outcome::Done)),
            (br#"{"batchItemFailures":[]}"#, Some(Outcome::Unprocessed(vec![]))),
            (one, Some(Outcome::Unprocessed(vec![failure]))),
            (br#"{"batchItemFailures":[{"itemIdentifier":"100"}]}"#, None),
            (b"[]", None),
            (b"{", None),
        ] {
            assert_eq!(outcome_of(answer, true).ok(), expected, "{}", String::from_utf8_lossy(answer));
        }
        assert_eq!(outcome_of(one, false), Ok(Outcome::Done));
    }
}
