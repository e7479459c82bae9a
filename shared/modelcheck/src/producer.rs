//! An executor of the task with state. It is a source and an operator in one: it is given records as a source task is,
//! and holds, flushes and recovers state as an operator's task does.

use payguard_engine::commit::CommitOutcome;
use payguard_engine::logic::SourceRecord;
use payguard_engine::page::is_replaced;
use payguard_engine::resume::{Missing, Resume, missing, recovery, resume};
use payguard_engine::task::source::not_processed;

use crate::config::{Config, Layout, Mutant};
use crate::coverage::Event;
use crate::durable::{At, Attempt, Head, KEYS, MAX_ROWS, Name, Page, Row, Seen, Task, load, watermark};
use crate::invariants::Rule;
use crate::memory::Memory;
use crate::model::{Model, State};
use crate::settle::{Move, Settled, Settling, fresh_attempt, propose};

/// Where an executor is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// Between invocations.
    Idle { memory: Option<Memory> },
    /// Begun, with memory.
    Resume { deliver: u8, memory: Memory },
    /// Begun without memory, or memory was dropped, maybe because row `missing` was.
    Load { deliver: u8, missing: u8 },
    /// Pages are being read.
    Pages { deliver: u8, head: Head, next: u8, found: Vec<Page> },
    /// Deltas are being read, up to `goal`.
    Rows { deliver: u8, memory: Memory, goal: Head, listed: bool },
    /// The state is loaded; `fresh` right after a commit.
    Ready { deliver: u8, memory: Memory, fresh: bool },
    /// A batch is being committed.
    Settle { deliver: u8, memory: Memory, commit: Settling },
    /// Pages are being written.
    Flush { deliver: u8, memory: Memory, left: Vec<Page> },
}

/// What an executor does next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Begin { deliver: u8 },
    ReadHead,
    ReadPage { name: Option<Name> },
    ReadRows,
    ReadObject,
    Store { records: u8 },
    Settle(Move),
    PutPage { name: Name },
    RemovePage,
    Acknowledge,
    RunOutOfTime,
    Crash,
    FlushEarly,
}

impl Phase {
    /// What may happen next.
    pub(crate) fn acts(&self, executor: u8, model: &Model, state: &State, acts: &mut Vec<Act>) {
        let config = &model.config;
        match self {
            Phase::Idle { .. } => {
                if state.may_take_lease(executor, Task::Producer, config) {
                    let from = state.acknowledged.max(1);
                    acts.extend((from..=config.records).map(|deliver| Act::Begin { deliver }));
                }
            }
            Phase::Resume { .. } | Phase::Load { .. } => acts.push(Act::ReadHead),
            Phase::Pages { next, .. } => acts.push(Act::ReadPage { name: page_names(config.layout, *next) }),
            Phase::Rows { listed: false, .. } => acts.push(Act::ReadRows),
            Phase::Rows { .. } => acts.push(Act::ReadObject),
            Phase::Ready { deliver, memory, fresh } => ready(*deliver, memory, *fresh, config, acts),
            Phase::Settle { commit, .. } => {
                acts.extend(commit.moves(state.faults).map(Act::Settle));
                if config.breaks(Mutant::FlushUncommitted) && !commit.is_unknown() {
                    acts.push(Act::FlushEarly);
                }
            }
            Phase::Flush { left, .. } => acts.extend(left.iter().map(|page| Act::PutPage { name: page.name })),
        }
        if state.faults.crashes > 0 && *self != (Phase::Idle { memory: None }) {
            acts.push(Act::Crash);
        }
    }
}

/// What may happen when the state is loaded.
fn ready(deliver: u8, memory: &Memory, fresh: bool, config: &Config, acts: &mut Vec<Act>) {
    if memory.replaced > 0 && (fresh || config.breaks(Mutant::RemoveAtOnce)) {
        return acts.push(Act::RemovePage);
    }
    let waiting = waiting(deliver, memory);
    let room = usize::from(memory.head.seq) < MAX_ROWS;
    acts.extend((1..=waiting.min(config.batch)).filter(|_| room).map(|records| Act::Store { records }));
    if waiting == 0 || config.breaks(Mutant::AcknowledgeFirst) {
        acts.push(Act::Acknowledge);
    } else {
        acts.push(Act::RunOutOfTime);
    }
    if (fresh || config.breaks(Mutant::FlushLoaded)) && !memory.dirty.is_empty() {
        let pages = memory.clone().take_pages(config);
        acts.extend(pages.iter().map(|page| Act::PutPage { name: page.name }));
    }
}

/// Records of the delivery that are not processed yet.
fn waiting(deliver: u8, memory: &Memory) -> u8 {
    let record = |offset: u8| SourceRecord {
        offset: i64::from(offset),
        timestamp: None,
        value: None,
        watermark_bound: None,
        replays: 0,
    };
    let records: Vec<_> = (1..=deliver).map(record).collect();
    u8::try_from(not_processed(&records, memory.head.at.position().at).len()).unwrap_or(u8::MAX)
}

/// The page that is read as number `next`, in the order that is worst for a split; `None`: all that are there at once,
/// because pages are only added.
fn page_names(layout: Layout, next: u8) -> Option<Name> {
    match (layout, next) {
        (Layout::Added, _) => None,
        (_, key) if key < KEYS => Some(Name::Key(key)),
        _ => Some(Name::Whole),
    }
}

fn pages_to_read(layout: Layout) -> u8 {
    match layout {
        Layout::Added => 1,
        Layout::Fixed => KEYS,
        Layout::Split => KEYS + 1,
    }
}

/// Does it, on `state`; returns where the executor is then.
pub(crate) fn act(phase: Phase, act: Act, executor: u8, model: &Model, state: &mut State) -> Phase {
    match (phase, act) {
        (_, Act::Crash) => {
            state.faults.crashes -= 1;
            model.saw(Event::Crash);
            Phase::Idle { memory: None }
        }
        (Phase::Idle { memory }, Act::Begin { deliver }) => {
            state.take_lease(executor, Task::Producer, model);
            match memory {
                Some(memory) => Phase::Resume { deliver, memory },
                None => Phase::Load { deliver, missing: 0 },
            }
        }
        (Phase::Resume { deliver, memory }, _) => resume_memory(deliver, memory, model, state),
        (Phase::Load { deliver, missing }, _) => read_head(deliver, missing, model, state),
        (Phase::Pages { deliver, head, next, found }, Act::ReadPage { name }) => {
            read_page(deliver, head, next, found, name, model, state)
        }
        (Phase::Rows { deliver, memory, goal, listed: false }, _) => read_rows(deliver, memory, goal, model, state),
        (Phase::Rows { deliver, memory, goal, .. }, _) => read_object(deliver, memory, goal, model, state),
        (Phase::Ready { deliver, memory, fresh }, act) => work(deliver, memory, fresh, act, executor, model, state),
        (Phase::Flush { deliver, memory, left }, Act::PutPage { name }) => {
            put_page(deliver, memory, left, name, model, state)
        }
        (Phase::Settle { deliver, memory, commit }, Act::Settle(step)) => {
            settle(deliver, memory, commit, step, model, state)
        }
        (Phase::Settle { deliver, memory, commit }, _) => flush_early(deliver, memory, commit, model, state),
        (phase, _) => phase,
    }
}

/// What is done when the state is loaded.
fn work(
    deliver: u8,
    mut memory: Memory,
    fresh: bool,
    act: Act,
    executor: u8,
    model: &Model,
    state: &mut State,
) -> Phase {
    match act {
        Act::Store { records } => store(deliver, memory, records, executor, model, state),
        Act::RemovePage => {
            if is_replaced(state.table.held(Name::Whole), Page::version(memory.replaced)) {
                state.table.remove(Name::Whole);
                model.saw(Event::PageRemoved);
            }
            memory.replaced = 0;
            Phase::Ready { deliver, memory, fresh }
        }
        Act::PutPage { name } => {
            let left = memory.take_pages(&model.config);
            put_page(deliver, memory, left, name, model, state)
        }
        act => {
            if act == Act::Acknowledge {
                state.acknowledged = state.acknowledged.max(deliver);
            }
            state.release_lease(executor, Task::Producer);
            Phase::Idle { memory: Some(memory) }
        }
    }
}

fn resume_memory(deliver: u8, mut memory: Memory, model: &Model, state: &State) -> Phase {
    let stored = state.producer_log.head;
    match resume(&memory.head.stored(), is_trusted(&memory, model), &stored.stored()) {
        Resume::AsItIs => {
            memory.whole = true;
            begin(deliver, memory, model)
        }
        Resume::Deltas { .. } => Phase::Rows { deliver, memory, goal: stored, listed: false },
        Resume::Load => {
            model.saw(Event::Dropped);
            Phase::Load { deliver, missing: 0 }
        }
    }
}

/// Whether memory is taken for the state as of its head, so that deltas may be applied to it.
fn is_trusted(memory: &Memory, model: &Model) -> bool {
    memory.whole || model.config.breaks(Mutant::TrustLoaded)
}

fn begin(deliver: u8, memory: Memory, model: &Model) -> Phase {
    if memory.head.at > At::default() {
        model.saw(Event::Redelivered);
    }
    Phase::Ready { deliver, memory, fresh: false }
}

/// A row may be missing because it was collected since: then what was flushed is newer than it.
fn read_head(deliver: u8, missing: u8, model: &Model, state: &mut State) -> Phase {
    let head = state.producer_log.head;
    if state.producers.iter().any(|p| matches!(p, Phase::Flush { .. })) {
        model.saw(Event::HalfFlush);
    }
    if missing > head.flushed || (missing > 0 && model.config.breaks(Mutant::MissingIsDamage)) {
        state.broken.note(Rule::Reload);
    }
    let recovery = recovery(&head.stored());
    if recovery.pages {
        return Phase::Pages { deliver, head, next: 0, found: Vec::new() };
    }
    let mut memory = Memory::fresh(head);
    memory.head = Head { seq: small(recovery.after.0), ..Head::default() };
    rows_or_ready(deliver, memory, head, model)
}

fn small(seq: u64) -> u8 {
    u8::try_from(seq).unwrap_or(u8::MAX)
}

fn rows_or_ready(deliver: u8, mut memory: Memory, goal: Head, model: &Model) -> Phase {
    if memory.head.seq < goal.seq {
        return Phase::Rows { deliver, memory, goal, listed: false };
    }
    (memory.head, memory.flushed) = (goal, goal.flushed);
    begin(deliver, memory, model)
}

fn read_page(
    deliver: u8,
    head: Head,
    next: u8,
    mut found: Vec<Page>,
    name: Option<Name>,
    model: &Model,
    state: &State,
) -> Phase {
    let layout = model.config.layout;
    match name {
        Some(name) => found.extend(state.table.page(name)),
        None => found.extend_from_slice(&state.table.0),
    }
    if next + 1 < pages_to_read(layout) {
        return Phase::Pages { deliver, head, next: next + 1, found };
    }
    if found.iter().any(|page| page.seq > head.seq) {
        model.saw(Event::MixedLoad);
    }
    let loaded = load(&found, layout);
    let mut memory = Memory::fresh(head);
    (memory.state, memory.deep, memory.left_behind) = (loaded.state, loaded.deep, loaded.left_behind);
    if model.config.breaks(Mutant::PagesOverDeltas) {
        return pages_over_deltas(deliver, memory, &found, model, state);
    }
    memory.head = Head { seq: small(recovery(&head.stored()).after.0), ..Head::default() };
    rows_or_ready(deliver, memory, head, model)
}

fn pages_over_deltas(deliver: u8, mut memory: Memory, pages: &[Page], model: &Model, state: &State) -> Phase {
    let layout = model.config.layout;
    memory.state = Seen::default();
    for row in (memory.flushed + 1..=memory.head.seq).filter_map(|seq| state.producer_log.row(seq)) {
        memory.apply(&row, layout);
    }
    for page in pages {
        if let Name::Key(key) = page.name {
            memory.state = memory.state.with_entry(key, layout, page.holds);
        }
    }
    begin(deliver, memory, model)
}

fn read_rows(deliver: u8, memory: Memory, goal: Head, model: &Model, state: &mut State) -> Phase {
    match state.producer_log.first_missing(memory.head.seq, goal.seq) {
        None => Phase::Rows { deliver, memory, goal, listed: true },
        Some(seq) => {
            model.saw(Event::OwnRowMissing);
            find_gap(deliver, &memory, goal, seq, model, state)
        }
    }
}

/// Memory that was to catch up is dropped. Who loads looks at the head first: here at once, since it only moves on, and
/// then says more often that what is missing was passed.
fn find_gap(deliver: u8, memory: &Memory, goal: Head, seq: u8, model: &Model, state: &mut State) -> Phase {
    if !is_trusted(memory, model) && missing(&goal.stored(), &state.producer_log.head.stored()) == Missing::Needed {
        state.broken.note(Rule::Reload);
    }
    Phase::Load { deliver, missing: seq }
}

fn read_object(deliver: u8, mut memory: Memory, goal: Head, model: &Model, state: &mut State) -> Phase {
    let seq = memory.head.seq + 1;
    // The row was listed: what it says does not change, whether it is there still or not.
    let Some(row) = state.producer_log.ever(seq).filter(|row| state.objects.has(seq, row.attempt)) else {
        model.saw(Event::ObjectMissing);
        return find_gap(deliver, &memory, goal, seq, model, state);
    };
    memory.apply(&row, model.config.layout);
    memory.head = row.head(seq);
    if seq < goal.seq {
        return Phase::Rows { deliver, memory, goal, listed: true };
    }
    model.saw(if memory.whole { Event::CaughtUp } else { Event::LoadedPages });
    (memory.head, memory.flushed) = (goal, goal.flushed);
    begin(deliver, memory, model)
}

fn store(deliver: u8, memory: Memory, records: u8, executor: u8, model: &Model, state: &mut State) -> Phase {
    let (head, seq) = (memory.head, memory.head.seq + 1);
    let attempt = fresh_attempt(executor, Task::Producer, seq, state);
    state.objects.put(seq, attempt);
    let to = At::row(head.at.row + records);
    let mut row =
        Row { attempt, from: head.at, to, watermark: head.watermark, flushed: memory.flushed, before: memory.state };
    let before = if model.config.breaks(Mutant::WatermarkOfBatch) { 0 } else { head.watermark };
    row.watermark = watermark(before, row.batch());
    if model.config.breaks(Mutant::WatermarkOfBatch) {
        // Without the engine's own check, which would find it before it is sent.
        return Phase::Settle { deliver, memory, commit: Settling::new(seq, row) };
    }
    match propose(&head, row) {
        Some(commit) => Phase::Settle { deliver, memory, commit },
        None => {
            state.broken.note(Rule::Inv2);
            Phase::Idle { memory: None }
        }
    }
}

fn settle(deliver: u8, memory: Memory, commit: Settling, step: Move, model: &Model, state: &mut State) -> Phase {
    let row = commit.row;
    match commit.make(step, Task::Producer, model, state) {
        Settled::Open(commit) if commit.is_unknown() && model.config.breaks(Mutant::NewAttemptAfterUnknown) => {
            let memory = Memory { state: row.after(), ..memory };
            Phase::Ready { deliver, memory, fresh: false }
        }
        Settled::Open(commit) => {
            if step == Move::LookAtRow {
                model.coverage.saw_outcome(Task::Producer, CommitOutcome::Unknown);
            }
            Phase::Settle { deliver, memory, commit }
        }
        Settled::Done(outcome) => {
            model.coverage.saw_outcome(Task::Producer, outcome);
            let mut won = memory;
            (won.head, won.whole) = (row.head(commit.seq), true);
            won.apply(&row, model.config.layout);
            if outcome.is_mine() {
                return Phase::Ready { deliver, memory: won, fresh: true };
            }
            let head = state.producer_log.head;
            if model.config.breaks(Mutant::KeepAfterLost) {
                return Phase::Ready { deliver, memory: Memory { head, ..won }, fresh: false };
            }
            if model.config.breaks(Mutant::RebaseAfterLost) {
                let head = Head { at: memory.head.at, ..head };
                return Phase::Ready { deliver, memory: Memory { head, ..memory }, fresh: false };
            }
            Phase::Load { deliver, missing: 0 }
        }
        Settled::Failed => {
            model.saw(Event::ProducerGaveUp);
            Phase::Idle { memory: None }
        }
    }
}

fn put_page(
    deliver: u8,
    mut memory: Memory,
    mut left: Vec<Page>,
    name: Name,
    model: &Model,
    state: &mut State,
) -> Phase {
    let Some(at) = left.iter().position(|page| page.name == name) else {
        return Phase::Flush { deliver, memory, left };
    };
    let page = left.remove(at);
    let is_late = state.producer_log.head.seq > page.seq;
    let written = state.table.put(page, &model.config);
    match (is_late, written) {
        (true, true) => model.saw(Event::LateFlush),
        (true, false) => model.saw(Event::StalePage),
        (false, _) => {}
    }
    if left.is_empty() {
        memory.flushed = memory.head.seq;
        return Phase::Ready { deliver, memory, fresh: false };
    }
    Phase::Flush { deliver, memory, left }
}

fn flush_early(deliver: u8, memory: Memory, commit: Settling, model: &Model, state: &mut State) -> Phase {
    let mut next = Memory { head: commit.row.head(commit.seq), ..memory };
    next.apply(&commit.row, model.config.layout);
    for page in next.take_pages(&model.config) {
        state.table.put(page, &model.config);
    }
    Phase::Settle { deliver, memory, commit }
}

impl Phase {
    /// What is in memory, if it is the state of a commit.
    pub(crate) fn memory(&self) -> Option<&Memory> {
        match self {
            Phase::Ready { memory, .. } | Phase::Settle { memory, .. } | Phase::Flush { memory, .. } => Some(memory),
            Phase::Idle { .. }
            | Phase::Resume { .. }
            | Phase::Load { .. }
            | Phase::Pages { .. }
            | Phase::Rows { .. } => None,
        }
    }

    /// What it is trying to commit.
    pub(crate) fn attempt(&self) -> Option<(u8, Attempt)> {
        match self {
            Phase::Settle { commit, .. } => Some((commit.seq, commit.row.attempt)),
            _ => None,
        }
    }

    /// Whether it is in an invocation.
    pub(crate) fn is_working(&self) -> bool {
        !matches!(self, Phase::Idle { .. })
    }
}
