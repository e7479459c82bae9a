//! Stage `dedup`: the first copy of a payment goes on, repeats within an hour of processing time do not.

use std::sync::Arc;

use payguard_engine::StageId;
use payguard_engine::logic::{Collector, DecodeError, OperatorState, StageLogic};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_engine::ttl_set::TtlSet;
use payguard_model::view::PaymentView;
use payguard_model::{EventTime, Payment};
use payguard_operators::dedup::{self, Arrival, first_arrival};
use payguard_operators::salted_stats::{salt_of, salted_key};
use payguard_topology::{Config, Topology, stage, stream};

/// The operators of `dedup`.
struct DedupStage {
    seen: TtlSet,
    by_card: Option<usize>,
    by_merchant: Option<usize>,
    for_sessions: Option<usize>,
    by_payment: Option<usize>,
    /// Salts of the merchant totals; 0: none.
    salts: u32,
    /// What sessions need of the payment at hand; its text keeps its room from record to record.
    session: Payment,
}

/// Makes the stage for a topology.
#[must_use]
pub fn make(config: &Config, topology: &Topology) -> MakeBody {
    let id = StageId::new(stage::DEDUP);
    let by_card = topology.output(&id, stream::CLEAN_BY_CARD);
    let by_merchant = topology.output(&id, stream::CLEAN_BY_MERCHANT);
    let for_sessions = topology.output(&id, stream::CLEAN_FOR_SESSIONS);
    let by_payment = topology.output(&id, stream::CLEAN_BY_PAYMENT);
    let salts = if config.is_salted() { config.stats.salts } else { 0 };
    Arc::new(move || {
        let seen = TtlSet::new(dedup::ID);
        let session = Payment::default();
        Body::Operators(Box::new(DedupStage { seen, by_card, by_merchant, for_sessions, by_payment, salts, session }))
    })
}

impl StageLogic for DedupStage {
    fn on_record(&mut self, _stream: usize, payload: &[u8], out: &mut Collector) -> Result<(), DecodeError> {
        let payment = PaymentView::decode(payload)?;
        if first_arrival(&mut self.seen, payment.payment_id, out.now()) == Arrival::Duplicate {
            out.count(dedup::ID, "duplicates", 1);
            return Ok(());
        }
        let time = EventTime(payment.event_time_ms);
        if let Some(output) = self.by_card {
            out.emit_encoded(output, payment.card_id, time, payload);
        }
        if let Some(output) = self.by_merchant {
            if self.salts == 0 {
                out.emit_encoded(output, payment.merchant_id, time, payload);
            } else {
                let key = salted_key(payment.merchant_id, salt_of(payment.payment_id, self.salts));
                out.emit_encoded(output, &key, time, payload);
            }
        }
        if let Some(output) = self.for_sessions {
            // Sessions count and add up: card, amount and time are a fifth of a payment.
            let session = &mut self.session;
            session.card_id.clear();
            session.card_id.push_str(payment.card_id);
            (session.amount_minor, session.event_time_ms) = (payment.amount_minor, payment.event_time_ms);
            out.emit(output, payment.card_id, time, session);
        }
        if let Some(output) = self.by_payment {
            out.emit_encoded(output, payment.payment_id, time, payload);
        }
        Ok(())
    }

    fn on_processing_time(&mut self, out: &mut Collector) {
        let forgotten = self.seen.sweep(out.now());
        out.count(dedup::ID, "expired", forgotten as u64);
    }

    fn key(&self, _stream: usize, payload: &[u8]) -> Result<String, DecodeError> {
        Ok(PaymentView::decode(payload)?.payment_id.to_owned())
    }

    fn states(&mut self) -> Vec<&mut dyn OperatorState> {
        vec![&mut self.seen]
    }
}
