//! Java processes that end with the test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

pub(super) const KEYSTORE: &str = "broker.p12";
pub(super) const KEYSTORE_PASSWORD: &str = "keystore-secret";
pub(super) const CERTIFICATE: &str = "ca.pem";

const FOLDER: &str = "payguard-broker-";

/// Java with Kafka's classes.
pub(super) struct Java {
    classes: String,
}

/// A process that runs.
pub(super) struct Process {
    child: Child,
    /// Dropping it lets the thread end that has started the process.
    _parent: mpsc::Sender<()>,
}

impl Java {
    /// Looks in `PAYGUARD_KAFKA_HOME`, or else where `scripts/tools.sh kafka` puts the jars.
    pub(super) fn find() -> Java {
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/kafka");
        let home = std::env::var_os("PAYGUARD_KAFKA_HOME").map_or(ours, PathBuf::from);
        let libs = home.join("libs");
        let there = std::fs::read_dir(&libs).into_iter().flatten().flatten().any(|jar| {
            let name = jar.file_name();
            name.to_str().is_some_and(|name| name.starts_with("kafka-server-") && name.ends_with(".jar"))
        });
        assert!(
            there,
            "no Apache Kafka in {}: run scripts/tools.sh kafka, or let PAYGUARD_KAFKA_HOME name a folder of Kafka 4",
            home.display()
        );
        let java = Command::new("java").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(java.is_ok_and(|status| status.success()), "no Java: run scripts/tools.sh kafka");
        Java { classes: format!("{}/*", libs.display()) }
    }

    /// Runs a tool to its end.
    pub(super) fn run(&self, class: &str, arguments: &[&str]) {
        let output = self.command(class).args(arguments).output().expect("java starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{class}: {}{}", text(&output.stdout), text(&output.stderr));
    }

    /// Starts a process. It is the child of a thread of its own: the system ends it when that thread ends, and the thread
    /// of a test ends before others that share the process are done with it.
    pub(super) fn spawn(&self, class: &str, argument: &Path, log: &Path) -> Process {
        let log = File::options().create(true).append(true).open(log).expect("a log that can be written");
        let mut command = self.command(class);
        command.arg(argument).stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        let (child, started) = mpsc::channel();
        let (parent, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            let _ = child.send(command.spawn());
            // Nothing is ever sent: it returns when the process is not wanted any more.
            let _ = ended.recv();
        });
        let child = started.recv().expect("the thread sends").expect("java starts");
        Process { child, _parent: parent }
    }

    /// A key and its certificate, which clients trust as it is.
    pub(super) fn make_certificate(&self, dir: &Path) {
        let keytool = |arguments: &[&str]| {
            let mut command = Command::new("keytool");
            command.current_dir(dir).args(arguments).args(["-keystore", KEYSTORE, "-storepass", KEYSTORE_PASSWORD]);
            let output = command.output().expect("keytool comes with java");
            assert!(output.status.success(), "keytool: {}", String::from_utf8_lossy(&output.stdout));
        };
        let names = ["-dname", "CN=localhost", "-ext", "SAN=dns:localhost", "-storetype", "PKCS12"];
        keytool(&[&["-genkeypair", "-alias", "broker", "-keyalg", "EC", "-validity", "3650"][..], &names].concat());
        keytool(&["-exportcert", "-alias", "broker", "-rfc", "-file", CERTIFICATE]);
    }

    /// Quick to start rather than fast in the long run.
    fn command(&self, class: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]).args([
            "-Dorg.apache.logging.log4j.level=WARN",
            "-cp",
            &self.classes,
            class,
        ]);
        command
    }
}

impl Process {
    /// Whether it still runs.
    pub(super) fn runs(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Sends a signal and waits for its end.
    pub(super) fn end(mut self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.is_ok_and(|status| status.success()), "signal {signal} to process {pid}");
        self.child.wait().expect("it is our child");
    }
}

/// A fresh folder. Those of processes that have ended without removing theirs are removed.
pub(super) fn folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let temp = std::env::temp_dir();
    for entry in std::fs::read_dir(&temp).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(FOLDER)).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let dir = temp.join(format!("{FOLDER}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    // Of an earlier process with the same id.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a temporary folder");
    dir
}

/// Waits for a future on a thread of its own, so that it can be called from everywhere.
pub(super) fn blocking<F: Future<Output: Send> + Send>(future: F) -> F::Output {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(future)
        });
        waiting.join().expect("it does not panic")
    })
}
