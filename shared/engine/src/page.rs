//! Pages: the unit in which keyed state is written to the state table.
//!
//! Many small keys share one page, because the table bills by the kilobyte; a page has a bounded size, because an item
//! has. A page belongs to a key group, never to a shard: changing the number of shards moves no data.

use std::fmt;

use bytes::Bytes;
use payguard_model::KeyGroup;

use crate::ids::StageId;

/// Where a page is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageAddress {
    /// The stage.
    pub stage: StageId,
    /// The key group.
    pub group: u32,
    /// The operator whose state it is.
    pub operator: String,
    /// The page within the operator's key group (see [`crate::keyed`] and [`crate::ttl_set`]).
    pub page: String,
}

/// A page as it is stored.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    /// Where it is.
    pub address: PageAddress,
    /// Generation and seq of the commit whose state it holds, as one number (see [`version`]).
    pub version: u64,
    /// Protobuf bytes.
    pub body: Bytes,
    /// When it may be forgotten, seconds since the Unix epoch.
    pub expires_at_s: Option<i64>,
}

/// Bits of a version that hold the seq; the generation is above them.
const SEQ_BITS: u32 = 40;

/// The version of state as of commit `seq` in `generation`: versions of a later generation are always greater.
#[must_use]
pub fn version(generation: u32, seq: u64) -> u64 {
    (u64::from(generation) << SEQ_BITS) | (seq & ((1 << SEQ_BITS) - 1))
}

/// The table's rule for writing: whether a page of `version` takes the place of the one that is held.
#[must_use]
pub fn replaces(held: Option<u64>, version: u64) -> bool {
    held.is_none_or(|held| held < version)
}

/// The table's rule for removing: whether what is held may go, when pages of `version` have taken over its keys.
#[must_use]
pub fn is_replaced(held: Option<u64>, version: u64) -> bool {
    held.is_some_and(|held| held <= version)
}

impl PageAddress {
    /// The key group.
    #[must_use]
    pub fn key_group(&self) -> KeyGroup {
        KeyGroup(self.group)
    }
}

impl fmt::Display for PageAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{} {}#{}", self.stage, self.group, self.operator, self.page)
    }
}
