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
/// Where nobody is at home.
const ABROAD: &str = "XX";
/// A confirmation is less than this many milliseconds after its payment.
const CONFIRMATION_DELAY_MS: i64 = 3000;

/// Many payments at once, against the velocity rule.
const BURST: [Step; 25] = [Step::home(100, 5000); 25];
/// Small payments that probe a stolen card, then a large one that empties it.
const CARD_TESTING: [Step; 6] = {
    let probe = Step::home(100, 300);
    [probe, probe, probe, probe, probe, Step::home(50_000, 50_000)]
};
/// Two payments too close in time for anyone to have travelled between them.
const TRAVEL: [Step; 2] = [Step::home(5000, 0), Step { abroad: true, ..Step::home(5000, 0) }];

/// Makes one line after another. Every draw that decides a record is made in the order given at [`PaymentSource::next`].
///
/// A card pays in its home country only, as from the course's lesson 10 on (before, the country was drawn for every
/// payment): DE, FR, PL, ES or NL by the Java hash of the card id. The only payments elsewhere, in XX, are those of
/// impossible journeys. So a change of country means something.
pub struct PaymentSource {
    config: GeneratorConfig,
    draws: Draws,
    /// Apart from `draws`, so that streams without attacks stay what they were before there were any.
    attack_draws: Draws,
    /// Apart from `draws`, so that the payments are the same whatever share of them is confirmed.
    confirmation_draws: Draws,
    cards: Vec<Card>,
    /// The rest of a burst or attack that has begun.
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
    /// Card testing attacks begun.
    pub card_testing: u64,
    /// Impossible journeys begun.
    pub travel: u64,
    /// Confirmations.
    pub confirmations: u64,
}

/// A record and what the bank says about it, in the order in which they are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The record, a line without its end.
    pub line: &'a str,
    /// Its confirmation, likewise a line; sent at once, although its event time is up to 3 s after the payment's.
    pub confirmation: Option<&'a str>,
}

struct Card {
    id: String,
    country: &'static str,
}

/// One payment of a series.
#[derive(Clone, Copy)]
struct Step {
    /// The least amount.
    least: i64,
    /// How many amounts there are from it on; with 0 it is always the least.
    spread: i64,
    abroad: bool,
}

/// A payment before it becomes text.
#[derive(Clone, Copy)]
struct Draft {
    id: [u64; 2],
    card: usize,
    merchant: usize,
    amount_minor: i64,
    country: &'static str,
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
            let country = home_country(&id);
            Card { id, country }
        };
        Ok(PaymentSource {
            config: config.clone(),
            draws: Draws::new(config.seed, 0),
            attack_draws: Draws::new(config.seed, 2),
            confirmation_draws: Draws::new(config.seed, 1),
            cards: (0..CARDS).map(card).collect(),
            pending: VecDeque::with_capacity(BURST.len()),
            previous: None,
            current: None,
            summary: Summary::default(),
            line: String::with_capacity(256),
            confirmation: String::with_capacity(128),
        })
    }

    /// The record made at `now_ms`, a line without its end: the next payment of a burst or attack under way; else, each
    /// with its share, the first payment of a new burst, of a card testing attack, of an impossible journey, a broken
    /// record, a repeat of the last payment; else an ordinary payment.
    ///
    /// An ordinary payment draws its id (two words), card, merchant, amount and lateness; a burst or attack its card,
    /// then id, merchant and amount of each payment. Payments of one are a millisecond apart, whenever they are asked for,
    /// and never late.
    pub fn next(&mut self, now_ms: i64) -> &str {
        self.summary.records += 1;
        self.current = self.draft(now_ms);
        self.line.clear();
        match self.current {
            Some(draft) => {
                self.previous = Some(draft);
                draft.write(&self.cards[draft.card].id, &mut self.line);
            }
            None => self.line.push_str(BROKEN_RECORD),
        }
        &self.line
    }

    /// As [`PaymentSource::next`], together with the confirmation if the bank sends one. Every payment is confirmed with
    /// the same probability, repeats anew; a broken record never is. The records are those of [`PaymentSource::next`].
    pub fn next_record(&mut self, now_ms: i64) -> Record<'_> {
        self.next(now_ms);
        let confirmed = self.confirm();
        Record { line: &self.line, confirmation: confirmed.then_some(self.confirmation.as_str()) }
    }

    /// Writes the confirmation of the current record into `confirmation`; false when there is none.
    fn confirm(&mut self) -> bool {
        let confirmed = self.confirmation_draws.chance(self.config.confirm);
        let Some(draft) = self.current.filter(|_| confirmed) else { return false };
        let time = draft.event_time_ms.saturating_add(self.confirmation_draws.below(CONFIRMATION_DELAY_MS));
        self.confirmation.clear();
        self.confirmation.push_str("{\"paymentId\":\"");
        draft.write_id(&mut self.confirmation);
        self.confirmation.push_str("\",\"status\":\"APPROVED\",\"eventTimeMs\":");
        push_display(&mut self.confirmation, time);
        self.confirmation.push('}');
        self.summary.confirmations += 1;
        true
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
        let (draws, steps): (&mut Draws, &[Step]) = if self.draws.chance(self.config.burst) {
            self.summary.bursts += 1;
            (&mut self.draws, &BURST)
        } else if self.attack_draws.chance(self.config.card_testing) {
            self.summary.card_testing += 1;
            (&mut self.attack_draws, &CARD_TESTING)
        } else if self.attack_draws.chance(self.config.travel) {
            self.summary.travel += 1;
            (&mut self.attack_draws, &TRAVEL)
        } else {
            return self.single(now_ms);
        };
        self.pending.extend(series(draws, &self.cards, steps, now_ms));
        self.pending.pop_front()
    }

    /// A record that belongs to no series.
    fn single(&mut self, now_ms: i64) -> Option<Draft> {
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
        let id = self.draws.id();
        let card = self.draws.index(CARDS);
        let merchant = merchant(&mut self.draws);
        let amount_minor = 100 + self.draws.below(50_000);
        let late = self.draws.chance(self.config.late);
        let lateness = if late { self.draws.below(self.config.late_max_ms) } else { 0 };
        let event_time_ms = now_ms.saturating_sub(lateness);
        Draft { id, card, merchant, amount_minor, country: self.cards[card].country, event_time_ms }
    }
}

/// The payments of one random card that `steps` asks for, the first at `now_ms`, the others a millisecond apart.
fn series(draws: &mut Draws, cards: &[Card], steps: &[Step], now_ms: i64) -> impl Iterator<Item = Draft> {
    let card = draws.index(cards.len());
    (0..).zip(steps).map(move |(after_ms, step)| Draft {
        id: draws.id(),
        card,
        merchant: merchant(draws),
        amount_minor: step.least + draws.below(step.spread),
        country: if step.abroad { ABROAD } else { cards[card].country },
        event_time_ms: now_ms.saturating_add(after_ms),
    })
}

fn merchant(draws: &mut Draws) -> usize {
    if draws.chance(HOT_MERCHANT_SHARE) { 0 } else { 1 + draws.index(MERCHANTS - 1) }
}

fn home_country(card_id: &str) -> &'static str {
    COUNTRIES[java_string_hash(card_id).rem_euclid(5) as usize]
}

impl Step {
    const fn home(least: i64, spread: i64) -> Step {
        Step { least, spread, abroad: false }
    }
}

impl Draft {
    fn write(&self, card_id: &str, line: &mut String) {
        line.push_str("{\"paymentId\":\"");
        self.write_id(line);
        line.push_str("\",\"cardId\":\"");
        line.push_str(card_id);
        line.push_str("\",\"merchantId\":\"");
        push_display(line, format_args!("m-{:04}", self.merchant));
        line.push_str("\",\"amountMinor\":");
        push_display(line, self.amount_minor);
        line.push_str(",\"currency\":\"EUR\",\"country\":\"");
        line.push_str(self.country);
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
mod attack_tests;
#[cfg(test)]
mod tests;
