//! The sequence rules against a naive pattern matcher that keeps every payment and every partial match, as the
//! course's library does: strict contiguity, a time limit, and after a match nothing that began before its end.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::model_tests::on_scale;
use crate::testing::{Harness, payment};

const CARDS: [&str; 2] = ["c1", "c2"];

#[derive(Clone, Debug)]
enum Step {
    Pay { card: usize, t: i64, amount: i64, country: Option<&'static str> },
    Watermark(i64),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let time = || {
        prop_oneof![
            // Near each other, equal times among them.
            30 => 0..40_i64,
            // Where the time limits of the ones near each other end.
            20 => (0..6_i64, -2..=42_i64).prop_map(|(windows, off)| windows * 300_000 + off),
            10 => 0..1_500_000_i64,
            1 => i64::MAX - 700_000..=i64::MAX,
            1 => i64::MIN..=i64::MIN + 700_000,
        ]
    };
    let amount = prop_oneof![
        8 => Just(100),
        1 => Just(499),
        1 => Just(500),
        1 => Just(30_000),
        1 => Just(30_001),
        3 => Just(90_000),
    ];
    let country = prop_oneof![8 => Just(Some("DE")), 2 => Just(Some("ES")), 1 => Just(Some("FR")), 1 => Just(None)];
    let step = prop_oneof![
        24 => (0..CARDS.len(), time(), amount, country)
            .prop_map(|(card, t, amount, country)| Step::Pay { card, t, amount, country }),
        2 => time().prop_map(Step::Watermark),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..60)
}

/// What a partial match becomes with the next payment.
enum Grown {
    Partial,
    Whole,
}

/// One pattern.
struct Pattern {
    rule_id: &'static str,
    window: i128,
    /// The partial match and the next payment; `None` when the match dies, or does not begin.
    grow: fn(&[Payment], &Payment) -> Option<Grown>,
}

const PATTERNS: [Pattern; 2] = [
    Pattern { rule_id: card_testing::RULE_ID, window: 300_000, grow: grow_card_testing },
    Pattern { rule_id: impossible_travel::RULE_ID, window: 600_000, grow: grow_travel },
];

fn grow_card_testing(partial: &[Payment], next: &Payment) -> Option<Grown> {
    match next.amount_minor {
        ..500 => Some(Grown::Partial),
        30_001.. if partial.len() >= 3 => Some(Grown::Whole),
        _ => None,
    }
}

fn grow_travel(partial: &[Payment], next: &Payment) -> Option<Grown> {
    match partial {
        [] => Some(Grown::Partial),
        [first] if first.country != next.country => Some(Grown::Whole),
        _ => None,
    }
}

fn time_of(payment: &Payment) -> i128 {
    payment.event_time_ms.into()
}

/// All partial matches of one card and pattern, the earliest begun first.
#[derive(Default)]
struct Matcher {
    partials: Vec<Vec<Payment>>,
}

impl Matcher {
    /// The match this payment ends.
    fn feed(&mut self, pattern: &Pattern, next: &Payment) -> Option<Vec<Payment>> {
        let mut partials = std::mem::take(&mut self.partials);
        partials.retain(|partial| time_of(next) - time_of(&partial[0]) < pattern.window);
        partials.push(Vec::new());
        let mut matches = Vec::new();
        for mut partial in partials {
            let grown = (pattern.grow)(&partial, next);
            partial.push(next.clone());
            match grown {
                Some(Grown::Partial) => self.partials.push(partial),
                Some(Grown::Whole) => matches.push(partial),
                None => {}
            }
        }
        // Past the last payment of the match that began first: every other one began before that payment.
        let found = matches.into_iter().next()?;
        self.partials.clear();
        Some(found)
    }
}

/// Rule, event time, ids, span.
type Alert = (String, i64, Vec<String>, i64);

/// All cards.
struct Naive {
    rules: Vec<&'static Pattern>,
    watermark: i64,
    waiting: Vec<Payment>,
    matchers: BTreeMap<(String, &'static str), Matcher>,
    /// By card, in order.
    alerts: BTreeMap<String, Vec<Alert>>,
    late: u64,
    /// Card to the last time at which something of it was shown to a matcher.
    last_fed: BTreeMap<String, i64>,
}

impl Naive {
    fn new(card_testing: bool, travel: bool) -> Naive {
        let rules = PATTERNS.iter().zip([card_testing, travel]).filter(|(_, on)| *on).map(|(pattern, _)| pattern);
        Naive {
            rules: rules.collect(),
            watermark: i64::MIN,
            waiting: Vec::new(),
            matchers: BTreeMap::new(),
            alerts: BTreeMap::new(),
            late: 0,
            last_fed: BTreeMap::new(),
        }
    }

    fn pay(&mut self, payment: &Payment) {
        if payment.event_time_ms <= self.watermark {
            self.late += 1;
        } else if !self.rules.is_empty() {
            self.waiting.push(payment.clone());
        }
    }

    fn advance(&mut self, watermark: i64) {
        self.watermark = watermark;
        // Stable: payments of the same time stay in order of arrival.
        self.waiting.sort_by_key(|payment| payment.event_time_ms);
        let due = self.waiting.partition_point(|payment| payment.event_time_ms <= watermark);
        for payment in self.waiting.drain(..due).collect::<Vec<_>>() {
            self.last_fed.insert(payment.card_id.clone(), payment.event_time_ms);
            for pattern in &self.rules {
                let matcher = self.matchers.entry((payment.card_id.clone(), pattern.rule_id)).or_default();
                if let Some(found) = matcher.feed(pattern, &payment) {
                    let found = &found[found.len().saturating_sub(card_testing::MAX_PROBES + 1)..];
                    let ids = found.iter().map(|payment| payment.payment_id.clone()).collect();
                    let span = i64::try_from(time_of(&payment) - time_of(&found[0])).unwrap();
                    let alert = (pattern.rule_id.to_owned(), payment.event_time_ms, ids, span);
                    self.alerts.entry(payment.card_id.clone()).or_default().push(alert);
                }
            }
        }
    }

    /// The most timers there may be: one for every card and time that waits, and one a card.
    fn timers(&self) -> usize {
        let waiting: BTreeSet<_> =
            self.waiting.iter().map(|payment| (&payment.card_id, payment.event_time_ms)).collect();
        waiting.len() + self.last_fed.len()
    }

    /// Whether the state of a card may be kept: something waits, or the last payment can still begin a match.
    fn may_be_kept(&self, card: &str) -> bool {
        let is_live = |&last: &i64| on_scale(i128::from(last) + 600_000) > self.watermark.into();
        self.waiting.iter().any(|payment| payment.card_id == card) || self.last_fed.get(card).is_some_and(is_live)
    }
}

/// The alerts by card, in order; checks that each tells its trigger.
fn found(harness: &Harness<SequenceRules>) -> BTreeMap<String, Vec<Alert>> {
    let mut found: BTreeMap<String, Vec<Alert>> = BTreeMap::new();
    for (t, alert) in harness.outputs() {
        let decision = alert.decision.clone().unwrap();
        assert_eq!(t.0, alert.event_time_ms);
        assert_eq!(decision.payments.last(), Some(&alert.payment_id));
        assert_eq!(alert.alert_id, format!("{}:{}", alert.rule_id, alert.payment_id));
        assert_eq!(format!("p{}", decision.source_offset), alert.payment_id);
        assert_eq!((alert.merchant_id.as_str(), decision.source_partition), ("m1", 3));
        let shown = (alert.rule_id.clone(), t.0, decision.payments, decision.facts[0].value);
        found.entry(alert.card_id.clone()).or_default().push(shown);
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lesson_10_sequences_agree_with_all_partial_matches(
        steps in steps(),
        card_testing in prop::bool::weighted(0.8),
        impossible_travel in prop::bool::weighted(0.8),
    ) {
        let language = DetailLanguage::En;
        let mut harness = Harness::new(SequenceRules { card_testing, impossible_travel, language });
        let mut naive = Naive::new(card_testing, impossible_travel);
        for (n, step) in steps.iter().chain([&Step::Watermark(i64::MAX)]).enumerate() {
            match *step {
                Step::Pay { card, t, amount, country } => {
                    let paid = Payment {
                        country: country.map(str::to_owned),
                        source_partition: 3,
                        source_offset: i64::try_from(n).unwrap(),
                        ..payment(&format!("p{n}"), CARDS[card], "m1", amount, t)
                    };
                    harness.process(CARDS[card], &paid);
                    naive.pay(&paid);
                }
                Step::Watermark(ms) if EventTime(ms) > harness.watermark() => {
                    harness.advance_watermark(EventTime(ms));
                    naive.advance(ms);
                }
                Step::Watermark(_) => {}
                Step::Restart => harness.restart(),
            }
            prop_assert!(harness.timer_count(TimerDomain::EventTime) <= naive.timers());
            for card in CARDS {
                prop_assert!(harness.state(card).is_none() || naive.may_be_kept(card), "{} is not forgotten", card);
            }
        }
        prop_assert_eq!(found(&harness), naive.alerts);
        prop_assert_eq!(harness.counter(CARD_TESTING_LATE), if card_testing { naive.late } else { 0 });
        prop_assert_eq!(harness.counter(IMPOSSIBLE_TRAVEL_LATE), if impossible_travel { naive.late } else { 0 });
        prop_assert_eq!((harness.key_count(), harness.timer_count(TimerDomain::EventTime)), (0, 0));
    }
}
