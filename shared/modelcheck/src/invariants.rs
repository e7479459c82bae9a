//! The properties, by the names of the architecture page.

use stateright::Property;

use crate::config::{Config, Layout, Mutant};
use crate::durable::{Log, Name, Page, Seen, load};
use crate::gc::collectable;
use crate::model::{Model, State};
use crate::producer::Phase;

/// A property that must hold in every state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// One row per seq, no gaps.
    Inv1,
    /// A row begins where its predecessor ended.
    Inv2,
    /// The watermark never goes back.
    Inv3,
    /// A page is never younger than the head and holds what the log gives at its version.
    Inv4Page,
    /// Pages overlaid by the deltas after them give the state at the head.
    Inv4Recovery,
    /// Nothing that a reader may need is collected.
    Inv5,
    /// A record is acknowledged only when it is committed, and a commit of the sink's task only claims what is in the
    /// sink.
    Inv6,
    /// The sink holds every record once and in order.
    Once,
    /// A commit is computed from the state that its log gives.
    Computed,
    /// Nobody takes what was collected for data, or for damage that ends the task.
    Reload,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 10] = [
        Rule::Inv1,
        Rule::Inv2,
        Rule::Inv3,
        Rule::Inv4Page,
        Rule::Inv4Recovery,
        Rule::Inv5,
        Rule::Inv6,
        Rule::Once,
        Rule::Computed,
        Rule::Reload,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Rule::Inv1 => "INV-1: one row per seq, no gaps",
            Rule::Inv2 => "INV-2: a row begins where its predecessor ended",
            Rule::Inv3 => "INV-3: the watermark never goes back",
            Rule::Inv4Page => "INV-4: a page holds what the log gives at its version",
            Rule::Inv4Recovery => "INV-4: pages and later deltas give the state at the head",
            Rule::Inv5 => "INV-5: nothing that is needed is collected",
            Rule::Inv6 => "INV-6: every record is accounted for",
            Rule::Once => "the sink holds every record once and in order",
            Rule::Computed => "a commit is computed from the state of its log",
            Rule::Reload => "who finds a row collected loads again and goes on",
        }
    }
}

/// The properties that were broken on the way to a state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Broken(u16);

impl Broken {
    pub(crate) fn note(&mut self, rule: Rule) {
        self.0 |= 1 << rule as u16;
    }

    /// Notes what the engine says of two commits that do not follow each other.
    pub(crate) fn note_succession(&mut self, detail: &str) {
        self.note(match detail.get(..5) {
            Some("INV-1") => Rule::Inv1,
            Some("INV-3") => Rule::Inv3,
            _ => Rule::Inv2,
        });
    }

    pub(crate) fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u16) != 0
    }

    pub(crate) fn bytes(self) -> [u8; 2] {
        self.0.to_le_bytes()
    }

    pub(crate) fn any(self) -> bool {
        self.0 != 0
    }
}

/// Notes which properties the durable state breaks.
pub(crate) fn check(model: &Model, state: &mut State) {
    let config = &model.config;
    let producer = &state.producer_log;
    let mut broken = state.broken;
    if (1..=producer.head.seq).any(|seq| producer.ever(seq).is_none()) {
        broken.note(Rule::Inv1);
    }
    if state.table.0.iter().any(|page| !is_page_right(page, producer, config.layout)) {
        broken.note(Rule::Inv4Page);
    }
    let expected = state_at(producer, producer.head.seq);
    if config.producers > 0 && recovered(state, config.layout) != Some(expected) {
        broken.note(Rule::Inv4Recovery);
    }
    // Only who holds the newest commit can make the next one.
    let current = state.producers.iter().filter_map(Phase::memory).filter(|memory| memory.head == producer.head);
    if current.into_iter().any(|memory| memory.state != expected) {
        broken.note(Rule::Computed);
    }
    let needed = collectable(&Config { mutant: None, ..*config }, &producer.head, &state.consumer_log.head);
    let has_object = |seq| producer.row(seq).is_none_or(|row| state.objects.has(seq, row.attempt));
    if producer.collected().any(|seq| seq > needed) || (needed + 1..=producer.head.seq).any(|seq| !has_object(seq)) {
        broken.note(Rule::Inv5);
    }
    let claimed = state.record_at(state.consumer_log.head.at);
    if state.acknowledged > producer.head.at.row || (config.consumers > 0 && claimed > state.sink.records) {
        broken.note(Rule::Inv6);
    }
    state.broken = broken;
}

/// The state that the log gives after a commit: all records up to it.
fn state_at(log: &Log, seq: u8) -> Seen {
    let to = log.ever(seq).map_or(0, |row| row.to.row);
    Seen::between(0, to)
}

fn is_page_right(page: &Page, log: &Log, layout: Layout) -> bool {
    if page.seq == 0 || page.seq > log.head.seq {
        return false;
    }
    let state = state_at(log, page.seq);
    match page.name {
        Name::Key(key) => page.holds == state.and(Seen::of_key(key, layout)),
        Name::Whole => page.holds == state,
        Name::Added(..) => page.holds.and(state) == page.holds,
    }
}

/// The state that a fresh executor would load now; `None` when a row of it is missing.
fn recovered(state: &State, layout: Layout) -> Option<Seen> {
    let log = &state.producer_log;
    let from_pages = if log.head.flushed > 0 { load(&state.table.0, layout).state } else { Seen::default() };
    (log.head.flushed + 1..=log.head.seq).try_fold(from_pages, |state, seq| Some(log.row(seq)?.apply(state, layout)))
}

/// The properties as the checker takes them.
pub(crate) fn properties() -> Vec<Property<Model>> {
    macro_rules! always {
        ($($rule:ident)*) => {
            [$(Property::always(Rule::$rule.name(), |_: &Model, state: &State| !state.broken.has(Rule::$rule)),)*]
        };
    }
    let rules = always!(Inv1 Inv2 Inv3 Inv4Page Inv4Recovery Inv5 Inv6 Once Computed Reload);
    let complete = Property::sometimes(COMPLETE, |model: &Model, state: &State| {
        let (all, consumers) = (model.config.records, model.config.consumers);
        state.acknowledged == all && (consumers == 0 || state.sink.records == all)
    });
    rules.into_iter().chain([complete]).collect()
}

/// The property that keeps the model from being empty.
pub const COMPLETE: &str = "all records are acknowledged and in the sink, in some run";

/// The property that notices a mutant.
#[must_use]
pub fn noticed_by(mutant: Mutant) -> Rule {
    match mutant {
        Mutant::NoHeadCondition => Rule::Inv1,
        Mutant::RebaseAfterLost => Rule::Inv2,
        Mutant::WatermarkOfBatch => Rule::Inv3,
        Mutant::FlushUncommitted => Rule::Inv4Page,
        Mutant::NoVersionCheck | Mutant::FlushLoaded => Rule::Inv4Recovery,
        Mutant::CollectUnread | Mutant::CollectUnflushed => Rule::Inv5,
        Mutant::AcknowledgeFirst => Rule::Inv6,
        Mutant::PositionApart => Rule::Once,
        Mutant::NewAttemptAfterUnknown
        | Mutant::PagesOverDeltas
        | Mutant::RemoveAtOnce
        | Mutant::TrustLoaded
        | Mutant::KeepAfterLost => Rule::Computed,
        Mutant::MissingIsDamage => Rule::Reload,
    }
}
