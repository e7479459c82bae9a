use payguard_model::ProcessingTime;
use payguard_operators::merchant_stats::MerchantStatsWindow;
use payguard_topology::{Config, System, payguard};

use super::*;

fn stored(message: &impl Message) -> Stored {
    Stored::State(Held { state: message.encode_to_vec(), event_timers: vec![60_000], processing_timers: vec![] })
}

fn kind(id: &str) -> &'static StateKind {
    StateKind::find(id).expect("a state")
}

#[test]
fn every_state_of_the_topology_has_a_decoder_and_every_decoder_a_state() {
    let mut met = std::collections::BTreeSet::new();
    for (system, salts) in [(System::Payments, 0), (System::Payments, 4), (System::Connections, 0)] {
        let mut config = Config { system, ..Config::default() };
        config.stats.salts = salts;
        for stage in payguard(&config).stages {
            for id in &stage.states {
                let kind = kind(id);
                assert_eq!(kind.stage, &*stage.id.0, "{id}");
                met.insert(*id);
                let empty = match *id {
                    dedup::ID => Stored::WrittenAt(ProcessingTime(0)),
                    _ => Stored::State(Held::default()),
                };
                let read = kind.read(&empty).unwrap_or_else(|e| panic!("{id}: {}", e.0));
                assert!(read.value.is_object(), "{id}");
                assert!(kind.read(&Stored::State(Held { state: vec![0xff], ..Held::default() })).is_err(), "{id}");
            }
        }
    }
    let all: std::collections::BTreeSet<&str> = STATES.iter().map(|state| state.id).collect();
    assert_eq!(met, all);
}

#[test]
fn names_that_are_not_there_are_answered_with_those_that_are() {
    let error = StateKind::find("card-profiles").expect_err("none").to_string();
    assert!(
        error.contains("there is no state card-profiles") && error.contains("card-profile, payment-matching"),
        "{error}"
    );
    let profile = kind("card-profile");
    assert_eq!(profile.field(None).expect("a default").name(), "paymentCount");
    assert_eq!(profile.field(Some("bytes")).expect("any state has it"), Measure::Bytes);
    let error = profile.field(Some("amount")).expect_err("none").to_string();
    assert!(error.contains("one of: paymentCount, totalAmountMinor, bytes"), "{error}");
}

#[test]
fn numbers_are_summed_over_lists() {
    let value =
        json!({ "windows": [{ "n": 2, "parts": [{ "n": 3 }, { "n": -1 }] }, { "n": 5 }], "none": null, "b": true });
    let table: [(&[&str], i128); 7] = [
        (&["windows", "n"], 7),
        (&["windows", "parts", "n"], 2),
        (&["windows"], 2),
        (&["windows", "parts"], 2),
        (&["none"], 0),
        (&["absent", "n"], 0),
        (&["b"], 0),
    ];
    for (path, number) in table {
        assert_eq!(number_at(&value, path), number, "{path:?}");
    }
}

#[test]
fn states_are_readable() {
    let profile = CardProfile { payment_count: 5, total_amount_minor: 1_000, last_country: None };
    let read = kind("card-profile").read(&stored(&profile)).expect("a profile");
    assert_eq!(read.value, json!({ "paymentCount": 5, "totalAmountMinor": 1_000, "lastCountry": null }));
    assert_eq!(read.event_timers, [60_000]);
    let written = Stored::WrittenAt(ProcessingTime(1_000));
    let read = kind(dedup::ID).read(&written).expect("an id");
    assert_eq!(read.value, json!({ "writtenAtMs": 1_000, "writtenAtUtc": "1970-01-01T00:00:01Z" }));
    assert_eq!(Measure::Bytes.of("abcd", &written, &read.value), 12);
}

/// The messages' fields are private to their operators: these bytes are written as the format says.
#[derive(Clone, PartialEq, Message)]
struct Bucketed {
    #[prost(message, required, tag = "1")]
    buckets: Buckets,
    #[prost(int64, optional, tag = "2")]
    last_alert_at: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Buckets {
    #[prost(int64, tag = "1")]
    first: i64,
    #[prost(uint64, repeated, tag = "2")]
    distances: Vec<u64>,
    #[prost(int64, repeated, tag = "3")]
    sums: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Totals {
    #[prost(message, repeated, tag = "1")]
    windows: Vec<Total>,
}

#[derive(Clone, PartialEq, Message)]
struct Total {
    #[prost(int64, tag = "1")]
    index: i64,
    #[prost(int64, tag = "2")]
    payment_count: i64,
    #[prost(int64, tag = "3")]
    amount_minor: i64,
}

#[test]
fn buckets_and_windows_tell_when_they_begin() {
    let state = Bucketed {
        buckets: Buckets { first: 6, distances: vec![0, 2], sums: vec![3, 4] },
        last_alert_at: Some(61_000),
    };
    let starts = |id: &str| {
        let read = kind(id).read(&stored(&state)).expect("a rule").value;
        assert_eq!(read["lastAlertUtc"], "1970-01-01T00:01:01Z");
        let starts = read["buckets"].as_array().expect("a list").iter().map(|bucket| bucket["startMs"].clone());
        (starts.collect::<Vec<_>>(), number_at(&read, &["buckets", "sum"]))
    };
    assert_eq!(starts("rule-velocity"), (vec![json!(60_000), json!(80_000)], 7));
    assert_eq!(starts("rule-amount-spike"), (vec![json!(360_000), json!(480_000)], 7));

    let totals = Totals { windows: vec![Total { index: 2, payment_count: 3, amount_minor: 500 }] };
    let read = kind(MerchantStatsWindow::ID).read(&stored(&totals)).expect("totals").value;
    let window = json!({
        "windowStartMs": 120_000, "windowStartUtc": "1970-01-01T00:02:00Z", "paymentCount": 3, "amountMinor": 500,
    });
    assert_eq!(read, json!({ "windows": [window] }));
}
