//! A PostgreSQL server of the test's own: a fresh cluster in a temporary folder, on a free port of this machine.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls};

use crate::{DatabaseSettings, Migration, migrate};

/// With everything that has a meaning in a URL.
pub const PASSWORD: &str = "p@ss/w?rd:&% '1'";
/// The user that owns every database.
pub const USER: &str = "payguard";
/// Parameter of a server that speaks TLS, with the certificate that was made.
pub const TLS: &str = "ssl=on";

/// A cluster, running or not. What runs is stopped when it is dropped.
pub struct Server {
    bin: PathBuf,
    dir: TempDir,
    port: u16,
    running: Option<Child>,
}

impl Server {
    /// Makes a cluster; it does not run yet.
    ///
    /// # Panics
    /// When there is no PostgreSQL on this machine, as all of these functions do when something cannot be done.
    #[must_use]
    pub fn create() -> Server {
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
    pub async fn start(&mut self) {
        self.start_with(&[]).await;
    }

    /// Starts it with parameters, each as `name=value`, and waits until it answers.
    pub async fn start_with(&mut self, parameters: &[&str]) {
        assert!(self.running.is_none());
        let log = std::fs::File::options().create(true).append(true).open(self.log()).unwrap();
        let child = self
            .command("postgres")
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"])
            .args(parameters.iter().flat_map(|parameter| ["-c", parameter]))
            .arg("-k")
            .arg(self.dir.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let child = self.running.insert(child);
        let mut config = Config::new();
        config.host_path(self.dir.path()).port(self.port).user(USER).password(PASSWORD).dbname("postgres");
        while config.connect(NoTls).await.is_err() {
            let ended = child.try_wait().unwrap();
            let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap();
            assert!(ended.is_none(), "the server ended: {log}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Makes an authority and a certificate by it for `name`; returns the file of the authority's. To be started with
    /// [`TLS`] after that.
    pub fn make_certificate(&self, name: &str) -> PathBuf {
        let mut authority = CertificateParams::default();
        authority.distinguished_name.push(DnType::CommonName, format!("authority of {name}"));
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        self.own_file("server.key", &key.serialize_pem());
        self.own_file("server.crt", &certificate.pem());
        let file = self.dir.path().join(format!("authority-of-{name}.pem"));
        std::fs::write(&file, authority.pem()).unwrap();
        file
    }

    /// Who may connect, and how: lines of `pg_hba.conf`, in force from the next start.
    pub fn admit(&self, lines: &str) {
        self.own_file("pg_hba.conf", lines);
    }

    /// Writes a file into the data folder that nobody but the server can read.
    fn own_file(&self, name: &str, text: &str) {
        let path = self.data().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        if is_root() {
            chown(&path, Some(id(&["-u", "postgres"])), Some(id(&["-g", "postgres"]))).unwrap();
        }
    }

    /// Stops it at once: connections are closed, questions not answered any more.
    pub fn stop(&mut self) {
        self.end("-INT");
    }

    /// Ends it as a crash would: nothing is finished or written down, the next start recovers from the log.
    pub fn crash(&mut self) {
        self.end("-QUIT");
    }

    fn end(&mut self, signal: &str) {
        let mut child = self.running.take().unwrap();
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        child.wait().unwrap();
    }

    /// Makes a database and applies a script to it.
    pub async fn database(&self, name: &str, script: &str) {
        self.connect("postgres").await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        self.connect(name).await.batch_execute(script).await.unwrap();
    }

    /// Makes a database with the tables; returns how it is reached.
    pub async fn migrated(&self, name: &str) -> DatabaseSettings {
        self.database(name, "").await;
        let settings = self.settings(name, PASSWORD);
        migrate(&settings, &Migration::TABLES).await.unwrap();
        settings
    }

    /// A connection for the test itself.
    pub async fn connect(&self, database: &str) -> Client {
        let mut config = Config::new();
        config.host_path(self.dir.path()).port(self.port).user(USER).password(PASSWORD).dbname(database);
        let (client, connection) = config.application_name("test").connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// What `PAYGUARD_DB_*` would say.
    #[must_use]
    pub fn settings(&self, database: &str, password: &str) -> DatabaseSettings {
        let url = format!("jdbc:postgresql://127.0.0.1:{}/{database}", self.port);
        self.settings_of(&url, password, None)
    }

    /// The same for another URL, with a file of root certificates.
    #[must_use]
    pub fn settings_of(&self, url: &str, password: &str, roots: Option<&Path>) -> DatabaseSettings {
        let roots = roots.map(|path| path.display().to_string()).unwrap_or_default();
        let variables: BTreeMap<String, String> = [
            ("PAYGUARD_DB_URL", url),
            ("PAYGUARD_DB_USER", USER),
            ("PAYGUARD_DB_PASSWORD", password),
            ("PAYGUARD_DB_CA_FILE", &roots),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        DatabaseSettings::read(&variables).unwrap()
    }

    /// The port that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
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
