//! Stage `control`: messages of the topic `rules.config` become versions of the rules, in one total order.
//!
//! A message changes what it names and keeps the rest. What is refused changes nothing and goes to `rules.rejected`.

use std::sync::Arc;

use payguard_engine::logic::{BroadcastLogic, DecodeError, Verdict};
use payguard_model::{ProcessingTime, RejectedRule, RuleConfig, parse_rule_change, raw_text};
use payguard_topology::Config;
use prost::Message;

/// Judges changes of the rules.
struct ControlStage {
    defaults: RuleConfig,
}

/// Makes the stage for a configuration, whose limits hold until the first version.
#[must_use]
pub fn make(config: &Config) -> Arc<dyn BroadcastLogic> {
    Arc::new(ControlStage { defaults: config.default_rules() })
}

impl BroadcastLogic for ControlStage {
    fn on_message(&self, current: Option<&[u8]>, message: &[u8], now: ProcessingTime) -> Result<Verdict, DecodeError> {
        let current = current.map(RuleConfig::decode).transpose()?;
        Ok(match parse_rule_change(message) {
            Ok(change) => {
                let rules = current.as_ref().unwrap_or(&self.defaults).apply(&change);
                Verdict::Accepted { value: rules.encode_to_vec() }
            }
            Err(refusal) => {
                let record = RejectedRule {
                    raw: raw_text(message),
                    reason: refusal.code().to_owned(),
                    detail: refusal.to_string(),
                    rejected_at_ms: now.0,
                };
                Verdict::Refused { record: record.encode_to_vec(), reason: refusal.code() }
            }
        })
    }
}
