//! Stage `match`: payments and their confirmations, by payment id.

use std::sync::Arc;

use payguard_engine::StageId;
use payguard_engine::keyed::KeyedRunner;
use payguard_engine::logic::{Collector, DecodeError, OperatorState, StageLogic};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_model::{ConfirmedPayment, EventTime, FraudAlert, Payment, PaymentConfirmation};
use payguard_operators::confirmation_join::ConfirmationJoin;
use payguard_operators::unconfirmed::UnconfirmedRule;
use payguard_operators::{MatchEvent, TimerDomain};
use payguard_topology::{Config, Topology, operator, stage, stream};
use prost::Message;

/// The operators of `match`; one that is switched off is absent.
struct MatchStage {
    join: Option<KeyedRunner<ConfirmationJoin>>,
    unconfirmed: Option<KeyedRunner<UnconfirmedRule>>,
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
    let join = config.has_operator(operator::JOIN).then_some(ConfirmationJoin);
    let unconfirmed = UnconfirmedRule { language: config.language() };
    let unconfirmed = config.has_operator(operator::UNCONFIRMED).then_some(unconfirmed);
    Arc::new(move || {
        Body::Operators(Box::new(MatchStage {
            join: join.map(KeyedRunner::new),
            unconfirmed: unconfirmed.map(KeyedRunner::new),
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
        if let Some(join) = &mut self.join {
            join.process(payment_id, event, out, &mut |out, time, pair| outputs.confirmed(&pair, time, out));
        }
        if let Some(rule) = &mut self.unconfirmed {
            rule.process(payment_id, event, out, &mut |out, time, alert| outputs.alert(alert, time, out));
        }
        Ok(())
    }

    fn next_event_timer(&self) -> Option<EventTime> {
        let join = self.join.as_ref().and_then(|r| r.next_timer(TimerDomain::EventTime));
        let unconfirmed = self.unconfirmed.as_ref().and_then(|r| r.next_timer(TimerDomain::EventTime));
        join.into_iter().chain(unconfirmed).min().map(EventTime)
    }

    fn on_watermark(&mut self, out: &mut Collector) {
        let outputs = self.outputs;
        if let Some(join) = &mut self.join {
            join.fire(TimerDomain::EventTime, out, &mut |out, time, pair| outputs.confirmed(&pair, time, out));
        }
        if let Some(rule) = &mut self.unconfirmed {
            rule.fire(TimerDomain::EventTime, out, &mut |out, time, alert| outputs.alert(alert, time, out));
        }
    }

    fn states(&mut self) -> Vec<&mut dyn OperatorState> {
        let join = self.join.as_mut().map(|r| r as &mut dyn OperatorState);
        let unconfirmed = self.unconfirmed.as_mut().map(|r| r as &mut dyn OperatorState);
        join.into_iter().chain(unconfirmed).collect()
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
    fn confirmed(self, pair: &ConfirmedPayment, time: EventTime, out: &mut Collector) {
        if let Some(output) = self.confirmed {
            out.emit(output, &pair.payment_id, time, pair);
        }
    }

    fn alert(self, alert: FraudAlert, time: EventTime, out: &mut Collector) {
        out.count("alerts", payguard_operators::unconfirmed::RULE_ID, 1);
        if let Some(output) = self.alerts {
            let alert = alert.decided_by(&out.origin().task, out.origin().seq, out.watermark(), None);
            out.emit(output, &alert.merchant_id, time, &alert);
        }
    }
}
