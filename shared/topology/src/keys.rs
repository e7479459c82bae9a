//! What decides the keys of records in the log, and how state is encoded: what a savepoint must know of both.

use payguard_engine::export::Encoding;
use payguard_operators::dedup;

use crate::payguard::stream;
use crate::{Config, Stream};

/// How the operator that keeps state under this id encodes it.
#[must_use]
pub fn encoding(state: &str) -> Encoding {
    if state == dedup::ID { Encoding::Ids } else { Encoding::Keyed }
}

/// What decides the shard of a stream's records, in words: equal words mean equal keys.
#[must_use]
pub fn keying(config: &Config, stream: &Stream) -> String {
    match config.is_salted() && stream.name == stream::CLEAN_BY_MERCHANT {
        true => format!("{} of {}", stream.key, config.stats.salts),
        false => stream.key.to_owned(),
    }
}
