//! What an executor of the producer holds in memory.

use crate::config::{Config, Layout};
use crate::durable::{Head, KEYS, Name, Page, Row, Seen};

/// What an executor holds between batches.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    pub(crate) head: Head,
    pub(crate) state: Seen,
    /// Records whose entries are not in a page yet.
    pub(crate) dirty: Seen,
    pub(crate) flushed: u8,
    pub(crate) whole: bool,
    /// Whether its pages are split.
    pub(crate) deep: bool,
    /// Whether pages are there that a split left behind.
    pub(crate) left_behind: bool,
    /// Version of the pages that took over from one that is to be removed; 0: none.
    pub(crate) replaced: u8,
}

impl Memory {
    /// No state yet, of this head.
    pub(crate) fn fresh(head: Head) -> Memory {
        let nothing = Seen::default();
        Memory {
            head,
            state: nothing,
            dirty: nothing,
            flushed: head.flushed,
            whole: false,
            deep: false,
            left_behind: false,
            replaced: 0,
        }
    }

    /// All but the head, as bytes.
    pub(crate) fn rest(&self) -> [u8; 5] {
        let flags = [self.whole, self.deep, self.left_behind];
        let flags = flags.into_iter().fold(0, |byte, flag| byte * 2 + u8::from(flag));
        [self.state.0, self.dirty.0, self.flushed, self.replaced, flags]
    }

    /// Applies the delta of a row.
    pub(crate) fn apply(&mut self, row: &Row, layout: Layout) {
        self.state = row.apply(self.state, layout);
        self.dirty = self.dirty.or(row.batch());
    }

    /// The pages of a flush, as of the head.
    pub(crate) fn take_pages(&mut self, config: &Config) -> Vec<Page> {
        let (seq, state) = (self.head.seq, self.state);
        let (was_deep, everything) = (self.deep, self.left_behind);
        self.deep |= config.layout == Layout::Split && state.len() >= 2;
        if self.deep && (!was_deep || everything) {
            (self.dirty, self.replaced, self.left_behind) = (Seen::ALL, seq, false);
        }
        let dirty = std::mem::take(&mut self.dirty);
        let of_key = |key| Seen::of_key(key, config.layout);
        let keys = (0..KEYS).filter(|key| !dirty.and(of_key(*key)).is_empty());
        let by_key = keys.map(|key| Page { name: Name::Key(key), seq, holds: state.and(of_key(key)) });
        match config.layout {
            Layout::Split if !self.deep => vec![Page { name: Name::Whole, seq, holds: state }],
            Layout::Fixed | Layout::Split => by_key.collect(),
            Layout::Added => {
                (0..).zip(dirty.each()).map(|(n, holds)| Page { name: Name::Added(seq, n), seq, holds }).collect()
            }
        }
    }
}
