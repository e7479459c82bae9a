//! A pipeline at work, for people to watch.

mod alerts;
mod screen;

pub(crate) use alerts::AlertWatch;
pub(crate) use screen::Screen;
