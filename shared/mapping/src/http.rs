//! Functions behind the Invoke API: `cargo lambda watch`.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::TokioIo;
use payguard_aws::event::KafkaEvent;
use tokio::net::TcpStream;

use crate::core::{Outcome, PAYLOAD_BYTES};
use crate::invoker::{Invoker, outcome_of};

/// No function of Lambda's may take longer.
const LONGEST: Duration = Duration::from_mins(15);

/// What came back from an invocation.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Whether the function failed, as Lambda says with status 200: the header `X-Amz-Function-Error`.
    pub function_error: bool,
    /// What the function answered.
    pub body: Bytes,
}

/// Invokes a function and waits for its answer. `authority` is `host:port`.
///
/// # Errors
/// When nobody takes the event or the connection ends before the answer.
pub async fn invoke(authority: &str, function: &str, event: Bytes) -> Result<Answer, String> {
    let failed = |e: &dyn std::fmt::Display| format!("invoking {function} at {authority}: {e}");
    let stream = TcpStream::connect(authority).await.map_err(|e| failed(&e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
    tokio::spawn(connection);
    let request = Request::post(format!("/2015-03-31/functions/{function}/invocations"))
        .header("host", authority)
        .header("content-type", "application/json")
        .body(Full::new(event))
        .map_err(|e| failed(&e))?;
    let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
    let status = response.status().as_u16();
    let function_error = response.headers().contains_key("x-amz-function-error");
    let body = response.into_body().collect().await.map_err(|e| failed(&e))?.to_bytes();
    Ok(Answer { status, function_error, body })
}

/// A function behind the Invoke API.
pub struct HttpInvoker {
    authority: String,
    function: String,
    report_batch_item_failures: bool,
}

impl HttpInvoker {
    /// The function of this name at `host:port`; whether its answer is looked at is up to
    /// `report_batch_item_failures`, as in Lambda.
    #[must_use]
    pub fn new(authority: &str, function: &str, report_batch_item_failures: bool) -> HttpInvoker {
        HttpInvoker { authority: authority.to_owned(), function: function.to_owned(), report_batch_item_failures }
    }

    async fn outcome(&self, event: &KafkaEvent) -> Result<Outcome, String> {
        let event = serde_json::to_vec(event).map_err(|err| format!("the event: {err}"))?;
        // The local servers take any size, Lambda does not.
        if event.len() > PAYLOAD_BYTES {
            return Err(format!("the event has {} bytes, {PAYLOAD_BYTES} are allowed", event.len()));
        }
        let answer = tokio::time::timeout(LONGEST, invoke(&self.authority, &self.function, event.into()));
        let answer = answer.await.map_err(|_| format!("no answer within {} min", LONGEST.as_secs() / 60))??;
        // Lambda answers 200 also when the function fails, cargo-lambda 500, or 408 after its time limit.
        if answer.status != 200 || answer.function_error {
            let body = String::from_utf8_lossy(&answer.body).chars().take(500).collect::<String>();
            return Err(format!("{} failed, status {}: {body}", self.function, answer.status));
        }
        outcome_of(&answer.body, self.report_batch_item_failures)
    }
}

#[async_trait]
impl Invoker for HttpInvoker {
    async fn invoke(&self, event: KafkaEvent) -> Outcome {
        self.outcome(&event).await.unwrap_or_else(|error| {
            tracing::warn!(function = self.function, error, "the invocation failed");
            Outcome::Failed
        })
    }
}
