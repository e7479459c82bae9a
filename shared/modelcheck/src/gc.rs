//! What may be collected: the engine's decision, on the model's heads.

use payguard_engine::gc::collectable_through;

use crate::config::{Config, Mutant};
use crate::durable::Head;

/// The last row of the producer that nobody needs.
pub(crate) fn collectable(config: &Config, producer: &Head, consumer: &Head) -> u8 {
    let (head, has_state) = (producer.stored(), config.producers > 0);
    let through = match config.mutant {
        Some(Mutant::CollectUnread) => collectable_through(&head, has_state, []),
        Some(Mutant::CollectUnflushed) => collectable_through(&head, false, [consumer.at.position()]),
        _ => collectable_through(&head, has_state, [consumer.at.position()]),
    };
    u8::try_from(through.0).unwrap_or(u8::MAX)
}
