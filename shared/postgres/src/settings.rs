//! Where the database is, who comes to it, and how a connection is made.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Error, NoTls, Socket};

use crate::error::reasons;
use crate::tls::{TlsMode, Way};

const URL: &str = "PAYGUARD_DB_URL";
const USER: &str = "PAYGUARD_DB_USER";
const PASSWORD: &str = "PAYGUARD_DB_PASSWORD";
const CA_FILE: &str = "PAYGUARD_DB_CA_FILE";

/// Where the database is, who comes to it, and whether with TLS. The password is in no message and no `Debug` output.
#[derive(Clone)]
pub struct DatabaseSettings {
    config: Config,
    mode: TlsMode,
    ways: Vec<Way>,
}

/// The variables of the database cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SettingsError {
    /// A variable is missing.
    #[error("{name} is not set: {purpose}")]
    Missing {
        /// The variable.
        name: &'static str,
        /// What it is for.
        purpose: &'static str,
    },
    /// A variable has a value that cannot be used. The value may hold a password and is not repeated.
    #[error("{name} cannot be used: {detail}")]
    Unusable {
        /// The variable.
        name: &'static str,
        /// Why.
        detail: &'static str,
    },
    /// The certificates that the server's is checked with cannot be had.
    #[error("PAYGUARD_DB_CA_FILE, the root certificates for the database: {detail}")]
    Roots {
        /// Why.
        detail: String,
    },
}

/// A connection.
pub struct Connected {
    /// To ask with.
    pub client: Client,
    /// What moves its bytes. It ends some time after the client is dropped, at once when it is aborted.
    pub driver: JoinHandle<()>,
}

impl DatabaseSettings {
    /// Reads `PAYGUARD_DB_URL` (`postgresql://host:port/database`, or the same after `jdbc:`), `PAYGUARD_DB_USER` and
    /// `PAYGUARD_DB_PASSWORD`; the latter two count more than what the URL says. `sslmode` in the URL means what it means
    /// to libpq, `prefer` when there is none; `ssl=true` is JDBC's word for `verify-full`. The file of
    /// `PAYGUARD_DB_CA_FILE` (PEM) holds the root certificates; without it those of the machine hold.
    ///
    /// # Errors
    /// When the URL or the user is missing, the URL is not understood, or the root certificates cannot be read.
    pub fn read(variables: &BTreeMap<String, String>) -> Result<DatabaseSettings, SettingsError> {
        let get = |name: &str| variables.get(name).filter(|value| !value.is_empty());
        let purpose = "the database, for example postgresql://localhost:5432/payguard";
        let url = get(URL).ok_or(SettingsError::Missing { name: URL, purpose })?;
        let (mut config, mode) = parse(url).map_err(|detail| SettingsError::Unusable { name: URL, detail })?;
        if let Some(user) = get(USER) {
            config.user(user);
        }
        if let Some(password) = get(PASSWORD) {
            config.password(password);
        }
        if config.get_user().is_none() {
            return Err(SettingsError::Missing { name: USER, purpose: "the user of the database" });
        }
        let ways = mode.ways(get(CA_FILE).map(Path::new)).map_err(|detail| SettingsError::Roots { detail })?;
        Ok(DatabaseSettings { config, mode, ways })
    }

    /// The same, waiting so long for a connection, and half of that for a sign of life of the other side. What the URL
    /// says counts more.
    #[must_use]
    pub fn with_patience(mut self, time: Duration) -> DatabaseSettings {
        if self.config.get_connect_timeout().is_none() {
            self.config.connect_timeout(time);
        }
        if self.config.get_tcp_user_timeout().is_none() {
            // A peer that has vanished without a word is noticed while there is time to ask on a new connection.
            self.config.tcp_user_timeout(time / 2);
        }
        self
    }

    /// What the client is configured with, but for TLS.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The database, for messages: host, port and name.
    #[must_use]
    pub fn place(&self) -> String {
        let host = |host: &Host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        };
        let hosts: Vec<String> = self.config.get_hosts().iter().map(host).collect();
        let ports: Vec<String> = self.config.get_ports().iter().map(u16::to_string).collect();
        format!("{}:{}/{}", hosts.join(","), ports.join(","), self.config.get_dbname().unwrap_or_default())
    }

    /// Opens a connection, as `sslmode` says: what is stronger than `prefer` never goes on without TLS. The caller limits
    /// the time.
    ///
    /// # Errors
    /// When no way leads to the database; of several reasons the one that the server gave.
    pub async fn connect(&self) -> Result<Connected, Error> {
        let mut failure = None;
        for way in &self.ways {
            let result = match way {
                Way::Plain => self.open(SslMode::Disable, NoTls).await,
                Way::Tls(tls) => self.open(SslMode::Require, tls.clone()).await,
            };
            let error = match result {
                Ok(connected) => return Ok(connected),
                Err(error) => error,
            };
            failure = Some(match failure.take() {
                Some(earlier) => telling(earlier, error),
                None => error,
            });
        }
        Err(failure.expect("every mode has a way"))
    }

    async fn open<T>(&self, mode: SslMode, tls: T) -> Result<Connected, Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, connection) = self.config.clone().ssl_mode(mode).connect(tls).await?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = reasons(&error), "a connection of the database has ended");
            }
        });
        Ok(Connected { client, driver })
    }
}

/// Of two reasons the one that says more; the other goes to the log.
fn telling(earlier: Error, later: Error) -> Error {
    // A server that admits a client only the other way says least, but for one that cannot be reached.
    let weight = |error: &Error| match error.code() {
        None => 0,
        Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => 1,
        Some(_) => 2,
    };
    let (told, other) = if weight(&earlier) > weight(&later) { (earlier, later) } else { (later, earlier) };
    let (reason, other) = (reasons(&told), reasons(&other));
    if other != reason {
        tracing::warn!(error = other, "the database cannot be reached another way either");
    }
    told
}

impl fmt::Debug for DatabaseSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseSettings")
            .field("hosts", &self.config.get_hosts())
            .field("ports", &self.config.get_ports())
            .field("database", &self.config.get_dbname())
            .field("user", &self.config.get_user())
            .field("tls", &self.mode)
            .finish_non_exhaustive()
    }
}

const AT: &str = "an @ after the host must be written %40";

fn parse(url: &str) -> Result<(Config, TlsMode), &'static str> {
    let url = url.strip_prefix("jdbc:").unwrap_or(url);
    if !url.starts_with("postgresql://") && !url.starts_with("postgres://") {
        return Err("expected postgresql://host:port/database or jdbc:postgresql://host:port/database");
    }
    let (url, mode) = without_tls_options(url)?;
    let mut config: Config =
        url.parse().map_err(|_| "not a URL of PostgreSQL, or it has an option that is not known")?;
    if config.get_hosts().is_empty() {
        return Err("it names no host");
    }
    // The client takes what follows any @ for the host, options included.
    if config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(name) if name.contains(['&', '=']))) {
        return Err(AT);
    }
    // Whatever the URL looked like to us, TLS that is asked for is not left out.
    if config.get_ssl_mode() != SslMode::Prefer {
        return Err(AT);
    }
    if config.get_application_name().is_none() {
        config.application_name("payguard");
    }
    Ok((config, mode))
}

/// The URL without the options `ssl` of JDBC and `sslmode`, which the client knows in part, and what they say.
fn without_tls_options(url: &str) -> Result<(String, TlsMode), &'static str> {
    // A password may hold a question mark.
    let after_login = url.rfind('@').unwrap_or_default();
    let Some(at) = url[after_login..].find('?').map(|at| after_login + at) else {
        return Ok((url.to_owned(), TlsMode::Prefer));
    };
    let (mut kept, mut mode, mut full) = (Vec::new(), None, false);
    for option in url[at + 1..].split('&') {
        match option.split_once('=').unwrap_or((option, "")) {
            ("sslmode", name) => {
                let unknown = "sslmode is one of disable, allow, prefer, require, verify-ca and verify-full";
                mode = Some(TlsMode::named(name).ok_or(unknown)?);
            }
            ("ssl", "true" | "") => full = true,
            ("ssl", "false") => full = false,
            ("ssl", _) => return Err("ssl is true or false"),
            ("sslrootcert", _) => return Err("root certificates are named by PAYGUARD_DB_CA_FILE, not by sslrootcert"),
            _ => kept.push(option),
        }
    }
    let mode = mode.unwrap_or(if full { TlsMode::VerifyFull } else { TlsMode::Prefer });
    let url = if kept.is_empty() { url[..at].to_owned() } else { format!("{}?{}", &url[..at], kept.join("&")) };
    Ok((url, mode))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const SECRET: &str = "s3cret";

    fn read(url: &str, user: &str, password: &str) -> Result<DatabaseSettings, SettingsError> {
        read_with(url, user, password, "")
    }

    fn read_with(url: &str, user: &str, password: &str, ca_file: &str) -> Result<DatabaseSettings, SettingsError> {
        let variables = [(URL, url), (USER, user), (PASSWORD, password), (CA_FILE, ca_file)];
        DatabaseSettings::read(&variables.map(|(k, v)| (k.to_owned(), v.to_owned())).into())
    }

    #[test]
    fn both_kinds_of_url_name_the_same_database() {
        for (url, mode) in [
            ("postgresql://postgres:5433/payguard", TlsMode::Prefer),
            ("postgres://postgres:5433/payguard", TlsMode::Prefer),
            ("jdbc:postgresql://postgres:5433/payguard", TlsMode::Prefer),
            ("jdbc:postgresql://postgres:5433/payguard?ssl=false", TlsMode::Prefer),
            ("jdbc:postgresql://postgres:5433/payguard?ssl=true", TlsMode::VerifyFull),
            ("jdbc:postgresql://postgres:5433/payguard?ssl", TlsMode::VerifyFull),
            ("jdbc:postgresql://postgres:5433/payguard?sslmode=require&ssl=true", TlsMode::Require),
            (
                "postgresql://other:wrong?word@postgres:5433/payguard?sslmode=disable&connect_timeout=1",
                TlsMode::Disable,
            ),
            ("postgresql://other:wrong@postgres:5433/payguard?sslmode=allow", TlsMode::Allow),
            ("postgresql://postgres:5433/payguard?application_name=a%40b&sslmode=require", TlsMode::Require),
            ("postgresql://postgres:5433/payguard?sslmode=verify-full", TlsMode::VerifyFull),
        ] {
            let settings = read(url, "reader", SECRET).unwrap();
            let config = settings.config();
            assert_eq!(config.get_hosts(), [Host::Tcp("postgres".to_owned())], "{url}");
            assert_eq!((config.get_ports(), config.get_dbname()), (&[5433][..], Some("payguard")), "{url}");
            assert_eq!((config.get_user(), config.get_password()), (Some("reader"), Some(SECRET.as_bytes())), "{url}");
            assert_eq!(settings.mode, mode, "{url}");
            assert_eq!(settings.place(), "postgres:5433/payguard");
        }
        let settings = read("postgresql://u:p%40ss@h/d", "", "").unwrap();
        assert_eq!((settings.config.get_user(), settings.config.get_password()), (Some("u"), Some(&b"p@ss"[..])));
    }

    #[test]
    fn only_what_is_weaker_than_require_has_a_way_without_tls() {
        for (mode, expected) in [
            (TlsMode::Disable, vec!["plain"]),
            (TlsMode::Allow, vec!["plain", "tls"]),
            (TlsMode::Prefer, vec!["tls", "plain"]),
            (TlsMode::Require, vec!["tls"]),
            (TlsMode::VerifyFull, vec!["tls"]),
        ] {
            let ways = mode.ways(None).unwrap();
            let ways: Vec<&str> = ways.iter().map(|w| if matches!(w, Way::Plain) { "plain" } else { "tls" }).collect();
            assert_eq!(ways, expected, "{mode:?}");
        }
    }

    #[test]
    fn a_missing_or_unusable_variable_is_named() {
        for (url, user, expected) in [
            ("", "u", "PAYGUARD_DB_URL is not set: the database, for example"),
            ("postgresql://h/d", "", "PAYGUARD_DB_USER is not set: the user"),
            ("mysql://h/d", "u", "PAYGUARD_DB_URL cannot be used: expected postgresql://"),
            ("jdbc:postgresql:d", "u", "PAYGUARD_DB_URL cannot be used: expected postgresql://"),
            ("postgresql:///d", "u", "PAYGUARD_DB_URL cannot be used: it names no host"),
            (
                "postgresql://h/d?application_name=a@b&sslmode=require",
                "u",
                "PAYGUARD_DB_URL cannot be used: an @ after",
            ),
            ("postgresql://h:port/d", "u", "PAYGUARD_DB_URL cannot be used: not a URL"),
            ("postgresql://h/d?currentSchema=x", "u", "PAYGUARD_DB_URL cannot be used: not a URL"),
            ("postgresql://h/d?sslmode=", "u", "PAYGUARD_DB_URL cannot be used: sslmode is one of disable,"),
            ("postgresql://h/d?sslmode=VERIFY-FULL", "u", "PAYGUARD_DB_URL cannot be used: sslmode is one of disable,"),
            ("postgresql://h/d?ssl=on", "u", "PAYGUARD_DB_URL cannot be used: ssl is true or false"),
            ("postgresql://h/d?sslrootcert=x", "u", "PAYGUARD_DB_URL cannot be used: root certificates are named by"),
            (
                "postgresql://h/d?sslmode=verify-ca",
                "u",
                "PAYGUARD_DB_CA_FILE, the root certificates for the database: ",
            ),
        ] {
            let error = read(url, user, SECRET).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{url}: {error}");
        }
    }

    #[test]
    fn roots_that_cannot_be_read_are_an_error_where_they_are_needed() {
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        for (mode, file, reason) in [
            ("verify-full", "/nowhere/ca.pem", "/nowhere/ca.pem"),
            ("verify-ca", own, "it holds no certificate"),
            ("require", own, "it holds no certificate"),
        ] {
            let error = read_with(&format!("postgresql://h/d?sslmode={mode}"), "u", SECRET, file).unwrap_err();
            assert!(error.to_string().contains(reason), "{mode}: {error}");
        }
        for mode in ["disable", "allow", "prefer"] {
            assert!(read_with(&format!("postgresql://h/d?sslmode={mode}"), "u", SECRET, own).is_ok(), "{mode}");
        }
    }

    #[test]
    fn the_password_is_not_shown() {
        for url in [
            "postgresql://h/d".to_owned(),
            format!("postgresql://u:{SECRET}@h/d"),
            format!("postgresql://u:x?{SECRET}=1@h/d"),
            format!("postgresql://u:x?{SECRET}=1/@h/d?{SECRET}=1"),
            format!("postgresql://h/d?password={SECRET}"),
            format!("postgresql://h/d?password={SECRET}&sslmode=verify-ca"),
            format!("postgresql://h/d?password={SECRET}&sslmode={SECRET}"),
            format!("postgresql://h/d?passwort={SECRET}"),
        ] {
            let shown = match read(&url, "u", SECRET) {
                Ok(settings) => format!("{settings:?} {settings:#?} {:?} {}", settings.config(), settings.place()),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains(SECRET), "{url}: {shown}");
        }
    }
}
