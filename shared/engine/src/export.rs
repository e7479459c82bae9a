//! Keyed state outside of tasks: what pages and deltas hold, key by key, and pages made of it again.
//!
//! Savepoints are read and written with this, one key group at a time. How keys are encoded is with their owner:
//! [`crate::keyed`] and [`crate::ttl_set`].

use std::collections::BTreeMap;

use payguard_model::ProcessingTime;

use crate::keyed::export as keyed;
use crate::logic::{DecodeError, PageBody};
use crate::page::Page;
use crate::ttl_set::export as ttl_set;

/// How an operator lays its state out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// State and timers per key, in pages that are rewritten.
    Keyed,
    /// Ids and when they were written, in pages that are added.
    Ids,
}

/// What is stored of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// State and timers.
    State(Held),
    /// When the id was written.
    WrittenAt(ProcessingTime),
}

/// State and timers of a key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// The operator's protobuf bytes.
    pub state: Vec<u8>,
    /// Event-time timers, milliseconds, ascending.
    pub event_timers: Vec<i64>,
    /// Processing-time timers, milliseconds, ascending.
    pub processing_timers: Vec<i64>,
}

/// The keys of one operator and key group, sorted.
pub type Keys = BTreeMap<String, Value>;

/// A change of a key; `None` when it was forgotten.
pub type Change = (String, Option<Value>);

impl Encoding {
    /// The keys that the pages of one operator and key group hold together.
    ///
    /// # Errors
    /// When a page does not decode.
    pub fn read_pages(self, pages: Vec<Page>) -> Result<Keys, DecodeError> {
        match self {
            Encoding::Keyed => keyed::read_pages(pages),
            Encoding::Ids => ttl_set::read_pages(pages),
        }
    }

    /// The changes of a delta of one operator, in order.
    ///
    /// # Errors
    /// When it does not decode.
    pub fn read_delta(self, delta: &[u8]) -> Result<Vec<Change>, DecodeError> {
        match self {
            Encoding::Keyed => keyed::read_delta(delta),
            Encoding::Ids => ttl_set::read_delta(delta),
        }
    }

    /// Pages that hold exactly these keys of one key group, as of `version`.
    #[must_use]
    pub fn lay_out(self, group: u32, keys: Keys, version: u64) -> Vec<PageBody> {
        match self {
            Encoding::Keyed => keyed::lay_out(group, keys),
            Encoding::Ids => ttl_set::lay_out(group, keys, version),
        }
    }
}
