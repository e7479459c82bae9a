//! The records of PayGuard and what can be decided from one record alone: wire formats (JSON outside, protobuf
//! inside), parsing and validation, event time, key groups.
//!
//! Nothing here does I/O, reads a clock or knows a stage.

pub mod alert;
pub mod connection;
pub mod json;
pub mod key_distribution;
pub mod key_group;
pub mod parse;
pub mod record;
pub mod rule_config;
pub mod time;
pub mod view;

pub use alert::{Decision, Fact, FraudAlert, RISK_NOT_LOADED, RISK_UNKNOWN};
pub use connection::{ConnectionEvent, ConnectionReason, ConnectionVerdict, Outcome, Step, parse_connection_into};
pub use json::{to_json, write_json};
pub use key_group::{KEY_GROUPS, KeyGroup, key_group};
pub use parse::{ParsePolicy, Reason, UnknownFields, parse_confirmation, parse_payment, parse_payment_into, raw_text};
pub use record::{
    CardProfile, CardProfileOf, CardSession, ConfirmedPayment, MerchantPart, MerchantStats, Payment,
    PaymentConfirmation, RejectedRecord, RejectedRule,
};
pub use rule_config::{RuleChange, RuleConfig, RuleRefusal, parse_rule_change};
pub use time::{EventTime, ProcessingTime};
