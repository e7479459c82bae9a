//! Stage `window`: totals per merchant and minute, sessions per card.

use std::sync::Arc;

use payguard_engine::StageId;
use payguard_engine::keyed::KeyedRunner;
use payguard_engine::logic::{Collector, DecodeError, OperatorState, StageLogic};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_model::view::PaymentView;
use payguard_model::{CardSession, EventTime, Payment};
use payguard_operators::TimerDomain;
use payguard_operators::card_sessions::CardSessionWindow;
use payguard_operators::merchant_stats::{self, MerchantStatsWindow};
use payguard_operators::salted_stats::{self, SaltedStatsWindow, salt_of, salted_key};
use payguard_topology::{Config, Topology, stage, stream};
use prost::Message;

/// Where the outputs go.
#[derive(Clone, Copy)]
struct Outputs {
    stats: Option<usize>,
    parts: Option<usize>,
    too_late: Option<usize>,
    sessions: Option<usize>,
}

/// The merchant totals: whole ones, or parts by salt that `combine` adds up.
enum Totals {
    Whole(KeyedRunner<MerchantStatsWindow>),
    Salted(KeyedRunner<SaltedStatsWindow>, u32),
}

/// The operators of `window`.
struct WindowStage {
    totals: Totals,
    sessions: KeyedRunner<CardSessionWindow>,
    /// Number of the input stream with payments by merchant; the other one is by card.
    by_merchant: Option<usize>,
    outputs: Outputs,
    /// The payment at hand; its texts keep their room from record to record.
    payment: Payment,
}

/// Makes the stage for a topology.
#[must_use]
pub fn make(config: &Config, topology: &Topology) -> MakeBody {
    let id = StageId::new(stage::WINDOW);
    let by_merchant = topology.inputs(&id).position(|s| s.name == stream::CLEAN_BY_MERCHANT);
    let outputs = Outputs {
        stats: topology.output(&id, stream::MERCHANT_STATS),
        parts: topology.output(&id, stream::MERCHANT_PARTS),
        too_late: topology.output(&id, stream::TOO_LATE),
        sessions: topology.output(&id, stream::CARD_SESSIONS),
    };
    let salts = config.is_salted().then_some(config.stats.salts);
    let late_updates = config.stats.late_updates;
    Arc::new(move || {
        Body::Operators(Box::new(WindowStage {
            totals: match salts {
                None => Totals::Whole(KeyedRunner::new(MerchantStatsWindow)),
                Some(salts) => Totals::Salted(KeyedRunner::new(SaltedStatsWindow { late_updates }), salts),
            },
            sessions: KeyedRunner::new(CardSessionWindow),
            by_merchant,
            outputs,
            payment: Payment::default(),
        }))
    })
}

impl StageLogic for WindowStage {
    fn on_record(&mut self, stream: usize, payload: &[u8], out: &mut Collector) -> Result<(), DecodeError> {
        let payment = &mut self.payment;
        payment.clear();
        payment.merge(payload)?;
        let outputs = self.outputs;
        if Some(stream) == self.by_merchant {
            match &mut self.totals {
                Totals::Whole(totals) => {
                    totals.process(&payment.merchant_id, payment, out, &mut |out, time, output| {
                        outputs.whole(output, time, out);
                    })
                }
                Totals::Salted(totals, salts) => {
                    let key = salted_key(&payment.merchant_id, salt_of(&payment.payment_id, *salts));
                    totals.process(&key, payment, out, &mut |out, time, output| outputs.salted(output, time, out));
                }
            }
        } else {
            self.sessions.process(&payment.card_id, payment, out, &mut |out, time, session| {
                outputs.session(&session, time, out);
            });
        }
        Ok(())
    }

    fn next_event_timer(&self) -> Option<EventTime> {
        let totals = match &self.totals {
            Totals::Whole(totals) => totals.next_timer(TimerDomain::EventTime),
            Totals::Salted(totals, _) => totals.next_timer(TimerDomain::EventTime),
        };
        let timers = [totals, self.sessions.next_timer(TimerDomain::EventTime)];
        timers.into_iter().flatten().min().map(EventTime)
    }

    fn on_watermark(&mut self, out: &mut Collector) {
        let outputs = self.outputs;
        let domain = TimerDomain::EventTime;
        match &mut self.totals {
            Totals::Whole(totals) => {
                totals.fire(domain, out, &mut |out, time, output| outputs.whole(output, time, out));
            }
            Totals::Salted(totals, _) => {
                totals.fire(domain, out, &mut |out, time, output| outputs.salted(output, time, out));
            }
        }
        self.sessions.fire(domain, out, &mut |out, time, session| outputs.session(&session, time, out));
    }

    fn key(&self, stream: usize, payload: &[u8]) -> Result<String, DecodeError> {
        let payment = PaymentView::decode(payload)?;
        Ok(match &self.totals {
            _ if Some(stream) != self.by_merchant => payment.card_id.to_owned(),
            Totals::Whole(_) => payment.merchant_id.to_owned(),
            Totals::Salted(_, salts) => salted_key(payment.merchant_id, salt_of(payment.payment_id, *salts)),
        })
    }

    fn states(&mut self) -> Vec<&mut dyn OperatorState> {
        let totals: &mut dyn OperatorState = match &mut self.totals {
            Totals::Whole(totals) => totals,
            Totals::Salted(totals, _) => totals,
        };
        vec![totals, &mut self.sessions]
    }
}

impl Outputs {
    fn whole(self, output: merchant_stats::Output, time: EventTime, out: &mut Collector) {
        match output {
            merchant_stats::Output::Stats(stats) => {
                if let Some(stream) = self.stats {
                    out.emit(stream, &stats.merchant_id, time, &stats);
                }
            }
            merchant_stats::Output::TooLate(payment) => self.too_late(&payment, time, out),
        }
    }

    fn salted(self, output: salted_stats::Output, time: EventTime, out: &mut Collector) {
        match output {
            salted_stats::Output::Part(part) => {
                if let Some(stream) = self.parts {
                    out.emit(stream, &part.merchant_id, time, &part);
                }
            }
            salted_stats::Output::TooLate(payment) => self.too_late(&payment, time, out),
        }
    }

    fn too_late(self, payment: &Payment, time: EventTime, out: &mut Collector) {
        if let Some(stream) = self.too_late {
            out.emit(stream, &payment.payment_id, time, payment);
        }
    }

    fn session(self, session: &CardSession, time: EventTime, out: &mut Collector) {
        if let Some(stream) = self.sessions {
            out.emit(stream, &session.card_id, time, session);
        }
    }
}
