//! Kafka: how every client of the project connects, and what it says when it is refused. The one crate that knows
//! `rdkafka`'s settings.
//!
//! [`KafkaSettings`] are read from the environment; [`KafkaClients`] makes of them the configuration and the context that
//! consumers, producers and admin clients are created with; [`KafkaClients::check`] says within seconds whether the
//! cluster lets us in.

mod client;
mod deliveries;
mod iam;
mod reader;
mod settings;
#[cfg(feature = "testing")]
pub mod testing;

pub use client::{ConnectError, KafkaClients, KafkaContext, Refusal, RefusalKind};
pub use deliveries::Deliveries;
pub use iam::{Credentials, MskTokens, TOKEN_LIFETIME, TokenError, sign};
pub use rdkafka;
pub use reader::{Extent, Isolation, ReadError, follow_topic, has_more, read_topic};
pub use settings::{KafkaSettings, Mechanism, SettingsError, VARIABLES};
