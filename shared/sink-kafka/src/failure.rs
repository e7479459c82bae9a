//! What an error of Kafka means for a batch.

use payguard_engine::{StoreError, StoreErrorKind};
use payguard_kafka::rdkafka::error::{KafkaError, RDKafkaErrorCode};
use payguard_kafka::{KafkaContext, RefusalKind};

/// What has to be done about an error, besides giving the producer up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// The same call may succeed.
    Retriable,
    /// The transaction has to be ended; the batch may be written again.
    Abortable,
    /// Another executor has registered the transactional id since.
    Fenced,
    /// The producer is of no use any more; the batch may be written again by another.
    Fatal,
    /// Writing it again will not help.
    Invalid,
}

/// How bad an error is.
pub(crate) fn class(error: &KafkaError) -> Class {
    let code = error.rdkafka_error_code();
    match code {
        Some(RDKafkaErrorCode::Fenced | RDKafkaErrorCode::ProducerFenced | RDKafkaErrorCode::InvalidProducerEpoch) => {
            return Class::Fenced;
        }
        Some(code) if is_invalid(code) => return Class::Invalid,
        _ => {}
    }
    match error {
        KafkaError::Transaction(error) if error.is_fatal() => Class::Fatal,
        KafkaError::Transaction(error) if error.txn_requires_abort() => Class::Abortable,
        KafkaError::Transaction(error) if error.is_retriable() => Class::Retriable,
        // What failed in spite of librdkafka's own tries.
        KafkaError::MessageProduction(_) => Class::Abortable,
        _ if code.is_some_and(passes) => Class::Retriable,
        _ => Class::Abortable,
    }
}

/// Whether a question may be answered the next time.
fn passes(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::OperationTimedOut
            | RDKafkaErrorCode::RequestTimedOut
            | RDKafkaErrorCode::BrokerTransportFailure
            | RDKafkaErrorCode::AllBrokersDown
            | RDKafkaErrorCode::Resolve
            | RDKafkaErrorCode::WaitingForCoordinator
            | RDKafkaErrorCode::CoordinatorLoadInProgress
            | RDKafkaErrorCode::CoordinatorNotAvailable
            | RDKafkaErrorCode::NotCoordinator
            | RDKafkaErrorCode::LeaderNotAvailable
            | RDKafkaErrorCode::UnstableOffsetCommit
    )
}

fn is_invalid(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::MessageSizeTooLarge
            | RDKafkaErrorCode::MessageBatchTooLarge
            | RDKafkaErrorCode::InvalidRecord
            | RDKafkaErrorCode::InvalidTopic
            | RDKafkaErrorCode::OffsetMetadataTooLarge
            | RDKafkaErrorCode::InvalidTransactionTimeout
            | RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::GroupAuthorizationFailed
            | RDKafkaErrorCode::ClusterAuthorizationFailed
            | RDKafkaErrorCode::TransactionalIdAuthorizationFailed
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::UnknownTopicOrPartition
    )
}

/// The error for the engine. What brokers have refused us for meanwhile is the reason that counts.
pub(crate) fn failed(operation: &'static str, target: &str, error: &KafkaError, context: &KafkaContext) -> StoreError {
    if let Some(refusal) = context.refusal() {
        return StoreError::new(StoreErrorKind::Invalid, operation, target, refusal.to_string());
    }
    let class = class(error);
    let mut detail = error.to_string();
    match (class, error.rdkafka_error_code()) {
        (Class::Fenced, _) => detail = format!("another executor has taken over ({detail})"),
        (_, Some(RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::MessageBatchTooLarge)) => {
            detail.push_str(": give the topic a greater max.message.bytes");
        }
        (_, Some(RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition)) => {
            detail.push_str(": make the topic, nothing makes it by itself")
        }
        (_, Some(RDKafkaErrorCode::TransactionalIdAuthorizationFailed)) => {
            detail = format!("{}: transactional ids that begin so ({detail})", RefusalKind::Authorization);
        }
        _ => {}
    }
    let kind = if class == Class::Invalid { StoreErrorKind::Invalid } else { StoreErrorKind::Unavailable };
    StoreError { source: Some(Box::new(error.clone())), ..StoreError::new(kind, operation, target, detail) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeating_cannot_mend_is_invalid_and_the_rest_is_tried_again() {
        let of = |code| class(&KafkaError::MessageProduction(code));
        assert_eq!(of(RDKafkaErrorCode::MessageSizeTooLarge), Class::Invalid);
        assert_eq!(of(RDKafkaErrorCode::UnknownTopic), Class::Invalid);
        assert_eq!(of(RDKafkaErrorCode::ProducerFenced), Class::Fenced);
        assert_eq!(of(RDKafkaErrorCode::Fenced), Class::Fenced);
        assert_eq!(of(RDKafkaErrorCode::MessageTimedOut), Class::Abortable);
        assert_eq!(of(RDKafkaErrorCode::NotLeaderForPartition), Class::Abortable);
    }
}
