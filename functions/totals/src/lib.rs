//! Stage `totals`: emissions of merchant totals become upserts of the table `merchant_stats`.
//!
//! Upsert key is (merchantId, windowStartMs); of two records with the same key the later one counts.

#[cfg(feature = "lambda")]
pub mod sink;

use std::sync::Arc;

use payguard_engine::logic::{DecodeError, SinkLogic};
use payguard_engine::store::{Sink, SinkRecord};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_model::MerchantStats;
use payguard_model::json::to_json;
use prost::Message;

/// The table.
pub const TABLE: &str = "merchant_stats";

/// Renders merchant totals.
struct TotalsStage;

/// Makes the stage for a sink.
#[must_use]
pub fn make(sink: Arc<dyn Sink>) -> MakeBody {
    Arc::new(move || Body::Sink(Box::new(TotalsStage), sink.clone()))
}

impl SinkLogic for TotalsStage {
    fn render(&self, _stream: usize, payload: &[u8], out: &mut Vec<SinkRecord>) -> Result<(), DecodeError> {
        let stats = MerchantStats::decode(payload)?;
        let key = format!("{}:{}", stats.merchant_id, stats.window_start_ms);
        out.push(SinkRecord { topic: TABLE, key, value: to_json(&stats) });
        Ok(())
    }
}
