//! Where the cluster is and how to log in, from the environment.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

const BOOTSTRAP: &str = "PAYGUARD_KAFKA_BOOTSTRAP";
const USER: &str = "PAYGUARD_KAFKA_USER";
const PASSWORD: &str = "PAYGUARD_KAFKA_PASSWORD";
const MECHANISM: &str = "PAYGUARD_KAFKA_SASL_MECHANISM";
const TLS: &str = "PAYGUARD_KAFKA_TLS";
const CA_FILE: &str = "PAYGUARD_KAFKA_CA_FILE";
const REGION: &str = "AWS_REGION";

/// The variables of the project that [`KafkaSettings::read`] looks at.
pub const VARIABLES: [&str; 6] = [BOOTSTRAP, USER, PASSWORD, MECHANISM, TLS, CA_FILE];

/// Where the cluster is and how to log in. The password is in no message and no `Debug` output.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaSettings {
    bootstrap: String,
    login: Login,
    tls: bool,
    ca_file: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Eq)]
enum Login {
    Anonymous,
    Password { mechanism: Mechanism, user: String, password: String },
    MskIam { region: String },
}

/// How a user shows who they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mechanism {
    /// The password as it is.
    Plain,
    /// SCRAM with SHA-256.
    ScramSha256,
    /// SCRAM with SHA-512, which MSK uses.
    ScramSha512,
    /// A role of AWS, for MSK.
    MskIam,
}

/// The variables of Kafka cannot be used.
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
    /// A variable has a value that cannot be used. The value may be a password and is not repeated.
    #[error("{name} cannot be used: {detail}")]
    Unusable {
        /// The variable.
        name: &'static str,
        /// Why.
        detail: &'static str,
    },
}

impl Mechanism {
    const ALL: [(&'static str, Mechanism); 4] = [
        ("PLAIN", Mechanism::Plain),
        ("SCRAM-SHA-256", Mechanism::ScramSha256),
        ("SCRAM-SHA-512", Mechanism::ScramSha512),
        ("AWS_MSK_IAM", Mechanism::MskIam),
    ];

    /// As Kafka names it; IAM travels as a token.
    fn of_kafka(self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::ScramSha256 => "SCRAM-SHA-256",
            Mechanism::ScramSha512 => "SCRAM-SHA-512",
            Mechanism::MskIam => "OAUTHBEARER",
        }
    }
}

impl KafkaSettings {
    /// Reads `PAYGUARD_KAFKA_BOOTSTRAP` (`host:port`, several separated by commas), `PAYGUARD_KAFKA_USER` and
    /// `PAYGUARD_KAFKA_PASSWORD` (both or neither), `PAYGUARD_KAFKA_SASL_MECHANISM` (`PLAIN` when there is a user,
    /// `SCRAM-SHA-256`, `SCRAM-SHA-512`, or `AWS_MSK_IAM`, which takes no user but `AWS_REGION`), `PAYGUARD_KAFKA_TLS`
    /// (`true` or `false`; by default on with `AWS_MSK_IAM` alone) and `PAYGUARD_KAFKA_CA_FILE` (certificates in PEM
    /// format to trust instead of the system's). An empty variable counts as one that is not set.
    ///
    /// # Errors
    /// When a variable is missing, has a value that is not known, or does not go with another.
    pub fn read(variables: &BTreeMap<String, String>) -> Result<KafkaSettings, SettingsError> {
        let get = |name: &str| variables.get(name).map(String::as_str).filter(|value| !value.is_empty());
        let purpose = "the brokers of the Kafka cluster, for example localhost:9092";
        let bootstrap = get(BOOTSTRAP).ok_or(SettingsError::Missing { name: BOOTSTRAP, purpose })?;
        let mechanism = get(MECHANISM).map(mechanism).transpose()?;
        let login = match mechanism {
            Some(Mechanism::MskIam) => iam(get(USER).or(get(PASSWORD)), get(REGION))?,
            mechanism => password(mechanism, get(USER), get(PASSWORD))?,
        };
        let iam = matches!(login, Login::MskIam { .. });
        let tls = match get(TLS) {
            None => iam,
            Some("true") => true,
            Some("false") if iam => return Err(unusable(TLS, "AWS_MSK_IAM needs TLS: leave it out or set it to true")),
            Some("false") => false,
            Some(_) => return Err(unusable(TLS, "expected true or false")),
        };
        let ca_file = get(CA_FILE).map(PathBuf::from);
        if ca_file.is_some() && !tls {
            return Err(unusable(CA_FILE, "it is used with PAYGUARD_KAFKA_TLS=true only"));
        }
        Ok(KafkaSettings { bootstrap: brokers(bootstrap)?, login, tls, ca_file })
    }

    /// The brokers that are asked first, separated by commas.
    #[must_use]
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// The mechanism of the login, if there is one.
    #[must_use]
    pub fn mechanism(&self) -> Option<Mechanism> {
        match &self.login {
            Login::Anonymous => None,
            Login::Password { mechanism, .. } => Some(*mechanism),
            Login::MskIam { .. } => Some(Mechanism::MskIam),
        }
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn tls(&self) -> bool {
        self.tls
    }

    /// The file of trusted certificates, if it is not the system's.
    #[must_use]
    pub fn ca_file(&self) -> Option<&Path> {
        self.ca_file.as_deref()
    }

    /// The region whose tokens the cluster takes, with `AWS_MSK_IAM`.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        match &self.login {
            Login::MskIam { region } => Some(region),
            _ => None,
        }
    }

    /// What every client is configured with. Its `Debug` output leaves the password out.
    pub(crate) fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        // What is shown is for tracing to say.
        config.set_log_level(RDKafkaLogLevel::Info);
        config
            .set("bootstrap.servers", &self.bootstrap)
            .set("client.id", "payguard")
            // While the end of the last transaction is still being written, the next is asked to try again: soon.
            .set("retry.backoff.ms", "5")
            // A broker that comes back is found within a second, not within ten.
            .set("reconnect.backoff.max.ms", "1000")
            // An idle connection through a load balancer is not dropped unseen.
            .set("socket.keepalive.enable", "true")
            .set("security.protocol", self.protocol());
        if let Some(mechanism) = self.mechanism() {
            config.set("sasl.mechanism", mechanism.of_kafka());
        }
        if let Login::Password { user, password, .. } = &self.login {
            config.set("sasl.username", user).set("sasl.password", password);
        }
        if self.tls {
            // OpenSSL is linked statically and does not know where this system keeps its certificates.
            let ca = self.ca_file.as_ref().map_or_else(|| "probe".into(), |file| file.to_string_lossy());
            config.set("ssl.ca.location", ca);
        }
        config
    }

    fn protocol(&self) -> &'static str {
        match (&self.login, self.tls) {
            (Login::Anonymous, false) => "plaintext",
            (Login::Anonymous, true) => "ssl",
            (_, false) => "sasl_plaintext",
            (_, true) => "sasl_ssl",
        }
    }
}

impl fmt::Debug for KafkaSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = match &self.login {
            Login::Password { user, .. } => Some(user),
            _ => None,
        };
        f.debug_struct("KafkaSettings")
            .field("bootstrap", &self.bootstrap)
            .field("mechanism", &self.mechanism())
            .field("user", &user)
            .field("region", &self.region())
            .field("tls", &self.tls)
            .field("ca_file", &self.ca_file)
            .finish_non_exhaustive()
    }
}

fn unusable(name: &'static str, detail: &'static str) -> SettingsError {
    SettingsError::Unusable { name, detail }
}

fn mechanism(name: &str) -> Result<Mechanism, SettingsError> {
    let known = Mechanism::ALL.iter().find(|(known, _)| *known == name);
    let detail = "expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or AWS_MSK_IAM";
    known.map(|(_, mechanism)| *mechanism).ok_or(unusable(MECHANISM, detail))
}

fn iam(login: Option<&str>, region: Option<&str>) -> Result<Login, SettingsError> {
    if login.is_some() {
        return Err(unusable(MECHANISM, "AWS_MSK_IAM takes no PAYGUARD_KAFKA_USER and no PAYGUARD_KAFKA_PASSWORD"));
    }
    let purpose = "the region of the MSK cluster, for PAYGUARD_KAFKA_SASL_MECHANISM=AWS_MSK_IAM";
    let region = region.ok_or(SettingsError::Missing { name: REGION, purpose })?;
    if !region.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
        return Err(unusable(REGION, "expected the name of a region, for example eu-west-1"));
    }
    Ok(Login::MskIam { region: region.to_owned() })
}

fn password(mechanism: Option<Mechanism>, user: Option<&str>, password: Option<&str>) -> Result<Login, SettingsError> {
    match (user, password) {
        (None, None) if mechanism.is_some() => {
            Err(SettingsError::Missing { name: USER, purpose: "PAYGUARD_KAFKA_SASL_MECHANISM asks for a user" })
        }
        (None, None) => Ok(Login::Anonymous),
        (Some(_), None) => {
            Err(SettingsError::Missing { name: PASSWORD, purpose: "the password of PAYGUARD_KAFKA_USER" })
        }
        (None, Some(_)) => Err(SettingsError::Missing { name: USER, purpose: "PAYGUARD_KAFKA_PASSWORD is set" }),
        (Some(user), _) if user.contains('\0') => Err(unusable(USER, "it has a zero byte")),
        (_, Some(password)) if password.contains('\0') => Err(unusable(PASSWORD, "it has a zero byte")),
        (Some(user), Some(password)) => Ok(Login::Password {
            mechanism: mechanism.unwrap_or(Mechanism::Plain),
            user: user.to_owned(),
            password: password.to_owned(),
        }),
    }
}

fn brokers(list: &str) -> Result<String, SettingsError> {
    let brokers: Vec<&str> = list.split(',').map(str::trim).collect();
    for broker in &brokers {
        let port = broker.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        if broker.contains("://") || !matches!(port, Some(Ok(1..))) {
            return Err(unusable(BOOTSTRAP, "expected host:port, several separated by commas"));
        }
    }
    Ok(brokers.join(","))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<KafkaSettings, SettingsError> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        KafkaSettings::read(&variables)
    }

    /// The settings, with a broker added.
    fn at_broker(variables: &[(&str, &str)]) -> Result<KafkaSettings, SettingsError> {
        read(&[&[(BOOTSTRAP, "b-1:9092")], variables].concat())
    }

    fn configured(settings: &KafkaSettings, key: &str) -> Option<String> {
        settings.config().get(key).map(str::to_owned)
    }

    #[test]
    fn each_way_to_log_in_becomes_what_librdkafka_needs() {
        let user = [(USER, "payguard"), (PASSWORD, "s3cret")];
        let with = |more: &[(&'static str, &'static str)]| [user.as_slice(), more].concat();
        for (variables, protocol, mechanism, ca) in [
            (vec![], "plaintext", None, None),
            (vec![(USER, ""), (PASSWORD, ""), (TLS, ""), (MECHANISM, "")], "plaintext", None, None),
            (vec![(TLS, "true")], "ssl", None, Some("probe")),
            (vec![(TLS, "true"), (CA_FILE, "/etc/ca.pem")], "ssl", None, Some("/etc/ca.pem")),
            (with(&[]), "sasl_plaintext", Some("PLAIN"), None),
            (with(&[(MECHANISM, "PLAIN"), (TLS, "false")]), "sasl_plaintext", Some("PLAIN"), None),
            (with(&[(MECHANISM, "SCRAM-SHA-256")]), "sasl_plaintext", Some("SCRAM-SHA-256"), None),
            (with(&[(MECHANISM, "SCRAM-SHA-512"), (TLS, "true")]), "sasl_ssl", Some("SCRAM-SHA-512"), Some("probe")),
            (vec![(MECHANISM, "AWS_MSK_IAM"), (REGION, "eu-west-1")], "sasl_ssl", Some("OAUTHBEARER"), Some("probe")),
        ] {
            let settings = at_broker(&variables).unwrap();
            assert_eq!(configured(&settings, "security.protocol").as_deref(), Some(protocol), "{variables:?}");
            assert_eq!(configured(&settings, "sasl.mechanism").as_deref(), mechanism, "{variables:?}");
            assert_eq!(configured(&settings, "ssl.ca.location").as_deref(), ca, "{variables:?}");
            let password = variables.contains(&user[0]).then_some("s3cret");
            assert_eq!(configured(&settings, "sasl.password").as_deref(), password, "{variables:?}");
            settings.config().create_native_config().unwrap();
        }
    }

    #[test]
    fn a_refusal_names_the_variable_and_not_the_password() {
        let secret = "s3cret\0";
        for (variables, reason) in [
            (vec![(USER, "payguard")], "PAYGUARD_KAFKA_PASSWORD is not set"),
            (vec![(USER, "payguard"), (PASSWORD, "")], "PAYGUARD_KAFKA_PASSWORD is not set"),
            (vec![(PASSWORD, secret)], "PAYGUARD_KAFKA_USER is not set"),
            (vec![(USER, "payguard"), (PASSWORD, secret)], "PAYGUARD_KAFKA_PASSWORD cannot be used"),
            (vec![(USER, "pay\0guard"), (PASSWORD, secret)], "PAYGUARD_KAFKA_USER cannot be used"),
            (vec![(MECHANISM, "PLAIN")], "PAYGUARD_KAFKA_USER is not set"),
            (vec![(MECHANISM, "plain")], "expected PLAIN"),
            (vec![(MECHANISM, "GSSAPI"), (USER, "u"), (PASSWORD, secret)], "expected PLAIN"),
            (vec![(MECHANISM, "AWS_MSK_IAM")], "AWS_REGION is not set"),
            (vec![(MECHANISM, "AWS_MSK_IAM"), (REGION, "eu/west")], "AWS_REGION cannot be used"),
            (vec![(MECHANISM, "AWS_MSK_IAM"), (REGION, "eu-west-1"), (USER, "u")], "takes no"),
            (vec![(MECHANISM, "AWS_MSK_IAM"), (REGION, "eu-west-1"), (TLS, "false")], "needs TLS"),
            (vec![(TLS, "yes")], "expected true or false"),
            (vec![(CA_FILE, "/etc/ca.pem")], "PAYGUARD_KAFKA_CA_FILE cannot be used"),
        ] {
            let text = at_broker(&variables).unwrap_err().to_string();
            assert!(text.contains(reason) && !text.contains("s3cret"), "{variables:?}: {text}");
        }
    }

    #[test]
    fn brokers_are_hosts_with_ports() {
        for (list, expected) in [
            ("localhost:9092", Some("localhost:9092")),
            ("b-1:9098, b-2:9098", Some("b-1:9098,b-2:9098")),
            ("[::1]:9092", Some("[::1]:9092")),
            ("localhost", None),
            ("localhost:0", None),
            ("localhost:70000", None),
            (":9092", None),
            ("b-1:9098,", None),
            ("SASL_SSL://b-1:9098", None),
        ] {
            let read = read(&[(BOOTSTRAP, list)]).ok();
            assert_eq!(read.as_ref().map(KafkaSettings::bootstrap), expected, "{list}");
        }
        let missing = read(&[]).unwrap_err().to_string();
        assert!(missing.starts_with("PAYGUARD_KAFKA_BOOTSTRAP is not set"), "{missing}");
    }

    #[test]
    fn no_variable_is_taken_for_a_key_of_the_configuration() {
        for name in VARIABLES {
            assert!(payguard_topology::config::RESERVED.contains(&name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_output_shows_the_password(password in "[A-Z][^\0]{8,20}") {
            let settings = at_broker(&[(USER, "u"), (PASSWORD, &password)]).unwrap();
            let shown = format!("{settings:?} {:?}", settings.config());
            prop_assert!(!shown.contains(&password), "{}", shown);
            prop_assert_eq!(configured(&settings, "sasl.password"), Some(password));
        }
    }
}
