//! The topics of the connections pipeline.
//!
//! What the visible variant says is what the pipeline says; with several variants each has a topic of its own too. What
//! came too late for a variant that is not visible is counted there and goes nowhere.

use std::sync::Arc;

use payguard_engine::StageId;
use payguard_engine::logic::{DecodeError, SinkLogic};
use payguard_engine::store::{Sink, SinkRecord};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_model::json::to_json;
use payguard_model::{ConnectionEvent, ConnectionVerdict, RejectedRecord};
use payguard_topology::connections::VARIANTS;
use payguard_topology::{Config, Topology, stage, stream};
use prost::Message;

/// Topic of verdicts.
pub const VERDICTS_TOPIC: &str = "connections.verdicts";
/// Topics of the verdicts of each variant.
pub const VARIANT_TOPICS: [(&str, &str); 2] = [("a", "connections.verdicts.a"), ("b", "connections.verdicts.b")];
/// Topic of refused records.
pub const DLQ_TOPIC: &str = "connections.dlq";
/// Topic of events that came too late.
pub const LATE_TOPIC: &str = "connections.late";

/// All topics of the stage.
pub const TOPICS: [&str; 5] = [VERDICTS_TOPIC, VARIANT_TOPICS[0].1, VARIANT_TOPICS[1].1, DLQ_TOPIC, LATE_TOPIC];

/// What an input stream holds.
#[derive(Clone, Debug)]
enum Input {
    Rejected,
    /// Verdicts, and the topics that they go to.
    Verdicts(Vec<&'static str>),
    /// Late events, of the visible variant or not.
    Late {
        visible: bool,
    },
}

/// What the input streams hold.
struct PublishConnections {
    inputs: Vec<Input>,
}

pub(crate) fn make(config: &Config, topology: &Topology, sink: Arc<dyn Sink>) -> MakeBody {
    let id = StageId::new(stage::PUBLISH);
    let inputs: Vec<Input> = topology.inputs(&id).filter_map(|s| input(config, s.name)).collect();
    debug_assert_eq!(inputs.len(), topology.inputs(&id).count(), "every stream to publish has a rendering");
    Arc::new(move || Body::Sink(Box::new(PublishConnections { inputs: inputs.clone() }), sink.clone()))
}

fn input(config: &Config, name: &str) -> Option<Input> {
    if name == stream::REJECTED {
        return Some(Input::Rejected);
    }
    let variant = VARIANTS.iter().find(|variant| variant.verdicts == name || variant.late == name)?;
    let visible = config.connections.visible_variant == variant.name;
    if variant.late == name {
        return Some(Input::Late { visible });
    }
    let own = VARIANT_TOPICS.iter().find(|(name, _)| *name == variant.name && config.connections.is_compared());
    let topics = visible.then_some(VERDICTS_TOPIC).into_iter().chain(own.map(|(_, topic)| *topic));
    Some(Input::Verdicts(topics.collect()))
}

impl SinkLogic for PublishConnections {
    fn render(&self, stream: usize, payload: &[u8], out: &mut Vec<SinkRecord>) -> Result<(), DecodeError> {
        match self.inputs.get(stream) {
            Some(Input::Rejected) => {
                let record = RejectedRecord::decode(payload)?;
                out.push(SinkRecord { topic: DLQ_TOPIC, value: to_json(&record), key: record.reason });
            }
            Some(Input::Verdicts(topics)) => {
                let verdict = ConnectionVerdict::decode(payload)?;
                let value = to_json(&verdict);
                if let Some((last, others)) = topics.split_last() {
                    let record = |topic| SinkRecord { topic, value: value.clone(), key: verdict.session_id.clone() };
                    out.extend(others.iter().map(|topic| record(*topic)));
                    out.push(SinkRecord { topic: last, value, key: verdict.session_id });
                }
            }
            Some(Input::Late { visible: true }) => {
                let event = ConnectionEvent::decode(payload)?;
                out.push(SinkRecord { topic: LATE_TOPIC, value: to_json(&event), key: event.session_id });
            }
            Some(Input::Late { visible: false }) => {}
            None => return Err(DecodeError(format!("no rendering of stream {stream}"))),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use payguard_topology::{System, payguard};

    use super::*;

    fn rendered(variants: &[&str], visible: &str, stream: &str, payload: &[u8]) -> Vec<&'static str> {
        let mut config = Config { system: System::Connections, ..Config::default() };
        config.connections.variants = variants.iter().map(|name| (*name).to_owned()).collect();
        config.connections.visible_variant = visible.to_owned();
        let topology = payguard(&config);
        let id = StageId::new(stage::PUBLISH);
        let inputs = topology.inputs(&id).filter_map(|s| input(&config, s.name)).collect();
        let number = topology.inputs(&id).position(|s| s.name == stream).expect("a stream of the pipeline");
        let mut out = Vec::new();
        PublishConnections { inputs }.render(number, payload, &mut out).expect("it decodes");
        out.into_iter().map(|record| record.topic).collect()
    }

    #[test]
    fn the_visible_variant_speaks_for_the_pipeline_and_each_for_itself_when_there_are_several() {
        let verdict = ConnectionVerdict::default().encode_to_vec();
        let both = ["a", "b"];
        for (variants, visible, stream, topics) in [
            (&both[..], "b", stream::VERDICTS_A, &["connections.verdicts.a"][..]),
            (&both[..], "b", stream::VERDICTS_B, &["connections.verdicts", "connections.verdicts.b"][..]),
            (&both[..], "a", stream::VERDICTS_A, &["connections.verdicts", "connections.verdicts.a"][..]),
            (&both[..], "a", stream::VERDICTS_B, &["connections.verdicts.b"][..]),
            (&both[1..], "b", stream::VERDICTS_B, &["connections.verdicts"][..]),
            (&both[..], "b", stream::LATE_B, &["connections.late"][..]),
            (&both[..], "b", stream::LATE_A, &[][..]),
            (&both[..], "b", stream::REJECTED, &["connections.dlq"][..]),
        ] {
            assert_eq!(rendered(variants, visible, stream, &verdict), topics, "{stream} of {variants:?}, {visible}");
        }
    }
}
