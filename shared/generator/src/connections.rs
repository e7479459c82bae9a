//! Steps of connection attempts, in the order in which they arrive.
//!
//! Sessions begin at an even pace, or twenty times as many for a second when a burst comes. A session takes the four
//! steps one after the other; a step may fail, and then is tried again or is the session's last. Every event arrives
//! shortly after it happened, some up to ten seconds later, which is within the bound of disorder, some later still.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use payguard_model::Step;

use crate::config::ConfigError;
use crate::draws::Draws;

/// The raw events, one a line, broken ones included.
pub const CONNECTIONS_FILE: &str = "connections.jsonl";

/// Events of an ordinary session, roughly: how many sessions a rate of events is.
const EVENTS_PER_SESSION: f64 = 4.2;
const CLIENTS: usize = 100_000;
/// An ordinary event arrives within this many milliseconds.
const NETWORK_MS: i64 = 50;
/// An event out of order arrives up to so much later.
const OUT_OF_ORDER_MS: i64 = 10_000;
/// A burst: so many times as many sessions, for so long.
const BURST_FACTOR: f64 = 20.0;
const BURST_MS: f64 = 1_000.0;
/// From one step to the next, and from a failure to the next try.
const STEP_MS: i64 = 400;
const RETRY_MS: i64 = 2_000;
/// No step is tried more often.
const MOST_TRIES: usize = 4;
const REASONS: [&str; 3] = ["timeout", "rejected", "no answer"];
/// What broken records look like: one for every reason of a refusal.
const BROKEN: [&str; 5] = [
    "{\"sessionId\": broken",
    r#"{"sessionId":"","clientId":"c-0","step":"auth","status":"ok","reason":null,"eventTimeMs":1}"#,
    r#"{"sessionId":"s-0","clientId":"c-0","step":"roam","status":"ok","reason":null,"eventTimeMs":1}"#,
    r#"{"sessionId":"s-0","clientId":"c-0","step":"auth","status":"maybe","reason":null,"eventTimeMs":1}"#,
    r#"{"sessionId":"s-0","clientId":"c-0","step":"auth","status":"ok","reason":null,"eventTimeMs":0}"#,
];
const BUFFER: usize = 1 << 20;
const PROGRESS_EVERY: u64 = 10_000;

/// The options of a stream. Shares are probabilities from 0 to 1.
#[derive(Clone, PartialEq, Debug)]
pub struct ConnectionConfig {
    /// How many records [`write_connections`] writes.
    pub records: u64,
    /// Events a second of event time, roughly, bursts not counted.
    pub rate: u32,
    /// Share of the events that arrive up to ten seconds late.
    pub out_of_order: f64,
    /// Share of the events that arrive later than that.
    pub late: f64,
    /// A late event is less than this many milliseconds late.
    pub late_max_ms: i64,
    /// Probability, for every second, that a burst begins.
    pub burst: f64,
    /// Share of the steps that fail.
    pub failures: f64,
    /// Share of the failures after which the step is tried again.
    pub retries: f64,
    /// Share of broken records.
    pub bad: f64,
    /// Seed of every draw.
    pub seed: u64,
    /// When the first session begins, in milliseconds since the Unix epoch.
    pub start_ms: i64,
}

impl Default for ConnectionConfig {
    fn default() -> ConnectionConfig {
        ConnectionConfig {
            records: 100_000,
            rate: 2_000,
            out_of_order: 0.1,
            late: 0.002,
            late_max_ms: 60_000,
            burst: 0.02,
            failures: 0.05,
            retries: 0.7,
            bad: 0.001,
            seed: 42,
            start_ms: 1_794_085_500_000,
        }
    }
}

impl ConnectionConfig {
    /// Checks every option.
    ///
    /// # Errors
    /// The first option that has an impossible value.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (option, value) in [
            ("out-of-order", self.out_of_order),
            ("late", self.late),
            ("burst", self.burst),
            ("failures", self.failures),
            ("retries", self.retries),
            ("bad", self.bad),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(ConfigError::Share { option, value });
            }
        }
        crate::config::check_rate(self.rate)?;
        if self.late_max_ms < 0 {
            return Err(ConfigError::LateMax(self.late_max_ms));
        }
        Ok(())
    }
}

/// How many of what a source has made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ConnectionSummary {
    /// Lines of all kinds.
    pub records: u64,
    /// Broken records among them.
    pub bad: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Events made, arrived or not, that arrive out of order.
    pub out_of_order: u64,
    /// Events made, arrived or not, that arrive late.
    pub late: u64,
    /// Bursts begun.
    pub bursts: u64,
}

/// An event on its way, ordered by its arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Underway {
    arrives_ms: i64,
    number: u64,
    event_time_ms: i64,
    session: u64,
    client: usize,
    step: Step,
    /// Why it failed; `None`: it succeeded.
    reason: Option<usize>,
}

/// Makes one line after another, by arrival.
pub struct ConnectionSource {
    config: ConnectionConfig,
    draws: Draws,
    underway: BinaryHeap<Reverse<Underway>>,
    /// When the next session begins, milliseconds after the start.
    clock_ms: f64,
    burst_until_ms: f64,
    /// The second for which a burst was drawn last.
    second: i64,
    made: u64,
    summary: ConnectionSummary,
    line: String,
}

impl ConnectionSource {
    /// A source at its beginning. `records` is not used: the caller says when to stop.
    ///
    /// # Errors
    /// When the configuration is not valid.
    pub fn new(config: &ConnectionConfig) -> Result<ConnectionSource, ConfigError> {
        config.validate()?;
        Ok(ConnectionSource {
            config: config.clone(),
            draws: Draws::new(config.seed, 3),
            underway: BinaryHeap::new(),
            clock_ms: 0.0,
            burst_until_ms: 0.0,
            second: -1,
            made: 0,
            summary: ConnectionSummary::default(),
            line: String::with_capacity(256),
        })
    }

    /// The record that arrives next, a line without its end.
    pub fn next_record(&mut self) -> &str {
        // What arrives before the next session begins is known.
        while self.underway.peek().is_none_or(|Reverse(first)| first.arrives_ms > self.now_ms()) {
            self.begin_session();
        }
        self.take()
    }

    /// The record that arrives next, if that is at or before `now_ms`.
    pub fn next_until(&mut self, now_ms: i64) -> Option<&str> {
        while self.now_ms() <= now_ms {
            self.begin_session();
        }
        let has_arrived = self.underway.peek().is_some_and(|Reverse(first)| first.arrives_ms <= now_ms);
        has_arrived.then(|| self.take())
    }

    /// What was made so far.
    #[must_use]
    pub fn summary(&self) -> ConnectionSummary {
        self.summary
    }

    fn now_ms(&self) -> i64 {
        self.config.start_ms.saturating_add(self.clock_ms as i64)
    }

    fn take(&mut self) -> &str {
        self.summary.records += 1;
        self.line.clear();
        let Some(Reverse(event)) = self.underway.pop() else { return &self.line };
        if self.draws.chance(self.config.bad) {
            self.line.push_str(BROKEN[self.draws.index(BROKEN.len())]);
            self.summary.bad += 1;
        } else {
            event.write(&mut self.line);
        }
        &self.line
    }

    fn begin_session(&mut self) {
        let pace = f64::from(self.config.rate) / EVENTS_PER_SESSION / 1_000.0;
        let second = (self.clock_ms / 1_000.0) as i64;
        if second > self.second {
            self.second = second;
            if self.draws.chance(self.config.burst) {
                self.burst_until_ms = self.clock_ms + BURST_MS;
                self.summary.bursts += 1;
            }
        }
        let factor = if self.clock_ms < self.burst_until_ms { BURST_FACTOR } else { 1.0 };
        let session = self.summary.sessions;
        self.summary.sessions += 1;
        self.make_session(session);
        self.clock_ms += 1.0 / (pace * factor);
    }

    fn make_session(&mut self, session: u64) {
        let (client, mut time) = (self.draws.index(CLIENTS), self.now_ms());
        for step in Step::ALL {
            for tried in 1..=MOST_TRIES {
                let failed = self.draws.chance(self.config.failures);
                let reason = failed.then(|| self.draws.index(REASONS.len()));
                self.send(Underway { arrives_ms: 0, number: 0, event_time_ms: time, session, client, step, reason });
                time += 1 + self.draws.below(if failed { RETRY_MS } else { STEP_MS });
                if !failed {
                    break;
                }
                if tried == MOST_TRIES || !self.draws.chance(self.config.retries) {
                    return;
                }
            }
        }
    }

    fn send(&mut self, event: Underway) {
        let mut delay = self.draws.below(NETWORK_MS);
        if self.draws.chance(self.config.late) {
            delay = OUT_OF_ORDER_MS + self.draws.below((self.config.late_max_ms - OUT_OF_ORDER_MS).max(0));
            self.summary.late += 1;
        } else if self.draws.chance(self.config.out_of_order) {
            delay = self.draws.below(OUT_OF_ORDER_MS);
            self.summary.out_of_order += 1;
        }
        let (arrives_ms, number) = (event.event_time_ms.saturating_add(delay), self.made);
        self.made += 1;
        self.underway.push(Reverse(Underway { arrives_ms, number, ..event }));
    }
}

impl Underway {
    fn write(&self, line: &mut String) {
        let (status, step) = (if self.reason.is_none() { "ok" } else { "fail" }, self.step.name());
        // Writing to a string cannot fail.
        let _ =
            write!(line, r#"{{"sessionId":"s-{:08}","clientId":"c-{:05}","step":"{step}","#, self.session, self.client);
        let _ = write!(line, r#""status":"{status}","reason":"#);
        match self.reason {
            Some(reason) => {
                let _ = write!(line, r#""{}""#, REASONS[reason]);
            }
            None => line.push_str("null"),
        }
        let _ = write!(line, r#","eventTimeMs":{}}}"#, self.event_time_ms);
    }
}

/// Writes the `records` records of `config` into the folder `dir`, made if it is not there. Calls `progress` with the
/// number of records written, every 10,000 records and at the end.
///
/// # Errors
/// `InvalidInput` when the configuration is not valid, otherwise what the file system says.
pub fn write_connections(
    config: &ConnectionConfig,
    dir: &Path,
    mut progress: impl FnMut(u64),
) -> io::Result<ConnectionSummary> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    let mut source = ConnectionSource::new(config).map_err(invalid)?;
    fs::create_dir_all(dir)?;
    let mut file = BufWriter::with_capacity(BUFFER, File::create(dir.join(CONNECTIONS_FILE))?);
    for written in 1..=config.records {
        file.write_all(source.next_record().as_bytes())?;
        file.write_all(b"\n")?;
        if written % PROGRESS_EVERY == 0 && written != config.records {
            progress(written);
        }
    }
    file.flush()?;
    progress(config.records);
    Ok(source.summary())
}

#[cfg(test)]
mod tests;
