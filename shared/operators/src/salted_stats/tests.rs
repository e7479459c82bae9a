use payguard_model::MerchantStats;

use super::*;
use crate::merchant_stats::WINDOW_SIZE_MS;
use crate::testing::{Harness, payment};

/// Both phases, the second at the watermark of the first.
pub(super) struct Phases {
    salts: u32,
    pub(super) first: Harness<SaltedStatsWindow>,
    pub(super) second: Harness<CombineParts>,
    pub(super) too_late: Vec<Payment>,
}

impl Phases {
    pub(super) fn new(salts: u32, late_updates: bool) -> Phases {
        let first = Harness::new(SaltedStatsWindow { late_updates });
        Phases { salts, first, second: Harness::new(CombineParts { late_updates }), too_late: Vec::new() }
    }

    pub(super) fn pay(&mut self, payment: &Payment) {
        let key = salted_key(&payment.merchant_id, salt_of(&payment.payment_id, self.salts));
        self.first.process(&key, payment);
        self.hand_over();
    }

    pub(super) fn advance(&mut self, watermark: EventTime) {
        self.first.advance_watermark(watermark);
        self.hand_over();
        self.second.advance_watermark(watermark);
    }

    fn hand_over(&mut self) {
        for output in self.first.take_outputs() {
            match output {
                Output::Part(part) => self.second.process(&part.merchant_id, &part),
                Output::TooLate(payment) => self.too_late.push(payment),
            }
        }
    }

    /// (Merchant, window start, count, amount) of the totals since the last call.
    fn totals(&mut self) -> Vec<(String, i64, i64, i64)> {
        let rows = self.second.take_outputs().into_iter();
        rows.map(|row| (row.merchant_id, row.window_start_ms, row.payment_count, row.amount_minor)).collect()
    }
}

#[test]
fn lesson_18_salts_of_ids() {
    for (id, salts, salt) in [
        ("p0", 8, 0),
        ("p1", 8, 1),
        ("p7", 8, 7),
        ("p8", 8, 0),
        ("p10", 8, 7),
        ("p99", 8, 0),
        ("3f2504e0-4f89-11d3-9a0c-0305e82c3301", 16, 3),
        ("p10", 1, 0),
        ("p10", 0, 0),
    ] {
        assert_eq!(salt_of(id, salts), salt, "{id} of {salts}");
    }
    let hash = java_string_hash("3f2504e0-4f89-11d3-9a0c-0305e82c3301");
    assert_eq!((java_string_hash("p0"), java_string_hash("p10"), hash), (3_520, 109_199, -280_591_469));
}

#[test]
fn lesson_18_a_hundred_ids_spread_over_eight_salts() {
    let mut counts = [0; 8];
    (0..100).for_each(|n| counts[salt_of(&format!("p{n}"), 8) as usize] += 1);
    assert_eq!(counts, [14, 13, 12, 12, 12, 12, 12, 13]);
}

#[test]
fn lesson_18_salting_does_not_change_totals() {
    for late_updates in [false, true] {
        let mut phases = Phases::new(8, late_updates);
        for n in 0..100 {
            phases.pay(&payment(&format!("p{n}"), &format!("c{n}"), "hot", 10, 1_000 + n));
        }
        assert_eq!(phases.first.key_count(), 8, "one key a salt");
        phases.advance(EventTime::MAX);
        let row = MerchantStats {
            merchant_id: "hot".to_owned(),
            window_start_ms: 0,
            window_end_ms: 60_000,
            payment_count: 100,
            amount_minor: 1_000,
        };
        assert_eq!(phases.second.outputs(), [(EventTime(59_999), row)], "exactly one row");
        assert_eq!((phases.first.key_count(), phases.second.key_count()), (0, 0));
    }
}

#[test]
fn lesson_18_a_part_has_the_last_millisecond_of_its_window() {
    let noon = 43_200_000;
    let mut first = Harness::new(SaltedStatsWindow { late_updates: false });
    first.process("m1#3", &payment("p1", "c1", "m1", 100, noon + 5));
    first.advance_watermark(EventTime(noon + 59_998));
    assert_eq!(first.outputs().len(), 0);
    first.advance_watermark(EventTime(noon + 59_999));
    let part = MerchantPart {
        merchant_id: "m1".to_owned(),
        salt: 3,
        window_start_ms: noon,
        window_end_ms: noon + 60_000,
        payment_count: 1,
        amount_minor: 100,
    };
    assert_eq!(first.outputs(), [(EventTime(noon + 59_999), Output::Part(part))]);
}

#[test]
fn lesson_18_without_late_updates_a_late_payment_is_too_late() {
    let mut phases = Phases::new(8, false);
    phases.pay(&payment("p1", "c1", "m1", 100, 1_000));
    phases.advance(EventTime(59_998));
    phases.pay(&payment("p2", "c1", "m1", 20, 59_999));
    phases.advance(EventTime(59_999));
    let late = payment("p3", "c1", "m1", 3, 59_999);
    phases.pay(&late);
    phases.advance(EventTime::MAX);
    assert_eq!(phases.totals(), [("m1".to_owned(), 0, 2, 120)]);
    assert_eq!(phases.too_late, [late]);
    assert_eq!(phases.first.counter(TOO_LATE), 1);
}

#[test]
fn with_late_updates_a_part_told_again_replaces_the_one_before() {
    let mut phases = Phases::new(8, true);
    let total = |count, amount| vec![("m1".to_owned(), 0, count, amount)];
    phases.pay(&payment("p1", "c1", "m1", 100, 1_000));
    phases.pay(&payment("p2", "c1", "m1", 20, 2_000));
    phases.advance(EventTime(59_999));
    assert_eq!(phases.totals(), total(2, 120));
    phases.pay(&payment("p8", "c1", "m1", 3, 3_000));
    assert_eq!(phases.totals(), total(3, 123), "a salt that was not there");
    phases.pay(&payment("p1", "c1", "m1", 4, 4_000));
    assert_eq!(phases.totals(), total(4, 127), "a salt that was there, not added twice");
    phases.advance(EventTime(119_998));
    phases.pay(&payment("p9", "c1", "m1", 5, 59_999));
    assert_eq!(phases.totals(), total(5, 132));
    phases.advance(EventTime(119_999));
    phases.pay(&payment("p3", "c1", "m1", 6, 59_999));
    assert_eq!((phases.totals().len(), phases.too_late.len()), (0, 1), "a minute late is too late");
    assert_eq!((phases.first.key_count(), phases.second.key_count()), (0, 0));
    assert_eq!(phases.second.counter(LATE_PARTS), 0);
}

#[test]
fn a_window_of_which_all_payments_are_late_is_emitted_at_once() {
    let mut phases = Phases::new(4, true);
    phases.advance(EventTime(WINDOW_SIZE_MS + 10));
    phases.pay(&payment("p1", "c1", "m1", 7, 1_000));
    assert_eq!(phases.totals(), [("m1".to_owned(), 0, 1, 7)]);
    phases.advance(EventTime::MAX);
    assert_eq!((phases.totals().len(), phases.second.key_count()), (0, 0));
}

#[test]
fn a_part_that_comes_too_late_is_counted() {
    for (late_updates, watermark) in [(false, 59_999), (true, 119_999)] {
        let mut second = Harness::new(CombineParts { late_updates });
        second.advance_watermark(EventTime(watermark));
        second.process("m1", &MerchantPart { window_end_ms: 60_000, payment_count: 1, ..MerchantPart::default() });
        assert_eq!((second.counter(LATE_PARTS), second.key_count(), second.outputs().len()), (1, 0, 0));
    }
}

#[test]
fn lesson_18_a_key_is_split_into_merchant_and_salt() {
    for (merchant, salt) in [("m-0000", 0), ("m-0000", 15), ("odd#merchant", 7), ("", 4_294_967_295)] {
        assert_eq!(split_key(&salted_key(merchant, salt)), (merchant, salt));
    }
}
