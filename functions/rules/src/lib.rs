//! Stage `rules`: what one card's payments give away. Each rule is an operator with its own state.

use std::sync::Arc;

use payguard_engine::StageId;
use payguard_engine::keyed::KeyedRunner;
use payguard_engine::logic::{Collector, DecodeError, OperatorState, StageLogic};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_model::{EventTime, FraudAlert, Payment};
use payguard_operators::TimerDomain;
use payguard_operators::amount_spike::AmountSpikeRule;
use payguard_operators::velocity::VelocityRule;
use payguard_topology::{Config, Topology, operator, stage, stream};
use prost::Message;

/// The operators of `rules`; one that is switched off is absent.
struct RulesStage {
    velocity: Option<KeyedRunner<VelocityRule>>,
    amount_spike: Option<KeyedRunner<AmountSpikeRule>>,
    alerts: Option<usize>,
    /// The payment at hand; its texts keep their room from record to record.
    payment: Payment,
}

/// Makes the stage for a configuration.
#[must_use]
pub fn make(config: &Config, topology: &Topology) -> MakeBody {
    let alerts = topology.output(&StageId::new(stage::RULES), stream::ALERTS);
    let language = config.language();
    let velocity = VelocityRule { limit: config.rules.velocity_max_payments, language };
    let amount_spike = AmountSpikeRule { limit: config.rules.amount_spike_limit_minor, language };
    let velocity = config.has_operator(operator::VELOCITY).then_some(velocity);
    let amount_spike = config.has_operator(operator::AMOUNT_SPIKE).then_some(amount_spike);
    Arc::new(move || {
        Body::Operators(Box::new(RulesStage {
            velocity: velocity.map(KeyedRunner::new),
            amount_spike: amount_spike.map(KeyedRunner::new),
            alerts,
            payment: Payment::default(),
        }))
    })
}

impl StageLogic for RulesStage {
    fn on_record(&mut self, _stream: usize, payload: &[u8], out: &mut Collector) -> Result<(), DecodeError> {
        let payment = &mut self.payment;
        payment.clear();
        payment.merge(payload)?;
        let alerts = self.alerts;
        let emit = &mut |out: &mut Collector, time, alert| emit_alert(alerts, &alert, time, out);
        if let Some(rule) = &mut self.velocity {
            rule.process(&payment.card_id, payment, out, emit);
        }
        if let Some(rule) = &mut self.amount_spike {
            rule.process(&payment.card_id, payment, out, emit);
        }
        Ok(())
    }

    fn next_event_timer(&self) -> Option<EventTime> {
        let velocity = self.velocity.as_ref().and_then(|r| r.next_timer(TimerDomain::EventTime));
        let amount_spike = self.amount_spike.as_ref().and_then(|r| r.next_timer(TimerDomain::EventTime));
        velocity.into_iter().chain(amount_spike).min().map(EventTime)
    }

    fn on_watermark(&mut self, out: &mut Collector) {
        let alerts = self.alerts;
        let emit = &mut |out: &mut Collector, time, alert| emit_alert(alerts, &alert, time, out);
        if let Some(rule) = &mut self.velocity {
            rule.fire(TimerDomain::EventTime, out, emit);
        }
        if let Some(rule) = &mut self.amount_spike {
            rule.fire(TimerDomain::EventTime, out, emit);
        }
    }

    fn states(&mut self) -> Vec<&mut dyn OperatorState> {
        let velocity = self.velocity.as_mut().map(|r| r as &mut dyn OperatorState);
        let amount_spike = self.amount_spike.as_mut().map(|r| r as &mut dyn OperatorState);
        velocity.into_iter().chain(amount_spike).collect()
    }
}

fn emit_alert(output: Option<usize>, alert: &FraudAlert, time: EventTime, out: &mut Collector) {
    if let Some(output) = output {
        out.emit(output, &alert.card_id, time, alert);
    }
}
