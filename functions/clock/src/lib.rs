//! Stage `clock`: what must happen although no input arrives.
//!
//! Wake-ups may be lost and partitions may fall silent; both show in the heads. The decision is pure; whoever runs the
//! clock carries it out. What nobody needs any more shows in the heads too, and is removed here.

pub mod collect;
#[cfg(feature = "lambda")]
pub mod host;

use payguard_engine::{Head, TaskId};
use payguard_model::ProcessingTime;
use payguard_operators::watermark::IDLE_AFTER_MS;
use payguard_topology::progress::rows_waiting;
use payguard_topology::{StageKind, Topology};

/// Something the clock asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tick {
    /// The partition has been silent for long: its task decides whether it is idle.
    Heartbeat(TaskId),
    /// The task has rows to read, or a processing-time timer is due.
    Wake(TaskId),
}

/// What the heads ask for at `now`.
#[must_use]
pub fn decide(topology: &Topology, heads: &[(TaskId, Head)], now: ProcessingTime) -> Vec<Tick> {
    let mut ticks = Vec::new();
    for (task, head) in heads {
        let Some(stage) = topology.stage(&task.stage) else { continue };
        match stage.kind {
            StageKind::Source { .. } => {
                // A partition that never had a record is told to begin: its silence is counted from there.
                let silent = head.seq == 0 || now.0.saturating_sub(head.last_input_at_ms) >= IDLE_AFTER_MS;
                if silent && !head.idle && !head.ended() {
                    ticks.push(Tick::Heartbeat(task.clone()));
                }
            }
            StageKind::Operators | StageKind::Lookup | StageKind::Sink => {
                let timer_due = head.sealed.is_none() && head.next_timer_ms.is_some_and(|t| t <= now.0);
                if timer_due || rows_waiting(topology, heads, task, head) > 0 {
                    ticks.push(Tick::Wake(task.clone()));
                }
            }
            StageKind::Broadcast { .. } | StageKind::Schedule => {}
        }
    }
    ticks
}

#[cfg(test)]
mod tests {
    use payguard_engine::{InputState, Position, StageId};
    use payguard_topology::{Config, payguard};

    use super::*;

    const NOW: ProcessingTime = ProcessingTime(1_000_000);

    fn source(head: Head) -> Vec<Tick> {
        let task = TaskId::partition(&StageId::new("parse"), "payments.raw", 0);
        decide(&payguard(&Config::default()), &[(task, head)], NOW)
    }

    #[test]
    fn lesson_05_a_partition_silent_for_a_minute_gets_a_heartbeat_once() {
        let silent = Head { seq: 3, last_input_at_ms: NOW.0 - IDLE_AFTER_MS, ..Head::empty() };
        assert!(matches!(&source(silent.clone())[..], [Tick::Heartbeat(_)]));
        assert_eq!(source(Head { last_input_at_ms: NOW.0 - IDLE_AFTER_MS + 1, ..silent.clone() }), []);
        assert_eq!(source(Head { idle: true, ..silent.clone() }), []);
        assert_eq!(source(Head { watermark_ms: i64::MAX, ..silent.clone() }), []);
        assert!(matches!(&source(Head::empty())[..], [Tick::Heartbeat(_)]), "a partition without a record begins");
    }

    #[test]
    fn a_task_with_unread_rows_or_a_due_timer_is_woken() {
        let topology = payguard(&Config::default());
        let parse = TaskId::partition(&StageId::new("parse"), "payments.raw", 0);
        let dedup = TaskId::shard(&StageId::new("dedup"), 0);
        let upstream = (parse, Head { seq: 5, last_input_at_ms: NOW.0, ..Head::empty() });
        let read = |at: i64| {
            let state = InputState { position: Position { at, within: 0 }, watermark_ms: 0, idle: false };
            Head { inputs: [("parse/payments.raw-0".to_owned(), state)].into(), ..Head::empty() }
        };
        let ticks = |head: Head| decide(&topology, &[upstream.clone(), (dedup.clone(), head)], NOW);
        assert_eq!(ticks(read(5)), []);
        assert_eq!(ticks(read(4)), [Tick::Wake(dedup.clone())]);
        assert_eq!(ticks(Head { next_timer_ms: Some(NOW.0), ..read(5) }), [Tick::Wake(dedup.clone())]);
        assert_eq!(ticks(Head { next_timer_ms: Some(NOW.0 + 1), ..read(5) }), []);
    }
}
