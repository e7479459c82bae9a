//! An executor of the sink's task: it reads the producer's log and writes to a sink whose own position is the truth.

use payguard_engine::commit::CommitOutcome;
use payguard_engine::merge::{Alignment, BufferedRow, Merger, Next};
use payguard_engine::resume::{Lead, Missing, Resume, lead, missing, resume};
use payguard_engine::segment::{Arrival, SegmentBuilder, SliceReader, Stamp, open};
use payguard_engine::{InputState, Seq};
use payguard_model::EventTime;

use crate::config::Mutant;
use crate::coverage::Event;
use crate::durable::{At, Head, MAX_ROWS, Row, Seen, Sink, Task};
use crate::invariants::Rule;
use crate::model::{Model, State};
use crate::settle::{Move, Settled, Settling, fresh_attempt, propose};

/// Rows read ahead.
const ROWS_AHEAD: u8 = 2;

/// Where an executor is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// Between invocations; what is in memory is as of this head.
    Idle { memory: Option<Head> },
    /// Begun, with memory.
    Resume { memory: Head },
    /// Begun without memory, or memory was dropped, maybe because row `missing` of the input was.
    Load { missing: u8 },
    /// The head is read, the sink's position is to be.
    Follow { head: Head },
    /// The sink is further than the head allows: the head is to be read again.
    Again { head: Head },
    /// Nothing is read of the input.
    Ready { memory: Head },
    /// Rows up to `last` were listed, objects up to `opened` are read.
    Rows { memory: Head, opened: u8, last: u8 },
    /// A batch up to `to` goes to the sink; its records are there already if `position_only`.
    Write { memory: Head, to: At, position_only: bool },
    /// The ledger follows the sink: after a batch of ours, or after one that was found at the beginning.
    Settle { memory: Head, commit: Settling, found: bool },
    /// Somebody else let the ledger follow; the head is to be read again.
    Reread,
}

/// What an executor does next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Begin,
    ReadHead,
    ReadPosition,
    ReadRows,
    ReadObject,
    Take { records: u8 },
    Write,
    WriteAnswerLost,
    Settle(Move),
    Crash,
}

impl Phase {
    /// What may happen next.
    pub(crate) fn acts(&self, executor: u8, model: &Model, state: &State, acts: &mut Vec<Act>) {
        match self {
            Phase::Idle { .. } => {
                if state.may_take_lease(executor, Task::Consumer, &model.config) {
                    acts.push(Act::Begin);
                }
            }
            Phase::Resume { .. } | Phase::Load { .. } | Phase::Again { .. } | Phase::Reread => acts.push(Act::ReadHead),
            Phase::Follow { .. } => acts.push(Act::ReadPosition),
            Phase::Ready { .. } => acts.push(Act::ReadRows),
            Phase::Rows { opened, last, .. } if opened < last => acts.push(Act::ReadObject),
            Phase::Rows { memory, last, .. } => {
                let waiting = waiting(memory, *last, state).min(model.config.batch);
                acts.extend((1..=waiting).map(|records| Act::Take { records }));
            }
            Phase::Write { .. } => {
                acts.push(Act::Write);
                if state.faults.lost > 0 {
                    acts.push(Act::WriteAnswerLost);
                }
            }
            Phase::Settle { commit, .. } => acts.extend(commit.moves(state.faults).map(Act::Settle)),
        }
        if state.faults.crashes > 0 && *self != (Phase::Idle { memory: None }) {
            acts.push(Act::Crash);
        }
    }

    /// Whether it is in an invocation.
    pub(crate) fn is_working(&self) -> bool {
        !matches!(self, Phase::Idle { .. })
    }
}

/// Records of the rows that were read and not taken yet.
fn waiting(memory: &Head, last: u8, state: &State) -> u8 {
    let records = |row: Row| row.to.row - row.from.row;
    let rows = (memory.at.row + 1..=last).filter_map(|seq| state.producer_log.ever(seq));
    rows.map(records).sum::<u8>() - memory.at.within
}

/// Does it, on `state`; returns where the executor is then.
pub(crate) fn act(phase: Phase, act: Act, executor: u8, model: &Model, state: &mut State) -> Phase {
    match (phase, act) {
        (_, Act::Crash) => {
            state.faults.crashes -= 1;
            model.saw(Event::Crash);
            Phase::Idle { memory: None }
        }
        (Phase::Idle { memory }, _) => {
            state.take_lease(executor, Task::Consumer, model);
            memory.map_or(Phase::Load { missing: 0 }, |memory| Phase::Resume { memory })
        }
        (phase, Act::ReadHead) => read_head(phase, model, state),
        (Phase::Follow { head }, _) => follow(head, executor, model, state),
        (Phase::Ready { memory }, _) => read_rows(memory, executor, model, state),
        (Phase::Rows { memory, opened, last }, Act::ReadObject) => read_object(memory, opened, last, model, state),
        (Phase::Rows { memory, last, .. }, Act::Take { records }) => take(memory, last, records, model, state),
        (Phase::Write { memory, to, position_only }, Act::Write) => {
            write(memory, to, position_only, executor, model, state)
        }
        (Phase::Write { memory, to, position_only }, _) => {
            state.faults.lost -= 1;
            write_sink(memory.seq + 1, to, position_only, model, state);
            phase
        }
        (Phase::Settle { memory, commit, found }, Act::Settle(step)) => {
            settle(memory, commit, found, step, model, state)
        }
        (phase, _) => phase,
    }
}

fn read_head(phase: Phase, model: &Model, state: &mut State) -> Phase {
    let head = state.consumer_log.head;
    match phase {
        Phase::Resume { memory } => match resume(&memory.stored(), true, &head.stored()) {
            Resume::AsItIs => Phase::Ready { memory },
            // A sink's task has no state to apply deltas to.
            Resume::Deltas { .. } | Resume::Load => Phase::Load { missing: 0 },
        },
        Phase::Load { missing } => {
            // A row may be missing because it was collected since: then this task has read it.
            if missing > head.at.row || (missing > 0 && model.config.breaks(Mutant::MissingIsDamage)) {
                state.broken.note(Rule::Reload);
            }
            Phase::Follow { head }
        }
        Phase::Again { head: before } => {
            if head.seq <= before.seq {
                state.broken.note(Rule::Once);
            }
            Phase::Follow { head }
        }
        Phase::Reread => Phase::Ready { memory: head },
        phase => phase,
    }
}

fn follow(head: Head, executor: u8, model: &Model, state: &mut State) -> Phase {
    let sink = state.sink;
    match lead(Seq(u64::from(head.seq)), Seq(u64::from(sink.seq))) {
        Lead::None => Phase::Ready { memory: head },
        Lead::One => {
            model.saw(Event::Followed);
            send(head, sink.at, true, executor, state)
        }
        Lead::More => {
            model.saw(Event::SinkAhead);
            Phase::Again { head }
        }
        Lead::Behind => {
            state.broken.note(Rule::Once);
            Phase::Idle { memory: None }
        }
    }
}

/// Sends the commit that takes the ledger to where the sink is.
fn send(memory: Head, to: At, found: bool, executor: u8, state: &mut State) -> Phase {
    let attempt = fresh_attempt(executor, Task::Consumer, memory.seq + 1, state);
    let row = Row { attempt, from: memory.at, to, watermark: memory.watermark, flushed: 0, before: Seen::default() };
    match propose(&memory, row) {
        Some(commit) => Phase::Settle { memory, commit, found },
        None => {
            state.broken.note(Rule::Inv2);
            Phase::Idle { memory: None }
        }
    }
}

fn read_rows(memory: Head, executor: u8, model: &Model, state: &mut State) -> Phase {
    let after = memory.at.row;
    let Some(newest) = state.producer_log.newest(after).filter(|_| usize::from(memory.seq) < MAX_ROWS) else {
        model.saw(Event::NothingToDo);
        state.release_lease(executor, Task::Consumer);
        return Phase::Idle { memory: Some(memory) };
    };
    let last = newest.min(after + ROWS_AHEAD);
    match state.producer_log.first_missing(after, last) {
        None => Phase::Rows { memory, opened: after, last },
        Some(seq) => {
            model.saw(Event::InputRowMissing);
            find_gap(&memory, seq, state)
        }
    }
}

/// The head is looked at at once here: it only moves on, and then says more often that what is missing was passed.
fn find_gap(memory: &Head, seq: u8, state: &mut State) -> Phase {
    if missing(&memory.stored(), &state.consumer_log.head.stored()) == Missing::Needed {
        state.broken.note(Rule::Reload);
    }
    Phase::Load { missing: seq }
}

fn read_object(memory: Head, opened: u8, last: u8, model: &Model, state: &mut State) -> Phase {
    let seq = opened + 1;
    if state.producer_log.ever(seq).is_some_and(|row| state.objects.has(seq, row.attempt)) {
        return Phase::Rows { memory, opened: seq, last };
    }
    model.saw(Event::ObjectMissing);
    find_gap(&memory, seq, state)
}

fn take(memory: Head, last: u8, records: u8, model: &Model, state: &mut State) -> Phase {
    let rows: Vec<(u8, Row)> =
        (memory.at.row + 1..=last).filter_map(|seq| Some((seq, state.producer_log.ever(seq)?))).collect();
    let Some(to) = merge(memory.at, &rows, records) else {
        state.broken.note(Rule::Inv6);
        return Phase::Idle { memory: None };
    };
    if to.within > 0 {
        model.saw(Event::WithinRow);
    }
    Phase::Write { memory, to, position_only: false }
}

/// Where the engine's merger stands after so many records; `None` when it does not give them.
fn merge(at: At, rows: &[(u8, Row)], records: u8) -> Option<At> {
    let input = "input".to_owned();
    let mut merger = Merger::new(Alignment::Off);
    merger.add(&input, at.input());
    for (seq, row) in rows {
        merger.push(&input, buffered(*seq, row)?).ok()?;
    }
    for _ in 0..records {
        let Ok(Next::Record(_)) = merger.take_next() else { return None };
    }
    merger.states().next().map(|(_, state): (_, &InputState)| At::of(state.position))
}

/// A row with its records as they come from a segment.
fn buffered(seq: u8, row: &Row) -> Option<BufferedRow> {
    let mut builder = SegmentBuilder::new([("records", 1)]);
    for record in row.batch().each() {
        let arrival = Arrival { partition: 0, offset: i64::from(record.0) };
        let stamp = Stamp { watermark: EventTime(0), arrival };
        builder.push(0, 0, stamp, EventTime(0), 1, |bytes| bytes.push(record.0));
    }
    let segment = builder.finish(&[]);
    let slice = segment.slices.first()?;
    let reader = SliceReader::new(open(slice, &segment.bytes).ok()?, slice.count).ok()?;
    let watermark = EventTime(i64::from(row.watermark));
    Some(BufferedRow { seq: i64::from(seq), watermark, idle: false, sealed: None, slices: vec![(0, reader)] })
}

fn write(memory: Head, to: At, position_only: bool, executor: u8, model: &Model, state: &mut State) -> Phase {
    if !position_only && state.sink.seq + 1 != memory.seq + 1 {
        model.saw(Event::SinkElsewhere);
        model.coverage.saw_outcome(Task::Consumer, CommitOutcome::Lost);
        return Phase::Load { missing: 0 };
    }
    write_sink(memory.seq + 1, to, position_only, model, state);
    if model.config.breaks(Mutant::PositionApart) && !position_only {
        return Phase::Write { memory, to, position_only: true };
    }
    send(memory, to, false, executor, state)
}

/// The sink's one transaction: the records of the batch and its position, if the sink is at the batch before.
fn write_sink(seq: u8, to: At, position_only: bool, model: &Model, state: &mut State) {
    let apart = model.config.breaks(Mutant::PositionApart);
    if state.sink.seq + 1 != seq && !position_only {
        return;
    }
    if !position_only {
        let (first, last) = (state.record_at(state.sink.at) + 1, state.record_at(to));
        if first != state.sink.records + 1 {
            state.broken.note(Rule::Once);
        }
        state.sink.records = last;
    }
    if position_only || !apart {
        state.sink = Sink { seq, at: to, ..state.sink };
    }
}

fn settle(memory: Head, commit: Settling, found: bool, step: Move, model: &Model, state: &mut State) -> Phase {
    match commit.make(step, Task::Consumer, model, state) {
        Settled::Open(open) => {
            if step == Move::LookAtRow {
                model.coverage.saw_outcome(Task::Consumer, CommitOutcome::Unknown);
            }
            Phase::Settle { memory, commit: open, found }
        }
        Settled::Done(outcome) => {
            model.coverage.saw_outcome(Task::Consumer, outcome);
            match (outcome.is_mine(), found) {
                (true, _) => Phase::Ready { memory: commit.row.head(commit.seq) },
                (false, true) => Phase::Reread,
                (false, false) => Phase::Load { missing: 0 },
            }
        }
        Settled::Failed => {
            model.saw(Event::ConsumerGaveUp);
            Phase::Idle { memory: None }
        }
    }
}
