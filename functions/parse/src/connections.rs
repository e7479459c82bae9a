//! Steps of connection attempts.

use payguard_engine::logic::{Collector, SourceLogic, SourceRecord};
use payguard_model::{ConnectionEvent, EventTime, parse_connection_into};

use crate::{PARSE, Rejections};

/// Every valid event goes to every variant.
pub(crate) struct ParseConnections {
    pub(crate) outputs: Vec<usize>,
    pub(crate) rejections: Rejections,
    /// The event at hand; its texts keep their room from record to record.
    pub(crate) event: ConnectionEvent,
}

impl SourceLogic for ParseConnections {
    fn on_record(&mut self, record: &SourceRecord<'_>, out: &mut Collector) -> Option<EventTime> {
        let Some(raw) = record.value else {
            out.count(PARSE, "tombstones", 1);
            return None;
        };
        if let Err(reason) = parse_connection_into(raw, &mut self.event) {
            return self.rejections.reject(raw, reason.code(), record, out);
        }
        out.count(PARSE, "accepted", 1);
        let time = EventTime(self.event.event_time_ms);
        for output in &self.outputs {
            out.emit(*output, &self.event.session_id, time, &self.event);
        }
        Some(time)
    }
}
