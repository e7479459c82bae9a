//! The commands: a run that is stopped with a savepoint and begun again from it publishes what the whole run does.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use payguard_generator::{GeneratorConfig, write_files};
use payguard_tests::payguard;
use serde_json::Value;
use tempfile::TempDir;

/// Two changes of the rules, one that is refused.
const RULES: &str = "{\"velocityMaxPayments\":8}\n{\"limit\":3}\n{\"blockedCountries\":[\"XX\"]}\n";
const RECORDS: u64 = 6_000;

struct Bench {
    dir: TempDir,
}

impl Bench {
    fn of(config: &GeneratorConfig) -> Bench {
        let dir = tempfile::tempdir().expect("a temporary folder");
        write_files(config, &dir.path().join("data"), |_| ()).expect("payments are generated");
        std::fs::write(dir.path().join("rules.jsonl"), RULES).expect("rules are written");
        Bench { dir }
    }

    fn payguard(&self, arguments: &[&str]) -> Output {
        Command::new(payguard()).args(arguments).current_dir(self.dir.path()).output().expect("payguard starts")
    }

    /// Standard output of a command that succeeds.
    fn says(&self, arguments: &[&str]) -> String {
        let output = self.payguard(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// What a command that fails says.
    fn refuses(&self, arguments: &[&str]) -> String {
        let output = self.payguard(arguments);
        assert!(!output.status.success(), "{arguments:?} succeeds: {}", text(&output.stdout));
        text(&output.stderr)
    }

    fn run(&self, name: &str, options: &[&str]) -> String {
        let (out, state) = (format!("{name}-out"), format!("{name}-state"));
        let inputs = ["run", "--payments", "data/payments.jsonl", "--confirmations", "data/confirmations.jsonl"];
        let places = ["--rules", "rules.jsonl", "--rows-per-commit", "150", "--out", &out, "--state", &state];
        self.says(&[&inputs[..], &places, options].concat())
    }

    /// The lines of every output file; the clock reading of refused records is left out.
    fn outputs(&self, names: &[&str]) -> BTreeMap<String, Vec<String>> {
        let mut outputs: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in names {
            let folder = self.dir.path().join(format!("{name}-out"));
            for file in std::fs::read_dir(folder).expect("the output folder") {
                let path = file.expect("a file").path();
                if path.extension().is_some_and(|e| e == "jsonl") {
                    let lines = outputs.entry(path.file_name().expect("a name").to_string_lossy().into_owned());
                    lines.or_default().extend(read(&path).lines().map(without_clock));
                }
            }
        }
        outputs
    }
}

fn load() -> GeneratorConfig {
    GeneratorConfig {
        records: RECORDS,
        rate: 200,
        late: 0.05,
        late_max_ms: 200_000,
        dup: 0.02,
        bad: 0.01,
        burst: 0.003,
        card_testing: 0.002,
        travel: 0.002,
        ..GeneratorConfig::default()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a file")
}

fn without_clock(line: &str) -> String {
    let mut parts = line.splitn(2, "\"rejectedAtMs\":");
    let first = parts.next().unwrap_or_default().to_owned();
    first + parts.next().unwrap_or_default().trim_start_matches(|c: char| c.is_ascii_digit())
}

fn sorted(mut outputs: BTreeMap<String, Vec<String>>) -> BTreeMap<String, Vec<String>> {
    outputs.values_mut().for_each(|lines| lines.sort());
    outputs
}

#[test]
fn a_run_stopped_with_a_savepoint_and_restored_publishes_what_the_whole_run_does_line_by_line() {
    for (shards, options) in [("1", vec![]), ("2", vec!["--set", "engine.flush_every_ms=40"])] {
        let bench = Bench::of(&load());
        let with = |more: &[&'static str]| [&["--shards", shards][..], &options, more].concat();
        bench.run("whole", &with(&[]));
        let path = bench.run("first", &with(&["--stop-after", "2500", "--savepoint", "half"]));
        assert_eq!(path, "first-state/savepoints/half\n", "standard output is the path alone");
        bench.run("second", &[&with(&[])[..], &["--restore", path.trim()]].concat());
        let (whole, parts) = (bench.outputs(&["whole"]), bench.outputs(&["first", "second"]));
        assert!(whole["fraud.alerts.jsonl"].len() > 50 && whole["payments.late.jsonl"].len() > 20);
        assert!(bench.outputs(&["first"])["card.profiles.jsonl"].len() < 2_500, "records were in flight");
        for (file, lines) in &whole {
            assert!(parts[file] == *lines, "{file} differs at {shards} shards");
        }
        // A run that was stopped and is not restored goes on by itself.
        bench.run("first", &with(&[]));
        assert!(bench.outputs(&["first"]) == whole, "the run that was saved is not disturbed");
    }
}

#[test]
fn a_savepoint_restored_to_other_shards_publishes_what_the_whole_run_does() {
    let bench = Bench::of(&load());
    bench.run("whole", &[]);
    let whole = sorted(bench.outputs(&["whole"]));
    assert!(whole["fraud.alerts.jsonl"].len() > 50);
    for (from, to) in [("1", "2"), ("2", "4"), ("4", "2"), ("2", "3")] {
        let (first, second) = (format!("{from}-{to}-first"), format!("{from}-{to}-second"));
        let path = bench.run(&first, &["--shards", from, "--stop-after", "2500", "--savepoint", "half"]);
        // Killed in between or not: `--restore` begins once, then goes on.
        bench.run(&second, &["--shards", to, "--restore", path.trim(), "--stop-after", "4000"]);
        bench.run(&second, &["--shards", to, "--restore", path.trim()]);
        let parts = sorted(bench.outputs(&[&first, &second]));
        for (file, lines) in &whole {
            assert!(parts[file] == *lines, "{file} differs from {from} to {to} shards");
        }
        // Shards that a stage was given since are its own; the same command leaves them.
        let rescale = ["rescale", "rules", "5", "--state", &format!("{second}-state")];
        assert!(bench.says(&rescale).contains("-> 5 shards"));
        bench.run(&second, &["--shards", to, "--restore", path.trim()]);
        assert!(bench.says(&rescale).contains("has 5 shards already"));
        assert!(sorted(bench.outputs(&[&first, &second])) == parts, "nothing comes once more");
    }
}

#[test]
fn savepoints_are_listed_shown_verified_restored_under_a_new_name_and_deleted() {
    let bench = Bench::of(&load());
    bench.run("whole", &[]);
    bench.run("a", &["--stop-after", "3000"]);
    let at = ["--state", "a-state"];
    let with = |arguments: &[&'static str]| [&["savepoint"], arguments, &at].concat();
    let created: Value =
        serde_json::from_str(&bench.says(&with(&["create", "one", "--out", "a-out", "--json"]))).expect("JSON");
    assert!(created["keys"].as_u64() > Some(5_000) && created["records_in_flight"].as_u64() > Some(0), "{created}");
    assert_eq!((&created["path"], &created["drained"]), (&"a-state/savepoints/one".into(), &false.into()));
    assert!(bench.refuses(&with(&["create", "one"])).contains("choose another name"));
    // In the bucket of the state folder as well as in a folder.
    let bucket = ["--savepoints", "s3://payguard-segments/savepoints"];
    bench.says(&[&with(&["create", "two"])[..], &bucket].concat());
    assert!(bench.says(&with(&["list"])).contains("one") && !bench.says(&with(&["list"])).contains("two"));
    assert!(bench.says(&[&with(&["list"])[..], &bucket].concat()).contains("two"));
    let shown = bench.says(&with(&["show", "one"]));
    for part in ["pipeline payguard", "card-profile", "deduplicate", "publish/0", "payments.raw-0 to 2999"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    for place in [&[][..], &bucket] {
        let name = if place.is_empty() { "one" } else { "two" };
        assert!(bench.says(&[&with(&["verify", name])[..], place].concat()).contains("is whole"));
    }
    assert!(bench.refuses(&with(&["verify", "three"])).contains("there are: one"));
    assert!(bench.refuses(&with(&["restore", "one"])).contains("--to payguard-2"));
    let two = [&with(&["restore", "two", "--to", "payguard-2", "--shards", "3"])[..], &bucket].concat();
    assert!(bench.says(&two).contains("pipeline payguard-2 restored from two"));
    assert!(bench.says(&two).contains("was restored from two before"));
    let inputs = ["run", "--payments", "data/payments.jsonl", "--confirmations", "data/confirmations.jsonl"];
    let places = ["--rules", "rules.jsonl", "--out", "b-out", "--state", "a-state"];
    bench.says(&[&inputs[..], &places, &["--set", "pipeline=payguard-2", "--shards", "3"]].concat());
    assert!(sorted(bench.outputs(&["a", "b"])) == sorted(bench.outputs(&["whole"])), "two pipelines side by side");
    assert!(bench.says(&with(&["delete", "one"])).contains("deleted"));
    assert_eq!(bench.says(&with(&["list"])), "no savepoints in a-state/savepoints\n");
}

#[test]
fn only_a_drain_closes_windows_early() {
    // A late payment would close a window of its own.
    let bench = Bench::of(&GeneratorConfig { late: 0.0, ..load() });
    let count = |name: &str, file: &str| bench.outputs(&[name])[file].len();
    // Payments alone: how many confirmations have been read when a run is stopped is left to chance.
    let stopped = |name: &str, options: &[&str]| {
        let (out, state) = (format!("{name}-out"), format!("{name}-state"));
        let run = ["run", "--payments", "data/payments.jsonl", "--rows-per-commit", "150", "--out", &out];
        bench.says(&[&run[..], &["--state", &state, "--stop-after", "1000", "--savepoint", "s"], options].concat())
    };
    stopped("kept", &[]);
    stopped("drained", &["--drain"]);
    // Five seconds of payments: no minute is over, most sessions go on.
    assert_eq!(count("kept", "merchant_stats.jsonl"), 0);
    assert!(count("drained", "merchant_stats.jsonl") > 0);
    assert!(count("drained", "card.sessions.jsonl") > count("kept", "card.sessions.jsonl"));
    let show = |name: &str| bench.says(&["savepoint", "show", "s", "--state", &format!("{name}-state")]);
    assert!(show("drained").contains(", drained") && !show("kept").contains(", drained"));
    // A pipeline that is stopped may be drained later as well.
    let drain = ["savepoint", "create", "later", "--state", "kept-state", "--out", "kept-out", "--drain"];
    assert_eq!(bench.says(&drain), "kept-state/savepoints/later\n");
    let outputs = |name: &str| sorted(bench.outputs(&[name]));
    assert!(outputs("kept") == outputs("drained"));
    let restored = bench.payguard(&["savepoint", "restore", "later", "--state", "kept-state", "--to", "next"]);
    assert!(text(&restored.stdout).contains("the savepoint was drained"), "{restored:?}");
}

#[test]
fn outputs_of_another_run_are_refused() {
    let bench = Bench::of(&load());
    let path = bench.run("a", &["--stop-after", "2000", "--savepoint", "s"]);
    let inputs = ["run", "--payments", "data/payments.jsonl", "--confirmations", "data/confirmations.jsonl"];
    let places = ["--rules", "rules.jsonl", "--out", "a-out", "--state", "b-state", "--restore", path.trim()];
    let refused = bench.refuses(&[&inputs[..], &places].concat());
    assert!(refused.contains("the outputs do not belong to this state"), "{refused}");
}

/// Every partition that was read is waited for, so a run that lacks one would never end.
#[test]
fn a_partition_without_its_file_is_refused() {
    let bench = Bench::of(&load());
    let two = ["run", "--payments", "data/payments.jsonl", "--payments", "data/payments.jsonl", "--stop-after", "2000"];
    let places = ["--out", "out", "--state", "state"];
    bench.says(&[&two[..], &places].concat());
    let refused = bench.refuses(&[&["run", "--payments", "data/payments.jsonl"], &places[..]].concat());
    assert!(refused.contains("payments.raw-1") && refused.contains("as many files"), "{refused}");
}

/// Without a number of shards a restored pipeline has those that it was saved with, however it came to them.
#[test]
fn shards_that_nobody_asked_for_are_not_changed() {
    let bench = Bench::of(&load());
    bench.run("a", &["--shards", "2", "--stop-after", "2000"]);
    assert!(bench.says(&["rescale", "rules", "3", "--state", "a-state"]).contains("2 -> 3 shards"));
    bench.says(&["savepoint", "create", "s", "--state", "a-state"]);
    bench.run("b", &["--restore", "a-state/savepoints/s"]);
    let status = bench.says(&["status", "--state", "b-state"]);
    assert!(status.contains("rules/g2.2of3") && status.contains("window/1"), "{status}");
}
