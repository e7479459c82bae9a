use prost::Message;

use super::*;
use crate::to_json;

fn json<T: Serialize>(record: &T) -> String {
    String::from_utf8(to_json(record)).expect("JSON is text")
}

fn payment(amount_minor: i64, country: Option<&str>) -> Payment {
    Payment { amount_minor, country: country.map(str::to_owned), ..Payment::default() }
}

#[test]
fn the_source_of_a_payment_stays_inside() {
    let plain = payment(5, Some("DE"));
    let read = Payment { source_partition: 3, source_offset: 99, ..plain.clone() };
    assert_eq!(json(&read), json(&plain));
    assert_eq!(Payment::decode(read.encode_to_vec().as_slice()), Ok(read));
    assert_eq!(serde_json::from_str::<Payment>(&json(&plain)).ok(), Some(plain));
}

#[test]
fn lesson_09_confirmed_payment_is_written_as_the_course_writes_it() {
    let confirmed = ConfirmedPayment {
        payment_id: "32b69c01-33ad-25f0-5bdf-cf5dd3d6a016".to_owned(),
        merchant_id: "m-0043".to_owned(),
        amount_minor: 10_662,
        status: Some("APPROVED".to_owned()),
        confirmation_delay_ms: 1_638,
    };
    let expected = concat!(
        r#"{"paymentId":"32b69c01-33ad-25f0-5bdf-cf5dd3d6a016","merchantId":"m-0043","amountMinor":10662,"#,
        r#""status":"APPROVED","confirmationDelayMs":1638}"#
    );
    assert_eq!(json(&confirmed), expected);
}

#[test]
fn lesson_13_profile_is_written_as_the_course_writes_it() {
    let profile = CardProfile::default().plus(&payment(13_896, Some("ES")));
    assert_eq!(json(&profile), r#"{"paymentCount":1,"totalAmountMinor":13896,"lastCountry":"ES"}"#);
}

#[test]
fn lesson_13_a_profile_from_before_the_country_goes_on() {
    let profile = |count, total, country: Option<&str>| CardProfile {
        payment_count: count,
        total_amount_minor: total,
        last_country: country.map(str::to_owned),
    };
    let old: CardProfile = serde_json::from_str(r#"{"paymentCount":5,"totalAmountMinor":1000}"#).expect("a profile");
    assert_eq!(old, profile(5, 1_000, None));
    assert_eq!(old.plus(&payment(300, Some("FR"))), profile(6, 1_300, Some("FR")));
    assert_eq!(old.plus(&payment(300, Some("FR"))).plus(&payment(1, None)), profile(7, 1_301, None));
}

#[test]
fn a_profile_stops_at_the_end_of_the_scale() {
    let full = CardProfile::default().plus(&payment(i64::MAX, None)).plus(&payment(1, None));
    assert_eq!((full.payment_count, full.total_amount_minor), (2, i64::MAX));
}

#[test]
fn lesson_08_rejected_rule_is_written_in_the_order_of_its_fields() {
    let rule = RejectedRule {
        raw: "not-json".to_owned(),
        reason: "bad-json".to_owned(),
        detail: "why".to_owned(),
        rejected_at_ms: 7,
    };
    assert_eq!(json(&rule), r#"{"raw":"not-json","reason":"bad-json","detail":"why","rejectedAtMs":7}"#);
}
