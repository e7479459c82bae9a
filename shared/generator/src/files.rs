//! A whole stream as files.

use crate::config::GeneratorConfig;
use crate::source::{PaymentSource, Summary};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// The raw records, one a line, broken ones included.
pub const PAYMENTS_FILE: &str = "payments.jsonl";
/// The confirmations, one a line; written only when some payments are confirmed.
pub const CONFIRMATIONS_FILE: &str = "confirmations.jsonl";
/// One number a line, parallel to [`CONFIRMATIONS_FILE`]: how many lines of [`PAYMENTS_FILE`] had been delivered when the
/// confirmation came. It fixes the order of arrival of the two files.
pub const AFTER_FILE: &str = "confirmations.after";

const BUFFER: usize = 1 << 20;
const PROGRESS_EVERY: u64 = 10_000;

/// Writes the `records` records of `config` into the folder `dir`, made if it is not there; files of an earlier stream
/// are replaced or removed. Calls `progress` with the number of records written, every 10,000 records and at the end.
///
/// # Errors
/// `InvalidInput` when the configuration is not valid, otherwise what the file system says.
pub fn write_files(config: &GeneratorConfig, dir: &Path, mut progress: impl FnMut(u64)) -> io::Result<Summary> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    let mut source = PaymentSource::new(config).map_err(invalid)?;
    fs::create_dir_all(dir)?;
    let mut payments = create(dir, PAYMENTS_FILE)?;
    let mut confirmations = Confirmations::create(config, dir)?;
    for index in 0..config.records {
        let record = source.next_record(config.created_at(index));
        payments.write_all(record.line.as_bytes())?;
        payments.write_all(b"\n")?;
        let delivered = index + 1;
        if let (Some(files), Some(line)) = (&mut confirmations, record.confirmation) {
            files.write(line, delivered)?;
        }
        if delivered % PROGRESS_EVERY == 0 && delivered != config.records {
            progress(delivered);
        }
    }
    payments.flush()?;
    if let Some(files) = &mut confirmations {
        files.lines.flush()?;
        files.after.flush()?;
    }
    progress(config.records);
    Ok(source.summary())
}

struct Confirmations {
    lines: BufWriter<File>,
    after: BufWriter<File>,
}

impl Confirmations {
    /// The two files, or neither of them when nothing is confirmed.
    fn create(config: &GeneratorConfig, dir: &Path) -> io::Result<Option<Confirmations>> {
        if config.confirm > 0.0 {
            let (lines, after) = (create(dir, CONFIRMATIONS_FILE)?, create(dir, AFTER_FILE)?);
            return Ok(Some(Confirmations { lines, after }));
        }
        for name in [CONFIRMATIONS_FILE, AFTER_FILE] {
            match fs::remove_file(dir.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(None)
    }

    fn write(&mut self, line: &str, delivered: u64) -> io::Result<()> {
        self.lines.write_all(line.as_bytes())?;
        self.lines.write_all(b"\n")?;
        writeln!(self.after, "{delivered}")
    }
}

fn create(dir: &Path, name: &str) -> io::Result<BufWriter<File>> {
    Ok(BufWriter::with_capacity(BUFFER, File::create(dir.join(name))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::HashMap;

    fn config() -> GeneratorConfig {
        GeneratorConfig {
            records: 25_000,
            dup: 0.02,
            bad: 0.01,
            burst: 0.002,
            card_testing: 0.002,
            travel: 0.002,
            ..GeneratorConfig::default()
        }
    }

    fn lines(dir: &Path, name: &str) -> Vec<String> {
        fs::read_to_string(dir.join(name)).expect("a file").lines().map(str::to_owned).collect()
    }

    #[test]
    fn lesson_09_confirmations_follow_their_payments() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut steps = Vec::new();
        let summary = write_files(&config(), dir.path(), |done| steps.push(done)).expect("written");
        assert_eq!(steps, [10_000, 20_000, 25_000]);

        let payments = lines(dir.path(), PAYMENTS_FILE);
        let confirmations = lines(dir.path(), CONFIRMATIONS_FILE);
        let after: Vec<usize> =
            lines(dir.path(), AFTER_FILE).iter().map(|line| line.parse().expect("a number")).collect();
        assert_eq!(payments.len() as u64, summary.records);
        assert_eq!(confirmations.len() as u64, summary.confirmations);
        assert_eq!(confirmations.len(), after.len());
        assert!(after.is_sorted());
        let share = confirmations.len() as f64 / (summary.records - summary.bad) as f64;
        assert!((share - 0.95).abs() < 0.01, "{share}");
        let mut per_payment = HashMap::<String, u32>::new();
        for (confirmation, after) in confirmations.iter().zip(after) {
            let payment: Value = serde_json::from_str(&payments[after - 1]).expect("not a broken record");
            let confirmation: Value = serde_json::from_str(confirmation).expect("a confirmation");
            assert_eq!(confirmation["paymentId"], payment["paymentId"]);
            assert_eq!(confirmation["status"], "APPROVED");
            let time = |record: &Value| record["eventTimeMs"].as_i64().expect("a time");
            assert!((0..3000).contains(&(time(&confirmation) - time(&payment))));
            *per_payment.entry(payment["paymentId"].to_string()).or_default() += 1;
        }
        assert!(per_payment.values().any(|&count| count > 1), "repeats are confirmed too");
    }

    #[test]
    fn lesson_09_at_share_one_every_payment_written_is_confirmed_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let config = GeneratorConfig { confirm: 1.0, ..config() };
        let summary = write_files(&config, dir.path(), |_| {}).expect("written");
        assert!(summary.card_testing > 10 && summary.travel > 10 && summary.duplicates > 100, "{summary:?}");
        let payments = lines(dir.path(), PAYMENTS_FILE);
        let expected: Vec<String> = (1..)
            .zip(&payments)
            .filter(|(_, line)| *line != crate::BROKEN_RECORD)
            .map(|(number, _)| number.to_string())
            .collect();
        assert_eq!(lines(dir.path(), AFTER_FILE), expected);
        assert_eq!(lines(dir.path(), CONFIRMATIONS_FILE).len(), expected.len());
    }

    #[test]
    fn payments_do_not_depend_on_confirmations_and_stale_files_go() {
        let dir = tempfile::tempdir().expect("a folder");
        write_files(&config(), dir.path(), |_| {}).expect("written");
        let before = lines(dir.path(), PAYMENTS_FILE);
        let unconfirmed = GeneratorConfig { confirm: 0.0, ..config() };
        let summary = write_files(&unconfirmed, dir.path(), |_| {}).expect("written");
        assert_eq!(lines(dir.path(), PAYMENTS_FILE), before);
        assert_eq!(summary.confirmations, 0);
        let files: Vec<_> = fs::read_dir(dir.path()).expect("a folder").collect();
        assert_eq!(files.len(), 1, "{files:?}");
    }

    #[test]
    fn an_invalid_configuration_writes_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let error = write_files(&GeneratorConfig { bad: 2.0, ..config() }, dir.path(), |_| {}).expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(error.to_string(), "--bad must be between 0 and 1, got 2");
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 0);
    }
}
