//! The operators against naive models that keep every payment: random payments (out of order, late, at the ends of the
//! scale), watermarks and restarts between them.
//!
//! The n-th payment is `p<n>` and, where payments are summed, its amount is 2ⁿ: equal sums mean the same payments, each
//! counted once.

use std::collections::BTreeMap;

use payguard_model::{EventTime, FraudAlert, Payment};
use proptest::prelude::*;

use crate::amount_spike::AmountSpikeRule;
use crate::card_sessions::{CardSessionWindow, LATE_DROPPED};
use crate::detail::DetailLanguage;
use crate::merchant_stats::{LATE_FIRINGS, MerchantStatsWindow, Output, TOO_LATE};
use crate::testing::{Harness, payment};
use crate::velocity::VelocityRule;
use crate::{KeyedOperator, RuleState, TimerDomain, amount_spike, velocity};

pub(crate) const KEYS: [&str; 3] = ["k0", "k1", "k2"];
const LAST: i128 = i64::MAX as i128;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Pay { key: usize, t: i64 },
    Watermark(i64),
    Restart,
}

/// Times up to `span` ms, seldom at the ends of the scale; fewer than 60 payments.
pub(crate) fn steps(span: i64) -> impl Strategy<Value = Vec<Step>> {
    let time = prop_oneof![
        40 => 1..span,
        // Where windows, buckets and pauses begin and end.
        20 => (0..span / 10_000, -2..=2_i64).prop_map(|(tens, off)| (tens * 10_000 + off).max(1)),
        1 => i64::MAX - 100_000..=i64::MAX,
        1 => i64::MIN..i64::MIN + 100_000,
    ];
    // A watermark at the end of the scale ends everything: mostly left to the end of the test.
    let watermark = prop_oneof![
        60 => 1..span,
        30 => (0..span / 10_000, -2..=1_i64).prop_map(|(tens, off)| tens * 10_000 + off),
        1 => i64::MAX - 100_000..=i64::MAX,
    ];
    let step = prop_oneof![
        12 => (0..KEYS.len(), time).prop_map(|(key, t)| Step::Pay { key, t }),
        3 => watermark.prop_map(Step::Watermark),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..60)
}

/// An end as an operator computes it: it stops at the end of the scale.
pub(crate) fn on_scale(time: i128) -> i128 {
    time.min(LAST)
}

pub(crate) fn paid(n: usize, key: usize, t: i64) -> Payment {
    payment(&format!("p{n}"), KEYS[key], KEYS[key], 1 << n, t)
}

/// Runs the steps with `model` told of the same things: a payment or a greater watermark.
fn drive<O: KeyedOperator<Event = Payment>>(
    operator: O,
    steps: &[Step],
    mut model: impl FnMut(&Harness<O>, Result<&Payment, EventTime>),
) -> Harness<O> {
    let mut harness = Harness::new(operator);
    for (n, step) in steps.iter().chain([&Step::Watermark(i64::MAX)]).enumerate() {
        match *step {
            Step::Pay { key, t } => {
                let payment = paid(n, key, t);
                harness.process(KEYS[key], &payment);
                model(&harness, Ok(&payment));
            }
            Step::Watermark(ms) if EventTime(ms) > harness.watermark() => {
                harness.advance_watermark(EventTime(ms));
                model(&harness, Err(EventTime(ms)));
            }
            Step::Watermark(_) => {}
            Step::Restart => harness.restart(),
        }
    }
    harness
}

/// A rule by its definition: all payments of the card whose bucket was not evicted and ends after `t − window`.
struct NaiveRule {
    window: i128,
    bucket: i128,
    limit: i128,
    /// Card, end of the bucket, value.
    kept: Vec<(String, i128, i128)>,
    last_alert: BTreeMap<String, i128>,
    /// Alert id and sum.
    alerts: Vec<(String, i128)>,
}

impl NaiveRule {
    fn new(window: i64, bucket: i64, limit: i64) -> NaiveRule {
        let (window, bucket, limit) = (window.into(), bucket.into(), limit.into());
        NaiveRule { window, bucket, limit, kept: Vec::new(), last_alert: BTreeMap::new(), alerts: Vec::new() }
    }

    fn pay(&mut self, rule_id: &str, payment: &Payment, value: i64) {
        let (card, t) = (&payment.card_id, i128::from(payment.event_time_ms));
        let end = t - t.rem_euclid(self.bucket) + self.bucket;
        self.kept.push((card.clone(), end, value.into()));
        let counted = self.kept.iter().filter(|(other, end, _)| other == card && *end > t - self.window);
        let sum: i128 = counted.map(|(_, _, value)| value).sum();
        let is_quiet = self.last_alert.get(card).is_some_and(|last| t - last < self.window);
        if sum > self.limit && !is_quiet {
            self.last_alert.insert(card.clone(), t);
            self.alerts.push((format!("{rule_id}:{}", payment.payment_id), sum));
        }
    }

    fn advance(&mut self, watermark: EventTime) {
        self.kept.retain(|(_, end, _)| on_scale(end + self.window) > watermark.0.into());
    }
}

fn check_rule<O>(
    operator: O,
    naive: NaiveRule,
    rule_id: &str,
    steps: &[Step],
    value: fn(&Payment) -> i64,
    detail: fn(i64) -> String,
) where
    O: KeyedOperator<Event = Payment, State = RuleState, Output = FraudAlert>,
{
    let mut naive = naive;
    let harness = drive(operator, steps, |harness, what| {
        match what {
            Ok(payment) => naive.pay(rule_id, payment, value(payment)),
            Err(watermark) => naive.advance(watermark),
        }
        let buckets: usize = KEYS.iter().filter_map(|key| harness.state(key)).map(|state| state.buckets.len()).sum();
        assert!(harness.timer_count(TimerDomain::EventTime) <= buckets, "a timer without a bucket");
    });
    let found = harness.outputs().iter().map(|(t, alert)| {
        assert_eq!(t.0, alert.event_time_ms);
        (alert.alert_id.clone(), alert.detail.clone())
    });
    let expected = naive.alerts.iter().map(|(id, sum)| (id.clone(), detail(i64::try_from(*sum).unwrap())));
    assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert_eq!(harness.timer_count(TimerDomain::EventTime), 0);
    assert_eq!(harness.key_count(), naive.last_alert.len(), "only the last alerts are left");
}

/// Merchant windows by their definition.
#[derive(Default)]
struct NaiveWindows {
    watermark: Option<i128>,
    /// (merchant, window start) to all payments accepted.
    accepted: BTreeMap<(String, i128), Vec<Payment>>,
    /// (merchant, window start) to its emissions: count, amount.
    emissions: BTreeMap<(String, i128), Vec<(i64, i64)>>,
    too_late: Vec<Payment>,
    late_firings: u64,
}

impl NaiveWindows {
    fn pay(&mut self, payment: &Payment) {
        let t = i128::from(payment.event_time_ms);
        let start = t - t.rem_euclid(60_000);
        let reached = |time: i128| self.watermark.is_some_and(|watermark| on_scale(time) <= watermark);
        if reached(start + 119_999) {
            self.too_late.push(payment.clone());
            return;
        }
        let window = (payment.merchant_id.clone(), start);
        let is_late_firing = reached(start + 59_999);
        self.accepted.entry(window.clone()).or_default().push(payment.clone());
        if is_late_firing {
            self.late_firings += 1;
            self.fire(window);
        }
    }

    fn advance(&mut self, watermark: EventTime) {
        let (before, now) = (self.watermark.replace(watermark.0.into()), i128::from(watermark.0));
        let windows: Vec<_> = self.accepted.keys().cloned().collect();
        for window in windows {
            let max_timestamp = on_scale(window.1 + 59_999);
            if max_timestamp <= now && before.is_none_or(|before| max_timestamp > before) {
                self.fire(window);
            }
        }
    }

    fn fire(&mut self, window: (String, i128)) {
        let payments = &self.accepted[&window];
        let total = (i64::try_from(payments.len()).unwrap(), payments.iter().map(|payment| payment.amount_minor).sum());
        self.emissions.entry(window).or_default().push(total);
    }
}

/// Sessions by their definition: the payments of a card not yet emitted, cut where the pause is longer than 30 s.
#[derive(Default)]
struct NaiveSessions {
    watermark: Option<i128>,
    /// Card, time, amount.
    live: Vec<(String, i128, i64)>,
    /// Card, first, end, count, amount.
    emitted: Vec<(String, i128, i128, i64, i64)>,
    dropped: u64,
}

impl NaiveSessions {
    fn pay(&mut self, payment: &Payment) {
        let paid = (payment.card_id.clone(), i128::from(payment.event_time_ms), payment.amount_minor);
        self.live.push(paid.clone());
        let clusters = self.clusters();
        let joined = clusters.iter().find(|cluster| cluster.contains(&paid)).unwrap();
        if self.is_over(joined) {
            self.live.pop();
            self.dropped += 1;
        }
    }

    fn advance(&mut self, watermark: EventTime) {
        self.watermark = Some(watermark.0.into());
        let mut over = self.clusters();
        over.retain(|cluster| self.is_over(cluster));
        for cluster in over {
            self.live.retain(|payment| !cluster.contains(payment));
            let (first, last) = (&cluster[0], &cluster[cluster.len() - 1]);
            let amount = cluster.iter().map(|payment| payment.2).sum();
            let count = i64::try_from(cluster.len()).unwrap();
            self.emitted.push((first.0.clone(), first.1, on_scale(last.1 + 30_000), count, amount));
        }
    }

    fn clusters(&self) -> Vec<Vec<(String, i128, i64)>> {
        let mut payments = self.live.clone();
        payments.sort();
        payments.chunk_by(|a, b| a.0 == b.0 && b.1 - a.1 <= 30_000).map(<[_]>::to_vec).collect()
    }

    fn is_over(&self, cluster: &[(String, i128, i64)]) -> bool {
        let end = on_scale(cluster[cluster.len() - 1].1 + 29_999);
        self.watermark.is_some_and(|watermark| end <= watermark)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lesson_7_velocity_agrees_with_a_list_of_payments(steps in steps(300_000), limit in 0..6_i64) {
        let naive = NaiveRule::new(velocity::WINDOW_MS, velocity::BUCKET_MS, limit);
        let rule = VelocityRule { limit, language: DetailLanguage::Ru };
        check_rule(rule, naive, velocity::RULE_ID, &steps, |_| 1, |n| DetailLanguage::Ru.velocity(n));
    }

    #[test]
    fn lesson_7_amount_agrees_with_a_list_of_payments(steps in steps(3_000_000), limit in 0..60_u32) {
        let limit = 1 << limit;
        let naive = NaiveRule::new(amount_spike::WINDOW_MS, amount_spike::BUCKET_MS, limit);
        let rule = AmountSpikeRule { limit, language: DetailLanguage::En };
        let value = |payment: &Payment| payment.amount_minor;
        check_rule(rule, naive, amount_spike::RULE_ID, &steps, value, |n| DetailLanguage::En.amount_spike(n));
    }

    #[test]
    fn lesson_6_merchant_windows_agree_with_all_payments(steps in steps(400_000)) {
        let mut naive = NaiveWindows::default();
        let harness = drive(MerchantStatsWindow, &steps, |_, what| match what {
            Ok(payment) => naive.pay(payment),
            Err(watermark) => naive.advance(watermark),
        });
        let (mut emissions, mut too_late) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
        for (t, output) in harness.outputs() {
            match output {
                Output::Stats(s) => {
                    let start = i128::from(t.0) - i128::from(t.0).rem_euclid(60_000);
                    prop_assert_eq!(i128::from(s.window_start_ms), start.max(i64::MIN.into()));
                    prop_assert_eq!(i128::from(s.window_end_ms), on_scale(start + 60_000));
                    prop_assert_eq!(i128::from(t.0), on_scale(start + 59_999));
                    let window = (s.merchant_id.clone(), start);
                    emissions.entry(window).or_default().push((s.payment_count, s.amount_minor));
                }
                Output::TooLate(payment) => {
                    prop_assert_eq!(t.0, payment.event_time_ms);
                    too_late.push(payment.clone());
                }
            }
        }
        prop_assert_eq!(emissions, naive.emissions);
        prop_assert_eq!(harness.counter(TOO_LATE), too_late.len() as u64);
        prop_assert_eq!(harness.counter(LATE_FIRINGS), naive.late_firings);
        prop_assert_eq!(too_late, naive.too_late);
        prop_assert_eq!(harness.key_count(), 0);
        prop_assert_eq!(harness.timer_count(TimerDomain::EventTime), 0);
    }

    #[test]
    fn lesson_6_sessions_agree_with_cutting_at_pauses(steps in steps(600_000)) {
        let mut naive = NaiveSessions::default();
        let harness = drive(CardSessionWindow, &steps, |harness, what| {
            match what {
                Ok(payment) => naive.pay(payment),
                Err(watermark) => naive.advance(watermark),
            }
            let live = naive.clusters().len();
            assert_eq!(harness.timer_count(TimerDomain::EventTime), live, "one timer a live session");
        });
        let sessions = harness.outputs().iter().map(|(t, s)| {
            assert_eq!(i128::from(t.0), on_scale(last_payment(s.session_end_ms, t) + 29_999));
            let (first, end) = (i128::from(s.session_start_ms), i128::from(s.session_end_ms));
            (s.card_id.clone(), first, end, s.payment_count, s.amount_minor)
        });
        let mut sessions: Vec<_> = sessions.collect();
        sessions.sort();
        naive.emitted.sort();
        prop_assert_eq!(sessions, naive.emitted);
        prop_assert_eq!(harness.counter(LATE_DROPPED), naive.dropped);
        prop_assert_eq!(harness.key_count(), 0);
    }
}

/// The last payment of a session; where the end stops at the end of the scale, the event time tells no more than that.
fn last_payment(session_end_ms: i64, event_time: &EventTime) -> i128 {
    match session_end_ms {
        i64::MAX => i128::from(event_time.0) - 29_999,
        end => i128::from(end) - 30_000,
    }
}
