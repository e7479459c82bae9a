//! What all clients are made with, and what they say about the connection.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_credential_types::provider::SharedCredentialsProvider;
use rdkafka::ClientConfig;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;

use crate::iam::MskTokens;
use crate::{KafkaSettings, SettingsError};

/// Makes the configuration and the context that clients are created with.
#[derive(Clone)]
pub struct KafkaClients {
    settings: KafkaSettings,
    tokens: Option<MskTokens>,
}

/// A client's eyes and ears: it logs what librdkafka says, keeps the newest reason for which brokers refused it, and
/// makes tokens for IAM. Copies share the reason; every client should have a context of its own.
#[derive(Clone)]
pub struct KafkaContext {
    seen: Arc<Mutex<Seen>>,
    tokens: Option<MskTokens>,
}

#[derive(Default)]
struct Seen {
    refusal: Option<Refusal>,
    trouble: Option<String>,
    /// The trouble that was logged last, and when.
    told: Option<(String, Instant)>,
    /// How often brokers have hung up during a login or a TLS handshake, and since when.
    hung_up: Option<(u32, Instant)>,
}

/// Why brokers refuse a client: trying again will not help until somebody has changed something.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{kind}: {reason}")]
pub struct Refusal {
    /// In which way.
    pub kind: RefusalKind,
    /// In librdkafka's words, with the broker's.
    pub reason: String,
}

/// In which way a client was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalKind {
    /// User, password, mechanism or role.
    Authentication,
    /// Certificates, or TLS with a broker that speaks none.
    Tls,
    /// Logged in, but not allowed.
    Authorization,
}

impl std::fmt::Display for RefusalKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RefusalKind::Authentication => "Kafka refuses the login (PAYGUARD_KAFKA_USER and the like)",
            RefusalKind::Tls => "no TLS connection to Kafka (PAYGUARD_KAFKA_TLS, PAYGUARD_KAFKA_CA_FILE)",
            RefusalKind::Authorization => "Kafka does not allow it",
        })
    }
}

/// The cluster cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// Brokers refuse us.
    #[error(transparent)]
    Refused(Refusal),
    /// Nobody answered in time.
    #[error("no answer from Kafka at {bootstrap}: {reason}")]
    Unreachable {
        /// Who was asked.
        bootstrap: String,
        /// What was last heard.
        reason: String,
    },
    /// librdkafka refused the configuration.
    #[error("the Kafka client could not be made: {0}")]
    Configuration(String),
}

impl KafkaClients {
    /// Clients with these settings. `credentials` are asked for tokens with `AWS_MSK_IAM` only.
    ///
    /// # Errors
    /// When `AWS_MSK_IAM` is wanted and there are no credentials to ask, or the file of certificates has none.
    pub fn new(
        settings: KafkaSettings,
        credentials: Option<SharedCredentialsProvider>,
    ) -> Result<KafkaClients, SettingsError> {
        let tokens = match (settings.region(), credentials) {
            (None, _) => None,
            (Some(region), Some(credentials)) => Some(MskTokens::new(region, credentials)),
            (Some(_), None) => {
                return Err(SettingsError::Unusable {
                    name: "PAYGUARD_KAFKA_SASL_MECHANISM",
                    detail: "there are no AWS credentials for AWS_MSK_IAM here",
                });
            }
        };
        if let Some(file) = settings.ca_file() {
            // librdkafka's own message does not name the file.
            let certificates = std::fs::read(file).unwrap_or_default();
            if !String::from_utf8_lossy(&certificates).contains("-----BEGIN CERTIFICATE-----") {
                let detail = "no file with certificates in PEM format";
                return Err(SettingsError::Unusable { name: "PAYGUARD_KAFKA_CA_FILE", detail });
            }
        }
        Ok(KafkaClients { settings, tokens })
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &KafkaSettings {
        &self.settings
    }

    /// What every client is configured with: brokers, login and TLS. Group, isolation and the like are the caller's.
    #[must_use]
    pub fn config(&self) -> ClientConfig {
        self.settings.config()
    }

    /// A context for one client.
    #[must_use]
    pub fn context(&self) -> KafkaContext {
        KafkaContext { seen: Arc::default(), tokens: self.tokens.clone() }
    }

    /// Connects, logs in and asks which topics there are: their partitions by name. Waits `patience` at most for brokers
    /// that do not answer, as after a start, but not at all when they refuse us.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn check(&self, patience: Duration) -> Result<BTreeMap<String, u32>, ConnectError> {
        let clients = self.clone();
        let asked = tokio::task::spawn_blocking(move || clients.check_blocking(patience));
        asked.await.unwrap_or_else(|err| Err(ConnectError::Configuration(err.to_string())))
    }

    /// [`KafkaClients::check`], on this thread.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn check_blocking(&self, patience: Duration) -> Result<BTreeMap<String, u32>, ConnectError> {
        let context = self.context();
        let client: BaseConsumer<KafkaContext> = self
            .config()
            .create_with_context(context.clone())
            .map_err(|err| ConnectError::Configuration(err.to_string()))?;
        let began = Instant::now();
        loop {
            // Tokens and errors come with polling.
            client.poll(Duration::ZERO);
            let answer = client.fetch_metadata(None, ASK);
            client.poll(Duration::ZERO);
            let error = match answer {
                Ok(metadata) => {
                    let topics = metadata.topics().iter();
                    return Ok(topics.map(|topic| (topic.name().to_owned(), count(topic.partitions()))).collect());
                }
                Err(error) => error,
            };
            if let Some(refusal) = context.refusal() {
                return Err(ConnectError::Refused(refusal));
            }
            if began.elapsed() >= patience {
                let reason = self.explained(context.trouble().unwrap_or_else(|| error.to_string()));
                return Err(ConnectError::Unreachable { bootstrap: self.settings.bootstrap().to_owned(), reason });
            }
        }
    }
}

impl KafkaClients {
    /// A broker that wants a login or TLS just hangs up on those who come without.
    fn explained(&self, reason: String) -> String {
        let without = match (self.settings.mechanism(), self.settings.tls()) {
            (None, false) => "a login or TLS (PAYGUARD_KAFKA_USER, PAYGUARD_KAFKA_TLS)",
            (None, true) => "a login (PAYGUARD_KAFKA_USER)",
            (Some(_), false) => "TLS (PAYGUARD_KAFKA_TLS)",
            (Some(_), true) => return reason,
        };
        if is_hung_up(&reason) { format!("{reason}; does it ask for {without}?") } else { reason }
    }
}

/// A broker that hangs up so often during the login refuses us …
const HUNG_UP_TIMES: u32 = 4;
/// … within this time; librdkafka tries again after 100 ms, 200 ms and so on.
const HUNG_UP_WITHIN: Duration = Duration::from_secs(10);

/// How long the same trouble is not logged again.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// How long one question may take before events are looked at again.
const ASK: Duration = Duration::from_millis(300);

fn count<T>(partitions: &[T]) -> u32 {
    u32::try_from(partitions.len()).unwrap_or(u32::MAX)
}

impl KafkaContext {
    /// The newest refusal since the last [`KafkaContext::accepted`]. A client that waits for an answer in vain looks
    /// here: librdkafka itself would try for ever.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        self.lock().refusal.clone()
    }

    /// The newest trouble of another kind: brokers that are down, names that cannot be resolved.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.lock().trouble.clone()
    }

    /// An answer came: what was refused before is over.
    pub fn accepted(&self) {
        *self.lock() = Seen::default();
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self, kind: RefusalKind, reason: &str) {
        self.lock().refusal = Some(Refusal { kind, reason: reason.to_owned() });
    }
}

impl Seen {
    /// Notes that a broker has hung up on us during a login, and says whether that is how it refuses us: one that is
    /// stopped just then does so too, but once.
    fn is_hung_up_often(&mut self) -> bool {
        let (times, since) =
            self.hung_up.filter(|(_, since)| since.elapsed() < HUNG_UP_WITHIN).unwrap_or((0, Instant::now()));
        self.hung_up = Some((times + 1, since));
        times + 1 >= HUNG_UP_TIMES
    }

    /// Whether this has been logged lately: an outage is told from time to time, not with every try to connect.
    fn is_told(&mut self, reason: &str) -> bool {
        let what = without_times(reason);
        let lately = self.told.as_ref().filter(|(told, at)| told == what && at.elapsed() < TELL_AGAIN);
        if lately.is_none() {
            self.told = Some((what.to_owned(), Instant::now()));
            return false;
        }
        true
    }
}

impl ClientContext for KafkaContext {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        if fac == "FAIL" {
            // Why a connection failed is only logged; the event that follows counts brokers.
            let reason = message.split_once("]: ").map_or(message, |(_, reason)| reason);
            self.lock().trouble = Some(reason.to_owned());
        }
        match level {
            // `error` is told too; and after an outage leaders are unknown for a moment.
            _ if matches!(fac, "FAIL" | "METADATAUPDATE") => tracing::debug!(target: "librdkafka", fac, "{message}"),
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", fac, "{message}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => tracing::info!(target: "librdkafka", fac, "{message}"),
            RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", fac, "{message}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        if code == Some(RDKafkaErrorCode::PartitionEOF) {
            // Not an error: a reader that asked for it has come to the end.
            return;
        }
        let kind = code.and_then(refusal_kind);
        match kind.filter(|_| !is_hung_up(reason) || self.lock().is_hung_up_often()) {
            Some(kind) => {
                tracing::error!(target: "librdkafka", "{kind}: {reason}");
                self.refused(kind, reason);
            }
            None => {
                let mut seen = self.lock();
                // That all brokers are down says less than why the last of them is.
                if seen.trouble.is_some() && code == Some(RDKafkaErrorCode::AllBrokersDown) {
                    tracing::debug!(target: "librdkafka", "{reason}");
                    return;
                }
                match seen.is_told(reason) {
                    true => tracing::debug!(target: "librdkafka", "{reason}"),
                    false => tracing::warn!(target: "librdkafka", "{reason}"),
                }
                seen.trouble = Some(reason.to_owned());
            }
        }
    }

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        let Some(tokens) = &self.tokens else { return Err("this client has no credentials for tokens".into()) };
        tokens.token().map_err(|error| {
            self.refused(RefusalKind::Authentication, &error.to_string());
            error.into()
        })
    }
}

impl ConsumerContext for KafkaContext {}

/// What became of single records is not asked: a transaction with one that failed cannot be committed.
impl ProducerContext for KafkaContext {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// Whether a connection ended without an answer. Whether the answer or the question was cut off is a matter of moments.
fn is_hung_up(reason: &str) -> bool {
    ["Disconnected", "Broken pipe", "onnection reset", "transport failure", "imed out"]
        .iter()
        .any(|word| reason.contains(word))
}

/// What librdkafka says of a connection, without how long it lasted and how often the same was said.
fn without_times(reason: &str) -> &str {
    reason.split_once(" (after ").map_or(reason, |(what, _)| what)
}

fn refusal_kind(code: RDKafkaErrorCode) -> Option<RefusalKind> {
    match code {
        RDKafkaErrorCode::Authentication
        | RDKafkaErrorCode::SaslAuthenticationFailed
        | RDKafkaErrorCode::UnsupportedSASLMechanism
        | RDKafkaErrorCode::IllegalSASLState => Some(RefusalKind::Authentication),
        RDKafkaErrorCode::SSL => Some(RefusalKind::Tls),
        RDKafkaErrorCode::ClusterAuthorizationFailed
        | RDKafkaErrorCode::GroupAuthorizationFailed
        | RDKafkaErrorCode::TopicAuthorizationFailed
        | RDKafkaErrorCode::TransactionalIdAuthorizationFailed => Some(RefusalKind::Authorization),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> KafkaContext {
        KafkaContext { seen: Arc::default(), tokens: None }
    }

    #[test]
    fn a_broker_that_ends_during_a_login_refuses_nobody_but_one_that_always_hangs_up_does() {
        let context = context();
        let cut_off = "SASL SCRAM-SHA-512 mechanism handshake failed: Local: Broker transport failure (after 3ms)";
        for _ in 1..HUNG_UP_TIMES {
            context.error(KafkaError::Global(RDKafkaErrorCode::Authentication), cut_off);
            assert_eq!(context.refusal(), None);
        }
        context.accepted();
        context.error(KafkaError::Global(RDKafkaErrorCode::SSL), "SSL handshake failed: Disconnected");
        assert_eq!(context.refusal(), None, "an answer in between ends the count");
        (1..HUNG_UP_TIMES).for_each(|_| context.error(KafkaError::Global(RDKafkaErrorCode::SSL), cut_off));
        assert_eq!(context.refusal().map(|refusal| refusal.kind), Some(RefusalKind::Tls));
    }

    #[test]
    fn a_wrong_password_is_a_refusal_at_once() {
        let context = context();
        context.error(
            KafkaError::Global(RDKafkaErrorCode::Authentication),
            "SASL authentication error: invalid credentials",
        );
        assert_eq!(context.refusal().map(|refusal| refusal.kind), Some(RefusalKind::Authentication));
    }

    #[test]
    fn the_same_trouble_is_told_once_in_a_while() {
        let mut seen = Seen::default();
        assert!(!seen.is_told("Connect failed: refused (after 0ms in state CONNECT)"));
        assert!(seen.is_told("Connect failed: refused (after 7ms in state CONNECT, 1 identical error(s) suppressed)"));
        assert!(!seen.is_told("Disconnected (after 7ms in state UP)"));
    }
}
