//! Confirmations of payments.

use payguard_engine::logic::{Collector, SourceLogic, SourceRecord};
use payguard_model::{EventTime, parse_confirmation};

/// Name of the operator in counters.
const OPERATOR: &str = "parse-confirmations";

/// What is no confirmation is skipped and counted: banks are asked again, not repaired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParseConfirmations {
    pub(crate) output: Option<usize>,
}

impl SourceLogic for ParseConfirmations {
    fn on_record(&mut self, record: &SourceRecord<'_>, out: &mut Collector) -> Option<EventTime> {
        let Some(raw) = record.value else {
            out.count(OPERATOR, "tombstones", 1);
            return None;
        };
        let Some(confirmation) = parse_confirmation(raw) else {
            out.count(OPERATOR, "skipped", 1);
            return None;
        };
        out.count(OPERATOR, "accepted", 1);
        let time = EventTime(confirmation.event_time_ms);
        if let Some(output) = self.output {
            out.emit(output, &confirmation.payment_id, time, &confirmation);
        }
        Some(time)
    }
}
