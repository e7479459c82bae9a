//! The terminal.

use std::io::IsTerminal;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::Failure;

/// A block of lines at the bottom of the terminal that is drawn anew, with other lines scrolling above it.
#[derive(Clone)]
pub(crate) struct Screen {
    lines: MultiProgress,
    block: ProgressBar,
    plain: bool,
}

impl Screen {
    pub(crate) fn new() -> Result<Screen, Failure> {
        let lines = MultiProgress::new();
        let block = lines.add(ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{msg}")?));
        Ok(Screen { lines, block, plain: !std::io::stderr().is_terminal() })
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    pub(crate) fn print(&self, line: &str) {
        if self.plain || self.lines.println(line).is_err() {
            say!("{line}");
        }
    }

    pub(crate) fn draw(&self, text: &str) {
        self.block.set_message(text.to_owned());
    }

    pub(crate) fn clear(&self) {
        self.block.finish_and_clear();
    }
}
