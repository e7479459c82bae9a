//! The order of arrival of payments and confirmations in a replay.
//!
//! Two files say nothing about how their lines were mixed, and operators that read both depend on it. A third file
//! tells, for every confirmation, how many payments had arrived before it; so the payments' watermark at that moment
//! is known, and the confirmations' watermark does not run ahead of it.

use std::path::{Path, PathBuf};

use payguard_model::{EventTime, ParsePolicy, Payment, ProcessingTime, parse_payment_into};
use payguard_operators::watermark::BoundedOutOfOrderness;

use crate::file_source::{Chunk, FileSourceError, Lines};
use crate::runner::LocalPipeline;

/// Lines of payments that are read at once.
const AT_ONCE: usize = 4_096;

/// Tells the payments' watermark at the arrival of a confirmation.
pub struct ArrivalClock {
    payments: Lines,
    chunk: Chunk,
    /// Payments of the chunk that have arrived, and all of them.
    used: usize,
    arrived: i64,
    generator: BoundedOutOfOrderness,
    policy: ParsePolicy,
    now: ProcessingTime,
    payment: Payment,
    after: After,
}

/// The lines of the file that tells.
struct After {
    path: PathBuf,
    lines: Lines,
    chunk: Chunk,
    /// Line number of the chunk's first line, from 0.
    first: i64,
}

impl ArrivalClock {
    /// The clock of two files; `None` when there is no third one beside the confirmations.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn of(
        pipeline: &LocalPipeline,
        payments: &Path,
        confirmations: &Path,
    ) -> Result<Option<ArrivalClock>, FileSourceError> {
        let path = confirmations.with_extension("after");
        if !path.exists() {
            return Ok(None);
        }
        let after = After { lines: Lines::open(&path)?, path, chunk: Chunk::default(), first: 0 };
        Ok(Some(ArrivalClock {
            payments: Lines::open(payments)?,
            chunk: Chunk::default(),
            used: 0,
            arrived: 0,
            generator: BoundedOutOfOrderness::default(),
            policy: pipeline.config.parse_policy(),
            now: pipeline.env.clock.now(),
            payment: Payment::default(),
            after,
        }))
    }

    /// The payments' watermark at the arrival of confirmation `line`, from 0. Lines are asked for in order.
    ///
    /// # Errors
    /// When a file cannot be read or does not tell.
    pub(crate) fn at(&mut self, line: i64) -> Result<EventTime, FileSourceError> {
        let payments = self.after.payments_before(line)?;
        while self.arrived < payments {
            if self.used == self.chunk.len() {
                self.used = 0;
                self.payments.next_chunk(&mut self.chunk, AT_ONCE)?;
                if self.chunk.len() == 0 {
                    break;
                }
            }
            if parse_payment_into(self.chunk.line(self.used), self.now, &self.policy, &mut self.payment).is_ok() {
                self.generator.observe(EventTime(self.payment.event_time_ms));
            }
            self.used += 1;
            self.arrived += 1;
        }
        Ok(self.generator.watermark())
    }
}

impl After {
    fn payments_before(&mut self, line: i64) -> Result<i64, FileSourceError> {
        while line >= self.lines.read {
            self.first = self.lines.read;
            self.lines.next_chunk(&mut self.chunk, AT_ONCE)?;
            if self.chunk.len() == 0 {
                return Err(self.unknown(line));
            }
        }
        let at = usize::try_from(line - self.first).unwrap_or(usize::MAX);
        let text = (at < self.chunk.len()).then(|| std::str::from_utf8(self.chunk.line(at)).ok()).flatten();
        text.and_then(|text| text.trim().parse().ok()).ok_or_else(|| self.unknown(line))
    }

    fn unknown(&self, line: i64) -> FileSourceError {
        FileSourceError::NoArrival { path: self.path.clone(), line: line + 1 }
    }
}
