//! `state`, `ledger` and `diff-state` on runs by the real command.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use payguard_inspect::time::utc;
use serde_json::{Value, json};

use crate::{Finished, json as parsed, text_of};

/// Flushes all the time, so that the past is not in the pages.
const FLUSHING: [&str; 2] = ["--set", "engine.flush_every_ms=20"];

/// What a command prints and its exit code, whatever that is.
fn outcome(run: &Finished, arguments: &[&str]) -> (String, Option<i32>, String) {
    let output = run.payguard(&[arguments, &["--state", "state"]].concat());
    (text_of(&output.stdout), output.status.code(), text_of(&output.stderr))
}

fn go_on(run: &Finished, options: &[&str]) {
    let output = run.run(&[&FLUSHING[..], options].concat());
    assert!(output.status.success(), "{}", text_of(&output.stderr));
}

/// The profiles of all cards, counted from the file of payments: the first copy of each counts.
fn recounted(run: &Finished) -> BTreeMap<String, (i64, i64, Value)> {
    let mut seen = std::collections::BTreeSet::new();
    let mut profiles: BTreeMap<String, (i64, i64, Value)> = BTreeMap::new();
    for payment in run.lines("data/payments.jsonl").iter().filter(|line| line.is_object()) {
        let text = |name: &str| payment[name].as_str().expect("a text").to_owned();
        if seen.insert(text("paymentId")) {
            let profile = profiles.entry(text("cardId")).or_insert((0, 0, Value::Null));
            profile.0 += 1;
            profile.1 += payment["amountMinor"].as_i64().expect("an amount");
            profile.2 = payment["country"].clone();
        }
    }
    profiles
}

/// What the inspector of lesson 13 prints of them.
fn inspector(heading: &str, profiles: &BTreeMap<String, (i64, i64, Value)>) -> String {
    let mut rows: Vec<_> = profiles.iter().collect();
    rows.sort_by_key(|(card, (count, ..))| (-count, (*card).clone()));
    let row = |(card, (count, total, country)): &(&String, &(i64, i64, Value))| {
        let country = country.as_str().unwrap_or("null");
        format!(
            "CardRow[cardId={card}, profile=CardProfile[paymentCount={count}, totalAmountMinor={total}, \
             lastCountry={country}]]\n"
        )
    };
    format!("{heading}: {}\n{}", rows.len(), rows.iter().take(5).map(row).collect::<String>())
}

#[test]
fn lesson_13_the_inspector_counts_what_the_payments_say() {
    let run = Finished::with(&FLUSHING);
    let profiles = recounted(&run);
    assert!(profiles.len() > 1_000, "{}", profiles.len());
    let expected = inspector("Cards in state", &profiles);
    assert_eq!(run.says(&["state", "top", "card-profile"]), expected);
    let ru = run.says(&["state", "top", "card-profile", "--detail-language", "ru"]);
    assert_eq!(ru, inspector("Карт в состоянии", &profiles));
    assert_eq!(run.says(&["state", "count", "card-profile"]), format!("Cards in state: {}\n", profiles.len()));

    let top = parsed(&run.says(&["state", "top", "card-profile", "--by", "totalAmountMinor", "-n", "3", "--json"]));
    let mut by_total: Vec<_> = profiles.iter().map(|(card, profile)| (-profile.1, card)).collect();
    by_total.sort();
    let expected: Vec<Value> = by_total[..3].iter().map(|(total, card)| json!([card, -total])).collect();
    let found = top["top"].as_array().expect("a list").iter().map(|row| json!([row["key"], row["number"]]));
    assert_eq!(found.collect::<Vec<_>>(), expected);

    let (card, profile) = profiles.iter().next().expect("a card");
    let got = parsed(&run.says(&["state", "get", "card-profile", card, "--json"]));
    let value = json!({ "paymentCount": profile.0, "totalAmountMinor": profile.1, "lastCountry": profile.2 });
    assert_eq!((&got["value"], &got["event_timers"]), (&value, &json!([])));
    let (text, code, error) = outcome(&run, &["state", "get", "card-profile", "nobody"]);
    assert_eq!((text.as_str(), code), ("", Some(1)));
    assert!(error.contains("nobody has no state card-profile as of commit"), "{error}");
    let (text, code, _) = outcome(&run, &["state", "get", "card-profile", "nobody", "--json"]);
    assert_eq!((&parsed(&text)["value"], code), (&Value::Null, Some(1)));
}

#[test]
fn names_that_are_not_there_are_answered_with_those_that_are() {
    let run = Finished::with(&["--stop-after", "500"]);
    let cases: [(&[&str], &str); 8] = [
        (&["state", "count", "card-profiles"], "there is no state card-profiles; there are: deduplicate"),
        (&["state", "count", "merchant-stats-salted"], "keeps no state merchant-stats-salted"),
        (&["state", "top", "rule-velocity", "--by", "amount"], "--by takes one of: sum, buckets"),
        (&["state", "count", "card-profile", "--task", "rules/7"], "no task rules/7; there are: rules/0, rules/1"),
        (&["state", "count", "card-profile", "--at", "1"], "say --task, one of: rules/0, rules/1"),
        (&["state", "count", "card-profile", "--at", "noon"], "2026-11-30T12:00:00Z"),
        (&["state", "count", "card-profile", "--savepoint", "none"], "no savepoint none"),
        (&["state", "get", "card-profile", "c-1", "--at", "99999"], "so there is no commit 99999"),
    ];
    for (arguments, answer) in cases {
        let error = run.refuses(arguments);
        assert!(error.contains(answer), "{arguments:?}: {error}");
    }
}

/// The tasks of a stage and the commits they were looked at.
fn as_of(told: &Value) -> Vec<(String, String)> {
    let tasks = told["as_of"].as_object().expect("tasks");
    tasks.iter().map(|(task, at)| (task.clone(), at["to"].to_string())).collect()
}

const STATES: [&str; 4] = ["card-profile", "rule-velocity", "card-sequences", "card-sessions"];

#[test]
fn the_past_is_what_a_stopped_run_showed_then_also_after_other_shards() {
    let run = Finished::with(&[&FLUSHING[..], &["--stop-after", "3000"]].concat());
    // Clean up to here: nothing works on the folder.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let then = utc(i64::try_from(now).expect("small") + 1).expect("a time");
    let path = run.says(&["savepoint", "create", "half"]);
    assert_eq!(path, "state/savepoints/half\n");
    let sizes = run.says(&["state", "sizes"]);
    let shown = run.says(&["savepoint", "show", "half"]);
    assert!(sizes.lines().count() > 7 && sizes.lines().all(|line| shown.contains(line)), "{sizes}{shown}");
    assert_eq!(outcome(&run, &["diff-state", "half", "live"]).1, Some(0));

    let top = |id, more: &[&str]| run.says(&[&["state", "top", id, "-n", "40", "--json"], more].concat());
    let whole: Vec<String> = STATES.iter().map(|id| top(id, &[])).collect();
    let mut seen = Vec::new();
    for (id, told) in STATES.iter().zip(&whole) {
        for (task, seq) in as_of(&parsed(told)) {
            seen.push((*id, task.clone(), seq, top(id, &["--task", &task])));
        }
    }
    let all_keys: u64 = seen.iter().filter_map(|(.., told)| parsed(told)["keys"].as_u64()).sum();
    assert!(seen.len() == 8 && all_keys > 4_000, "{all_keys}");

    let assert_past = |when: &str| {
        for (id, task, seq, told) in &seen {
            assert_eq!(top(id, &["--task", task, "--at", seq]), *told, "{when} {id} {task} {seq}");
        }
        for (id, told) in STATES.iter().zip(&whole) {
            assert_eq!(top(id, &["--at", &then]), *told, "{when} {id} {then}");
            let (saved, told) = (parsed(&top(id, &["--savepoint", "half"])), parsed(told));
            assert_eq!((&saved["keys"], &saved["top"]), (&told["keys"], &told["top"]), "{when} {id}");
        }
        let (text, code, error) = outcome(&run, &["diff-state", "half", &format!("live@{then}")]);
        assert_eq!((text.lines().last(), code), (Some("equal"), Some(0)), "{when} {text} {error}");
    };
    assert_past("stopped");
    let (_, task, seq, _) = &seen[0];
    let commit = format!("live@{seq}");
    let of_task = |code: Option<i32>| {
        let (text, found, error) = outcome(&run, &["diff-state", &commit, "live", "--task", task]);
        assert_eq!(found, code, "{task} {text}{error}");
    };
    of_task(Some(0));
    assert!(run.refuses(&["diff-state", &commit, "live"]).contains("say --task"));
    go_on(&run, &["--stop-after", "4500"]);
    assert_past("after some more");
    of_task(Some(1));
    run.says(&["rescale", "rules", "3"]);
    run.says(&["rescale", "dedup", "1"]);
    go_on(&run, &["--stop-after", "5500"]);
    assert_past("after other shards");
    go_on(&run, &[]);
    assert_past("at the end");
    assert_eq!(run.says(&["state", "top", "card-profile"]), inspector("Cards in state", &recounted(&run)));
    differs(&run);
}

/// The savepoint of the half differs from the end, and every number and example is right.
fn differs(run: &Finished) {
    let (text, code, error) = outcome(run, &["diff-state", "half", "live", "--json", "-n", "2"]);
    assert_eq!(code, Some(1), "{error}");
    let diff = parsed(&text);
    let profiles = diff["states"].as_array().and_then(|s| s.iter().find(|s| s["state"] == "card-profile"));
    let profiles = profiles.expect("the profiles");
    let count = |name: &str| profiles[name].as_u64().expect("a number");
    let keys = |savepoint: &[&str]| {
        let told = run.says(&[&["state", "count", "card-profile", "--json"], savepoint].concat());
        parsed(&told)["keys"].as_u64().expect("a number")
    };
    assert_eq!(count("only_a"), 0, "no profile is ever forgotten");
    assert_eq!(count("equal") + count("differ"), keys(&["--savepoint", "half"]));
    assert_eq!(count("equal") + count("differ") + count("only_b"), keys(&[]));
    let examples = profiles["examples"].as_array().expect("a list");
    assert_eq!(examples.len(), 2);
    for example in examples {
        let key = example["key"].as_str().expect("a key");
        let got = parsed(&run.says(&["state", "get", "card-profile", key, "--json"]));
        assert_eq!(example["b"]["value"], got["value"], "{key}");
        assert_ne!(example["a"], example["b"], "{key}");
    }
    let (text, code, _) = outcome(run, &["diff-state", "half", "live", "-n", "1"]);
    assert!(code == Some(1) && text.ends_with("they differ\n") && text.contains("        A {"), "{text}");
    let (text, code, error) = outcome(run, &["diff-state", "half", "nothing"]);
    assert_eq!((text.as_str(), code), ("", Some(2)));
    assert!(error.contains("there is no savepoint nothing") && error.contains("there are: half"), "{error}");
}

#[test]
fn a_past_that_is_collected_is_refused_and_says_from_where_on_it_can_be_seen() {
    let run = Finished::with(&[&FLUSHING[..], &["--set", "gc.retention_ms=0"]].concat());
    let top = run.says(&["state", "top", "card-profile", "-n", "1", "--json"]);
    assert_eq!(run.says(&["state", "top", "card-profile"]), inspector("Cards in state", &recounted(&run)));
    let card = parsed(&top)["top"][0]["key"].as_str().expect("a card").to_owned();
    let error = run.refuses(&["state", "get", "card-profile", &card, "--at", "1"]);
    for part in
        ["the state after commit 1 of rules/", "its log begins with row", "gc.retention_ms, here 0", "set it higher"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
    // What is named can be seen.
    let (_, since) = error.split_once("it can be seen from commit ").expect("where the past begins");
    let since: String = since.chars().take_while(char::is_ascii_digit).collect();
    let seen = parsed(&run.says(&["state", "get", "card-profile", &card, "--at", &since, "--json"]));
    assert_eq!(seen["as_of"]["seq"].to_string(), since);
    let past = utc(1_000).expect("a time");
    let error = run.refuses(&["state", "count", "card-profile", "--at", &past]);
    assert!(error.contains("the state of 1970-01-01T00:00:01Z") && error.contains("gc.retention_ms"), "{error}");
    let error = run.refuses(&["ledger", "show", "rules/0", "1"]);
    assert!(error.contains("row 1 of rules/0 has been collected; its log begins with row"), "{error}");
}

#[test]
fn the_ledger_tells_what_each_commit_did() {
    let run = Finished::with(&FLUSHING);
    let tail = run.says(&["ledger", "tail", "rules/0", "-n", "1000", "--json"]);
    let rows: Vec<Value> = tail.lines().map(parsed).collect();
    let seqs: Vec<u64> = rows.iter().filter_map(|row| row["seq"].as_u64()).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "every row, in order");
    let profiles: u64 = rows.iter().filter_map(|row| row["records"]["card-profiles"].as_u64()).sum();
    let status = parsed(&run.says(&["status", "--json"]));
    let of = |task: &str| status["tasks"].as_array().and_then(|t| t.iter().find(|t| t["task"] == task)).cloned();
    assert_eq!(Some(profiles), of("rules/0").and_then(|task| task["records"].as_u64()), "a profile for each payment");
    assert_eq!(rows.last().map(|row| row["ended"].clone()), Some(json!(true)));

    // Of all tasks the newest rows together, by time; a run that has ended is not waited for.
    let tail = run.says(&["ledger", "tail", "-n", "7", "--json", "--follow"]);
    let times: Vec<i64> = tail.lines().filter_map(|row| parsed(row)["committedAtMs"].as_i64()).collect();
    assert!(times.len() == 7 && times.is_sorted(), "{tail}");
    let text = run.says(&["ledger", "tail", "rules/0", "rules/1", "-n", "4"]);
    assert!(text.lines().count() == 8 && text.contains("flushed to") && text.contains(" -> "), "{text}");
    assert!(run.refuses(&["ledger", "tail", "rules/9"]).contains("there is no task rules/9; there are: parse/"));

    let alerts = run.lines("out/fraud.alerts.jsonl");
    let mut found = Vec::new();
    for task in ["enrich/0", "enrich/1"] {
        let newest = parsed(&run.says(&["ledger", "show", task, "--json"]))["row"]["seq"].as_u64().expect("a number");
        for seq in 1..=newest {
            let shown = parsed(&run.says(&["ledger", "show", task, &seq.to_string(), "--records", "--json"]));
            for record in shown["records"].as_array().expect("records") {
                let mut alert = record["record"].clone();
                assert_eq!((&record["stream"], alert["decision"].is_object()), (&json!("alerts"), true));
                let fields = alert.as_object_mut().expect("an alert");
                fields.remove("decision");
                fields.remove("eventTimeUtc");
                found.push(alert.to_string());
            }
        }
    }
    let mut expected: Vec<String> = alerts.iter().map(ToString::to_string).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "the alerts that were published");
    let text = run.says(&["ledger", "show", "control/0"]);
    assert!(text.contains("\"rules\": {") && text.contains("\"velocityMaxPayments\""), "{text}");
    assert!(run.refuses(&["ledger", "show", "rules/0", "9999"]).contains("there is no row 9999"));
}

#[test]
fn a_run_can_be_looked_into_while_it_goes_on() {
    let run = Finished::prepared();
    let inputs = ["run", "--payments", "data/payments.jsonl", "--confirmations", "data/confirmations.jsonl"];
    let rest = ["--rules", "rules.jsonl", "--out", "out", "--state", "state", "--shards", "2", "--slow-ms", "1"];
    let small = ["--rows-per-commit", "250"];
    let mut running = run.start(&[&inputs[..], &rest, &small, &FLUSHING].concat());
    // It has opened its stores then: a look before would open them itself, and the run would find them in use.
    let endpoints = run.dir.path().join("state/endpoints.json");
    while !endpoints.exists() {
        assert!(running.try_wait().expect("it runs").is_none(), "it starts");
        std::thread::yield_now();
    }
    let (mut counts, mut cards) = (Vec::new(), 0);
    while running.try_wait().expect("it runs").is_none() {
        let (text, code, error) = outcome(&run, &["state", "count", "card-profile", "--json"]);
        // The process may have ended in the midst of it.
        if code == Some(0) {
            cards = parsed(&text)["keys"].as_u64().expect("a number");
            counts.push(cards);
        } else {
            assert!(running.wait().is_ok_and(|status| status.success()), "{error}");
        }
    }
    assert!(running.wait().is_ok_and(|status| status.success()), "it comes to its end");
    assert!(counts.is_sorted(), "no profile is ever forgotten: {counts:?}");
    counts.dedup();
    assert!(counts.len() > 3, "{counts:?}");
    let expected = recounted(&run);
    assert!(cards <= expected.len() as u64);
    assert_eq!(run.says(&["state", "top", "card-profile"]), inspector("Cards in state", &expected));
}
