//! Stage `window`: totals per merchant and minute, sessions per card.

use std::sync::Arc;

use payguard_engine::StageId;
use payguard_engine::keyed::KeyedRunner;
use payguard_engine::logic::{Collector, DecodeError, OperatorState, StageLogic};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_model::{CardSession, EventTime, Payment};
use payguard_operators::TimerDomain;
use payguard_operators::card_sessions::CardSessionWindow;
use payguard_operators::merchant_stats::{MerchantStatsWindow, Output};
use payguard_topology::{Topology, stage, stream};
use prost::Message;

/// Where the outputs go.
#[derive(Clone, Copy)]
struct Outputs {
    stats: Option<usize>,
    too_late: Option<usize>,
    sessions: Option<usize>,
}

/// The operators of `window`.
struct WindowStage {
    merchants: KeyedRunner<MerchantStatsWindow>,
    sessions: KeyedRunner<CardSessionWindow>,
    /// Number of the input stream with payments by merchant; the other one is by card.
    by_merchant: Option<usize>,
    outputs: Outputs,
    /// The payment at hand; its texts keep their room from record to record.
    payment: Payment,
}

/// Makes the stage for a topology.
#[must_use]
pub fn make(topology: &Topology) -> MakeBody {
    let id = StageId::new(stage::WINDOW);
    let by_merchant = topology.inputs(&id).position(|s| s.name == stream::CLEAN_BY_MERCHANT);
    let outputs = Outputs {
        stats: topology.output(&id, stream::MERCHANT_STATS),
        too_late: topology.output(&id, stream::TOO_LATE),
        sessions: topology.output(&id, stream::CARD_SESSIONS),
    };
    Arc::new(move || {
        Body::Operators(Box::new(WindowStage {
            merchants: KeyedRunner::new(MerchantStatsWindow),
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
            self.merchants.process(&payment.merchant_id, payment, out, &mut |out, time, output| {
                outputs.merchant(output, time, out);
            });
        } else {
            self.sessions.process(&payment.card_id, payment, out, &mut |out, time, session| {
                outputs.session(&session, time, out);
            });
        }
        Ok(())
    }

    fn next_event_timer(&self) -> Option<EventTime> {
        let timers =
            [self.merchants.next_timer(TimerDomain::EventTime), self.sessions.next_timer(TimerDomain::EventTime)];
        timers.into_iter().flatten().min().map(EventTime)
    }

    fn on_watermark(&mut self, out: &mut Collector) {
        let outputs = self.outputs;
        self.merchants.fire(TimerDomain::EventTime, out, &mut |out, time, output| outputs.merchant(output, time, out));
        self.sessions.fire(TimerDomain::EventTime, out, &mut |out, time, session| outputs.session(&session, time, out));
    }

    fn states(&mut self) -> Vec<&mut dyn OperatorState> {
        vec![&mut self.merchants, &mut self.sessions]
    }
}

impl Outputs {
    fn merchant(self, output: Output, time: EventTime, out: &mut Collector) {
        match output {
            Output::Stats(stats) => {
                if let Some(stream) = self.stats {
                    out.emit(stream, &stats.merchant_id, time, &stats);
                }
            }
            Output::TooLate(payment) => {
                if let Some(stream) = self.too_late {
                    out.emit(stream, &payment.payment_id, time, &payment);
                }
            }
        }
    }

    fn session(self, session: &CardSession, time: EventTime, out: &mut Collector) {
        if let Some(stream) = self.sessions {
            out.emit(stream, &session.card_id, time, session);
        }
    }
}
