//! What may be collected.

use payguard_engine::{Head as StoredHead, Position, Seq};

use crate::config::{Config, Mutant};
use crate::durable::{Head, Name, Table};

/// The last row of a task that nobody needs: every reader is past it, and what it changed is in the state table. The
/// newest row stays.
///
/// All of this only grows: what may be collected once may be collected ever after, and a collector that has slept does
/// no harm.
fn collectable_through(head: &StoredHead, has_state: bool, positions: impl IntoIterator<Item = Position>) -> Seq {
    let newest = head.seq.saturating_sub(1);
    let flushed = if has_state { head.flushed_seq } else { newest };
    let read = positions.into_iter().map(|position| u64::try_from(position.at).unwrap_or(0));
    Seq(read.fold(newest.min(flushed), u64::min))
}

/// The same for the producer of this model.
pub(crate) fn collectable(config: &Config, producer: &Head, consumer: &Head) -> u8 {
    let (head, has_state) = (producer.stored(), config.producers > 0);
    let through = match config.mutant {
        Some(Mutant::CollectUnread) => collectable_through(&head, has_state, []),
        Some(Mutant::CollectUnflushed) => collectable_through(&head, false, [consumer.at.position()]),
        _ => collectable_through(&head, has_state, [consumer.at.position()]),
    };
    u8::try_from(through.0).unwrap_or(u8::MAX)
}

/// Whether the page that was split may be collected: pages of both keys that are not older have taken over, and the
/// commit after their flush is made. Before it, somebody may list pages who finds neither and can still commit.
pub(crate) fn is_split_page_collectable(config: &Config, producer: &Head, table: &Table) -> bool {
    let Some(whole) = table.page(Name::Whole) else { return false };
    let may_go = config.breaks(Mutant::CollectPageEarly);
    let takes_over = |seq: u8| seq >= whole.seq && (may_go || seq <= producer.flushed);
    [Name::Key(0), Name::Key(1)].into_iter().all(|name| table.page(name).is_some_and(|page| takes_over(page.seq)))
}
