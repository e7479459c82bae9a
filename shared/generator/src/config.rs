//! What a generated stream consists of.

/// Most records a second; more would only round every record to the same millisecond a thousand times over.
const MAX_RATE: u32 = 1_000_000;

/// The options of a stream. Shares are probabilities from 0 to 1.
#[derive(Clone, PartialEq, Debug)]
pub struct GeneratorConfig {
    /// How many records [`crate::write_files`] writes.
    pub records: u64,
    /// Records a second of event time.
    pub rate: u32,
    /// Share of the ordinary payments that come late.
    pub late: f64,
    /// A late payment is less than this many milliseconds late.
    pub late_max_ms: i64,
    /// Share of repeats of the last payment, byte for byte.
    pub dup: f64,
    /// Share of broken records.
    pub bad: f64,
    /// Probability that a burst starts: 25 small payments of one card, a millisecond apart.
    pub burst: f64,
    /// Probability that a card testing attack starts: five small payments of one card and a large one, a millisecond
    /// apart.
    pub card_testing: f64,
    /// Probability that an impossible journey starts: a payment at home and, a millisecond later, one abroad.
    pub travel: f64,
    /// Share of the payments, repeats included, that the bank confirms.
    pub confirm: f64,
    /// Seed of every draw.
    pub seed: u64,
    /// When the first record is made, in milliseconds since the Unix epoch.
    pub start_ms: i64,
}

impl Default for GeneratorConfig {
    fn default() -> GeneratorConfig {
        GeneratorConfig {
            records: 100_000,
            rate: 100,
            late: 0.05,
            late_max_ms: 30_000,
            dup: 0.0,
            bad: 0.0,
            burst: 0.0,
            card_testing: 0.0,
            travel: 0.0,
            confirm: 0.95,
            seed: 42,
            start_ms: 1_794_085_500_000,
        }
    }
}

impl GeneratorConfig {
    /// Checks every option.
    ///
    /// # Errors
    /// The first option that has an impossible value.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (option, value) in [
            ("late", self.late),
            ("dup", self.dup),
            ("bad", self.bad),
            ("burst", self.burst),
            ("card-testing", self.card_testing),
            ("travel", self.travel),
            ("confirm", self.confirm),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(ConfigError::Share { option, value });
            }
        }
        check_rate(self.rate)?;
        if self.late_max_ms < 0 {
            return Err(ConfigError::LateMax(self.late_max_ms));
        }
        Ok(())
    }

    /// When record `index` (from 0) is made, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn created_at(&self, index: u64) -> i64 {
        let elapsed = u128::from(index) * 1000 / u128::from(self.rate.max(1));
        self.start_ms.saturating_add(i64::try_from(elapsed).unwrap_or(i64::MAX))
    }
}

/// Checks records a second.
pub(crate) fn check_rate(rate: u32) -> Result<(), ConfigError> {
    if (1..=MAX_RATE).contains(&rate) { Ok(()) } else { Err(ConfigError::Rate(rate)) }
}

/// An option with an impossible value.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A share is not a probability.
    #[error("--{option} must be between 0 and 1, got {value}")]
    Share {
        /// Name of the option, without dashes.
        option: &'static str,
        /// The value it was given.
        value: f64,
    },
    /// The rate is zero or absurd.
    #[error("--rate must be between 1 and {MAX_RATE}, got {0}")]
    Rate(u32),
    /// The greatest lateness is negative.
    #[error("--late-max-ms must not be negative, got {0}")]
    LateMax(i64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lesson_01_share_outside_range_is_rejected() {
        let base = GeneratorConfig::default();
        let message = |config: GeneratorConfig| config.validate().expect_err("refused").to_string();
        assert_eq!(message(GeneratorConfig { dup: 1.5, ..base.clone() }), "--dup must be between 0 and 1, got 1.5");
        assert_eq!(message(GeneratorConfig { late: -0.1, ..base.clone() }), "--late must be between 0 and 1, got -0.1");
        let not_a_number = GeneratorConfig { confirm: f64::NAN, ..base.clone() };
        assert_eq!(message(not_a_number), "--confirm must be between 0 and 1, got NaN");
        assert!(GeneratorConfig { bad: 1.0, burst: 0.0, ..base }.validate().is_ok());
    }

    #[test]
    fn lessons_09_and_10_shares_outside_range_are_rejected() {
        type Set = fn(&mut GeneratorConfig, f64);
        let options: [(&str, Set); 3] = [
            ("confirm", |config, share| config.confirm = share),
            ("card-testing", |config, share| config.card_testing = share),
            ("travel", |config, share| config.travel = share),
        ];
        for (option, set) in options {
            let outcome = |share| {
                let mut config = GeneratorConfig::default();
                set(&mut config, share);
                config.validate().map_err(|error| error.to_string())
            };
            for share in [0.0, 0.5, 1.0] {
                assert_eq!(outcome(share), Ok(()), "{option} {share}");
            }
            for share in [-0.001, 1.001, f64::INFINITY, f64::NAN] {
                assert_eq!(outcome(share), Err(format!("--{option} must be between 0 and 1, got {share}")));
            }
        }
    }

    #[test]
    fn lessons_09_and_10_defaults() {
        let config = GeneratorConfig::default();
        assert_eq!((config.confirm, config.card_testing, config.travel), (0.95, 0.0, 0.0));
    }

    #[test]
    fn rate_and_lateness_are_checked() {
        let base = GeneratorConfig::default();
        assert_eq!(GeneratorConfig { rate: 0, ..base.clone() }.validate(), Err(ConfigError::Rate(0)));
        assert_eq!(GeneratorConfig { late_max_ms: -1, ..base }.validate(), Err(ConfigError::LateMax(-1)));
    }

    #[test]
    fn records_are_spread_over_event_time() {
        let config = GeneratorConfig { rate: 300, start_ms: 1000, ..GeneratorConfig::default() };
        assert_eq!([0, 1, 2, 3, 300].map(|i| config.created_at(i)), [1000, 1003, 1006, 1010, 2000]);
        assert_eq!(config.created_at(u64::MAX), i64::MAX, "no overflow");
    }
}
