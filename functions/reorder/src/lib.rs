//! Stages `reorder_a` and `reorder_b`: sessions of connection attempts, each variant in a stage of its own.

use std::sync::Arc;

use payguard_engine::StageId;
use payguard_engine::keyed::KeyedRunner;
use payguard_engine::logic::{Collector, DecodeError, OperatorState, StageLogic};
use payguard_engine::task::consumer::{Body, MakeBody};
use payguard_model::{ConnectionEvent, EventTime, ProcessingTime};
use payguard_operators::connections::{ArrivalOrder, EventTimeOrder, ReorderOutput};
use payguard_operators::{KeyedOperator, TimerDomain};
use payguard_topology::connections::{VARIANTS, Variant};
use payguard_topology::{Config, Topology, stage};
use prost::Message;

/// The operator of a variant.
struct ReorderStage<O: KeyedOperator> {
    sessions: KeyedRunner<O>,
    /// Sessions that are remembered.
    most: usize,
    outputs: Outputs,
    /// The event at hand; its texts keep their room from record to record.
    event: ConnectionEvent,
}

/// Where the outputs go.
#[derive(Clone, Copy)]
struct Outputs {
    verdicts: Option<usize>,
    late: Option<usize>,
}

/// Makes the stage that reads sessions by arrival and writes each through to the state table.
#[must_use]
pub fn make_a(config: &Config, topology: &Topology) -> MakeBody {
    let operator = ArrivalOrder { limits: config.connections.limits() };
    make(config, topology, stage::REORDER_A, move || KeyedRunner::new(operator).write_through())
}

/// Makes the stage that reads sessions by event time.
#[must_use]
pub fn make_b(config: &Config, topology: &Topology) -> MakeBody {
    let operator = EventTimeOrder { limits: config.connections.limits() };
    make(config, topology, stage::REORDER_B, move || KeyedRunner::new(operator))
}

fn make<O>(
    config: &Config,
    topology: &Topology,
    stage: &str,
    runner: impl Fn() -> KeyedRunner<O> + Send + Sync + 'static,
) -> MakeBody
where
    O: KeyedOperator<Event = ConnectionEvent, Output = ReorderOutput>,
{
    let (id, most) = (StageId::new(stage), config.connections.max_buffered_sessions);
    let variant = VARIANTS.iter().find(|variant| variant.stage == stage);
    let output = |stream: fn(&Variant) -> &'static str| variant.and_then(|v| topology.output(&id, stream(v)));
    let outputs = Outputs { verdicts: output(|v| v.verdicts), late: output(|v| v.late) };
    Arc::new(move || {
        let event = ConnectionEvent::default();
        Body::Operators(Box::new(ReorderStage { sessions: runner(), most, outputs, event }))
    })
}

impl<O> StageLogic for ReorderStage<O>
where
    O: KeyedOperator<Event = ConnectionEvent, Output = ReorderOutput>,
{
    fn on_record(&mut self, _stream: usize, payload: &[u8], out: &mut Collector) -> Result<(), DecodeError> {
        self.event.clear();
        self.event.merge(payload)?;
        let (outputs, emit) = (self.outputs, Outputs::emit);
        let mut emit = |out: &mut Collector, time, output| emit(outputs, output, time, out);
        self.sessions.process(&self.event.session_id, &self.event, out, &mut emit);
        while self.sessions.keys() > self.most
            && self.sessions.fire_earliest(TimerDomain::ProcessingTime, out, &mut emit)
        {}
        Ok(())
    }

    fn next_event_timer(&self) -> Option<EventTime> {
        self.sessions.next_timer(TimerDomain::EventTime).map(EventTime)
    }

    fn on_watermark(&mut self, out: &mut Collector) {
        let outputs = self.outputs;
        self.sessions.fire(TimerDomain::EventTime, out, &mut |out, time, output| outputs.emit(output, time, out));
    }

    fn next_processing_timer(&self) -> Option<ProcessingTime> {
        self.sessions.next_timer(TimerDomain::ProcessingTime).map(ProcessingTime)
    }

    fn on_processing_time(&mut self, out: &mut Collector) {
        let outputs = self.outputs;
        self.sessions.fire(TimerDomain::ProcessingTime, out, &mut |out, time, output| outputs.emit(output, time, out));
    }

    fn key(&self, _stream: usize, payload: &[u8]) -> Result<String, DecodeError> {
        Ok(ConnectionEvent::decode(payload)?.session_id)
    }

    fn states(&mut self) -> Vec<&mut dyn OperatorState> {
        vec![&mut self.sessions]
    }
}

impl Outputs {
    fn emit(self, output: ReorderOutput, time: EventTime, out: &mut Collector) {
        match output {
            ReorderOutput::Verdict(verdict) => {
                if let Some(output) = self.verdicts {
                    out.emit(output, &verdict.session_id, time, &verdict);
                }
            }
            ReorderOutput::Late(event) => {
                if let Some(output) = self.late {
                    out.emit(output, &event.session_id, time, &event);
                }
            }
        }
    }
}
