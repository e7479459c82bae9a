use super::*;
use crate::testing::{Harness, payment_on_card};
use crate::velocity::VelocityRule;

fn countries(codes: &[&str]) -> Vec<String> {
    codes.iter().map(|&code| code.to_owned()).collect()
}

fn from(country: Option<&str>) -> Payment {
    Payment { country: country.map(str::to_owned), ..payment_on_card("p1", "c1", 1_000) }
}

#[test]
fn lesson_8_every_payment_from_a_blocked_country_alerts() {
    let table: &[(&str, Option<&str>, &[&str], bool)] = &[
        ("blocked on the first payment", Some("DE"), &["DE"], true),
        ("one of several", Some("DE"), &["PL", "DE"], true),
        ("foreign country of the generator", Some("XX"), &["XX"], true),
        ("another country", Some("DE"), &["PL"], false),
        ("nothing blocked", Some("DE"), &[], false),
        ("no country", None, &["DE"], false),
        ("case matters", Some("de"), &["DE"], false),
    ];
    for &(name, country, blocked, alerts) in table {
        let alert = check(&from(country), &countries(blocked), DetailLanguage::Ru);
        assert_eq!(alert.is_some(), alerts, "{name}");
    }
}

#[test]
fn lesson_8_the_alert_names_the_country() {
    for (language, detail) in
        [(DetailLanguage::Ru, "страна DE заблокирована"), (DetailLanguage::En, "country DE is blocked")]
    {
        let alert = check(&from(Some("DE")), &countries(&["DE"]), language);
        let expected = FraudAlert::of("blocked-country", &from(Some("DE")), detail.to_owned());
        assert_eq!(alert, Some(expected), "{detail}");
    }
}

/// What arrives at the dynamic rules of lesson 8: a rule message or a payment of card c1 from DE.
enum Step {
    Rule(i64, &'static [&'static str]),
    Pay(&'static str, i64),
}
use Step::{Pay, Rule};

/// Both rules as a stage runs them: a rule message is in force from the next payment on. (Alert id, detail) in order.
fn dynamic(steps: &[Step]) -> Vec<(String, String)> {
    let (mut limit, mut blocked) = (2, Vec::new());
    let mut velocity = Harness::new(VelocityRule { limit, language: DetailLanguage::Ru });
    let mut alerts = Vec::new();
    for step in steps {
        match *step {
            Rule(max, codes) => (limit, blocked) = (max, countries(codes)),
            Pay(id, t) => {
                let payment = payment_on_card(id, "c1", t);
                alerts.extend(check(&payment, &blocked, DetailLanguage::Ru));
                velocity.operator_mut().limit = limit;
                velocity.process("c1", &payment);
                alerts.append(&mut velocity.take_outputs());
            }
        }
    }
    alerts.into_iter().map(|alert| (alert.alert_id, alert.detail)).collect()
}

#[test]
fn lesson_8_dynamic_rules() {
    let table: &[(&str, &[Step], &[(&str, &str)])] = &[
        (
            "defaults until the first message",
            &[Pay("p1", 1_000), Pay("p2", 2_000), Pay("p3", 3_000)],
            &[("velocity:p3", "3 платежей за минуту")],
        ),
        (
            "a new limit applies without a restart",
            &[Rule(100, &[]), Pay("p1", 1_000), Pay("p2", 2_000), Pay("p3", 3_000)],
            &[],
        ),
        (
            "a blocked country alerts on the first payment",
            &[Rule(100, &["DE"]), Pay("p1", 1_000)],
            &[("blocked-country:p1", "страна DE заблокирована")],
        ),
        (
            "on every payment, until unblocked",
            &[Rule(100, &["DE"]), Pay("p1", 1_000), Pay("p2", 1_001), Rule(100, &[]), Pay("p3", 1_002)],
            &[("blocked-country:p1", "страна DE заблокирована"), ("blocked-country:p2", "страна DE заблокирована")],
        ),
        (
            "one payment, two alerts, the country first",
            &[Rule(0, &["DE"]), Pay("p1", 1_000)],
            &[("blocked-country:p1", "страна DE заблокирована"), ("velocity:p1", "1 платежей за минуту")],
        ),
        (
            "the count outlives a change of the limit",
            &[Rule(100, &[]), Pay("p1", 1_000), Pay("p2", 2_000), Pay("p3", 3_000), Rule(2, &[]), Pay("p4", 4_000)],
            &[("velocity:p4", "4 платежей за минуту")],
        ),
        (
            "so does the silence after an alert",
            &[Rule(1, &[]), Pay("p1", 1_000), Pay("p2", 2_000), Rule(0, &[]), Pay("p3", 61_999), Pay("p4", 62_000)],
            &[("velocity:p2", "2 платежей за минуту"), ("velocity:p4", "4 платежей за минуту")],
        ),
    ];
    for &(name, steps, expected) in table {
        let found = dynamic(steps);
        let found: Vec<(&str, &str)> = found.iter().map(|(id, detail)| (id.as_str(), detail.as_str())).collect();
        assert_eq!(found, expected, "{name}");
    }
}
