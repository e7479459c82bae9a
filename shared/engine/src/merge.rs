//! Merging the inputs of a task: which record comes next, and what the watermark is then.
//!
//! Records carry the watermark of their producer, so the inputs can be merged like sorted runs: the record with the
//! smallest watermark first, ties by stage. Between the tasks of one stage ties go by arrival: several tasks have shared
//! out what one would have emitted, and merging puts it together again. With [`Alignment::Strict`] the merged order, and
//! so the task's output, depends on nothing but the inputs: not on batches, timing, restarts, the speed of producers or
//! their number.
//! [`Alignment::MaxDrift`] lets records run ahead of an input that is silent, by a bounded time.

use std::collections::VecDeque;
use std::ops::Range;

use payguard_model::EventTime;
use payguard_operators::watermark::combine;

use crate::ids::{InputId, TaskId};
use crate::layout::{FIRST, Layout};
use crate::row::{InputState, Position};
use crate::segment::{Arrival, SliceError, SliceReader, Stamp};
use crate::teeth::{Mutant, bites};

/// How far records may run ahead of the slowest active input that has none to offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alignment {
    /// Not at all: replays give the same output every time.
    Strict,
    /// By this many milliseconds of event time.
    MaxDrift(i64),
    /// Without bound: for stages whose result does not depend on the order, such as sinks.
    Off,
}

/// A row of an upstream task as far as this task is concerned.
#[derive(Debug)]
pub struct BufferedRow {
    /// Its seq.
    pub seq: i64,
    /// Watermark after it.
    pub watermark: EventTime,
    /// Whether its task was idle then.
    pub idle: bool,
    /// The layout that takes over from its task's, when the task is sealed: no records come after it.
    pub sealed: Option<Layout>,
    /// Its slices for this task: (number of the input stream, records).
    pub slices: Vec<(usize, SliceReader)>,
}

/// One input of a task: what is committed of it and what is buffered.
#[derive(Debug)]
pub struct MergeInput {
    id: InputId,
    /// Number of its stage among the stages of the inputs.
    stage: usize,
    /// Generation of its task.
    generation: u32,
    state: InputState,
    rows: VecDeque<BufferedRow>,
}

/// What records are merged by: watermark, stage, arrival.
type Rank = (EventTime, usize, Arrival);

/// A record on its way to the operators.
#[derive(Clone, Copy, Debug)]
pub struct MergedRecord<'a> {
    /// Number of the input stream in the topology.
    pub stream: usize,
    /// The source record that it comes of.
    pub arrival: Arrival,
    /// Protobuf bytes.
    pub payload: &'a [u8],
}

/// What the merge says.
#[derive(Clone, Copy, Debug)]
pub enum Next<'a> {
    /// Advance to the watermark, then handle the record.
    Record(MergedRecord<'a>),
    /// Nothing may be taken until one of the silent inputs shows something.
    Blocked,
    /// All buffers are empty.
    Empty,
}

/// The inputs of one task.
#[derive(Debug)]
pub struct Merger {
    inputs: Vec<MergeInput>,
    alignment: Alignment,
    /// The row of the record that was taken last, when it was the row's last one.
    spent: Option<BufferedRow>,
}

impl Merger {
    /// A merger without inputs.
    #[must_use]
    pub fn new(alignment: Alignment) -> Merger {
        Merger { inputs: Vec::new(), alignment, spent: None }
    }

    /// Adds an input at its committed state, keeping the inputs sorted by id. Nothing happens when it is known.
    pub fn add(&mut self, id: &InputId, state: InputState) {
        if let Err(at) = self.inputs.binary_search_by(|i| i.id.cmp(id)) {
            self.inputs.insert(at, {
                let task: Option<TaskId> = id.parse().ok();
                let generation = task.and_then(|t| t.redrawn()).map_or(FIRST, |(layout, _)| layout.generation);
                MergeInput { id: id.clone(), stage: 0, generation, state, rows: VecDeque::new() }
            });
            self.number_stages();
        }
    }

    /// Inputs are sorted by id, which begins with the stage.
    fn number_stages(&mut self) {
        let stage = |input: &MergeInput| input.id.split('/').next().map(str::to_owned);
        for i in 1..self.inputs.len() {
            let (before, input) = (&self.inputs[i - 1], &self.inputs[i]);
            self.inputs[i].stage = before.stage + usize::from(stage(before) != stage(input));
        }
    }

    /// The inputs, sorted by id.
    pub fn inputs(&self) -> impl Iterator<Item = &MergeInput> {
        self.inputs.iter()
    }

    /// Buffers the next row of an input.
    ///
    /// # Errors
    /// When the records that were processed already cannot be skipped.
    ///
    /// # Panics
    /// When the input is unknown or the row is not the one after the last buffered: the caller reads them in order.
    pub fn push(&mut self, id: &InputId, mut row: BufferedRow) -> Result<(), SliceError> {
        let at = self.inputs.binary_search_by(|i| i.id.cmp(id));
        let input = &mut self.inputs[at.expect("rows are read for known inputs only")];
        assert_eq!(row.seq, input.next_seq(), "rows are read in order");
        if input.rows.is_empty() {
            let within = input.state.position.within;
            for _ in 0..within + u32::from(within > 0 && bites(Mutant::PassTooMany)) {
                row.take()?;
            }
        }
        input.rows.push_back(row);
        input.pass_finished_rows();
        Ok(())
    }

    /// The next record in merged order, if it may be taken.
    ///
    /// # Errors
    /// When a buffered slice does not parse.
    pub fn take_next(&mut self) -> Result<Next<'_>, SliceError> {
        let mut best: Option<(Rank, usize)> = None;
        for (index, input) in self.inputs.iter().enumerate() {
            if let Some(rank) = input.next_rank()
                && !self.is_held(input)
                && best.is_none_or(|b| rank < b.0)
            {
                best = Some((rank, index));
            }
        }
        let Some(((watermark, stage, arrival), index)) = best else { return Ok(Next::Empty) };
        if !self.may_take(watermark, stage) {
            return Ok(Next::Blocked);
        }
        let input = &mut self.inputs[index];
        let row = input.rows.front_mut().expect("an input with a next record has a row");
        let (slice, range) = row.take()?.expect("an input with a next record has a record");
        input.state.position.within += 1;
        input.state.watermark_ms = input.state.watermark_ms.max(watermark.0);
        input.state.idle = false;
        self.spent = input.pass_finished_rows();
        let row = self.spent.as_ref().or_else(|| self.inputs[index].rows.front());
        let (stream, reader) = &row.expect("the record's row is spent or still there").slices[slice];
        Ok(Next::Record(MergedRecord { stream: *stream, arrival, payload: reader.payload(range) }))
    }

    /// The watermark of the next record, if one may be taken, otherwise that of the inputs as they stand.
    #[must_use]
    pub fn watermark(&self) -> (EventTime, bool) {
        combine(self.inputs.iter().map(|i| (i.floor(), i.is_idle())))
    }

    /// The state of every input, for a commit.
    pub fn states(&self) -> impl Iterator<Item = (&InputId, &InputState)> {
        self.inputs.iter().map(|i| (&i.id, &i.state))
    }

    /// Whether an input has to wait until the tasks that it has taken over from are read to their end. Aligned
    /// strictly, the order of the records says enough.
    fn is_held(&self, input: &MergeInput) -> bool {
        let precedes = |i: &MergeInput| i.stage == input.stage && i.generation < input.generation && !i.ended();
        input.generation > FIRST && self.alignment != Alignment::Strict && self.inputs.iter().any(precedes)
    }

    fn may_take(&self, watermark: EventTime, stage: usize) -> bool {
        let is_silent = |i: &&MergeInput| i.next_stamp().is_none() && !i.is_idle() && !self.is_held(i);
        let mut silent = self.inputs.iter().filter(is_silent);
        match self.alignment {
            Alignment::Off => true,
            Alignment::MaxDrift(ms) => silent.all(|i| watermark <= i.floor().plus(ms)),
            // What has ended has nothing more at any watermark.
            Alignment::Strict => silent.all(|i| (watermark, stage) < (i.floor(), i.stage) || i.ended()),
        }
    }
}

impl MergeInput {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> &InputId {
        &self.id
    }

    /// The seq of the row to read next.
    #[must_use]
    pub fn next_seq(&self) -> i64 {
        self.rows.back().map_or(self.state.position.at, |row| row.seq) + 1
    }

    /// Rows that are buffered.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has said its last word.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.rows.is_empty() && self.state.watermark() == EventTime::MAX
    }

    fn next_stamp(&self) -> Option<Stamp> {
        self.rows.front().and_then(BufferedRow::peek)
    }

    fn next_rank(&self) -> Option<Rank> {
        self.next_stamp().map(|stamp| (stamp.watermark, self.stage, stamp.arrival))
    }

    /// No record with a smaller watermark can come from here any more.
    fn floor(&self) -> EventTime {
        let next = self.next_stamp().map_or(EventTime::MIN, |stamp| stamp.watermark);
        next.max(self.state.watermark())
    }

    fn is_idle(&self) -> bool {
        self.rows.is_empty() && self.state.idle
    }

    /// Goes on to the first row that has records left; returns the row it leaves, if it leaves any.
    fn pass_finished_rows(&mut self) -> Option<BufferedRow> {
        let mut left = None;
        while let Some(row) = self.rows.front()
            && row.peek().is_none()
        {
            self.state = InputState {
                position: Position { at: row.seq, within: 0 },
                watermark_ms: row.watermark.0.max(self.state.watermark_ms),
                idle: row.idle,
            };
            left = left.or(self.rows.pop_front());
        }
        left
    }
}

impl BufferedRow {
    /// The slice whose next record was emitted first; stamps never fall in that order.
    fn earliest(&self) -> Option<usize> {
        let orders = self.slices.iter().enumerate().filter_map(|(i, s)| s.1.peek().map(|record| (record.order, i)));
        orders.min().map(|(_, i)| i)
    }

    fn peek(&self) -> Option<Stamp> {
        self.earliest().and_then(|i| self.slices[i].1.peek()).map(|record| record.stamp)
    }

    /// Takes the next record: the number of its slice and where its payload is.
    fn take(&mut self) -> Result<Option<(usize, Range<usize>)>, SliceError> {
        let Some(i) = self.earliest() else { return Ok(None) };
        Ok(self.slices[i].1.pass()?.map(|(_, range)| (i, range)))
    }
}

#[cfg(test)]
mod tests;
