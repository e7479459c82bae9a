//! What else invokes a function: wake-ups, heartbeats, schedules.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::kafka::{KafkaEvent, KafkaRecord};
use super::{EventError, from_json};

/// Tells tasks of the function's stage to look for input.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WakeEvent {
    /// The tasks, for example `dedup/0`.
    pub wake: Vec<String>,
}

/// Tells source tasks that their partition has no backlog, so that they may become idle.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeartbeatEvent {
    /// The tasks, for example `parse/payments.raw-0`.
    pub heartbeat: Vec<String>,
}

/// A schedule fired (EventBridge rules and EventBridge Scheduler).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScheduleEvent {
    /// `aws.events` or `aws.scheduler`.
    pub source: String,
    /// When it was due, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
}

/// Everything that may invoke a stage's function.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged, try_from = "AnyEvent")]
pub enum StageEvent {
    /// Records of Kafka.
    Kafka(KafkaEvent),
    /// Look for input.
    Wake(WakeEvent),
    /// A source may become idle.
    Heartbeat(HeartbeatEvent),
    /// The clock.
    Schedule(ScheduleEvent),
}

impl StageEvent {
    /// Reads an event from JSON.
    ///
    /// # Errors
    /// The place in the JSON and what is wrong there.
    pub fn from_json(json: &[u8]) -> Result<StageEvent, EventError> {
        from_json(json)
    }
}

/// The fields of all events in one: the event is read once, and an error names its place (serde's own untagged enums
/// read every event into memory first and say only that nothing matched).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnyEvent {
    wake: Option<Vec<String>>,
    heartbeat: Option<Vec<String>>,
    event_source: Option<String>,
    event_source_arn: Option<String>,
    bootstrap_servers: Option<String>,
    records: Option<BTreeMap<String, Vec<KafkaRecord>>>,
    source: Option<String>,
    time: Option<String>,
}

impl TryFrom<AnyEvent> for StageEvent {
    type Error = String;

    fn try_from(event: AnyEvent) -> Result<StageEvent, String> {
        let AnyEvent { wake, heartbeat, event_source, event_source_arn, bootstrap_servers, records, source, time } =
            event;
        match (wake, heartbeat, event_source, records, source.as_deref()) {
            (Some(wake), None, None, None, None) => Ok(StageEvent::Wake(WakeEvent { wake })),
            (None, Some(heartbeat), None, None, None) => Ok(StageEvent::Heartbeat(HeartbeatEvent { heartbeat })),
            (None, None, Some(event_source), Some(records), None) => {
                Ok(StageEvent::Kafka(KafkaEvent { event_source, event_source_arn, bootstrap_servers, records }))
            }
            (None, None, None, None, Some("aws.events" | "aws.scheduler")) => {
                Ok(StageEvent::Schedule(ScheduleEvent { source: source.unwrap_or_default(), time }))
            }
            (None, None, Some(_), None, _) => Err("a Kafka event without `records`".to_owned()),
            (None, None, None, Some(_), _) => Err("a Kafka event without `eventSource`".to_owned()),
            (None, None, None, None, Some(source)) => Err(format!("nothing is known of events from `{source}`")),
            _ => Err("expected exactly one of: Kafka records, `wake`, `heartbeat`, a schedule's `source`".to_owned()),
        }
    }
}
