//! The commands that look into a run: `explain`, `rules`, `status`, `load`, `state`, `ledger`, `diff-state`.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use payguard_generator::{GeneratorConfig, write_files};
use payguard_tests::payguard;
use serde_json::Value;
use tempfile::TempDir;

mod state;

/// One change of the rules, one that is refused.
const RULES: &str = "{\"blockedCountries\":[\"XX\"]}\n{\"limit\":3}\n";

/// A finished run of all stages, at two shards, with low limits.
struct Finished {
    dir: TempDir,
}

impl Finished {
    fn with(options: &[&str]) -> Finished {
        let finished = Finished::prepared();
        let output = finished.run(options);
        assert!(output.status.success(), "{}", text_of(&output.stderr));
        finished
    }

    /// Everything that a run needs.
    fn prepared() -> Finished {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let config = GeneratorConfig {
            records: 6_000,
            rate: 200,
            burst: 0.002,
            card_testing: 0.002,
            travel: 0.002,
            ..GeneratorConfig::default()
        };
        write_files(&config, &dir.path().join("data"), |_| ()).expect("payments are generated");
        std::fs::write(dir.path().join("rules.jsonl"), RULES).expect("rules are written");
        Finished { dir }
    }

    fn run(&self, options: &[&str]) -> Output {
        let inputs = ["--payments", "data/payments.jsonl", "--confirmations", "data/confirmations.jsonl"];
        let places = ["--rules", "rules.jsonl", "--out", "out", "--state", "state"];
        let limits = ["--shards", "2", "--amount-spike-limit-minor", "150000", "--rows-per-commit", "250"];
        self.payguard(&[&["run"], &inputs[..], &places, &limits, options].concat())
    }

    fn payguard(&self, arguments: &[&str]) -> Output {
        Command::new(payguard()).args(arguments).current_dir(self.dir.path()).output().expect("payguard starts")
    }

    /// Starts a command that is not waited for.
    fn start(&self, arguments: &[&str]) -> Child {
        let (out, err) = (Stdio::null(), Stdio::null());
        let mut command = Command::new(payguard());
        command.args(arguments).current_dir(self.dir.path()).stdout(out).stderr(err);
        command.spawn().expect("payguard starts")
    }

    /// What a command prints about the run.
    fn says(&self, arguments: &[&str]) -> String {
        let output = self.payguard(&[arguments, &["--state", "state"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text_of(&output.stderr));
        text_of(&output.stdout)
    }

    /// What it answers when it fails.
    fn refuses(&self, arguments: &[&str]) -> String {
        let output = self.payguard(&[arguments, &["--state", "state"]].concat());
        assert!(!output.status.success(), "{arguments:?} succeeds: {}", text_of(&output.stdout));
        text_of(&output.stderr)
    }

    fn lines(&self, file: &str) -> Vec<Value> {
        lines(&self.dir.path().join(file))
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a file");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or(Value::Null)).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// What `explain` says is true of the payments and of the rules.
fn assert_explained(run: &Finished, payments: &[Value], alert: &Value) {
    let id = alert["alertId"].as_str().expect("an id");
    let explained = json(&run.says(&["explain", id, "--json"]));
    assert_eq!(explained["alert"], *alert, "as published");
    let decision = &explained["decision"];
    let offset = usize::try_from(decision["sourceOffset"].as_i64().expect("an offset")).expect("not negative");
    assert_eq!(payments[offset]["paymentId"], alert["paymentId"], "{id} was read there");
    let versioned = ["velocity", "blocked-country"].contains(&alert["ruleId"].as_str().expect("a rule"));
    assert_eq!(decision["ruleVersion"], if versioned { Value::from(1) } else { Value::Null }, "{id}");
    let (stage, _) = decision["task"].as_str().and_then(|task| task.split_once('/')).expect("a task");
    assert_eq!(stage, if alert["ruleId"] == "unconfirmed" { "match" } else { "rules" }, "{id}");
    assert!(decision["seq"].as_u64() > Some(0), "{id}");
    let pattern = decision["payments"].as_array().expect("a list");
    let is_pattern = ["card-testing", "impossible-travel"].contains(&alert["ruleId"].as_str().expect("a rule"));
    assert_eq!(pattern.last(), is_pattern.then_some(&alert["paymentId"]), "{id} ends its pattern");
    let words = run.says(&["explain", id]);
    for part in [&alert["detail"], &alert["cardId"], &alert["merchantRisk"], &decision["task"]] {
        assert!(words.contains(part.as_str().expect("text")), "{words}");
    }
}

#[test]
fn what_is_collected_is_counted_and_the_commands_say_that_it_is_gone() {
    let run = Finished::with(&["--set", "gc.retention_ms=0"]);
    let alerts = run.lines("out/fraud.alerts.jsonl");
    let status = json(&run.says(&["status", "--json"]));
    let rows = status["collected"]["rows"].as_u64().expect("a number");
    let commits: u64 =
        status["tasks"].as_array().expect("tasks").iter().filter_map(|task| task["commit"].as_u64()).sum();
    assert!(rows > 20 && rows < commits, "{rows} of {commits} rows");
    assert!(status["collected"]["objects"].as_u64() > Some(5), "{status}");
    let text = run.says(&["status"]);
    assert!(text.contains("collected:") && text.contains("log rows"), "{text}");
    let gone = run.refuses(&["explain", alerts[0]["alertId"].as_str().expect("an id")]);
    assert!(gone.contains("has been collected") && gone.contains("gc.retention_ms is 0"), "{gone}");
    let history = json(&run.says(&["rules", "history", "--json"]));
    assert_eq!(history.as_array().map(Vec::len), Some(1), "the history of the rules is kept");
    // A run that is repeated finds that it has ended.
    let again = run.run(&["--set", "gc.retention_ms=0"]);
    assert!(again.status.success(), "{}", text_of(&again.stderr));
    assert_eq!(run.lines("out/fraud.alerts.jsonl"), alerts);
}

#[test]
fn a_finished_run_can_be_looked_into() {
    let run = Finished::with(&[]);
    let payments = run.lines("data/payments.jsonl");
    let alerts = run.lines("out/fraud.alerts.jsonl");
    let by_rule: BTreeMap<&str, &Value> = alerts.iter().map(|a| (a["ruleId"].as_str().expect("a rule"), a)).collect();
    assert_eq!(by_rule.len(), 6, "all rules fire: {:?}", by_rule.keys());
    by_rule.values().for_each(|alert| assert_explained(&run, &payments, alert));
    let nobody = run.refuses(&["explain", "velocity:nobody"]);
    assert!(nobody.contains("no such alert") && !nobody.contains("collected"), "{nobody}");

    let show = json(&run.says(&["rules", "show", "--json"]));
    assert_eq!(show["version"], 1);
    assert_eq!(show["rules"]["velocityMaxPayments"], 10, "what a message does not name stays");
    let history = json(&run.says(&["rules", "history", "--json"]));
    assert_eq!(history.as_array().map(Vec::len), Some(1), "the refused message is no version");
    assert_eq!(run.says(&["rules", "diff", "0", "1"]), "blockedCountries: [] -> [\"XX\"]\n");
    assert!(run.refuses(&["rules", "diff", "0", "2"]).contains("no version 2; the newest is 1"));
    assert!(run.refuses(&["rules", "set", "velocityMaxPayments=-1"]).contains("must not be negative"));
    assert!(run.refuses(&["rules", "set", "velocityMaxPayments=5"]).contains("the run has ended"));
    assert_eq!(run.lines("out/rules.rejected.jsonl")[0]["reason"], "unknown-field");

    // The folder knows its shards and limits: nothing is left to read.
    let status = run.says(&["status"]);
    assert!(!status.contains("rows to read") && status.contains("rules/1"), "{status}");
    let status = json(&run.says(&["status", "--json"]));
    let rules = status["tasks"].as_array().and_then(|t| t.iter().find(|t| t["task"] == "rules/1")).expect("a task");
    assert!(rules["ended"] == true && rules["rows_waiting"] == 0 && rules["watermark_ms"].is_null(), "{rules}");
    assert!(rules["commit"].as_u64() > Some(1) && status["stuck"].is_null(), "{status}");
    assert_eq!(status["collected"]["rows"], 0, "everything is younger than the retention");
    let load = json(&run.says(&["load", "--json"]));
    let stage = |id: &str| load.as_array().and_then(|s| s.iter().find(|s| s["stage"] == id)).cloned().expect("a stage");
    let read = |id: &str| stage(id)["records_min"].as_u64().zip(stage(id)["records_max"].as_u64()).expect("numbers");
    assert_eq!(stage("rules")["tasks"], 2);
    assert!(read("rules").0 > 0 && read("rules").1 <= 6_000, "{load}");
    assert_eq!(stage("parse")["busy_percent_max"], Value::Null, "a source is fed by others");
}
