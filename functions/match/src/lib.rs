//! Stage `match`: payments and their confirmations, by payment id.

use std::sync::Arc;

use payguard_engine::StageId;
use payguard_engine::keyed::KeyedRunner;
use payguard_engine::logic::{Collector, DecodeError, OperatorState, StageLogic};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_model::view::PaymentView;
use payguard_model::{ConfirmedPayment, EventTime, FraudAlert, Payment, PaymentConfirmation};
use payguard_operators::TimerDomain;
use payguard_operators::matching::{MatchEvent, MatchOutput, PaymentMatching, unconfirmed};
use payguard_topology::{Config, Topology, operator, stage, stream};
use prost::Message;

/// The operator of `match` and its streams.
struct MatchStage {
    matching: KeyedRunner<PaymentMatching>,
    /// Number of the input stream with payments; the other one has the confirmations.
    payments: Option<usize>,
    outputs: Outputs,
    /// The record at hand, of either kind; its texts keep their room from record to record.
    payment: MatchEvent,
    confirmation: MatchEvent,
}

/// Where the outputs go.
#[derive(Clone, Copy)]
struct Outputs {
    confirmed: Option<usize>,
    alerts: Option<usize>,
}

/// Makes the stage for a configuration.
#[must_use]
pub fn make(config: &Config, topology: &Topology) -> MakeBody {
    let id = StageId::new(stage::MATCH);
    let payments = topology.inputs(&id).position(|s| s.name == stream::CLEAN_BY_PAYMENT);
    let outputs = Outputs {
        confirmed: topology.output(&id, stream::CONFIRMED),
        alerts: topology.output(&id, stream::UNCONFIRMED),
    };
    let matching = PaymentMatching {
        join: config.has_operator(operator::JOIN),
        unconfirmed: config.has_operator(operator::UNCONFIRMED),
        language: config.language(),
    };
    Arc::new(move || {
        Body::Operators(Box::new(MatchStage {
            matching: KeyedRunner::new(matching),
            payments,
            outputs,
            payment: MatchEvent::Payment(Payment::default()),
            confirmation: MatchEvent::Confirmation(PaymentConfirmation::default()),
        }))
    })
}

impl StageLogic for MatchStage {
    fn on_record(&mut self, stream: usize, payload: &[u8], out: &mut Collector) -> Result<(), DecodeError> {
        let event = if Some(stream) == self.payments { &mut self.payment } else { &mut self.confirmation };
        read(event, payload)?;
        let (MatchEvent::Payment(Payment { payment_id, .. })
        | MatchEvent::Confirmation(PaymentConfirmation { payment_id, .. })) = &*event;
        let outputs = self.outputs;
        self.matching.process(payment_id, event, out, &mut |out, time, output| outputs.emit(output, time, out));
        Ok(())
    }

    fn next_event_timer(&self) -> Option<EventTime> {
        self.matching.next_timer(TimerDomain::EventTime).map(EventTime)
    }

    fn on_watermark(&mut self, out: &mut Collector) {
        let outputs = self.outputs;
        self.matching.fire(TimerDomain::EventTime, out, &mut |out, time, output| outputs.emit(output, time, out));
    }

    fn key(&self, stream: usize, payload: &[u8]) -> Result<String, DecodeError> {
        if Some(stream) == self.payments {
            return Ok(PaymentView::decode(payload)?.payment_id.to_owned());
        }
        Ok(PaymentConfirmation::decode(payload)?.payment_id)
    }

    fn states(&mut self) -> Vec<&mut dyn OperatorState> {
        vec![&mut self.matching]
    }
}

/// Reads a record in place of the one before.
fn read(event: &mut MatchEvent, payload: &[u8]) -> Result<(), DecodeError> {
    match event {
        MatchEvent::Payment(payment) => {
            payment.clear();
            payment.merge(payload)?;
        }
        MatchEvent::Confirmation(confirmation) => {
            confirmation.clear();
            confirmation.merge(payload)?;
        }
    }
    Ok(())
}

impl Outputs {
    fn emit(self, output: MatchOutput, time: EventTime, out: &mut Collector) {
        match output {
            MatchOutput::Confirmed(pair) => self.confirmed(&pair, time, out),
            MatchOutput::Alert(alert) => self.alert(alert, time, out),
        }
    }

    fn confirmed(self, pair: &ConfirmedPayment, time: EventTime, out: &mut Collector) {
        if let Some(output) = self.confirmed {
            out.emit(output, &pair.payment_id, time, pair);
        }
    }

    fn alert(self, alert: FraudAlert, time: EventTime, out: &mut Collector) {
        out.count("alerts", unconfirmed::RULE_ID, 1);
        if let Some(output) = self.alerts {
            let alert = alert.decided_by(&out.origin().task, out.origin().seq, out.watermark(), None);
            out.emit(output, &alert.merchant_id, time, &alert);
        }
    }
}
