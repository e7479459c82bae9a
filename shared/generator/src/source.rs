//! Which record comes next.

use crate::config::{ConfigError, GeneratorConfig};
use crate::draws::Draws;
use payguard_model::key_group::java_string_hash;
use std::collections::VecDeque;
use std::fmt::Write;

/// The line that stands for a broken record.
pub const BROKEN_RECORD: &str = "{\"paymentId\": broken";

const CARDS: usize = 5000;
const MERCHANTS: usize = 50;
/// Merchant 0 gets this share of the payments, the others the rest evenly.
const HOT_MERCHANT_SHARE: f64 = 0.3;
const COUNTRIES: [&str; 5] = ["DE", "FR", "PL", "ES", "NL"];
const BURST_SIZE: usize = 25;
/// A confirmation is less than this many milliseconds after its payment.
const CONFIRMATION_DELAY_MS: i64 = 3000;

/// Makes one line after another. Every draw that decides a record is made in the order given at [`PaymentSource::next`].
///
/// A card pays in its home country only, as from the course's lesson 10 on (before, the country was drawn for every
/// payment): DE, FR, PL, ES or NL by the Java hash of the card id. So a change of country means something.
pub struct PaymentSource {
    config: GeneratorConfig,
    draws: Draws,
    /// Apart from `draws`, so that the payments are the same whatever share of them is confirmed.
    confirmation_draws: Draws,
    cards: Vec<Card>,
    /// The rest of a burst that has begun.
    pending: VecDeque<Draft>,
    /// The last payment, which a repeat repeats.
    previous: Option<Draft>,
    /// The record given last, unless it was broken.
    current: Option<Draft>,
    summary: Summary,
    line: String,
    confirmation: String,
}

/// How many of what a source has made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// Lines of all kinds, confirmations not counted.
    pub records: u64,
    /// Broken records among them.
    pub bad: u64,
    /// Repeats among them.
    pub duplicates: u64,
    /// Bursts begun.
    pub bursts: u64,
    /// Confirmations.
    pub confirmations: u64,
}

struct Card {
    id: String,
    country: &'static str,
}

/// A payment before it becomes text.
#[derive(Clone, Copy)]
struct Draft {
    id: [u64; 2],
    card: usize,
    merchant: usize,
    amount_minor: i64,
    event_time_ms: i64,
}

impl PaymentSource {
    /// A source at its beginning. `records`, `rate` and `start_ms` are not used: the caller says when to stop and what
    /// time it is.
    ///
    /// # Errors
    /// When the configuration is not valid.
    pub fn new(config: &GeneratorConfig) -> Result<PaymentSource, ConfigError> {
        config.validate()?;
        let card = |number| {
            let id = format!("c-{number:04}");
            let country = java_string_hash(&id).rem_euclid(5) as usize;
            Card { id, country: COUNTRIES[country] }
        };
        Ok(PaymentSource {
            config: config.clone(),
            draws: Draws::new(config.seed, 0),
            confirmation_draws: Draws::new(config.seed, 1),
            cards: (0..CARDS).map(card).collect(),
            pending: VecDeque::with_capacity(BURST_SIZE),
            previous: None,
            current: None,
            summary: Summary::default(),
            line: String::with_capacity(256),
            confirmation: String::with_capacity(128),
        })
    }

    /// The record made at `now_ms`, a line without its end: the next payment of a burst under way; else, each with its
    /// share, the first payment of a new burst, a broken record, a repeat of the last payment; else an ordinary payment.
    ///
    /// An ordinary payment draws its id (two words), card, merchant, amount and lateness; a burst its card, then id,
    /// merchant and amount of each payment.
    pub fn next(&mut self, now_ms: i64) -> &str {
        self.summary.records += 1;
        self.current = self.draft(now_ms);
        self.line.clear();
        match self.current {
            Some(draft) => {
                self.previous = Some(draft);
                draft.write(&self.cards[draft.card], &mut self.line);
            }
            None => self.line.push_str(BROKEN_RECORD),
        }
        &self.line
    }

    /// The confirmation of the record that [`PaymentSource::next`] gave last, if the bank sends one; a broken record
    /// gets none. Ask once for a record: each call draws anew.
    pub fn confirmation(&mut self) -> Option<&str> {
        let confirmed = self.confirmation_draws.chance(self.config.confirm);
        let draft = self.current.filter(|_| confirmed)?;
        let time = draft.event_time_ms.saturating_add(self.confirmation_draws.below(CONFIRMATION_DELAY_MS));
        self.confirmation.clear();
        self.confirmation.push_str("{\"paymentId\":\"");
        draft.write_id(&mut self.confirmation);
        self.confirmation.push_str("\",\"status\":\"APPROVED\",\"eventTimeMs\":");
        push_display(&mut self.confirmation, time);
        self.confirmation.push('}');
        self.summary.confirmations += 1;
        Some(&self.confirmation)
    }

    /// What was made so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// The next payment; `None` is a broken record.
    fn draft(&mut self, now_ms: i64) -> Option<Draft> {
        if let Some(draft) = self.pending.pop_front() {
            return Some(draft);
        }
        if self.draws.chance(self.config.burst) {
            self.summary.bursts += 1;
            self.begin_burst(now_ms);
            return self.pending.pop_front();
        }
        if self.draws.chance(self.config.bad) {
            self.summary.bad += 1;
            return None;
        }
        if let Some(previous) = self.previous
            && self.draws.chance(self.config.dup)
        {
            self.summary.duplicates += 1;
            return Some(previous);
        }
        Some(self.ordinary(now_ms))
    }

    fn ordinary(&mut self, now_ms: i64) -> Draft {
        let id = self.id();
        let card = self.draws.index(CARDS);
        let merchant = self.merchant();
        let amount_minor = 100 + self.draws.below(50_000);
        let late = self.draws.chance(self.config.late);
        let lateness = if late { self.draws.below(self.config.late_max_ms) } else { 0 };
        Draft { id, card, merchant, amount_minor, event_time_ms: now_ms.saturating_sub(lateness) }
    }

    fn begin_burst(&mut self, now_ms: i64) {
        let card = self.draws.index(CARDS);
        for after_ms in (0..).take(BURST_SIZE) {
            let id = self.id();
            let merchant = self.merchant();
            let amount_minor = 100 + self.draws.below(5000);
            let event_time_ms = now_ms.saturating_add(after_ms);
            self.pending.push_back(Draft { id, card, merchant, amount_minor, event_time_ms });
        }
    }

    fn id(&mut self) -> [u64; 2] {
        [self.draws.bits(), self.draws.bits()]
    }

    fn merchant(&mut self) -> usize {
        if self.draws.chance(HOT_MERCHANT_SHARE) { 0 } else { 1 + self.draws.index(MERCHANTS - 1) }
    }
}

impl Draft {
    fn write(&self, card: &Card, line: &mut String) {
        line.push_str("{\"paymentId\":\"");
        self.write_id(line);
        line.push_str("\",\"cardId\":\"");
        line.push_str(&card.id);
        line.push_str("\",\"merchantId\":\"");
        push_display(line, format_args!("m-{:04}", self.merchant));
        line.push_str("\",\"amountMinor\":");
        push_display(line, self.amount_minor);
        line.push_str(",\"currency\":\"EUR\",\"country\":\"");
        line.push_str(card.country);
        line.push_str("\",\"eventTimeMs\":");
        push_display(line, self.event_time_ms);
        line.push('}');
    }

    /// The id as UUID text; its version bits are random like all others.
    fn write_id(&self, line: &mut String) {
        const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
        for nibble in 0..32 {
            if matches!(nibble, 8 | 12 | 16 | 20) {
                line.push('-');
            }
            let word = self.id[nibble / 16];
            line.push(HEX[(word >> (60 - 4 * (nibble % 16))) as usize & 15]);
        }
    }
}

fn push_display(line: &mut String, value: impl std::fmt::Display) {
    // Writing to a string cannot fail.
    let _ = write!(line, "{value}");
}

#[cfg(test)]
mod tests;
