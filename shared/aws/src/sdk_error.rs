//! What an SDK error means: which of the engine's kinds it is, and a text that names the cause.

use std::error::Error;

use aws_sdk_dynamodb::error::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use payguard_engine::{StoreError, StoreErrorKind};

/// Service errors after which repeating the request cannot help. Nothing was written.
const INVALID_CODES: &[&str] = &[
    "AccessDenied",
    "AccessDeniedException",
    "EntityTooLarge",
    "IdempotentParameterMismatchException",
    "InvalidAccessKeyId",
    "InvalidBucketName",
    "InvalidRequest",
    "InvalidSignatureException",
    "ItemCollectionSizeLimitExceededException",
    "KeyTooLongError",
    "MissingAuthenticationTokenException",
    "NoSuchBucket",
    "NotImplemented",
    "ResourceNotFoundException",
    "SerializationException",
    "SignatureDoesNotMatch",
    "UnknownOperationException",
    "UnrecognizedClientException",
    "ValidationException",
];

/// The service's error code, when the service answered with one.
pub(crate) fn code<E: ProvideErrorMetadata, R>(err: &SdkError<E, R>) -> Option<&str> {
    match err {
        SdkError::ServiceError(answer) => answer.err().code(),
        _ => None,
    }
}

/// `Invalid` when the request certainly did nothing and never will; `Unavailable` when that is not known.
pub(crate) fn kind<E: ProvideErrorMetadata, R>(err: &SdkError<E, R>) -> StoreErrorKind {
    match err {
        SdkError::ConstructionFailure(_) => StoreErrorKind::Invalid,
        SdkError::ServiceError(answer) => kind_of(answer.err().code()),
        _ => StoreErrorKind::Unavailable,
    }
}

/// The same by the service's error code.
pub(crate) fn kind_of(code: Option<&str>) -> StoreErrorKind {
    match code {
        Some(code) if INVALID_CODES.contains(&code) => StoreErrorKind::Invalid,
        _ => StoreErrorKind::Unavailable,
    }
}

/// The error in one line: code and message of the service, or the chain of causes below the service.
pub(crate) fn describe<E, R>(err: &SdkError<E, R>) -> String
where
    E: ProvideErrorMetadata + Error + 'static,
    R: std::fmt::Debug,
{
    if let SdkError::ServiceError(answer) = err
        && let Some(code) = answer.err().code()
    {
        return format!("{code}: {}", answer.err().message().unwrap_or("no message"));
    }
    let mut text = err.to_string();
    let mut cause = err.source();
    while let Some(inner) = cause {
        let line = inner.to_string();
        if !text.ends_with(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        cause = inner.source();
    }
    text
}

/// A store error of the kind the SDK error stands for.
pub(crate) fn store_error<E, R>(operation: &'static str, target: impl Into<String>, err: SdkError<E, R>) -> StoreError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    R: std::fmt::Debug + Send + Sync + 'static,
{
    let mut error = StoreError::new(kind(&err), operation, target, describe(&err));
    error.source = Some(Box::new(err));
    error
}

/// A store error that says the stored bytes are not what was written.
pub(crate) fn corrupt(operation: &'static str, target: impl Into<String>, detail: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, operation, target, detail)
}

/// A store error that says that something is not there.
pub(crate) fn missing(operation: &'static str, target: impl Into<String>, detail: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Missing, operation, target, detail)
}

/// A store error that says the request is wrong.
pub(crate) fn invalid(operation: &'static str, target: impl Into<String>, detail: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, operation, target, detail)
}
