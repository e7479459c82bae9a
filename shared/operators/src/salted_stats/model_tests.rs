//! Both phases against the totals of one phase and against all payments: random payments, watermarks and restarts.
//!
//! The n-th payment has amount 2ⁿ: equal sums mean the same payments, each counted once.

use std::collections::BTreeMap;

use payguard_model::MerchantStats;
use proptest::prelude::*;

use super::tests::Phases;
use super::*;
use crate::merchant_stats::{self, MerchantStatsWindow};
use crate::model_tests::{KEYS, Step, on_scale, paid, steps};
use crate::testing::Harness;

/// Runs the steps through both phases; `also` is told of a payment or a greater watermark after them.
fn drive(phases: &mut Phases, steps: &[Step], mut also: impl FnMut(EventTime, Result<&Payment, EventTime>)) {
    for (n, step) in steps.iter().chain([&Step::Watermark(i64::MAX)]).enumerate() {
        let watermark = phases.first.watermark();
        match *step {
            Step::Pay { key, t } => {
                let payment = paid(n, key, t);
                phases.pay(&payment);
                also(watermark, Ok(&payment));
            }
            Step::Watermark(ms) if EventTime(ms) > watermark => {
                phases.advance(EventTime(ms));
                also(watermark, Err(EventTime(ms)));
            }
            Step::Watermark(_) => {}
            Step::Restart => {
                phases.first.restart();
                phases.second.restart();
            }
        }
    }
}

fn assert_nothing_left(phases: &Phases) {
    assert_eq!((phases.first.key_count(), phases.second.key_count()), (0, 0));
    assert_eq!(phases.second.counter(LATE_PARTS), 0, "a part reaches phase 2 before the watermark");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lesson_18_with_late_updates_two_phases_emit_what_one_does(steps in steps(400_000), salts in 2..9_u32) {
        let mut phases = Phases::new(salts, true);
        let mut single = Harness::new(MerchantStatsWindow);
        drive(&mut phases, &steps, |_, what| match what {
            Ok(payment) => single.process(&payment.merchant_id, payment),
            Err(watermark) => single.advance_watermark(watermark),
        });
        let (mut totals, mut too_late) = (Vec::new(), Vec::new());
        for (t, output) in single.outputs() {
            match output {
                merchant_stats::Output::Stats(stats) => totals.push((*t, stats.clone())),
                merchant_stats::Output::TooLate(payment) => too_late.push(payment.clone()),
            }
        }
        prop_assert_eq!(phases.second.outputs(), totals, "every emission, in order");
        prop_assert_eq!(&phases.too_late, &too_late);
        assert_nothing_left(&phases);
    }

    #[test]
    fn lesson_18_without_late_updates_a_window_is_emitted_once_with_what_came_in_time(
        steps in steps(400_000),
        salts in 2..9_u32,
    ) {
        let mut phases = Phases::new(salts, false);
        let (mut windows, mut too_late) = (BTreeMap::<(i128, String), (i64, i64)>::new(), Vec::new());
        drive(&mut phases, &steps, |watermark, what| {
            let Ok(payment) = what else { return };
            let start = i128::from(payment.event_time_ms).div_euclid(60_000) * 60_000;
            if on_scale(start + 59_999) <= i128::from(watermark.0) {
                too_late.push(payment.clone());
                return;
            }
            let total = windows.entry((start, payment.merchant_id.clone())).or_default();
            *total = (total.0 + 1, total.1 + payment.amount_minor);
        });
        let on_scale = |time: i128| i64::try_from(on_scale(time).max(i64::MIN.into())).unwrap();
        let expected = windows.into_iter().map(|((start, merchant_id), (payment_count, amount_minor))| {
            let (window_start_ms, window_end_ms) = (on_scale(start), on_scale(start + 60_000));
            let stats = MerchantStats { merchant_id, window_start_ms, window_end_ms, payment_count, amount_minor };
            (EventTime(on_scale(start + 59_999)), stats)
        });
        let mut found = phases.second.outputs().to_vec();
        found.sort_by(|(t, a), (u, b)| (t, &a.merchant_id).cmp(&(u, &b.merchant_id)));
        prop_assert_eq!(found, expected.collect::<Vec<_>>());
        prop_assert_eq!(&phases.too_late, &too_late);
        assert_nothing_left(&phases);
    }

    #[test]
    fn lesson_18_in_order_salting_changes_nothing(
        times in prop::collection::vec(0..400_000_i64, 0..30),
        salts in 2..9_u32,
    ) {
        let mut times = times;
        times.sort_unstable();
        let steps: Vec<Step> = times
            .iter()
            .enumerate()
            .flat_map(|(n, &t)| [Step::Watermark(t - 1), Step::Pay { key: n % KEYS.len(), t }])
            .collect();
        let mut single = Harness::new(MerchantStatsWindow);
        let mut phases = Phases::new(salts, false);
        drive(&mut phases, &steps, |_, what| match what {
            Ok(payment) => single.process(&payment.merchant_id, payment),
            Err(watermark) => single.advance_watermark(watermark),
        });
        let totals: Vec<_> = single
            .outputs()
            .iter()
            .filter_map(|(t, output)| match output {
                merchant_stats::Output::Stats(stats) => Some((*t, stats.clone())),
                merchant_stats::Output::TooLate(_) => None,
            })
            .collect();
        prop_assert_eq!(phases.second.outputs(), totals);
        prop_assert_eq!(phases.too_late.len(), 0);
        assert_nothing_left(&phases);
    }
}
