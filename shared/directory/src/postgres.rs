//! The directory in PostgreSQL: the table of `infra/sql/merchants.sql`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::Severity;
use tokio_postgres::{Config, NoTls};

use crate::{LookupError, MerchantDirectory};

const URL: &str = "PAYGUARD_DB_URL";
const USER: &str = "PAYGUARD_DB_USER";
const PASSWORD: &str = "PAYGUARD_DB_PASSWORD";

const QUERY: &str = "SELECT risk_level FROM merchants WHERE merchant_id = $1";

/// Where the database is and who asks it. The password is in no message and no `Debug` output.
#[derive(Clone)]
pub struct DatabaseSettings {
    config: Config,
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
}

impl DatabaseSettings {
    /// Reads `PAYGUARD_DB_URL` (`postgresql://host:port/database`, or the same after `jdbc:`), `PAYGUARD_DB_USER` and
    /// `PAYGUARD_DB_PASSWORD`; the latter two count more than what the URL says.
    ///
    /// # Errors
    /// When the URL or the user is missing, the URL is not understood, or it asks for TLS, which is not supported.
    pub fn read(variables: &BTreeMap<String, String>) -> Result<DatabaseSettings, SettingsError> {
        let get = |name: &str| variables.get(name).filter(|value| !value.is_empty());
        let purpose = "the database of merchants, for example postgresql://localhost:5432/payguard";
        let url = get(URL).ok_or(SettingsError::Missing { name: URL, purpose })?;
        let mut config = parse(url).map_err(|detail| SettingsError::Unusable { name: URL, detail })?;
        if let Some(user) = get(USER) {
            config.user(user);
        }
        if let Some(password) = get(PASSWORD) {
            config.password(password);
        }
        if config.get_user().is_none() {
            return Err(SettingsError::Missing {
                name: USER,
                purpose: "the user that reads the database of merchants",
            });
        }
        Ok(DatabaseSettings { config })
    }
}

impl fmt::Debug for DatabaseSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseSettings")
            .field("hosts", &self.config.get_hosts())
            .field("ports", &self.config.get_ports())
            .field("database", &self.config.get_dbname())
            .field("user", &self.config.get_user())
            .finish_non_exhaustive()
    }
}

fn parse(url: &str) -> Result<Config, &'static str> {
    let url = url.strip_prefix("jdbc:").unwrap_or(url);
    if !url.starts_with("postgresql://") && !url.starts_with("postgres://") {
        return Err("expected postgresql://host:port/database or jdbc:postgresql://host:port/database");
    }
    let url = without_tls_options(url)?;
    let mut config: Config =
        url.parse().map_err(|_| "not a URL of PostgreSQL, or it has an option that is not known")?;
    // Whatever the URL looked like to us, TLS that is asked for is not left out.
    if !matches!(config.get_ssl_mode(), SslMode::Disable | SslMode::Prefer) {
        return Err(NO_TLS);
    }
    if config.get_hosts().is_empty() {
        return Err("it names no host");
    }
    // The client takes what follows any @ for the host, options included.
    if config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(name) if name.contains(['&', '=']))) {
        return Err("an @ after the host must be written %40");
    }
    config.ssl_mode(SslMode::Disable);
    if config.get_application_name().is_none() {
        config.application_name("payguard");
    }
    Ok(config)
}

const NO_TLS: &str = "it asks for TLS, which is not supported yet: use sslmode=disable or sslmode=prefer";

/// The URL without the options `ssl` of JDBC and `sslmode`, which the client knows in part, if they can do without TLS.
fn without_tls_options(url: &str) -> Result<String, &'static str> {
    // A password may hold a question mark.
    let after_login = url.rfind('@').unwrap_or_default();
    let Some(at) = url[after_login..].find('?').map(|at| after_login + at) else { return Ok(url.to_owned()) };
    let mut kept = Vec::new();
    for option in url[at + 1..].split('&') {
        match option.split_once('=').unwrap_or((option, "")) {
            ("sslmode", "disable" | "allow" | "prefer") | ("ssl", "false") => {}
            ("sslmode" | "ssl", _) => return Err(NO_TLS),
            _ => kept.push(option),
        }
    }
    Ok(if kept.is_empty() { url[..at].to_owned() } else { format!("{}?{}", &url[..at], kept.join("&")) })
}

/// The merchants of a table `merchants`, read over at most [`PostgresDirectory::CONNECTIONS`] connections.
///
/// It connects when it is asked, so it can be made while the database is down, and finds it again by itself. Sessions
/// are read-only. A connection is used again only after an answer: with an error, or a question that was dropped, it is
/// closed, so no question waits behind one that nobody wants any more.
pub struct PostgresDirectory {
    pool: Pool,
}

impl PostgresDirectory {
    /// Most connections open at a time.
    pub const CONNECTIONS: usize = 8;

    /// A directory that is not connected yet. `timeout` is the longest that anyone waits for an answer: the server gives
    /// up a question after it too.
    ///
    /// # Errors
    /// When the pool refuses the settings.
    pub fn new(settings: &DatabaseSettings, timeout: Duration) -> Result<PostgresDirectory, SettingsError> {
        let mut config = settings.config.clone();
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(timeout);
        }
        if config.get_tcp_user_timeout().is_none() {
            // A peer that has vanished without a word is noticed while there is time to ask on a new connection.
            config.tcp_user_timeout(timeout / 2);
        }
        let session = format!(
            "SET default_transaction_read_only = on; SET statement_timeout = {}",
            timeout.as_millis().clamp(1, i32::MAX as u128)
        );
        let manager = Manager::from_config(config, NoTls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let begin = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
            let session = session.clone();
            Box::pin(async move { client.batch_execute(&session).await.map_err(HookError::Backend) })
        });
        let pool = Pool::builder(manager).max_size(PostgresDirectory::CONNECTIONS).post_create(begin).build();
        let pool = pool.map_err(|_| SettingsError::Unusable { name: URL, detail: "no pool can be made of it" })?;
        Ok(PostgresDirectory { pool })
    }

    async fn ask(&self, merchant_id: &str) -> Result<Option<String>, Failure> {
        let mut lease = Lease(Some(self.pool.get().await.map_err(|e| Failure::NotConnected(reasons(&e)))?));
        let Some(client) = &lease.0 else { return Ok(None) };
        let answer = async {
            let statement = client.prepare_cached(QUERY).await?;
            let row = client.query_opt(&statement, &[&merchant_id]).await?;
            row.map(|row| row.try_get(0)).transpose()
        };
        let level = answer.await.map_err(Failure::of)?;
        // Back to the pool.
        drop(lease.0.take());
        Ok(level)
    }
}

#[async_trait]
impl MerchantDirectory for PostgresDirectory {
    async fn risk_level(&self, merchant_id: &str) -> Result<Option<String>, LookupError> {
        if merchant_id.contains('\0') {
            // No text of PostgreSQL does; asking would be an error each time.
            return Ok(None);
        }
        let answer = match self.ask(merchant_id).await {
            // It may have broken long ago, unused, as the others: a server was restarted, a process frozen. Once more.
            Err(Failure::Broken(_)) => {
                self.pool.retain(|_, _| false);
                self.ask(merchant_id).await
            }
            answer => answer,
        };
        answer.map_err(|failure| LookupError::new(merchant_id, failure.detail()))
    }
}

/// A connection, closed unless it is taken out.
struct Lease(Option<Object>);

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            drop(Object::take(client));
        }
    }
}

enum Failure {
    /// No connection was to be had.
    NotConnected(String),
    /// The connection broke.
    Broken(String),
    /// The server refused.
    Refused(String),
}

impl Failure {
    fn of(error: tokio_postgres::Error) -> Failure {
        let fatal = |severity| matches!(severity, Some(Severity::Fatal | Severity::Panic));
        match error.as_db_error() {
            Some(db) if !fatal(db.parsed_severity()) => Failure::Refused(reasons(&error)),
            _ => Failure::Broken(reasons(&error)),
        }
    }

    fn detail(self) -> String {
        match self {
            Failure::NotConnected(reasons) | Failure::Broken(reasons) | Failure::Refused(reasons) => reasons,
        }
    }
}

/// An error and its causes, on one line.
fn reasons(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        cause = error.source();
    }
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const SECRET: &str = "s3cret";

    fn read(url: &str, user: &str, password: &str) -> Result<DatabaseSettings, SettingsError> {
        let variables = [(URL, url), (USER, user), (PASSWORD, password)].map(|(k, v)| (k.to_owned(), v.to_owned()));
        DatabaseSettings::read(&variables.into())
    }

    #[test]
    fn both_kinds_of_url_name_the_same_database() {
        for url in [
            "postgresql://postgres:5433/payguard",
            "postgres://postgres:5433/payguard",
            "jdbc:postgresql://postgres:5433/payguard",
            "jdbc:postgresql://postgres:5433/payguard?sslmode=prefer&ssl=false",
            "postgresql://other:wrong?word@postgres:5433/payguard?sslmode=disable&connect_timeout=1",
            "postgresql://other:wrong@postgres:5433/payguard?sslmode=allow",
        ] {
            let config = read(url, "reader", SECRET).unwrap().config;
            assert_eq!(config.get_hosts(), [Host::Tcp("postgres".to_owned())], "{url}");
            assert_eq!((config.get_ports(), config.get_dbname()), (&[5433][..], Some("payguard")), "{url}");
            assert_eq!((config.get_user(), config.get_password()), (Some("reader"), Some(SECRET.as_bytes())), "{url}");
            assert_eq!(config.get_ssl_mode(), SslMode::Disable, "{url}");
        }
        let config = read("postgresql://u:p%40ss@h/d", "", "").unwrap().config;
        assert_eq!((config.get_user(), config.get_password()), (Some("u"), Some(&b"p@ss"[..])));
    }

    #[test]
    fn tls_that_is_asked_for_is_not_left_out() {
        for option in [
            "sslmode=require",
            "sslmode=verify-ca",
            "sslmode=verify-full",
            "sslmode=",
            "ssl=true",
            "ssl",
            "application_name=a%40b&sslmode=require",
        ] {
            for scheme in ["postgresql", "jdbc:postgresql"] {
                let error = read(&format!("{scheme}://h:1/d?{option}"), "u", SECRET).unwrap_err();
                assert_eq!(error, SettingsError::Unusable { name: URL, detail: NO_TLS }, "{option}");
            }
        }
    }

    #[test]
    fn a_missing_or_unusable_variable_is_named() {
        for (url, user, expected) in [
            ("", "u", "PAYGUARD_DB_URL is not set: the database of merchants, for example"),
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
        ] {
            let error = read(url, user, SECRET).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{url}: {error}");
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
            format!("postgresql://h/d?password={SECRET}&sslmode=require"),
            format!("postgresql://h/d?passwort={SECRET}"),
        ] {
            let shown = match read(&url, "u", SECRET) {
                Ok(settings) => format!("{settings:?} {settings:#?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains(SECRET), "{url}: {shown}");
        }
    }
}
