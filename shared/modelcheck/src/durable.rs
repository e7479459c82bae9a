//! What is durable: ledger, segment store, state table, sink. Small values; the engine's types are made of them where
//! the engine decides.

use std::collections::BTreeMap;

use payguard_engine::commit::{check_succession, moved};
use payguard_engine::page::{replaces, version};
use payguard_engine::{CommitRow, Head as StoredHead, InputState, Position};

use crate::config::{Config, Layout, Mutant};
use crate::invariants::{Broken, Rule};

/// Records of the source at most.
pub const MAX_RECORDS: usize = 4;
/// Rows of a log at most: a row has at least one record.
pub(crate) const MAX_ROWS: usize = MAX_RECORDS;
/// Keys of the state.
pub(crate) const KEYS: u8 = 2;
/// The one input of a task.
const INPUT: &str = "input";
/// Generation of the tasks.
const GENERATION: u32 = 1;

/// The two tasks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Task {
    Producer,
    Consumer,
}

/// A set of records: record `n` is bit `n - 1`. The state of a key is the records of that key that were seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Seen(pub(crate) u8);

impl Seen {
    pub(crate) const ALL: Seen = Seen(u8::MAX);

    /// Records `from + 1 ..= to`.
    pub(crate) fn between(from: u8, to: u8) -> Seen {
        Seen(bits(to) & !bits(from))
    }

    /// All records of a key, spread so that three or four of them show most: with fixed pages a key is changed again
    /// after it was flushed; with split pages one key is left alone.
    pub(crate) fn of_key(key: u8, layout: Layout) -> Seen {
        let first = Seen(if layout == Layout::Split { 0b0001 } else { 0b0011 });
        if key == 0 { first } else { Seen(!first.0) }
    }

    pub(crate) fn and(self, other: Seen) -> Seen {
        Seen(self.0 & other.0)
    }

    pub(crate) fn or(self, other: Seen) -> Seen {
        Seen(self.0 | other.0)
    }

    /// With the entry of `key` replaced by that of `other`.
    pub(crate) fn with_entry(self, key: u8, layout: Layout, other: Seen) -> Seen {
        let key = Seen::of_key(key, layout);
        Seen((self.0 & !key.0) | (other.0 & key.0))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The records one by one.
    pub(crate) fn each(self) -> impl Iterator<Item = Seen> {
        (0..8).map(|bit| Seen(1 << bit)).filter(move |one| !self.and(*one).is_empty())
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }
}

fn bits(count: u8) -> u8 {
    u8::try_from((1u16 << count) - 1).unwrap_or(u8::MAX)
}

/// How far an input is processed: offsets or rows, and records of the row that follows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct At {
    pub(crate) row: u8,
    pub(crate) within: u8,
}

impl At {
    pub(crate) fn row(row: u8) -> At {
        At { row, within: 0 }
    }

    pub(crate) fn position(self) -> Position {
        Position { at: i64::from(self.row), within: u32::from(self.within) }
    }

    pub(crate) fn of(position: Position) -> At {
        let small = |n: Result<u8, std::num::TryFromIntError>| n.unwrap_or(u8::MAX);
        At { row: small(u8::try_from(position.at)), within: small(u8::try_from(position.within)) }
    }

    /// The input there.
    pub(crate) fn input(self) -> InputState {
        InputState { position: self.position(), ..InputState::untouched(0) }
    }
}

/// The watermark after records, from the one before: event times are not in order.
pub(crate) fn watermark(before: u8, records: Seen) -> u8 {
    const TIMES: [u8; MAX_RECORDS] = [2, 1, 4, 3];
    let times = (1..).zip(TIMES).filter(|(record, _)| !records.and(Seen::between(record - 1, *record)).is_empty());
    times.map(|(_, time)| time).fold(before, u8::max)
}

/// Who made an attempt and how many of theirs for the same row are still about; 0 is nobody's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Attempt(pub(crate) u8);

/// Attempts of one executor for one row that may be about at a time.
const ATTEMPTS: u8 = 3;

impl Attempt {
    /// Those an executor may make, in order.
    pub(crate) fn of(executor: u8) -> impl Iterator<Item = Attempt> {
        (0..ATTEMPTS).map(move |n| Attempt(1 + executor * ATTEMPTS + n))
    }

    pub(crate) fn text(self) -> String {
        match self.0 {
            0 => "-".to_owned(),
            n => format!("{}{}", char::from(b'A' + (n - 1) / ATTEMPTS), 1 + (n - 1) % ATTEMPTS),
        }
    }

    pub(crate) fn id(self) -> payguard_engine::Attempt {
        payguard_engine::Attempt(self.text())
    }
}

/// A head.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Head {
    pub(crate) seq: u8,
    pub(crate) attempt: Attempt,
    pub(crate) at: At,
    pub(crate) watermark: u8,
    pub(crate) flushed: u8,
}

impl Head {
    /// The same for the engine.
    pub(crate) fn stored(&self) -> StoredHead {
        let mut head = StoredHead { flushed_seq: u64::from(self.flushed), ..StoredHead::empty() };
        if self.seq > 0 || self.at != At::default() {
            head.seq = u64::from(self.seq);
            head.attempt = self.attempt.text();
            head.watermark_ms = i64::from(self.watermark);
            head.inputs = inputs(self.at);
        }
        head
    }
}

fn inputs(at: At) -> BTreeMap<String, InputState> {
    [(INPUT.to_owned(), at.input())].into()
}

/// A commit row; its segment is an object named by seq and attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) attempt: Attempt,
    pub(crate) from: At,
    pub(crate) to: At,
    pub(crate) watermark: u8,
    pub(crate) flushed: u8,
    /// The state that the batch was handled with: outputs and delta follow from it.
    pub(crate) before: Seen,
}

impl Row {
    /// The records of a producer's row.
    pub(crate) fn batch(&self) -> Seen {
        Seen::between(self.from.row, self.to.row)
    }

    /// The state after it, as far as its delta tells: the entries of the keys of its records.
    pub(crate) fn after(&self) -> Seen {
        self.before.or(self.batch())
    }

    /// Applies its delta.
    pub(crate) fn apply(&self, state: Seen, layout: Layout) -> Seen {
        match layout {
            Layout::Added => state.or(self.batch()),
            Layout::Fixed | Layout::Split => (0..KEYS)
                .filter(|key| !self.batch().and(Seen::of_key(*key, layout)).is_empty())
                .fold(state, |state, key| state.with_entry(key, layout, self.after())),
        }
    }

    pub(crate) fn head(&self, seq: u8) -> Head {
        Head { seq, attempt: self.attempt, at: self.to, watermark: self.watermark, flushed: self.flushed }
    }

    /// The same for the engine, after `head`.
    pub(crate) fn stored(&self, seq: u8) -> CommitRow {
        let (from, to) = moved(&inputs(self.from), &inputs(self.to), At::default().position());
        CommitRow {
            seq: u64::from(seq),
            attempt: self.attempt.text(),
            from,
            to,
            watermark_ms: i64::from(self.watermark),
            ..CommitRow::default()
        }
    }
}

/// A task's head and log. Rows are kept here after they were collected, for the properties alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Log {
    pub(crate) head: Head,
    rows: [Option<Row>; MAX_ROWS],
    collected: Seen,
}

impl Log {
    /// The row, if it is there.
    pub(crate) fn row(&self, seq: u8) -> Option<Row> {
        self.ever(seq).filter(|_| !self.is_collected(seq))
    }

    /// The row, collected or not.
    pub(crate) fn ever(&self, seq: u8) -> Option<Row> {
        self.rows.get(usize::from(seq).checked_sub(1)?).copied().flatten()
    }

    pub(crate) fn is_collected(&self, seq: u8) -> bool {
        !self.collected.and(Seen::between(seq.saturating_sub(1), seq)).is_empty()
    }

    pub(crate) fn collect(&mut self, seq: u8) {
        self.collected = self.collected.or(Seen::between(seq - 1, seq));
    }

    /// Rows that were collected.
    pub(crate) fn collected(&self) -> impl Iterator<Item = u8> {
        (1..=MAX_ROWS as u8).filter(|seq| self.is_collected(*seq))
    }

    /// Whether the rows `after + 1 ..= until` are all there; otherwise the first that is not.
    pub(crate) fn first_missing(&self, after: u8, until: u8) -> Option<u8> {
        (after + 1..=until).find(|seq| self.row(*seq).is_none())
    }

    /// The newest row that is there, after `after`.
    pub(crate) fn newest(&self, after: u8) -> Option<u8> {
        (after + 1..=MAX_ROWS as u8).rev().find(|seq| self.row(*seq).is_some())
    }

    /// The conditional write of row and head; true when it was made.
    pub(crate) fn commit(&mut self, seq: u8, row: Row, config: &Config, broken: &mut Broken) -> bool {
        let is_next = self.head.seq + 1 == seq || config.breaks(Mutant::NoHeadCondition);
        if !is_next || self.row(seq).is_some() {
            return false;
        }
        if self.ever(seq).is_some() {
            broken.note(Rule::Inv1);
        }
        if let Err(detail) = check_succession(&self.head.stored(), &row.stored(seq)) {
            broken.note_succession(&detail);
        }
        self.rows[usize::from(seq) - 1] = Some(row);
        self.head = row.head(seq);
        true
    }
}

/// Name of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Name {
    /// Of one key.
    Key(u8),
    /// Of both keys.
    Whole,
    /// Of a flush: seq, and number or content.
    Added(u8, u8),
}

/// A page of the state table.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Page {
    pub(crate) name: Name,
    /// Seq of its version.
    pub(crate) seq: u8,
    pub(crate) holds: Seen,
}

impl Page {
    pub(crate) fn version(seq: u8) -> u64 {
        version(GENERATION, u64::from(seq))
    }
}

/// The state table.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Table(pub(crate) Vec<Page>);

impl Table {
    pub(crate) fn page(&self, name: Name) -> Option<Page> {
        self.0.iter().find(|p| p.name == name).copied()
    }

    /// The version a page is held in.
    pub(crate) fn held(&self, name: Name) -> Option<u64> {
        self.page(name).map(|p| Page::version(p.seq))
    }

    /// Writes a page if it may take its place; true when it was written.
    pub(crate) fn put(&mut self, page: Page, config: &Config) -> bool {
        let may = replaces(self.held(page.name), Page::version(page.seq));
        if may || config.breaks(Mutant::NoVersionCheck) {
            self.remove(page.name);
            let at = self.0.partition_point(|p| p.name < page.name);
            self.0.insert(at, page);
        }
        may
    }

    pub(crate) fn remove(&mut self, name: Name) {
        self.0.retain(|p| p.name != name);
    }
}

/// What loading pages gives.
pub(crate) struct Loaded {
    pub(crate) state: Seen,
    /// Whether the pages are split.
    pub(crate) deep: bool,
    /// Whether a page is there that the split left behind.
    pub(crate) left_behind: bool,
}

/// Applies pages by version, the deeper later, each replacing its range.
pub(crate) fn load(pages: &[Page], layout: Layout) -> Loaded {
    let mut pages = pages.to_vec();
    pages.sort_by_key(|p| (p.seq, std::cmp::Reverse(p.name)));
    let mut state = Seen::default();
    for page in &pages {
        state = match page.name {
            Name::Key(key) => state.with_entry(key, layout, page.holds),
            Name::Whole => page.holds,
            Name::Added(..) => state.or(page.holds),
        };
    }
    let deep = pages.iter().any(|p| matches!(p.name, Name::Key(_)));
    Loaded { state, deep, left_behind: deep && pages.iter().any(|p| p.name == Name::Whole) }
}

/// A sink: records and position are written together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Sink {
    pub(crate) seq: u8,
    pub(crate) at: At,
    /// Records in it, in order and without a gap.
    pub(crate) records: u8,
}

/// Objects of the segment store: by seq, a set of attempts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Objects([u8; MAX_ROWS]);

impl Objects {
    pub(crate) fn put(&mut self, seq: u8, attempt: Attempt) {
        self.0[usize::from(seq) - 1] |= 1 << attempt.0;
    }

    pub(crate) fn has(&self, seq: u8, attempt: Attempt) -> bool {
        self.0[usize::from(seq) - 1] & (1 << attempt.0) != 0
    }

    pub(crate) fn remove(&mut self, seq: u8, attempt: Attempt) {
        self.0[usize::from(seq) - 1] &= !(1 << attempt.0);
    }

    /// The attempts with an object for `seq`.
    pub(crate) fn of(&self, seq: u8) -> impl Iterator<Item = Attempt> {
        let set = self.0[usize::from(seq) - 1];
        (0..8).filter(move |n| set & (1 << n) != 0).map(Attempt)
    }
}
