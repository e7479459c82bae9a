//! Stage `combine`: the parts of salted merchant totals, added up by merchant.

use std::sync::Arc;

use payguard_engine::StageId;
use payguard_engine::keyed::KeyedRunner;
use payguard_engine::logic::{Collector, DecodeError, OperatorState, StageLogic};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_model::{EventTime, MerchantPart, MerchantStats};
use payguard_operators::TimerDomain;
use payguard_operators::salted_stats::CombineParts;
use payguard_topology::{Config, Topology, stage, stream};
use prost::Message;

/// The operator of `combine`.
struct CombineStage {
    totals: KeyedRunner<CombineParts>,
    output: Option<usize>,
}

/// Makes the stage for a configuration.
#[must_use]
pub fn make(config: &Config, topology: &Topology) -> MakeBody {
    let output = topology.output(&StageId::new(stage::COMBINE), stream::MERCHANT_STATS);
    let operator = CombineParts { late_updates: config.stats.late_updates };
    Arc::new(move || Body::Operators(Box::new(CombineStage { totals: KeyedRunner::new(operator), output })))
}

impl StageLogic for CombineStage {
    fn on_record(&mut self, _stream: usize, payload: &[u8], out: &mut Collector) -> Result<(), DecodeError> {
        let part = MerchantPart::decode(payload)?;
        let output = self.output;
        self.totals.process(&part.merchant_id, &part, out, &mut |out, time, stats| emit(output, &stats, time, out));
        Ok(())
    }

    fn next_event_timer(&self) -> Option<EventTime> {
        self.totals.next_timer(TimerDomain::EventTime).map(EventTime)
    }

    fn on_watermark(&mut self, out: &mut Collector) {
        let output = self.output;
        self.totals.fire(TimerDomain::EventTime, out, &mut |out, time, stats| emit(output, &stats, time, out));
    }

    fn key(&self, _stream: usize, payload: &[u8]) -> Result<String, DecodeError> {
        Ok(MerchantPart::decode(payload)?.merchant_id)
    }

    fn states(&mut self) -> Vec<&mut dyn OperatorState> {
        vec![&mut self.totals]
    }
}

fn emit(output: Option<usize>, stats: &MerchantStats, time: EventTime, out: &mut Collector) {
    if let Some(output) = output {
        out.emit(output, &stats.merchant_id, time, stats);
    }
}
