//! The terminal of a demo.

use std::io::IsTerminal;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::Failure;

/// A block of lines at the bottom of the terminal that is drawn anew, with other lines scrolling above it.
#[derive(Clone)]
pub(super) struct Screen {
    lines: MultiProgress,
    block: ProgressBar,
    plain: bool,
}

impl Screen {
    pub(super) fn new() -> Result<Screen, Failure> {
        let lines = MultiProgress::new();
        let block = lines.add(ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{msg}")?));
        Ok(Screen { lines, block, plain: !std::io::stderr().is_terminal() })
    }

    pub(super) fn is_plain(&self) -> bool {
        self.plain
    }

    pub(super) fn print(&self, line: &str) {
        if self.plain || self.lines.println(line).is_err() {
            say!("{line}");
        }
    }

    pub(super) fn draw(&self, text: &str) {
        self.block.set_message(text.to_owned());
    }

    pub(super) fn clear(&self) {
        self.block.finish_and_clear();
    }
}
