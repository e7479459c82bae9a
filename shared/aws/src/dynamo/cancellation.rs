//! What DynamoDB's answer to a cancelled transaction means.

use aws_sdk_dynamodb::types::CancellationReason;

/// What the reasons of a cancelled transaction say.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Cancellation {
    /// The error was no cancellation.
    NotCancelled,
    /// A condition failed, whatever else happened.
    Condition,
    /// The request itself is wrong.
    BadRequest(String),
    /// A conflict or a throttle: nothing was written by this try, an earlier one may have won.
    Other(String),
}

/// Reads the reasons, one for each item of the transaction.
pub(super) fn read_cancellation(reasons: &[CancellationReason]) -> Cancellation {
    let has = |code: &str| reasons.iter().any(|reason| reason.code() == Some(code));
    if reasons.is_empty() {
        return Cancellation::NotCancelled;
    }
    if has("ConditionalCheckFailed") {
        return Cancellation::Condition;
    }
    let texts: Vec<String> = reasons
        .iter()
        .filter(|reason| reason.code().is_some_and(|code| code != "None"))
        .map(|reason| format!("{}: {}", reason.code().unwrap_or_default(), reason.message().unwrap_or_default()))
        .collect();
    let text = format!("the transaction was cancelled: {}", texts.join("; "));
    if has("ValidationError") || has("ItemCollectionSizeLimitExceeded") {
        Cancellation::BadRequest(text)
    } else {
        Cancellation::Other(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(codes: &[&str]) -> Vec<CancellationReason> {
        codes.iter().map(|code| CancellationReason::builder().code(*code).build()).collect()
    }

    #[test]
    fn a_failed_condition_outweighs_every_other_reason() {
        for codes in [
            vec!["ConditionalCheckFailed", "None"],
            vec!["None", "ConditionalCheckFailed"],
            vec!["TransactionConflict", "ConditionalCheckFailed"],
            vec!["ConditionalCheckFailed", "ValidationError"],
        ] {
            assert_eq!(read_cancellation(&reasons(&codes)), Cancellation::Condition, "{codes:?}");
        }
    }

    #[test]
    fn conflicts_and_throttles_leave_the_outcome_open() {
        for code in ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded", "SomethingNew"] {
            let answer = read_cancellation(&reasons(&["None", code]));
            assert!(matches!(&answer, Cancellation::Other(text) if text.contains(code)), "{answer:?}");
        }
    }

    #[test]
    fn a_wrong_request_is_told_from_a_conflict() {
        let answer = read_cancellation(&reasons(&["ValidationError", "None"]));
        assert!(matches!(answer, Cancellation::BadRequest(_)), "{answer:?}");
        assert_eq!(read_cancellation(&[]), Cancellation::NotCancelled);
    }
}
