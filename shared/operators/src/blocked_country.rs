//! The rule of blocked countries (lesson 8, assignment): every payment from a blocked country.
//!
//! It has no state and no silence after an alert: which countries are blocked is the rules' version in force.

use payguard_model::{FraudAlert, Payment};

use crate::detail::DetailLanguage;

/// The permanent id of the rule among the operators.
pub const ID: &str = "rule-blocked-country";

/// Id of the rule in its alerts.
pub const RULE_ID: &str = "blocked-country";

/// The alert for `payment` when its country is one of `blocked`; an absent country never is.
#[must_use]
pub fn check(payment: &Payment, blocked: &[String], language: DetailLanguage) -> Option<FraudAlert> {
    let country = payment.country.as_ref().filter(|country| blocked.contains(country))?;
    Some(FraudAlert::of(RULE_ID, payment, language.blocked_country(country)))
}

#[cfg(test)]
mod tests;
