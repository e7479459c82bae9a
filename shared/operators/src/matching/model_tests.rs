//! The operators keyed by payment id against naive models: random arrivals of both sides, watermarks and restarts.
//!
//! The n-th arrival of the join has amount or status n: equal pairs mean the same payment and the same confirmation.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::join::{LATE_CONFIRMATIONS, LATE_PAYMENTS};
use super::*;
use crate::model_tests::on_scale;
use crate::testing::{Harness, payment};

const BOTH: PaymentMatching = PaymentMatching { join: true, unconfirmed: true, language: DetailLanguage::En };
const JOIN: PaymentMatching = PaymentMatching { unconfirmed: false, ..BOTH };
const RULE: PaymentMatching = PaymentMatching { join: false, ..BOTH };

const IDS: [&str; 3] = ["p0", "p1", "p2"];

#[derive(Clone, Debug)]
enum Step {
    Pay { id: usize, t: i64 },
    Confirm { id: usize, t: i64 },
    Watermark(i64),
    Restart,
}

fn steps(ids: usize) -> impl Strategy<Value = Vec<Step>> {
    let time = || {
        prop_oneof![
            30 => 0..10_i64,
            30 => (0..4_i64, -2..=11_i64).prop_map(|(intervals, off)| intervals * 300_000 + off),
            10 => 0..1_000_000_i64,
            1 => i64::MAX - 400_000..=i64::MAX,
            1 => i64::MIN..=i64::MIN + 400_000,
        ]
    };
    let step = prop_oneof![
        6 => (0..ids, time()).prop_map(|(id, t)| Step::Pay { id, t }),
        8 => (0..ids, time()).prop_map(|(id, t)| Step::Confirm { id, t }),
        3 => time().prop_map(Step::Watermark),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..40)
}

fn confirmation(id: &str, status: &str, t: i64) -> MatchEvent {
    let confirmation =
        PaymentConfirmation { payment_id: id.to_owned(), status: Some(status.to_owned()), event_time_ms: t };
    MatchEvent::Confirmation(confirmation)
}

/// One arrival that was not late.
#[derive(Clone, Debug)]
struct Side {
    is_payment: bool,
    id: usize,
    t: i64,
    n: usize,
}

impl Side {
    /// The pair of two arrivals: id, payment, confirmation, delay, event time.
    fn pair(&self, other: &Side) -> Option<Pair> {
        let (payment, confirmation) = if self.is_payment { (self, other) } else { (other, self) };
        let delay = i128::from(confirmation.t) - i128::from(payment.t);
        let fits = payment.is_payment
            && !confirmation.is_payment
            && payment.id == confirmation.id
            && (0..=300_000).contains(&delay);
        let t = payment.t.max(confirmation.t);
        fits.then(|| (payment.id, payment.n, confirmation.n, i64::try_from(delay).unwrap(), t))
    }

    /// The watermark at which it is removed.
    fn cleanup(&self) -> i128 {
        on_scale(i128::from(self.t) + if self.is_payment { 300_000 } else { 0 })
    }
}

type Pair = (usize, usize, usize, i64, i64);

/// Every arrival against every one before it.
#[derive(Default)]
struct NaiveJoin {
    kept: Vec<Side>,
    pairs: Vec<Pair>,
    late: [u64; 2],
}

impl NaiveJoin {
    fn arrive(&mut self, side: Side, watermark: EventTime) {
        if side.t < watermark.0 {
            self.late[usize::from(side.is_payment)] += 1;
            return;
        }
        let mut others: Vec<&Side> = self.kept.iter().collect();
        // Stable: of the same time, in order of arrival.
        others.sort_by_key(|other| other.t);
        self.pairs.extend(others.into_iter().filter_map(|other| side.pair(other)));
        self.kept.push(side);
    }

    fn advance(&mut self, watermark: i64) {
        self.kept.retain(|side| side.cleanup() > watermark.into());
    }
}

fn pairs(harness: &Harness<PaymentMatching>) -> Vec<Pair> {
    let number = |text: &Option<String>| text.as_ref().unwrap().parse::<usize>().unwrap();
    let pairs = harness.outputs().iter().map(|(t, output)| {
        let MatchOutput::Confirmed(pair) = output else { panic!("{output:?}") };
        let id = IDS.iter().position(|id| *id == pair.payment_id).unwrap();
        let payment = usize::try_from(pair.amount_minor).unwrap();
        (id, payment, number(&pair.status), pair.confirmation_delay_ms, t.0)
    });
    pairs.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lesson_9_join_agrees_with_every_arrival_against_every_one_before(steps in steps(IDS.len())) {
        let mut harness = Harness::new(JOIN);
        let mut naive = NaiveJoin::default();
        for (n, step) in steps.iter().chain([&Step::Watermark(i64::MAX - 1), &Step::Watermark(i64::MAX)]).enumerate() {
            match *step {
                Step::Pay { id, t } => {
                    naive.arrive(Side { is_payment: true, id, t, n }, harness.watermark());
                    let paid = payment(IDS[id], "c1", "m1", i64::try_from(n).unwrap(), t);
                    harness.process(IDS[id], &MatchEvent::Payment(paid));
                }
                Step::Confirm { id, t } => {
                    naive.arrive(Side { is_payment: false, id, t, n }, harness.watermark());
                    harness.process(IDS[id], &confirmation(IDS[id], &n.to_string(), t));
                }
                Step::Watermark(ms) if EventTime(ms) > harness.watermark() => {
                    harness.advance_watermark(EventTime(ms));
                    naive.advance(ms);
                }
                Step::Watermark(_) => {}
                Step::Restart => harness.restart(),
            }
            prop_assert!(harness.timer_count(TimerDomain::EventTime) <= naive.kept.len());
        }
        prop_assert_eq!(pairs(&harness), naive.pairs);
        prop_assert_eq!([LATE_CONFIRMATIONS, LATE_PAYMENTS].map(|name| harness.counter(name)), naive.late);
        if harness.watermark() == EventTime::MAX && naive.kept.is_empty() {
            prop_assert_eq!((harness.key_count(), harness.timer_count(TimerDomain::EventTime)), (0, 0));
        }
    }

    /// Sharing state and timers, each part does what it does alone, and nothing is left that neither needs.
    #[test]
    fn the_join_and_the_rule_do_not_disturb_each_other(steps in steps(IDS.len())) {
        let mut harnesses = [BOTH, JOIN, RULE].map(Harness::new);
        for (n, step) in steps.iter().chain([&Step::Watermark(i64::MAX - 1), &Step::Watermark(i64::MAX)]).enumerate() {
            for harness in &mut harnesses {
                match *step {
                    Step::Pay { id, t } => {
                        let paid = payment(IDS[id], "c1", "m1", i64::try_from(n).unwrap(), t);
                        harness.process(IDS[id], &MatchEvent::Payment(paid));
                    }
                    Step::Confirm { id, t } => harness.process(IDS[id], &confirmation(IDS[id], &n.to_string(), t)),
                    Step::Watermark(ms) => harness.advance_watermark(EventTime(ms)),
                    Step::Restart => harness.restart(),
                }
            }
            let [both, join, rule] = &harnesses;
            for id in IDS {
                let alone = [join, rule].map(|h| h.timers(id).map_or(&[][..], |t| t.of(TimerDomain::EventTime)));
                let expected: BTreeSet<i64> = alone.into_iter().flatten().copied().collect();
                let shared = both.timers(id).map_or(&[][..], |t| t.of(TimerDomain::EventTime));
                prop_assert_eq!(shared, expected.into_iter().collect::<Vec<_>>());
            }
        }
        let is_pair = |output: &&(EventTime, MatchOutput)| matches!(output.1, MatchOutput::Confirmed(_));
        let [both, join, rule] = harnesses;
        prop_assert_eq!(both.outputs().iter().filter(is_pair).collect::<Vec<_>>(), join.outputs().iter().collect::<Vec<_>>());
        prop_assert_eq!(
            both.outputs().iter().filter(|output| !is_pair(output)).collect::<Vec<_>>(),
            rule.outputs().iter().collect::<Vec<_>>()
        );
        prop_assert_eq!(both.counter(LATE_PAYMENTS), join.counter(LATE_PAYMENTS));
        prop_assert_eq!(both.key_count() == 0, join.key_count() == 0 && rule.key_count() == 0);
    }

    /// At most one payment and one confirmation of an id: an alert unless the confirmation came first and was still
    /// remembered, or came second and before the deadline.
    #[test]
    fn lesson_9_unconfirmed_agrees_with_its_definition(steps in steps(12)) {
        #[derive(Default)]
        struct Id {
            paid: Option<i64>,
            confirmed: Option<i64>,
            is_settled: bool,
        }
        let mut harness = Harness::new(RULE);
        let mut ids: Vec<Id> = (0..12).map(|_| Id::default()).collect();
        let (mut expected, mut memory_of) = (Vec::new(), [false; 12]);
        for step in steps.iter().chain([&Step::Watermark(i64::MAX - 1), &Step::Watermark(i64::MAX)]) {
            match *step {
                Step::Pay { id, t } if ids[id].paid.is_none() => {
                    ids[id].paid = Some(t);
                    ids[id].is_settled = memory_of[id];
                    let paid = payment(&format!("p{id}"), "c1", "m1", 1, t);
                    harness.process(&format!("p{id}"), &MatchEvent::Payment(paid));
                }
                Step::Confirm { id, t } if ids[id].confirmed.is_none() => {
                    ids[id].confirmed = Some(t);
                    memory_of[id] = ids[id].paid.is_none();
                    ids[id].is_settled |= ids[id].paid.is_some();
                    harness.process(&format!("p{id}"), &confirmation(&format!("p{id}"), "OK", t));
                }
                Step::Watermark(ms) if EventTime(ms) > harness.watermark() => {
                    harness.advance_watermark(EventTime(ms));
                    let is_due = |t: i64| on_scale(i128::from(t) + 300_000) <= ms.into();
                    for (id, known) in ids.iter_mut().enumerate() {
                        memory_of[id] &= !known.confirmed.is_some_and(is_due);
                        if !known.is_settled && known.paid.is_some_and(is_due) {
                            known.is_settled = true;
                            expected.push((format!("unconfirmed:p{id}"), known.paid.unwrap()));
                        }
                    }
                }
                Step::Restart => harness.restart(),
                _ => {}
            }
        }
        let found = harness.outputs().iter().map(|(_, output)| {
            let MatchOutput::Alert(alert) = output else { panic!("{output:?}") };
            (alert.alert_id.clone(), alert.event_time_ms)
        });
        let mut found: Vec<_> = found.collect();
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
    }
}
