//! A file of raw records as a Kafka partition: line `n` (from 0) is the record with offset `n`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use payguard_engine::EngineError;
use payguard_engine::logic::SourceRecord;
use payguard_engine::task::source::SourceTask;

use crate::arrival::ArrivalClock;

/// A bounded input that cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum FileSourceError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is shorter than what was read of it before.
    #[error("{path} has {lines} lines, but {position} were processed before: this is not the file of the earlier run")]
    Shorter {
        /// The file.
        path: PathBuf,
        /// Lines it has.
        lines: i64,
        /// Lines processed before.
        position: i64,
    },
    /// The state knows a partition that is not given.
    #[error(
        "partition {partition} was read before and no file is given for it: give as many files as then, in their order"
    )]
    NoFile {
        /// The partition.
        partition: String,
    },
    /// A confirmation for which the order of arrival is not told.
    #[error("{path}: line {line} is missing or is not the number of payments before a confirmation")]
    NoArrival {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: i64,
    },
    /// The pipeline failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Lines of a file, many at a time. Lines end at LF; CR is part of the line; a last line without LF counts.
pub(crate) struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    /// Lines read so far.
    pub(crate) read: i64,
}

/// Lines that lie one behind the other in one buffer.
#[derive(Default)]
pub(crate) struct Chunk {
    bytes: Vec<u8>,
    /// End of every line in `bytes`, without its LF.
    ends: Vec<usize>,
}

/// Feeds a file to its partition's task, from where the task stands to the end of the file or to line `until`,
/// exclusive, whichever is first; returns the lines that are processed then.
///
/// `arrival` knows how far another source was when a line arrived. `progress` is told the number of bytes of every
/// chunk that is committed or skipped.
///
/// # Errors
/// When the file or a store fails. Repeating the call continues where the committed position is.
pub async fn feed(
    path: &Path,
    task: &mut SourceTask,
    lines_at_once: usize,
    until: Option<i64>,
    mut arrival: Option<&mut ArrivalClock>,
    progress: &impl Fn(u64),
) -> Result<i64, FileSourceError> {
    let mut lines = Lines::open(path)?;
    let position = task.position().await?;
    lines.skip(position + 1, progress)?;
    let mut chunk = Chunk::default();
    loop {
        let first = lines.read;
        let left = until.map_or(usize::MAX, |until| usize::try_from(until - first).unwrap_or(0));
        let bytes = lines.next_chunk(&mut chunk, lines_at_once.min(left))?;
        if chunk.ends.is_empty() {
            break;
        }
        let mut records = chunk.records(first);
        if let Some(arrival) = &mut arrival {
            for record in &mut records {
                record.watermark_bound = Some(arrival.at(record.offset)?);
            }
        }
        task.ingest(&records).await?;
        progress(bytes);
    }
    Ok(lines.read)
}

/// All lines of a file of messages.
///
/// # Errors
/// When it cannot be read.
pub fn messages(path: &Path) -> Result<Messages, FileSourceError> {
    let mut messages = Messages::default();
    Lines::open(path)?.next_chunk(&mut messages.0, usize::MAX)?;
    Ok(messages)
}

/// The lines of a small file.
#[derive(Default)]
pub struct Messages(Chunk);

impl Messages {
    /// As the records of a partition.
    #[must_use]
    pub fn records(&self) -> Vec<SourceRecord<'_>> {
        self.0.records(0)
    }
}

impl Lines {
    pub(crate) fn open(path: &Path) -> Result<Lines, FileSourceError> {
        let file = File::open(path).map_err(|source| FileSourceError::Read { path: path.to_owned(), source })?;
        Ok(Lines { path: path.to_owned(), reader: BufReader::with_capacity(1 << 20, file), read: 0 })
    }

    pub(crate) fn skip(&mut self, lines: i64, progress: &impl Fn(u64)) -> Result<(), FileSourceError> {
        let mut chunk = Chunk::default();
        while self.read < lines {
            let left = usize::try_from(lines - self.read).unwrap_or(usize::MAX);
            let bytes = self.next_chunk(&mut chunk, left.min(100_000))?;
            if chunk.ends.is_empty() {
                let path = self.path.clone();
                return Err(FileSourceError::Shorter { path, lines: self.read, position: lines });
            }
            progress(bytes);
        }
        Ok(())
    }

    /// Reads up to `count` lines; returns their bytes in the file.
    pub(crate) fn next_chunk(&mut self, chunk: &mut Chunk, count: usize) -> Result<u64, FileSourceError> {
        chunk.bytes.clear();
        chunk.ends.clear();
        let mut bytes = 0;
        while chunk.ends.len() < count {
            let read = self.reader.read_until(b'\n', &mut chunk.bytes);
            let read = read.map_err(|source| FileSourceError::Read { path: self.path.clone(), source })?;
            if read == 0 {
                break;
            }
            bytes += read as u64;
            if chunk.bytes.last() == Some(&b'\n') {
                chunk.bytes.pop();
            }
            chunk.ends.push(chunk.bytes.len());
            self.read += 1;
        }
        Ok(bytes)
    }
}

impl Chunk {
    /// Lines in it.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// A line, from 0.
    pub(crate) fn line(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..self.ends[at]]
    }

    pub(crate) fn records(&self, first_offset: i64) -> Vec<SourceRecord<'_>> {
        let mut start = 0;
        let records = self.ends.iter().zip(first_offset..).map(|(end, offset)| {
            let value = &self.bytes[std::mem::replace(&mut start, *end)..*end];
            SourceRecord { offset, timestamp: None, value: Some(value), watermark_bound: None, replays: 0 }
        });
        records.collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn every_line_is_a_record_whatever_is_in_it() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"a\n\nb\r\n\xff\nlast").unwrap();
        for at_once in 1..6 {
            let mut lines = Lines::open(file.path()).unwrap();
            let mut chunk = Chunk::default();
            let mut found: Vec<(i64, Vec<u8>)> = Vec::new();
            loop {
                let first = lines.read;
                lines.next_chunk(&mut chunk, at_once).unwrap();
                if chunk.ends.is_empty() {
                    break;
                }
                found.extend(chunk.records(first).iter().map(|r| (r.offset, r.value.unwrap().to_vec())));
            }
            let expected: [&[u8]; 5] = [b"a", b"", b"b\r", b"\xff", b"last"];
            let expected: Vec<(i64, Vec<u8>)> = (0..).zip(expected.iter().map(|l| l.to_vec())).collect();
            assert_eq!(found, expected, "{at_once} at once");
        }
    }

    #[test]
    fn a_file_shorter_than_the_position_is_an_error() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"a\nb\n").unwrap();
        let mut lines = Lines::open(file.path()).unwrap();
        let error = lines.skip(3, &|_| ()).unwrap_err();
        assert!(error.to_string().contains("has 2 lines, but 3"), "{error}");
    }
}
