//! `payguard run` killed with SIGKILL at random moments and started again: the outputs are those of an undisturbed run,
//! byte for byte but for the clock reading in refused records. The same for a run whose disk was full.

use std::collections::BTreeMap;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use payguard_generator::{GeneratorConfig, write_files};
use payguard_tests::payguard;
use tempfile::TempDir;

/// Kills of one run.
const KILLS: usize = 20;

/// Two changes of the rules, and one that is refused.
const RULES: &str = r#"{"velocityMaxPayments":8}
{"velocityMaxPayments":-1}
{"blockedCountries":["XX"]}
"#;

/// The shape of the payments.
fn load() -> GeneratorConfig {
    GeneratorConfig {
        rate: 200,
        late: 0.05,
        late_max_ms: 200_000,
        dup: 0.02,
        bad: 0.01,
        burst: 0.002,
        ..GeneratorConfig::default()
    }
}

/// Generated payments and folders for runs.
struct Bench {
    dir: TempDir,
    options: Vec<String>,
}

impl Bench {
    fn new(records: u64, seed: u64, options: &[&str]) -> Bench {
        Bench::of(&GeneratorConfig { records, seed, confirm: 0.0, ..load() }, options)
    }

    /// The same with confirmations, attacks and changes of the rules: every stage takes part.
    fn full(records: u64, seed: u64, options: &[&str]) -> Bench {
        let config = GeneratorConfig { records, seed, card_testing: 0.001, travel: 0.001, ..load() };
        let inputs = ["--confirmations", "data/confirmations.jsonl", "--rules", "rules.jsonl"];
        let bench = Bench::of(&config, &[&inputs, options].concat());
        std::fs::write(bench.dir.path().join("rules.jsonl"), RULES).expect("rules are written");
        bench
    }

    fn of(config: &GeneratorConfig, options: &[&str]) -> Bench {
        let dir = tempfile::tempdir().expect("a temporary folder");
        write_files(config, &dir.path().join("data"), |_| ()).expect("payments are generated");
        Bench { dir, options: options.iter().map(|o| (*o).to_owned()).collect() }
    }

    fn start(&self, name: &str) -> Child {
        self.spawn(Command::new(payguard()), name)
    }

    fn spawn(&self, mut command: Command, name: &str) -> Child {
        let folder = |kind: &str| self.dir.path().join(format!("{name}-{kind}"));
        command
            .args(["run", "--payments"])
            .arg(self.dir.path().join("data").join("payments.jsonl"))
            .arg("--out")
            .arg(folder("out"))
            .arg("--state")
            .arg(folder("state"))
            .args(&self.options)
            .current_dir(self.dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("payguard starts")
    }

    fn rescale(&self, name: &str, stage: &str, shards: u32) -> Output {
        let state = self.dir.path().join(format!("{name}-state"));
        let mut command = Command::new(payguard());
        command.args(["rescale", stage, &shards.to_string(), "--state"]).arg(state);
        command.output().expect("payguard starts")
    }

    fn finish(&self, name: &str) {
        let output = self.start(name).wait_with_output().expect("payguard ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Kills runs at random moments until `KILLS` of them were hit; false when a run ended before it could be killed.
    fn kill_repeatedly(&self, name: &str, moments: &mut Moments) -> usize {
        for kill in 0..KILLS {
            let mut child = self.start(name);
            std::thread::sleep(moments.next());
            if let Some(status) = child.try_wait().expect("the state of payguard") {
                let output = child.wait_with_output().expect("payguard ended");
                assert!(status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                return kill;
            }
            child.kill().expect("killed");
            child.wait().expect("gone");
        }
        KILLS
    }

    /// Every output file; the clock reading of refused records is left out.
    fn outputs(&self, name: &str) -> BTreeMap<String, String> {
        let folder = self.dir.path().join(format!("{name}-out"));
        let files = std::fs::read_dir(folder).expect("the output folder");
        files
            .map(|file| file.expect("a file").path())
            .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
            .map(|path| {
                let text = std::fs::read_to_string(&path).expect("an output file");
                (path.file_name().expect("a name").to_string_lossy().into_owned(), without_clock(&text))
            })
            .collect()
    }
}

/// Cuts `"rejectedAtMs":<digits>` out of every line.
fn without_clock(text: &str) -> String {
    let mut parts = text.split("\"rejectedAtMs\":");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        clean.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    clean
}

/// Random waiting times from a seed.
struct Moments(u64);

impl Moments {
    /// From 20 ms, before the stores are open, to 320 ms, in the midst of the work.
    fn next(&mut self) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis(20 + (self.0 >> 33) % 300)
    }
}

fn assert_survives_kills(bench: &Bench, seed: u64) {
    bench.finish("undisturbed");
    let expected = bench.outputs("undisturbed");
    assert!(expected["fraud.alerts.jsonl"].lines().count() > 20, "the data raises alerts");
    assert!(expected["payments.late.jsonl"].lines().count() > 20, "the data has late payments");
    // A run that ends before its twentieth kill leaves less to prove: its folders count, and another one is begun.
    let (mut moments, mut kills, mut round) = (Moments(seed), 0, 0);
    while kills < KILLS {
        let name = format!("killed-{round}");
        kills += bench.kill_repeatedly(&name, &mut moments);
        bench.finish(&name);
        let found = bench.outputs(&name);
        for (file, text) in &expected {
            assert!(found[file] == *text, "{file} differs after kills (seed {seed}, folder {name})");
        }
        // Once more on finished folders: nothing changes.
        bench.finish(&name);
        assert!(bench.outputs(&name) == found, "a finished run was changed by another start");
        round += 1;
    }
}

#[test]
fn twenty_kills_leave_the_outputs_byte_for_byte() {
    assert_survives_kills(&Bench::new(60_000, 5, &["--rows-per-commit", "200"]), 1);
}

#[test]
fn twenty_kills_at_four_shards_with_frequent_flushes_leave_the_outputs_byte_for_byte() {
    let options = ["--rows-per-commit", "500", "--shards", "4", "--set", "engine.flush_every_ms=50"];
    assert_survives_kills(&Bench::new(30_000, 6, &options), 2);
}

#[test]
fn twenty_kills_of_all_stages_with_salted_totals_leave_the_outputs_byte_for_byte() {
    let options =
        ["--rows-per-commit", "400", "--shards", "2", "--stats-salts", "4", "--set", "engine.flush_every_ms=80"];
    let bench = Bench::full(20_000, 8, &options);
    assert_survives_kills(&bench, 3);
    let outputs = bench.outputs("undisturbed");
    for file in ["payments.confirmed", "card.profiles", "merchant_stats", "rules.rejected"] {
        assert!(!outputs[&format!("{file}.jsonl")].is_empty(), "{file} is part of the comparison");
    }
}

#[test]
fn a_full_disk_is_a_clear_error_and_the_next_run_goes_on() {
    let bench = Bench::new(20_000, 7, &["--rows-per-commit", "500"]);
    bench.finish("undisturbed");
    // No file may grow beyond 1 MiB: the database of the embedded stores comes to that first.
    let mut limited = Command::new("bash");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 1024; exec \"$@\"", "limited"]).arg(payguard());
    let output = bench.spawn(limited, "full").wait_with_output().expect("payguard ends");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "a run on a full disk cannot succeed");
    assert!(text.contains("disk"), "{text}");
    assert!(text.contains("run the same command to go on"), "{text}");
    bench.finish("full");
    assert!(bench.outputs("full") == bench.outputs("undisturbed"), "the run went on where it had stopped");
}

/// With another number of shards only the order of alerts may differ.
fn sorted_lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn shards_that_change_while_a_run_goes_on_and_is_killed_leave_the_outputs() {
    let options = ["--rows-per-commit", "100", "--shards", "2", "--set", "engine.flush_every_ms=80"];
    let bench = Bench::full(20_000, 9, &options);
    bench.finish("undisturbed");
    let expected = bench.outputs("undisturbed");
    let (mut moments, mut child) = (Moments(4), bench.start("rescaled"));
    let changes = [("rules", 4), ("dedup", 3), ("rules", 2), ("match", 5), ("window", 1), ("enrich", 3), ("rules", 3)];
    for (number, (stage, shards)) in changes.into_iter().enumerate() {
        std::thread::sleep(moments.next());
        let rescale = || bench.rescale("rescaled", stage, shards);
        let output = if number % 2 == 0 {
            // Beside the run, which may come to its end meanwhile.
            rescale()
        } else {
            // Killed while its shards change.
            let output = std::thread::scope(|scope| {
                let beside = scope.spawn(rescale);
                std::thread::sleep(moments.next());
                child.kill().expect("killed");
                child.wait().expect("gone");
                beside.join().expect("it has come to its end")
            });
            child = bench.start("rescaled");
            output
        };
        if !output.status.success() {
            let again = rescale();
            assert!(again.status.success(), "{stage} {shards}: {}", String::from_utf8_lossy(&again.stderr));
        }
    }
    let output = child.wait_with_output().expect("payguard ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    bench.finish("rescaled");
    let found = bench.outputs("rescaled");
    for (file, text) in &expected {
        assert!(sorted_lines(&found[file]) == sorted_lines(text), "{file} differs after changes of shards");
    }
}
