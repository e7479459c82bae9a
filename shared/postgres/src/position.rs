//! A task's position as two JSON texts, for its row of `payguard_positions`.

use std::collections::BTreeMap;

use payguard_engine::store::SinkPosition;
use payguard_engine::{InputState, Position, Seq};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    at: i64,
    within: u32,
    watermark_ms: i64,
    idle: bool,
}

/// The inputs as JSON.
pub(crate) fn inputs_to_json(inputs: &BTreeMap<String, InputState>) -> String {
    let input = |state: &InputState| {
        let Position { at, within } = state.position;
        Input { at, within, watermark_ms: state.watermark_ms, idle: state.idle }
    };
    let inputs: BTreeMap<&String, Input> = inputs.iter().map(|(id, state)| (id, input(state))).collect();
    serde_json::to_string(&inputs).expect("a map of numbers by texts is JSON")
}

/// The counters as JSON.
pub(crate) fn counters_to_json(counters: &BTreeMap<String, u64>) -> String {
    serde_json::to_string(counters).expect("a map of numbers by texts is JSON")
}

/// The position of a row.
pub(crate) fn of_row(seq: i64, inputs: &str, counters: &str) -> Result<SinkPosition, String> {
    let seq = u64::try_from(seq).map_err(|e| format!("seq {seq}: {e}"))?;
    let inputs: BTreeMap<String, Input> = serde_json::from_str(inputs).map_err(|e| format!("inputs: {e}"))?;
    let counters = serde_json::from_str(counters).map_err(|e| format!("counters: {e}"))?;
    let state =
        |Input { at, within, watermark_ms, idle }| InputState { position: Position { at, within }, watermark_ms, idle };
    let inputs = inputs.into_iter().map(|(id, input)| (id, state(input))).collect();
    Ok(SinkPosition { seq: Seq(seq), inputs, counters })
}
