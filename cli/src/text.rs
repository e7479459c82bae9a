//! Small things for people: numbers, times, errors.

use std::error::Error;
use std::io::{ErrorKind, Write};

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use payguard_model::EventTime;

/// An error and its causes on one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// Prints to standard output. A reader that has gone, as in `payguard status | head`, ends the program quietly.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => eprintln!("payguard: standard output: {error}"),
        Ok(()) => {}
    }
}

/// Prints a line, as [`print()`] does.
macro_rules! say {
    ($($text:tt)*) => { $crate::text::print(&format!("{}\n", format_args!($($text)*))) };
}

/// 1234567 as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Milliseconds as the largest unit that says something.
pub(crate) fn duration(ms: i64) -> String {
    match ms.unsigned_abs() {
        0..=999 => format!("{ms} ms"),
        1_000..=119_999 => format!("{:.1} s", ms as f64 / 1e3),
        120_000..=7_199_999 => format!("{:.1} min", ms as f64 / 6e4),
        _ => format!("{:.1} h", ms as f64 / 3.6e6),
    }
}

/// Bytes with a binary unit.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..=1_023 => format!("{bytes} B"),
        1_024..=1_048_575 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// A watermark as a UTC time of day, `none` or `end`.
pub(crate) fn time_of_day(time: EventTime) -> String {
    if time == EventTime::MIN || time == EventTime::MAX {
        return time.to_string();
    }
    let ms = time.0.rem_euclid(86_400_000);
    format!("{:02}:{:02}:{:02}.{:03}", ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60, ms % 1_000)
}

/// A moment as a UTC date and time, `none` or `end`.
pub(crate) fn date_time(ms: i64) -> String {
    let time = EventTime(ms);
    if time == EventTime::MIN || time == EventTime::MAX {
        return time.to_string();
    }
    DateTime::from_millis(ms).fmt(Format::DateTime).unwrap_or_else(|_| format!("{ms} ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(duration(999), "999 ms");
        assert_eq!(duration(61_500), "61.5 s");
        assert_eq!(time_of_day(EventTime(1_794_085_494_920)), "21:04:54.920");
        assert_eq!(time_of_day(EventTime::MAX), "end");
        assert_eq!(date_time(1_794_085_494_920), "2026-11-07T21:04:54.92Z");
        assert_eq!(date_time(i64::MAX - 1), "9223372036854775806 ms");
        assert_eq!(bytes(1_536), "1.5 KiB");
    }
}
