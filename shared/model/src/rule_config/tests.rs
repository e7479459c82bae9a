use super::*;

fn parse(raw: &str) -> Result<RuleChange, RuleRefusal> {
    parse_rule_change(raw.as_bytes())
}

fn change(limit: Option<i64>, countries: Option<&[&str]>) -> RuleChange {
    RuleChange { velocity_max_payments: limit, blocked_countries: countries.map(texts) }
}

fn texts(countries: &[&str]) -> Vec<String> {
    countries.iter().map(|&country| country.to_owned()).collect()
}

#[test]
fn lesson_08_accepted_messages() {
    for (raw, expected) in [
        (r#"{"velocityMaxPayments":1000,"blockedCountries":["PL"]}"#, change(Some(1_000), Some(&["PL"]))),
        (r#"{"velocityMaxPayments":100}"#, change(Some(100), None)),
        (r#"{"velocityMaxPayments":100,"blockedCountries":null}"#, change(Some(100), None)),
        (r#"{"blockedCountries":["PL"]}"#, change(None, Some(&["PL"]))),
        (r#"{"velocityMaxPayments":null,"blockedCountries":["XX","ZZ"]}"#, change(None, Some(&["XX", "ZZ"]))),
        (r#"{"blockedCountries":[]}"#, change(None, Some(&[]))),
        (r#"{"blockedCountries":["PL","DE","PL"]}"#, change(None, Some(&["PL", "DE"]))),
        (r#"{"velocityMaxPayments":0}"#, change(Some(0), None)),
        (r#" {"velocityMaxPayments":9223372036854775807} "#, change(Some(i64::MAX), None)),
    ] {
        assert_eq!(parse(raw), Ok(expected), "{raw}");
    }
}

#[test]
fn lesson_08_refused_messages() {
    for (raw, code) in [
        ("not-json", "bad-json"),
        ("", "bad-json"),
        ("null", "bad-json"),
        ("5", "bad-json"),
        (r#"[{"velocityMaxPayments":5}]"#, "bad-json"),
        (r#"{"velocityMaxPayments":5"#, "bad-json"),
        (r#"{"velocityMaxPayments":5}{"velocityMaxPayments":6}"#, "bad-json"),
        (r#"{"velocityMaxPayments":5,"velocityMaxPayments":6}"#, "bad-json"),
        (r#"{"velocityMaxPayments":05}"#, "bad-json"),
        (r#"{"velocityMaxPayment":5}"#, "unknown-field"),
        (r#"{"velocityMaxPayments":-5,"comment":"raised"}"#, "unknown-field"),
        (r#"{"velocityMaxPayments":"1000"}"#, "wrong-type"),
        (r#"{"velocityMaxPayments":10.0}"#, "wrong-type"),
        (r#"{"velocityMaxPayments":1e3}"#, "wrong-type"),
        (r#"{"velocityMaxPayments":9223372036854775808}"#, "wrong-type"),
        (r#"{"velocityMaxPayments":true}"#, "wrong-type"),
        (r#"{"velocityMaxPayments":[5]}"#, "wrong-type"),
        (r#"{"blockedCountries":"PL"}"#, "wrong-type"),
        (r#"{"blockedCountries":{"PL":true}}"#, "wrong-type"),
        (r#"{"blockedCountries":["PL",null]}"#, "wrong-type"),
        (r#"{"blockedCountries":["PL",48]}"#, "wrong-type"),
        (r#"{"blockedCountries":[["PL"]]}"#, "wrong-type"),
        (r#"{"velocityMaxPayments":-1}"#, "negative-limit"),
        (r#"{"blockedCountries":[""]}"#, "bad-country"),
        (r#"{"blockedCountries":["pl"]}"#, "bad-country"),
        (r#"{"blockedCountries":["POL"]}"#, "bad-country"),
        (r#"{"blockedCountries":[" PL"]}"#, "bad-country"),
        (r#"{"blockedCountries":["П"]}"#, "bad-country"),
        (r#"{"blockedCountries":["PL","Poland"]}"#, "bad-country"),
        ("{}", "no-change"),
        (r#"{"velocityMaxPayments":null,"blockedCountries":null}"#, "no-change"),
    ] {
        assert_eq!(parse(raw).map_err(|refusal| refusal.code()), Err(code), "{raw}");
    }
    assert_eq!(parse_rule_change(b"{\"velocityMaxPayments\":5,\"\xff\":1}"), Err(RuleRefusal::BadJson));
}

#[test]
fn a_list_may_hold_every_code_and_no_more() {
    let list = |count: usize| format!(r#"{{"blockedCountries":[{}]}}"#, vec![r#""PL""#; count].join(","));
    assert_eq!(parse(&list(MAX_BLOCKED_COUNTRIES)), Ok(change(None, Some(&["PL"]))));
    let refusal = parse(&list(MAX_BLOCKED_COUNTRIES + 1)).expect_err("too long");
    assert_eq!((refusal.code(), refusal), ("too-many-countries", RuleRefusal::TooManyCountries(301)));
}

#[test]
fn a_refusal_says_in_a_short_sentence_what_to_repair() {
    for (raw, sentence) in [
        (r#"{"limit":5}"#, "unknown field \"limit\"; known are velocityMaxPayments and blockedCountries"),
        (r#"{"velocityMaxPayments":"5"}"#, "velocityMaxPayments must be a whole number"),
        (r#"{"velocityMaxPayments":-5}"#, "velocityMaxPayments must not be negative, but is -5"),
        (r#"{"blockedCountries":["pl"]}"#, "\"pl\" is not a country code of two capital letters A to Z"),
    ] {
        assert_eq!(parse(raw).expect_err("refused").to_string(), sentence);
    }
    let long = format!(r#"{{"{}":1}}"#, "я".repeat(100_000));
    assert!(parse(&long).expect_err("refused").to_string().len() < 200);
}

#[test]
fn lesson_08_a_change_keeps_what_it_leaves_out() {
    let config =
        |limit, countries: &[&str]| RuleConfig { velocity_max_payments: limit, blocked_countries: texts(countries) };
    let before = config(10, &["PL"]);
    for (change, after) in [
        (change(Some(50), None), config(50, &["PL"])),
        (change(None, Some(&["DE", "XX"])), config(10, &["DE", "XX"])),
        (change(None, Some(&[])), config(10, &[])),
        (change(Some(0), Some(&[])), config(0, &[])),
    ] {
        assert_eq!(before.apply(&change), after, "{change:?}");
    }
}
