//! Stage `parse`: raw records of a Kafka partition become payments or rejected records; those of the topic with
//! confirmations become confirmations. In the connections pipeline, raw records become events of sessions.
//!
//! Every record goes to exactly one place: a stream, or a counter for a tombstone or for a confirmation that is none.
//! Bad input never fails the stage.

mod confirmations;
mod connections;

use std::sync::Arc;

use payguard_engine::StageId;
use payguard_engine::logic::{Collector, SourceLogic, SourceRecord};
use payguard_engine::task::source::MakeSource;
use payguard_model::parse::raw_text;
use payguard_model::{ConnectionEvent, EventTime, ParsePolicy, Payment, RejectedRecord, parse_payment_into};
use payguard_operators::lateness::LatenessProbe;
use payguard_topology::connections::variants;
use payguard_topology::{Config, System, Topology, stage, stream};

use crate::confirmations::ParseConfirmations;
use crate::connections::ParseConnections;

/// Name of the operator in counters.
const PARSE: &str = "parse";
/// Name of the lateness probe in counters.
const LATENESS_PROBE: &str = "lateness-probe";
/// How far late payments were behind the watermark, over the last 10,000 of them, milliseconds.
const PERCENTILES: [(&str, f64); 3] =
    [("behind_watermark_ms_p50", 50.0), ("behind_watermark_ms_p99", 99.0), ("behind_watermark_ms_max", 100.0)];

/// The operators of `parse`.
struct ParseStage {
    policy: ParsePolicy,
    payments: Option<usize>,
    rejections: Rejections,
    probe: LatenessProbe,
    /// The partition whose records these are.
    partition: u32,
    /// The payment at hand; its texts keep their room from record to record.
    payment: Payment,
}

/// Where refused records go.
#[derive(Clone, Copy)]
struct Rejections {
    output: Option<usize>,
    /// A record may be so far ahead of the clock, milliseconds, and still move the watermark.
    max_future_ms: Option<i64>,
}

/// Makes the stage for a configuration.
#[must_use]
pub fn make(config: &Config, topology: &Topology) -> MakeSource {
    match config.system {
        System::Payments => payments(config, topology),
        System::Connections => connections(config, topology),
    }
}

fn connections(config: &Config, topology: &Topology) -> MakeSource {
    let outputs: Vec<usize> =
        variants(config).filter_map(|v| topology.output(&StageId::new(stage::PARSE), v.events)).collect();
    let rejections = Rejections::of(config, topology);
    Arc::new(move |_| {
        let event = ConnectionEvent::default();
        Box::new(ParseConnections { outputs: outputs.clone(), rejections, event })
    })
}

fn payments(config: &Config, topology: &Topology) -> MakeSource {
    let id = StageId::new(stage::PARSE);
    let policy = config.parse_policy();
    let payments = topology.output(&id, stream::PAYMENTS);
    let rejections = Rejections::of(config, topology);
    let confirmations = ParseConfirmations { output: topology.output(&id, stream::CONFIRMATIONS) };
    let confirmations_topic = config.source.confirmations_topic.clone();
    Arc::new(move |task| match task.topic_partition() {
        Some((topic, _)) if topic == confirmations_topic => Box::new(confirmations),
        partition => {
            let partition = partition.and_then(|(_, number)| u32::try_from(number).ok()).unwrap_or(0);
            let (probe, payment) = (LatenessProbe::default(), Payment::default());
            Box::new(ParseStage { policy, payments, rejections, probe, partition, payment })
        }
    })
}

impl SourceLogic for ParseStage {
    fn on_record(&mut self, record: &SourceRecord<'_>, out: &mut Collector) -> Option<EventTime> {
        let Some(raw) = record.value else {
            out.count(PARSE, "tombstones", 1);
            return None;
        };
        match parse_payment_into(raw, out.now(), &self.policy, &mut self.payment) {
            Ok(()) => {
                (self.payment.source_partition, self.payment.source_offset) = (self.partition, record.offset);
                Some(self.accept(out))
            }
            Err(reason) => self.rejections.reject(raw, reason.code(), record, out),
        }
    }

    fn end_batch(&mut self, out: &mut Collector) {
        for (name, p) in PERCENTILES {
            if let Some(behind) = self.probe.percentile(p) {
                out.gauge(LATENESS_PROBE, name, behind as i64);
            }
        }
    }
}

impl ParseStage {
    fn accept(&mut self, out: &mut Collector) -> EventTime {
        let payment = &self.payment;
        let time = EventTime(payment.event_time_ms);
        out.count(PARSE, "accepted", 1);
        // Late payments go on unchanged; the probe only measures them.
        if self.probe.observe(time, out.watermark()).is_some() {
            out.count(LATENESS_PROBE, "late_events", 1);
        }
        if let Some(output) = self.payments {
            out.emit(output, &payment.payment_id, time, payment);
        }
        time
    }
}

impl Rejections {
    fn of(config: &Config, topology: &Topology) -> Rejections {
        let output = topology.output(&StageId::new(stage::PARSE), stream::REJECTED);
        Rejections { output, max_future_ms: config.parse_policy().max_future_ms }
    }

    /// A rejected record has no event time of its own: its Kafka timestamp moves the watermark, unless it is from the
    /// future beyond the bound that holds for payments.
    fn reject(
        self,
        raw: &[u8],
        reason: &'static str,
        source: &SourceRecord<'_>,
        out: &mut Collector,
    ) -> Option<EventTime> {
        let (now, timestamp, replays) = (out.now(), source.timestamp, source.replays);
        out.count(PARSE, reason, 1);
        if let Some(output) = self.output {
            let record =
                RejectedRecord { raw: raw_text(raw), reason: reason.to_owned(), rejected_at_ms: now.0, replays };
            out.emit(output, reason, timestamp.unwrap_or(EventTime(now.0)), &record);
        }
        let bound = self.max_future_ms.map_or(i64::MAX, |ms| now.0.saturating_add(ms));
        timestamp.filter(|t| t.0 <= bound)
    }
}
