//! Stage `publish`: everything bound for a topic leaves the pipeline here.

pub mod connections;
#[cfg(feature = "kafka")]
pub mod kafka;

use std::sync::Arc;

use payguard_engine::StageId;
use payguard_engine::logic::{DecodeError, SinkLogic};
use payguard_engine::store::{Sink, SinkRecord};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_model::json::to_json;
use payguard_model::{CardProfileOf, CardSession, ConfirmedPayment, FraudAlert, Payment, RejectedRecord, RejectedRule};
use payguard_topology::{Config, System, Topology, stage, stream};
use prost::Message;

/// Topic of refused records.
pub const DLQ_TOPIC: &str = "payments.dlq";
/// Topic of payments no window accepted.
pub const LATE_TOPIC: &str = "payments.late";
/// Topic of finished sessions.
pub const SESSIONS_TOPIC: &str = "card.sessions";
/// Topic of alerts.
pub const ALERTS_TOPIC: &str = "fraud.alerts";
/// Topic of confirmed payments.
pub const CONFIRMED_TOPIC: &str = "payments.confirmed";
/// Topic of running profiles of cards.
pub const PROFILES_TOPIC: &str = "card.profiles";
/// Topic of refused changes of the rules.
pub const REJECTED_RULES_TOPIC: &str = "rules.rejected";

/// All topics of the stage.
pub const TOPICS: [&str; 7] =
    [ALERTS_TOPIC, DLQ_TOPIC, LATE_TOPIC, SESSIONS_TOPIC, CONFIRMED_TOPIC, PROFILES_TOPIC, REJECTED_RULES_TOPIC];

/// The topics that the stage of a pipeline writes.
#[must_use]
pub fn topics(config: &Config) -> &'static [&'static str] {
    match config.system {
        System::Payments => &TOPICS,
        System::Connections => &connections::TOPICS,
    }
}

type Render = fn(&[u8]) -> Result<SinkRecord, DecodeError>;

/// How the records of each input stream are rendered.
struct PublishStage {
    renders: Vec<Render>,
}

/// Makes the stage for a topology and a sink.
#[must_use]
pub fn make(config: &Config, topology: &Topology, sink: Arc<dyn Sink>) -> MakeBody {
    if config.system == System::Connections {
        return connections::make(config, topology, sink);
    }
    let id = StageId::new(stage::PUBLISH);
    let renders: Vec<Render> = topology.inputs(&id).filter_map(|s| render_of(s.name)).collect();
    debug_assert_eq!(renders.len(), topology.inputs(&id).count(), "every stream to publish has a rendering");
    Arc::new(move || Body::Sink(Box::new(PublishStage { renders: renders.clone() }), sink.clone()))
}

fn render_of(name: &str) -> Option<Render> {
    match name {
        stream::REJECTED => Some(rejected),
        stream::TOO_LATE => Some(too_late),
        stream::CARD_SESSIONS => Some(session),
        stream::ALERTS => Some(alert),
        stream::CONFIRMED => Some(confirmed),
        stream::CARD_PROFILES => Some(profile),
        stream::REJECTED_RULES => Some(rejected_rule),
        _ => None,
    }
}

impl SinkLogic for PublishStage {
    fn render(&self, stream: usize, payload: &[u8], out: &mut Vec<SinkRecord>) -> Result<(), DecodeError> {
        let render = self.renders.get(stream).ok_or_else(|| DecodeError(format!("no rendering of stream {stream}")))?;
        out.push(render(payload)?);
        Ok(())
    }
}

fn rejected(payload: &[u8]) -> Result<SinkRecord, DecodeError> {
    let record = RejectedRecord::decode(payload)?;
    Ok(SinkRecord { topic: DLQ_TOPIC, value: to_json(&record), key: record.reason })
}

fn too_late(payload: &[u8]) -> Result<SinkRecord, DecodeError> {
    let payment = Payment::decode(payload)?;
    Ok(SinkRecord { topic: LATE_TOPIC, value: to_json(&payment), key: payment.payment_id })
}

fn session(payload: &[u8]) -> Result<SinkRecord, DecodeError> {
    let session = CardSession::decode(payload)?;
    Ok(SinkRecord { topic: SESSIONS_TOPIC, value: to_json(&session), key: session.card_id })
}

fn alert(payload: &[u8]) -> Result<SinkRecord, DecodeError> {
    let alert = FraudAlert::decode(payload)?;
    Ok(SinkRecord { topic: ALERTS_TOPIC, value: to_json(&alert), key: alert.card_id })
}

fn confirmed(payload: &[u8]) -> Result<SinkRecord, DecodeError> {
    let pair = ConfirmedPayment::decode(payload)?;
    Ok(SinkRecord { topic: CONFIRMED_TOPIC, value: to_json(&pair), key: pair.payment_id })
}

/// The profile itself does not name its card; the key does.
fn profile(payload: &[u8]) -> Result<SinkRecord, DecodeError> {
    let CardProfileOf { card_id, profile } = CardProfileOf::decode(payload)?;
    Ok(SinkRecord { topic: PROFILES_TOPIC, value: to_json(&profile.unwrap_or_default()), key: card_id })
}

fn rejected_rule(payload: &[u8]) -> Result<SinkRecord, DecodeError> {
    let record = RejectedRule::decode(payload)?;
    Ok(SinkRecord { topic: REJECTED_RULES_TOPIC, value: to_json(&record), key: record.reason })
}
