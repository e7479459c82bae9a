//! A directory in a file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde::Deserialize;

use crate::{LEVELS, LookupError, MerchantDirectory};

/// First line of a CSV file.
const HEADER: &str = "merchant_id,risk_level";

/// The merchants of a file, read once.
///
/// `*.csv`: the line `merchant_id,risk_level`, then a merchant a line, without quotes. `*.jsonl`: an object a line with
/// the keys `merchant_id` and `risk_level`; others are ignored. Blank lines are skipped. Levels are HIGH, MEDIUM and LOW.
#[derive(Clone, Debug)]
pub struct FileDirectory {
    levels: HashMap<String, &'static str>,
}

/// A file is not a directory of merchants.
#[derive(Debug, thiserror::Error)]
pub enum FileDirectoryError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its name does not say what is in it.
    #[error("{}: expected a file named *.csv or *.jsonl", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A line is wrong.
    #[error("{}, line {line}: {detail}", path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        detail: String,
    },
}

#[derive(Clone, Copy)]
enum Format {
    Csv,
    Jsonl,
}

#[derive(Deserialize)]
struct Row {
    merchant_id: String,
    risk_level: String,
}

impl FileDirectory {
    /// Reads a file whole.
    ///
    /// # Errors
    /// When it cannot be read, or at the first line that is wrong or names a merchant again.
    pub fn open(path: &Path) -> Result<FileDirectory, FileDirectoryError> {
        let format = match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => Format::Csv,
            Some("jsonl") => Format::Jsonl,
            _ => return Err(FileDirectoryError::UnknownFormat { path: path.to_owned() }),
        };
        let unreadable = |source| FileDirectoryError::Unreadable { path: path.to_owned(), source };
        let mut lines = BufReader::new(File::open(path).map_err(unreadable)?).split(b'\n');
        let mut rows = Rows { format, begun: false, found: HashMap::new() };
        let mut number = 0;
        while let Some(line) = lines.next().transpose().map_err(unreadable)? {
            number += 1;
            rows.line(number, &line).map_err(|detail| FileDirectoryError::BadLine {
                path: path.to_owned(),
                line: number,
                detail,
            })?;
        }
        Ok(FileDirectory { levels: rows.found.into_iter().map(|(merchant, (level, _))| (merchant, level)).collect() })
    }

    /// How many merchants it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.levels.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }
}

#[async_trait]
impl MerchantDirectory for FileDirectory {
    async fn risk_level(&self, merchant_id: &str) -> Result<Option<String>, LookupError> {
        Ok(self.levels.get(merchant_id).map(|level| (*level).to_owned()))
    }
}

/// What has been read so far.
struct Rows {
    format: Format,
    /// Whether the header of a CSV file is behind us.
    begun: bool,
    /// Levels, and the lines they are on.
    found: HashMap<String, (&'static str, u64)>,
}

impl Rows {
    fn line(&mut self, number: u64, bytes: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
        // Spreadsheets begin their files with a byte order mark.
        let text = if number == 1 { text.trim_start_matches('\u{feff}') } else { text };
        let text = text.trim_end_matches('\r');
        if text.trim().is_empty() {
            return Ok(());
        }
        let row = match self.format {
            Format::Csv if !self.begun => {
                self.begun = true;
                return if text == HEADER {
                    Ok(())
                } else {
                    Err(format!("expected the line {HEADER}, found {text:?}"))
                };
            }
            Format::Csv => csv_row(text)?,
            Format::Jsonl => serde_json::from_str(text).map_err(|e| json_problem(&e))?,
        };
        self.add(number, row)
    }

    fn add(&mut self, number: u64, row: Row) -> Result<(), String> {
        if row.merchant_id.is_empty() {
            return Err("merchant_id is empty".to_owned());
        }
        let Some(level) = LEVELS.into_iter().find(|level| *level == row.risk_level) else {
            return Err(format!("risk_level {:?} is none of {}", row.risk_level, LEVELS.join(", ")));
        };
        match self.found.entry(row.merchant_id) {
            Entry::Vacant(entry) => {
                entry.insert((level, number));
                Ok(())
            }
            Entry::Occupied(entry) => Err(format!("merchant {:?} is on line {} already", entry.key(), entry.get().1)),
        }
    }
}

fn csv_row(text: &str) -> Result<Row, String> {
    if text.contains('"') {
        return Err("quotes are not understood".to_owned());
    }
    match text.split(',').collect::<Vec<_>>()[..] {
        [merchant_id, risk_level] => {
            Ok(Row { merchant_id: merchant_id.trim().to_owned(), risk_level: risk_level.trim().to_owned() })
        }
        ref fields => Err(format!("expected 2 fields, found {}", fields.len())),
    }
}

/// What the JSON parser says, without its line number: it sees one line at a time.
fn json_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    format!("{}, at column {}", text.strip_suffix(&place).unwrap_or(&text), error.column())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::SeededDirectory;

    fn read(name: &str, content: &[u8]) -> Result<FileDirectory, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        let folder = format!("{}/", dir.path().display());
        FileDirectory::open(&path).map_err(|e| e.to_string().replace(&folder, ""))
    }

    #[tokio::test]
    async fn both_formats_hold_the_same_merchants() {
        let (mut csv, mut jsonl) = ("\u{feff}merchant_id,risk_level\r\n\r\n".to_owned(), String::new());
        for (merchant, level) in SeededDirectory::merchants() {
            csv.push_str(&format!("{merchant},{level}\r\n"));
            jsonl
                .push_str(&format!("{{\"risk_level\":\"{level}\",\"merchant_id\":\"{merchant}\",\"updated_at\":1}}\n"));
        }
        for directory in [read("m.csv", csv.as_bytes()), read("m.jsonl", jsonl.as_bytes())].map(Result::unwrap) {
            assert_eq!((directory.len(), directory.is_empty()), (50, false));
            for (merchant, level) in SeededDirectory::merchants() {
                assert_eq!(directory.risk_level(&merchant).await.unwrap().as_deref(), Some(level));
            }
            assert_eq!(directory.risk_level("m-0050").await.unwrap(), None);
        }
    }

    #[test]
    fn a_file_may_have_no_merchants() {
        for (name, content) in [("m.csv", ""), ("m.csv", "merchant_id,risk_level"), ("m.jsonl", "\n")] {
            assert!(read(name, content.as_bytes()).unwrap().is_empty());
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        const H: &str = "merchant_id,risk_level\n";
        for (name, content, expected) in [
            (
                "m.csv",
                "m-1,HIGH\n".to_owned(),
                "m.csv, line 1: expected the line merchant_id,risk_level, found \"m-1,HIGH\"",
            ),
            ("m.csv", format!("{H}m-1,HIGH\n\nm-2\n"), "m.csv, line 4: expected 2 fields, found 1"),
            ("m.csv", format!("{H}m-1,HIGH,x\n"), "m.csv, line 2: expected 2 fields, found 3"),
            ("m.csv", format!("{H}\"m-1\",HIGH\n"), "m.csv, line 2: quotes are not understood"),
            ("m.csv", format!("{H},HIGH\n"), "m.csv, line 2: merchant_id is empty"),
            ("m.csv", format!("{H}m-1,high\n"), "m.csv, line 2: risk_level \"high\" is none of HIGH, MEDIUM, LOW"),
            (
                "m.csv",
                format!("{H}m-1,LOW\nm-2,LOW\nm-1,LOW\n"),
                "m.csv, line 4: merchant \"m-1\" is on line 2 already",
            ),
            (
                "m.jsonl",
                "{\"merchant_id\":\"m-1\"}".to_owned(),
                "m.jsonl, line 1: missing field `risk_level`, at column 21",
            ),
            ("m.jsonl", "\n[".to_owned(), "m.jsonl, line 2: EOF while parsing a list, at column 1"),
            ("m.json", String::new(), "m.json: expected a file named *.csv or *.jsonl"),
        ] {
            assert_eq!(read(name, content.as_bytes()).unwrap_err(), expected);
        }
        assert_eq!(read("m.csv", b"merchant_id,risk_level\n\xff,LOW\n").unwrap_err(), "m.csv, line 2: not UTF-8");
        let missing = FileDirectory::open(Path::new("/nowhere/m.csv")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read /nowhere/m.csv: "), "{missing}");
    }
}
