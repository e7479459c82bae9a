//! SDK clients for an embedded or local endpoint: static credentials, plain HTTP, bounded waiting.

use std::time::Duration;

use aws_credential_types::Credentials;
use aws_sdk_s3::config::{
    BehaviorVersion, Region, RequestChecksumCalculation, ResponseChecksumValidation, StalledStreamProtectionConfig,
};
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;

/// Access key of the embedded servers. It guards nothing: they listen on the loopback address only.
pub const EMBEDDED_ACCESS_KEY: &str = "PAYGUARDLOCAL";

/// Secret key of the embedded servers.
pub const EMBEDDED_SECRET_KEY: &str = "payguard-local-secret";

/// Region named in requests to the embedded servers.
pub const EMBEDDED_REGION: &str = "us-east-1";

/// Attempts of one request, the first included.
pub(crate) const MAX_ATTEMPTS: u32 = 4;

/// The SDK clients of the stores.
#[derive(Clone, Debug)]
pub struct Clients {
    /// The ledger and the state table.
    pub dynamodb: aws_sdk_dynamodb::Client,
    /// The segments.
    pub s3: aws_sdk_s3::Client,
    /// Whether S3 is spoken to over plain HTTP, where hashing every payload for its signature buys nothing.
    pub s3_is_plain_http: bool,
}

/// Clients of the embedded servers (or of anything that speaks like them at these endpoints, without TLS).
#[must_use]
pub fn embedded_clients(dynamodb_endpoint: &str, s3_endpoint: &str) -> Clients {
    let credentials = Credentials::new(EMBEDDED_ACCESS_KEY, EMBEDDED_SECRET_KEY, None, None, "embedded");
    let http = aws_smithy_http_client::Builder::new().build_http();
    let dynamodb = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(EMBEDDED_REGION))
        .endpoint_url(dynamodb_endpoint)
        .credentials_provider(credentials.clone())
        .http_client(http.clone())
        .timeout_config(dynamodb_timeouts())
        .retry_config(retries())
        .build();
    let s3 = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(EMBEDDED_REGION))
        .endpoint_url(s3_endpoint)
        .credentials_provider(credentials)
        .http_client(http)
        .timeout_config(s3_timeouts())
        .retry_config(retries());
    Clients {
        dynamodb: aws_sdk_dynamodb::Client::from_conf(dynamodb),
        s3: aws_sdk_s3::Client::from_conf(custom_s3_endpoint(s3, true).build()),
        s3_is_plain_http: true,
    }
}

/// Settings of S3 at an endpoint that is not AWS: bucket in the path; over plain HTTP no checksums unless required.
pub(crate) fn custom_s3_endpoint(s3: aws_sdk_s3::config::Builder, plain_http: bool) -> aws_sdk_s3::config::Builder {
    let s3 = s3.force_path_style(true);
    if !plain_http {
        return s3;
    }
    s3.request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
}

/// Standard retries with backoff.
pub(crate) fn retries() -> RetryConfig {
    RetryConfig::standard().with_max_attempts(MAX_ATTEMPTS).with_initial_backoff(Duration::from_millis(50))
}

/// DynamoDB answers in milliseconds; an attempt that takes seconds is better made again (with the same token).
pub(crate) fn dynamodb_timeouts() -> TimeoutConfig {
    timeouts(Duration::from_secs(5), Duration::from_secs(20))
}

/// S3 moves up to a few megabytes per request.
pub(crate) fn s3_timeouts() -> TimeoutConfig {
    timeouts(Duration::from_secs(15), Duration::from_secs(45))
}

fn timeouts(attempt: Duration, operation: Duration) -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(2))
        .operation_attempt_timeout(attempt)
        .operation_timeout(operation)
        .build()
}
