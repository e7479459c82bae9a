//! Stage `rules`: what one card's payments give away. Each rule is an operator with its own state.
//!
//! Velocity and blocked countries follow the version of the rules that the batch is handled with.

use std::sync::Arc;
use std::time::Duration;

use payguard_engine::keyed::KeyedRunner;
use payguard_engine::logic::{Collector, DecodeError, OperatorState, StageLogic};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_engine::{Broadcast, StageId};
use payguard_model::view::PaymentView;
use payguard_model::{CardProfileOf, EventTime, FraudAlert, Payment, RuleConfig};
use payguard_operators::amount_spike::{self, AmountSpikeRule};
use payguard_operators::card_profile::CardProfiles;
use payguard_operators::detail::DetailLanguage;
use payguard_operators::sequences::{SequenceRules, card_testing, impossible_travel};
use payguard_operators::velocity::{self, VelocityRule};
use payguard_operators::{TimerDomain, blocked_country};
use payguard_topology::{Config, Topology, operator, stage, stream};
use prost::Message;

/// Name in front of the counters of alerts by rule.
const ALERTS: &str = "alerts";

/// The rules of this stage.
const RULE_IDS: [&str; 5] = [
    velocity::RULE_ID,
    blocked_country::RULE_ID,
    amount_spike::RULE_ID,
    card_testing::RULE_ID,
    impossible_travel::RULE_ID,
];

/// Which operators there are, and their settings.
#[derive(Clone)]
struct Settings {
    velocity: Option<VelocityRule>,
    blocked_country: bool,
    amount_spike: Option<AmountSpikeRule>,
    sequences: Option<SequenceRules>,
    profiles: bool,
    /// Fault tool: how much longer a profile takes.
    slow: Duration,
    language: DetailLanguage,
    outputs: Outputs,
}

/// Where the outputs go.
#[derive(Clone, Copy)]
struct Outputs {
    alerts: Option<usize>,
    profiles: Option<usize>,
}

/// The operators of `rules`; one that is switched off is absent.
struct RulesStage {
    velocity: Option<KeyedRunner<VelocityRule>>,
    amount_spike: Option<KeyedRunner<AmountSpikeRule>>,
    sequences: Option<KeyedRunner<SequenceRules>>,
    profiles: Option<KeyedRunner<CardProfiles>>,
    blocked_country: bool,
    /// The rules in force and their version (0: the defaults).
    version: u64,
    blocked: Vec<String>,
    slow: Duration,
    language: DetailLanguage,
    outputs: Outputs,
    /// The payment at hand; its texts keep their room from record to record.
    payment: Payment,
}

/// Makes the stage for a configuration.
#[must_use]
pub fn make(config: &Config, topology: &Topology) -> MakeBody {
    let settings = Settings::of(config, topology);
    Arc::new(move || Body::Operators(Box::new(RulesStage::new(&settings))))
}

impl Settings {
    fn of(config: &Config, topology: &Topology) -> Settings {
        let id = StageId::new(stage::RULES);
        let on = |operator| config.has_operator(operator);
        let language = config.language();
        let velocity = VelocityRule { limit: config.rules.velocity_max_payments, language };
        let amount_spike = AmountSpikeRule { limit: config.rules.amount_spike_limit_minor, language };
        let sequences = SequenceRules {
            card_testing: on(operator::CARD_TESTING),
            impossible_travel: on(operator::IMPOSSIBLE_TRAVEL),
            language,
        };
        Settings {
            velocity: on(operator::VELOCITY).then_some(velocity),
            blocked_country: on(operator::BLOCKED_COUNTRY),
            amount_spike: on(operator::AMOUNT_SPIKE).then_some(amount_spike),
            sequences: (sequences.card_testing || sequences.impossible_travel).then_some(sequences),
            profiles: on(operator::CARD_PROFILE),
            slow: Duration::from_millis(config.rules.slow_ms),
            language,
            outputs: Outputs {
                alerts: topology.output(&id, stream::CARD_ALERTS),
                profiles: topology.output(&id, stream::CARD_PROFILES),
            },
        }
    }
}

impl RulesStage {
    fn new(settings: &Settings) -> RulesStage {
        RulesStage {
            velocity: settings.velocity.map(KeyedRunner::new),
            amount_spike: settings.amount_spike.map(KeyedRunner::new),
            sequences: settings.sequences.map(KeyedRunner::new),
            profiles: settings.profiles.then(|| KeyedRunner::new(CardProfiles)),
            blocked_country: settings.blocked_country,
            version: 0,
            blocked: Vec::new(),
            slow: settings.slow,
            language: settings.language,
            outputs: settings.outputs,
            payment: Payment::default(),
        }
    }
}

impl StageLogic for RulesStage {
    fn on_broadcast(&mut self, broadcast: &Broadcast) -> Result<(), DecodeError> {
        let rules = RuleConfig::decode(broadcast.value.clone())?;
        self.version = broadcast.version;
        self.blocked = rules.blocked_countries;
        if let Some(rule) = &mut self.velocity {
            rule.operator_mut().limit = rules.velocity_max_payments;
        }
        Ok(())
    }

    fn on_record(&mut self, _stream: usize, payload: &[u8], out: &mut Collector) -> Result<(), DecodeError> {
        let payment = &mut self.payment;
        payment.clear();
        payment.merge(payload)?;
        let (outputs, version) = (self.outputs, self.version);
        if self.blocked_country
            && !self.blocked.is_empty()
            && let Some(alert) = blocked_country::check(payment, &self.blocked, self.language)
        {
            outputs.alert(alert, version, EventTime(payment.event_time_ms), out);
        }
        let alert = &mut |out: &mut Collector, time, alert| outputs.alert(alert, version, time, out);
        if let Some(rule) = &mut self.velocity {
            rule.process(&payment.card_id, payment, out, alert);
        }
        if let Some(rule) = &mut self.amount_spike {
            rule.process(&payment.card_id, payment, out, alert);
        }
        if let Some(rules) = &mut self.sequences {
            rules.process(&payment.card_id, payment, out, alert);
        }
        if let Some(profiles) = &mut self.profiles {
            if !self.slow.is_zero() {
                std::thread::sleep(self.slow);
            }
            profiles.process(&payment.card_id, payment, out, &mut |out, time, profile| {
                let profile = CardProfileOf { card_id: payment.card_id.clone(), profile: Some(profile) };
                outputs.profile(&profile, time, out);
            });
        }
        Ok(())
    }

    fn next_event_timer(&self) -> Option<EventTime> {
        let domain = TimerDomain::EventTime;
        let timers = [
            self.velocity.as_ref().and_then(|r| r.next_timer(domain)),
            self.amount_spike.as_ref().and_then(|r| r.next_timer(domain)),
            self.sequences.as_ref().and_then(|r| r.next_timer(domain)),
        ];
        timers.into_iter().flatten().min().map(EventTime)
    }

    fn on_watermark(&mut self, out: &mut Collector) {
        let (outputs, version, domain) = (self.outputs, self.version, TimerDomain::EventTime);
        let alert = &mut |out: &mut Collector, time, alert| outputs.alert(alert, version, time, out);
        if let Some(rule) = &mut self.velocity {
            rule.fire(domain, out, alert);
        }
        if let Some(rule) = &mut self.amount_spike {
            rule.fire(domain, out, alert);
        }
        if let Some(rules) = &mut self.sequences {
            rules.fire(domain, out, alert);
        }
    }

    fn key(&self, _stream: usize, payload: &[u8]) -> Result<String, DecodeError> {
        Ok(PaymentView::decode(payload)?.card_id.to_owned())
    }

    fn states(&mut self) -> Vec<&mut dyn OperatorState> {
        let states: [Option<&mut dyn OperatorState>; 4] = [
            self.velocity.as_mut().map(|r| r as &mut dyn OperatorState),
            self.amount_spike.as_mut().map(|r| r as &mut dyn OperatorState),
            self.sequences.as_mut().map(|r| r as &mut dyn OperatorState),
            self.profiles.as_mut().map(|r| r as &mut dyn OperatorState),
        ];
        states.into_iter().flatten().collect()
    }
}

impl Outputs {
    fn alert(self, alert: FraudAlert, version: u64, time: EventTime, out: &mut Collector) {
        let Some(output) = self.alerts else { return };
        let versioned = [velocity::RULE_ID, blocked_country::RULE_ID].contains(&alert.rule_id.as_str());
        if let Some(rule) = RULE_IDS.into_iter().find(|rule| *rule == alert.rule_id) {
            out.count(ALERTS, rule, 1);
        }
        let alert =
            alert.decided_by(&out.origin().task, out.origin().seq, out.watermark(), versioned.then_some(version));
        out.emit(output, &alert.merchant_id, time, &alert);
    }

    fn profile(self, profile: &CardProfileOf, time: EventTime, out: &mut Collector) {
        if let Some(output) = self.profiles {
            out.emit(output, &profile.card_id, time, profile);
        }
    }
}
