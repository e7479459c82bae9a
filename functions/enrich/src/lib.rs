//! Stage `enrich`: alerts get the risk of their merchant. It never fails: who is not known, or not answered in time, is
//! `UNKNOWN`.

#[cfg(feature = "lambda")]
pub mod directory;

use std::sync::Arc;

use async_trait::async_trait;
use payguard_directory::{Enrichment, Limits, MerchantDirectory};
use payguard_engine::StageId;
use payguard_engine::logic::{Answered, Counters, DecodeError, LookupLogic, LookupRecord};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_model::{EventTime, FraudAlert};
use payguard_topology::{Topology, stage, stream};
use prost::Message;

/// Name of the operator in counters.
const OPERATOR: &str = "enrich-alerts";

/// Asks the directory.
struct EnrichStage {
    enrichment: Enrichment,
    output: usize,
}

/// Makes the stage for a directory. All tasks of this process share its cache and its limits.
#[must_use]
pub fn make(topology: &Topology, directory: Arc<dyn MerchantDirectory>) -> MakeBody {
    let output = topology.output(&StageId::new(stage::ENRICH), stream::ALERTS).unwrap_or(0);
    let enrichment = Enrichment::new(directory, Limits::default());
    let stage = Arc::new(EnrichStage { enrichment, output });
    Arc::new(move || Body::Lookup(stage.clone()))
}

#[async_trait]
impl LookupLogic for EnrichStage {
    fn key(&self, _stream: usize, payload: &[u8]) -> Result<String, DecodeError> {
        Ok(FraudAlert::decode(payload)?.merchant_id)
    }

    async fn answer(&self, records: &[LookupRecord], counters: &mut Counters) -> Result<Vec<Answered>, DecodeError> {
        let alerts: Result<Vec<FraudAlert>, _> = records.iter().map(|r| FraudAlert::decode(&r.payload[..])).collect();
        let mut alerts = alerts?;
        let merchants: Vec<&str> = alerts.iter().map(|a| a.merchant_id.as_str()).collect();
        let risks = self.enrichment.risks(&merchants).await;
        counters.add(OPERATOR, "lookups", risks.lookups);
        counters.add(OPERATOR, "lookups_shared", risks.shared);
        counters.add(OPERATOR, "lookup_failures", risks.failures);
        counters.add(OPERATOR, "cache_hits", risks.cache_hits);
        for (alert, risk) in alerts.iter_mut().zip(&risks.risks) {
            alert.merchant_risk = risk.to_string();
        }
        let answers = alerts.into_iter().map(|alert| Answered {
            output: self.output,
            event_time: EventTime(alert.event_time_ms),
            payload: alert.encode_to_vec(),
            key: alert.card_id,
        });
        Ok(answers.collect())
    }
}
