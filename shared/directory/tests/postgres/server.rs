//! A PostgreSQL server of the test's own: a fresh cluster in a temporary folder, on a free port of this machine.

use std::collections::BTreeMap;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use payguard_directory::DatabaseSettings;
use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls};

/// With everything that has a meaning in a URL.
pub(crate) const PASSWORD: &str = "p@ss/w?rd:&% '1'";
const USER: &str = "payguard";
const MIGRATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../infra/sql/merchants.sql");

/// A cluster, running or not. What runs is killed when it is dropped.
pub(crate) struct Server {
    bin: PathBuf,
    dir: TempDir,
    port: u16,
    running: Option<Child>,
}

impl Server {
    /// Makes a cluster; it does not run yet.
    pub(crate) fn create() -> Server {
        let bin = binaries();
        let dir = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server { bin, dir, port: listener.local_addr().unwrap().port(), running: None };
        let password = server.dir.path().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        if is_root() {
            // PostgreSQL refuses to run as root.
            for path in [server.dir.path(), &password] {
                chown(path, Some(id(&["-u", "postgres"])), Some(id(&["-g", "postgres"]))).unwrap();
            }
        }
        let made = server
            .command("initdb")
            .args(["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--username", USER])
            .args([Path::new("--pwfile"), &password, Path::new("--pgdata"), &server.data()])
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        server
    }

    /// Starts it and waits until it answers.
    pub(crate) async fn start(&mut self) {
        assert!(self.running.is_none());
        let log = std::fs::File::options().create(true).append(true).open(self.log()).unwrap();
        let child = self
            .command("postgres")
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-k"])
            .arg(self.dir.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let child = self.running.insert(child);
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).user(USER).password(PASSWORD).dbname("postgres");
        while config.connect(NoTls).await.is_err() {
            let ended = child.try_wait().unwrap();
            let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap();
            assert!(ended.is_none(), "the server ended: {log}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops it at once: connections are closed, questions not answered any more.
    pub(crate) fn stop(&mut self) {
        let mut child = self.running.take().unwrap();
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        child.wait().unwrap();
    }

    /// Makes a database and applies a script to it.
    pub(crate) async fn database(&self, name: &str, script: &str) {
        self.connect("postgres").await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        self.connect(name).await.batch_execute(script).await.unwrap();
    }

    /// A connection for the test itself.
    pub(crate) async fn connect(&self, database: &str) -> Client {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).user(USER).password(PASSWORD).dbname(database);
        let (client, connection) = config.application_name("test").connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// What `PAYGUARD_DB_*` would say.
    pub(crate) fn settings(&self, database: &str, password: &str) -> DatabaseSettings {
        let variables: BTreeMap<String, String> = [
            ("PAYGUARD_DB_URL", format!("jdbc:postgresql://127.0.0.1:{}/{database}", self.port)),
            ("PAYGUARD_DB_USER", USER.to_owned()),
            ("PAYGUARD_DB_PASSWORD", password.to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        DatabaseSettings::read(&variables).unwrap()
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// A program of PostgreSQL, as a user that it accepts, that dies with the test.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        if is_root() {
            command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
        }
        command.arg("--pdeathsig=INT").arg(self.bin.join(program)).current_dir(self.dir.path());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.stop();
        }
    }
}

/// The migration that is shipped.
pub(crate) fn migration() -> String {
    std::fs::read_to_string(MIGRATION).unwrap()
}

/// The folder of the server's programs: in the PATH, or where Debian puts them (the newest).
fn binaries() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut debian: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path().join("bin"))
        .collect();
    debian.sort();
    let found = std::env::split_paths(&path)
        .chain(debian.into_iter().rev())
        .find(|dir| ["initdb", "postgres"].iter().all(|program| dir.join(program).is_file()));
    found.expect(
        "no PostgreSQL server: install the package postgresql (Debian, Ubuntu), or run scripts/tools.sh postgresql",
    )
}

fn is_root() -> bool {
    id(&["-u"]) == 0
}

fn id(arguments: &[&str]) -> u32 {
    let output = Command::new("id").args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim().parse().unwrap_or_else(|_| panic!("id {arguments:?}: {text:?}"))
}
