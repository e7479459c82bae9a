//! The functions as processes of their own, under `cargo lambda watch`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use payguard_aws::event::KafkaEvent;
use serde::Serialize;
use tokio::net::TcpStream;

use crate::http::{Answer, invoke};

/// How long the server may take to listen.
const START_TIME: Duration = Duration::from_secs(60);

/// A running `cargo lambda watch`; dropping it kills it and its functions.
pub(crate) struct Watch {
    process: Child,
    port: u16,
    log: PathBuf,
}

impl Watch {
    /// Starts the server; functions start with their first event.
    pub(crate) async fn start(variables: &[(String, String)], concurrency: u32, log: &Path) -> Watch {
        let port = free_port();
        let output = File::options().create(true).append(true).open(log).expect("the log can be written");
        let process = Command::new(cargo_lambda())
            .args(["lambda", "watch", "--release", "--ignore-changes", "--invoke-address", "127.0.0.1"])
            .args(["--invoke-port", &port.to_string(), "--concurrency", &concurrency.to_string()])
            .current_dir(workspace())
            .envs(variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output)
            .spawn()
            .expect("cargo-lambda starts");
        let watch = Watch { process, port, log: log.to_owned() };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            assert!(started.elapsed() < START_TIME, "cargo lambda watch does not listen:\n{}", watch.last_lines());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        watch
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Invokes a function and waits for its answer.
    pub(crate) async fn invoke(&self, function: &str, event: &impl Serialize) -> Answer {
        let event = serde_json::to_vec(event).expect("events serialize");
        self.invoke_raw(function, event).await
    }

    /// The same with bytes that need not be JSON.
    pub(crate) async fn invoke_raw(&self, function: &str, event: Vec<u8>) -> Answer {
        match invoke(self.port, function, event.into()).await {
            Ok(answer) => answer,
            Err(error) => panic!("{error}\n{}", self.last_lines()),
        }
    }

    /// Delivers records to a function; all of them must be acknowledged.
    pub(crate) async fn deliver(&self, function: &str, event: &KafkaEvent) {
        let answer = self.invoke(function, event).await;
        let all_done = serde_json::json!({"batchItemFailures": []});
        assert_eq!((answer.status, &answer.body), (200, &all_done), "{}", self.last_lines());
    }

    /// Ends the server and every function at once, whatever they are doing.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// The end of what server and functions have printed.
    pub(crate) fn last_lines(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let pids = self.with_descendants();
        let _ = Command::new("kill").arg("-KILL").args(pids).stderr(Stdio::null()).status();
        let _ = self.process.wait();
    }
}

impl Watch {
    /// The server's process and those below it: cargo and the functions.
    fn with_descendants(&self) -> Vec<String> {
        let listing = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output();
        let listing = listing.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
        let pairs: Vec<(&str, &str)> = listing.lines().filter_map(|line| line.trim().split_once(' ')).collect();
        let mut pids = vec![self.process.id().to_string()];
        let mut at = 0;
        while at < pids.len() {
            let children =
                pairs.iter().filter(|(_, parent)| parent.trim() == pids[at]).map(|(pid, _)| (*pid).to_owned());
            pids.extend(children.collect::<Vec<_>>());
            at += 1;
        }
        pids
    }
}

/// Makes sure that the functions are built, as `cargo lambda watch` builds them.
pub(crate) fn build() {
    let build = Command::new(env!("CARGO"))
        .args(["build", "--release", "--bins"])
        .current_dir(workspace())
        .status()
        .expect("cargo starts");
    assert!(build.success(), "the functions do not build");
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the workspace")
}

/// The tool in `.tools`, or on the path.
fn cargo_lambda() -> PathBuf {
    let own = workspace().join(".tools/bin/cargo-lambda");
    if own.exists() {
        return own;
    }
    let found = Command::new("cargo-lambda").args(["lambda", "--version"]).output().is_ok_and(|o| o.status.success());
    assert!(found, "cargo-lambda is missing: run scripts/tools.sh, which installs it into .tools");
    PathBuf::from("cargo-lambda")
}

fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    socket.local_addr().expect("a bound socket").port()
}
