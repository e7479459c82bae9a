use super::*;
use proptest::prelude::*;

/// A clock at which no event time of these tables is in the future.
const NOW: ProcessingTime = ProcessingTime(1_794_085_500_000);

const BASE: &str = concat!(
    r#"{"paymentId":"p1","cardId":"c1","merchantId":"m1","amountMinor":1500,"#,
    r#""currency":"EUR","country":"DE","eventTimeMs":1000}"#
);

const IGNORE: ParsePolicy = ParsePolicy { unknown_fields: UnknownFields::Ignore, max_future_ms: None };

fn base() -> Payment {
    Payment {
        payment_id: "p1".into(),
        card_id: "c1".into(),
        merchant_id: "m1".into(),
        amount_minor: 1500,
        currency: "EUR".into(),
        country: Some("DE".into()),
        event_time_ms: 1000,
        ..Payment::default()
    }
}

fn parse(raw: &str) -> Result<Payment, Reason> {
    parse_payment(raw.as_bytes(), NOW, &ParsePolicy::default())
}

/// [`BASE`] with the source text of one value replaced; an empty `value` leaves the field out.
fn with(field: &str, value: &str) -> String {
    let start = BASE.find(&format!("\"{field}\":")).expect("a field of the base");
    let end = start + BASE[start..].find([',', '}']).expect("the end of its value");
    if value.is_empty() {
        let end = if BASE[end..].starts_with(',') { end + 1 } else { end };
        format!("{}{}", &BASE[..start], &BASE[end..]).replace(",}", "}")
    } else {
        format!("{}\"{field}\":{value}{}", &BASE[..start], &BASE[end..])
    }
}

fn assert_rows(field: &str, rows: &[(&str, Result<Payment, Reason>)]) {
    for (value, expected) in rows {
        assert_eq!(&parse(&with(field, value)), expected, "{field} = {value:?}");
    }
}

#[test]
fn lesson_03_acceptance_table_amount() {
    let amount = |amount_minor| Ok(Payment { amount_minor, ..base() });
    let not_positive = || Err(Reason::NonPositiveAmount);
    let bad = || Err(Reason::BadJson);
    assert_rows(
        "amountMinor",
        &[
            ("1500", amount(1500)),
            (r#""150""#, amount(150)),
            (r#"" 150 ""#, amount(150)),
            (r#""1.5""#, bad()),
            (r#""""#, not_positive()),
            (r#""  ""#, not_positive()),
            (r#""null""#, not_positive()),
            ("null", not_positive()),
            ("1.9", amount(1)),
            ("0.9", not_positive()),
            ("-1.9", not_positive()),
            ("1e3", amount(1000)),
            ("1e30", bad()),
            ("9.3e18", bad()),
            ("9223372036854775808", bad()),
            ("9223372036854775807", amount(i64::MAX)),
            ("true", bad()),
            ("[5]", bad()),
            ("{}", bad()),
            ("NaN", bad()),
            ("007", bad()),
            ("+5", bad()),
            ("-5", not_positive()),
            ("0", not_positive()),
            (r#""abc""#, bad()),
            ("", not_positive()),
        ],
    );
}

#[test]
fn lesson_03_acceptance_table_event_time() {
    let time = |event_time_ms| Ok(Payment { event_time_ms, ..base() });
    assert_rows(
        "eventTimeMs",
        &[
            ("0", Err(Reason::MissingEventTime)),
            ("-1", Err(Reason::MissingEventTime)),
            ("", Err(Reason::MissingEventTime)),
            ("null", Err(Reason::MissingEventTime)),
            ("1000.7", time(1000)),
            ("1", time(1)),
            (r#""2026-01-01T00:00:00Z""#, Err(Reason::BadJson)),
        ],
    );
}

#[test]
fn lesson_03_acceptance_table_currency() {
    for value in
        [r#""euro""#, r#""eur""#, r#""123""#, "123", r#""ЕUR""#, r#""EUR\n""#, "null", r#""""#, r#""EURO""#, ""]
    {
        assert_eq!(parse(&with("currency", value)), Err(Reason::BadCurrency), "{value:?}");
    }
}

#[test]
fn lesson_03_acceptance_table_ids() {
    let id = |id: &str| Ok(Payment { payment_id: id.into(), ..base() });
    let missing = || Err(Reason::MissingId);
    let bad = || Err(Reason::BadJson);
    assert_rows(
        "paymentId",
        &[
            ("5", id("5")),
            ("1.50", id("1.50")),
            ("true", id("true")),
            ("-0", id("-0")),
            ("[]", bad()),
            (r#"["p1"]"#, bad()),
            ("{}", bad()),
            ("null", missing()),
            (r#""""#, missing()),
            (r#"" ""#, missing()),
            (r#""\u2003""#, missing()),
            (r#""\u001f""#, missing()),
            (r#""\u3000""#, missing()),
            ("", missing()),
            (r#""\ud800""#, id("\u{fffd}")),
            (r#""\udc00x\ud800\u0041""#, id("\u{fffd}x\u{fffd}A")),
            (r#""\ud83d\ude00\/""#, id("😀/")),
            (r#""\u00a0""#, id("\u{a0}")),
            (r#""\u0085""#, id("\u{85}")),
            (r#""\u200b""#, id("\u{200b}")),
            (r#""\u2007""#, id("\u{2007}")),
        ],
    );
    for field in ["cardId", "merchantId"] {
        assert_rows(field, &[(r#""\t ""#, missing()), ("null", missing()), ("", missing()), ("[]", bad())]);
    }
}

#[test]
fn lesson_03_acceptance_table_country() {
    let country = |country: Option<&str>| Ok(Payment { country: country.map(Into::into), ..base() });
    assert_rows(
        "country",
        &[
            ("null", country(None)),
            ("", country(None)),
            (r#""""#, country(Some(""))),
            ("7", country(Some("7"))),
            ("[]", Err(Reason::BadJson)),
        ],
    );
}

#[test]
fn lesson_03_acceptance_table_shape() {
    let bad = [
        "[]",
        "true",
        "1.5",
        r#""x""#,
        r#""""#,
        "null",
        " null ",
        "",
        "   ",
        "[1,2]",
        "123",
        "{broken",
        "{\"paymentId\": broken",
        r#"["p1","c1","m1",1500,"EUR","DE",1000]"#,
    ];
    for raw in bad {
        assert_eq!(parse(raw), Err(Reason::BadJson), "{raw:?}");
    }
    let changed = [
        format!("[{BASE}]"),
        format!("\u{feff}{BASE}"),
        format!("/*x*/{BASE}"),
        BASE.replace("1000}", "1000,}"),
        BASE.replace("1000}", "1000,\"x\":null}"),
        BASE.replace('{', "{\"x\":{\"y\":[1]},"),
        BASE.replace('"', "'"),
        BASE.replace("c1", "c\t1"),
        BASE.replace("paymentId", "PaymentId"),
        BASE[..BASE.len() - 1].to_owned(),
    ];
    for raw in changed {
        assert_eq!(parse(&raw), Err(Reason::BadJson), "{raw:?}");
    }
    assert_eq!(parse("{}"), Err(Reason::MissingId));
    assert_eq!(parse(r#"{"paymentId":" ","amountMinor":0}"#), Err(Reason::MissingId), "the order of the rules");
}

#[test]
fn lesson_03_acceptance_table_around_the_object() {
    let lines = [
        format!("{BASE} garbage"),
        format!("{BASE}}}"),
        format!("{BASE}{}", BASE.replace("1500", "7")),
        format!("  \t\r\n{BASE}"),
        BASE.replace("1500,", "1500,\n"),
        BASE.replace(':', " : "),
        BASE.replace("paymentId", r"p\u0061ymentId"),
    ];
    for raw in lines {
        assert_eq!(parse(&raw), Ok(base()), "{raw:?}");
    }
}

#[test]
fn lesson_03_acceptance_table_repeated_key() {
    let twice = BASE.replace('{', "{\"amountMinor\":1,");
    assert_eq!(parse(&twice), Ok(base()), "the last value wins while a field is missing");
    let unbound = format!("{},\"amountMinor\":7}}", with("country", "").trim_end_matches('}'));
    assert_eq!(parse(&unbound).map(|payment| payment.amount_minor), Ok(7), "country was never bound");
    let bad_first = BASE.replace('{', "{\"amountMinor\":\"x\",");
    assert_eq!(parse(&bad_first), Err(Reason::BadJson), "every value is read, the replaced one too");
    let after = BASE.replace("1000}", "1000,\"eventTimeMs\":2000}");
    assert_eq!(parse(&after), Err(Reason::BadJson), "after the seventh field the record is complete");
    assert_eq!(parse_payment(after.as_bytes(), NOW, &IGNORE), Err(Reason::BadJson), "under every policy");
}

#[test]
fn lesson_03_validator() {
    let payment = |id: &str, amount: i64, currency: &str, time: i64| {
        parse(&format!(
            r#"{{"paymentId":"{id}","cardId":"c1","merchantId":"m1","amountMinor":{amount},"currency":"{currency}","country":"DE","eventTimeMs":{time}}}"#
        ))
    };
    assert!(payment("p1", 100, "EUR", 1).is_ok());
    assert_eq!(payment(" ", 100, "EUR", 1), Err(Reason::MissingId));
    assert_eq!(payment("p1", 0, "EUR", 1), Err(Reason::NonPositiveAmount));
    assert_eq!(payment("p1", 100, "euro", 1), Err(Reason::BadCurrency));
    assert_eq!(payment("p1", 100, "EUR", 0), Err(Reason::MissingEventTime));
}

#[test]
fn lesson_05_parsed_record() {
    assert_eq!(parse(BASE), Ok(base()));
    assert_eq!(parse("{broken"), Err(Reason::BadJson));
    assert_eq!(parse(&with("amountMinor", "-5")), Err(Reason::NonPositiveAmount));
}

#[test]
fn numbers_in_strings_follow_java() {
    for (value, amount) in [
        (r#""+5""#, Some(5)),
        (r#""007""#, Some(7)),
        (r#""\u0000\t9\u001f""#, Some(9)),
        (r#""٣٤""#, Some(34)),
        (r#""9223372036854775807""#, Some(i64::MAX)),
        (r#""9223372036854775808""#, None),
        (r#""-""#, None),
        (r#""1 2""#, None),
        (r#""1e3""#, None),
        (r#""\u00a05""#, None),
        ("9223372036854775807.5", Some(i64::MAX)),
        ("1e400", None),
    ] {
        let amount = amount.ok_or(Reason::BadJson);
        assert_eq!(parse(&with("amountMinor", value)).map(|payment| payment.amount_minor), amount, "{value}");
    }
}

#[test]
fn numbers_of_more_than_a_thousand_digits_are_refused() {
    let skipped = |digits: &str| BASE.replace('{', &format!("{{\"x\":{digits},"));
    let longest = "1".repeat(1000);
    assert_eq!(parse(&with("paymentId", &longest)).map(|payment| payment.payment_id), Ok(longest.clone()));
    assert_eq!(parse(&with("paymentId", &format!("{longest}1"))), Err(Reason::BadJson));
    assert_eq!(parse(&with("amountMinor", &format!("1.{longest}"))), Err(Reason::BadJson));
    assert_eq!(parse_payment(skipped(&longest).as_bytes(), NOW, &IGNORE), Ok(base()));
    assert_eq!(parse_payment(skipped(&format!("-1{longest}")).as_bytes(), NOW, &IGNORE), Err(Reason::BadJson));
}

#[test]
fn unknown_fields_are_skipped_when_the_policy_says_so() {
    let raw = BASE.replace('{', "{\"merchantName\":{\"a\":[1,\"\\ud800\"]},\"\\ud800\":1,");
    let raw = raw.replace("1000}", "1000,\"x\":null}");
    assert_eq!(parse(&raw), Err(Reason::BadJson));
    assert_eq!(parse_payment(raw.as_bytes(), NOW, &IGNORE), Ok(base()));
}

#[test]
fn event_times_too_far_ahead_are_refused_last() {
    let at = |ms: i64, max_future_ms| {
        let policy = ParsePolicy { max_future_ms, ..ParsePolicy::default() };
        parse_payment(with("eventTimeMs", &ms.to_string()).as_bytes(), NOW, &policy).map(|p| p.event_time_ms)
    };
    let edge = NOW.0 + 3_600_000;
    assert_eq!(at(edge, Some(3_600_000)), Ok(edge));
    assert_eq!(at(edge + 1, Some(3_600_000)), Err(Reason::FutureEventTime));
    assert_eq!(at(NOW.0 + 1, Some(0)), Err(Reason::FutureEventTime));
    assert_eq!(at(i64::MAX, None), Ok(i64::MAX));
    assert_eq!(at(i64::MAX, Some(i64::MAX)), Ok(i64::MAX), "the sum stops at the end of the scale");
    let also_bad = with("currency", "null").replace("1000}", "4102444800000}");
    assert_eq!(parse(&also_bad), Err(Reason::BadCurrency));
}

#[test]
fn malformed_utf8_is_replaced_as_java_does() {
    for (raw, text) in [
        (&b"ab\xff\xfe"[..], "ab\u{fffd}\u{fffd}"),
        (b"\xe2\x82", "\u{fffd}"),
        (b"\xe2\x82x", "\u{fffd}x"),
        (b"\xf0\x9f\x98", "\u{fffd}"),
        (b"\xc0\x80", "\u{fffd}\u{fffd}"),
        (b"\xed\xa0\x80x", "\u{fffd}x"),
        (b"\xed\xa0\x80\xed\xb0\x80", "\u{fffd}\u{fffd}"),
        (b"\xed\xa0x", "\u{fffd}x"),
        (b"\xed\xbf", "\u{fffd}"),
        (b"\xed", "\u{fffd}"),
        (b"\xf4\x90\x80\x80", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}"),
        ("é中😀".as_bytes(), "é中😀"),
    ] {
        assert_eq!(raw_text(raw), text, "{raw:x?}");
    }
    let mut raw = with("paymentId", r#""p?""#).into_bytes();
    let at = raw.iter().position(|&byte| byte == b'?').expect("the mark");
    raw[at] = 0xff;
    let payment = parse_payment(&raw, NOW, &ParsePolicy::default()).expect("a payment");
    assert_eq!(payment.payment_id, "p\u{fffd}");
}

#[test]
fn reasons_have_their_codes() {
    let codes = Reason::ALL.map(|reason| reason.to_string());
    let expected =
        ["bad-json", "missing-id", "non-positive-amount", "bad-currency", "missing-event-time", "future-event-time"];
    assert_eq!(codes, expected);
}

#[test]
fn policy_reads_from_configuration() {
    let read = |json| serde_json::from_str::<ParsePolicy>(json);
    assert_eq!(read("{}").expect("defaults"), ParsePolicy::default());
    assert_eq!(read(r#"{"unknown_fields":"ignore","max_future_ms":null}"#).expect("both"), IGNORE);
    assert!(read(r#"{"unknownFields":"ignore"}"#).is_err(), "a misnamed option is not ignored");
}

/// Source texts of values, ordinary and odd.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        (1i64..100_000).prop_map(|n| n.to_string()),
        "[A-Z]{3}".prop_map(|text| format!("\"{text}\"")),
        "[ -~]{0,8}".prop_map(|text| format!("\"{text}\"")),
        r#"(\\u[0-9a-fD]{4}|\\[nt"/x]|[a-z\u{1}é😀 ]){0,4}"#.prop_map(|text| format!("\"{text}\"")),
        "-?[0-9]{1,3}(\\.[0-9]{0,2})?(e[+-]?[0-9]{1,2})?",
        prop::sample::select(vec!["null", "true", "[]", "{}", "\"\"", "-0", "nul", "", "\"7\"", "\" 8 \""])
            .prop_map(str::to_owned),
    ]
}

fn object() -> impl Strategy<Value = String> {
    let names = vec![
        "paymentId",
        "cardId",
        "merchantId",
        "amountMinor",
        "currency",
        "country",
        "eventTimeMs",
        "x",
        r"p\u0061ymentId",
    ];
    let field = (prop::sample::select(names), value()).prop_map(|(name, value)| format!("\"{name}\":{value}"));
    let tail = prop::sample::select(vec!["", " ", "x", "}", "{}", "\n"]);
    (prop::collection::vec(field, 0..10), tail).prop_map(|(fields, tail)| format!("{{{}}}{tail}", fields.join(",")))
}

/// The ordinary reader may decline anything; what it takes, the tolerant one must take in the same way.
fn assert_readers_agree(raw: &[u8]) -> Result<(), TestCaseError> {
    let text = decode(raw);
    if let Some(fields) = ordinary::read(&text) {
        let fields = Some(fields);
        prop_assert_eq!(&tolerant::read(&text, UnknownFields::Reject), &fields);
        prop_assert_eq!(&tolerant::read(&text, UnknownFields::Ignore), &fields);
    }
    Ok(())
}

#[test]
fn the_ordinary_payment_takes_the_fast_path() {
    assert!(ordinary::read(BASE).is_some());
    assert!(ordinary::read(&with("country", "null")).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn both_readers_agree_on_objects(object in object()) {
        assert_readers_agree(object.as_bytes())?;
    }

    #[test]
    fn both_readers_agree_on_damaged_payments(at in 0..BASE.len(), byte: u8, insert: bool) {
        let mut raw = BASE.as_bytes().to_vec();
        if insert { raw.insert(at, byte) } else { raw[at] = byte }
        assert_readers_agree(&raw)?;
    }

    #[test]
    fn no_bytes_make_the_parser_panic(raw in prop::collection::vec(any::<u8>(), 0..64), object in object()) {
        let policy = ParsePolicy::default();
        let _ = parse_payment(&raw, NOW, &policy);
        let _ = parse_payment(object.as_bytes(), NOW, &IGNORE);
    }

    #[test]
    fn every_written_payment_is_read_back(id in "[^ \u{1680}\u{2000}-\u{205f}\u{3000}\u{0}-\u{1f}]{1,12}",
            amount in 1..i64::MAX, time in 1i64..2_000_000_000_000, country in prop::option::of(".{0,3}")) {
        let payment = Payment { payment_id: id, amount_minor: amount, event_time_ms: time, country, ..base() };
        prop_assert_eq!(parse_payment(&crate::to_json(&payment), NOW, &IGNORE), Ok(payment));
    }
}
