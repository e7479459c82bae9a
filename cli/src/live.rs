//! A pipeline at work, for people to watch.

mod alerts;
mod delays;
mod screen;

#[cfg(feature = "kafka")]
pub(crate) use alerts::AT_ONCE;
pub(crate) use alerts::AlertWatch;
pub(crate) use delays::Delays;
pub(crate) use screen::Screen;
