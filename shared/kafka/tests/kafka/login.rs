//! Who is let in, and what the others are told.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use payguard_kafka::testing::{Broker, BrokerOptions, PASSWORD};
use payguard_kafka::{ConnectError, KafkaClients, KafkaSettings, RefusalKind};

/// Long enough that a refusal which only comes after it would be noticed by everybody.
const PATIENCE: Duration = Duration::from_secs(120);

fn with_passwords() -> &'static Broker {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    BROKER.get_or_init(|| {
        let broker = Broker::start(BrokerOptions { sasl: true, ..BrokerOptions::default() });
        broker.create_topic("payments.raw", 4, &[]);
        broker
    })
}

/// Connects with other variables than the broker's own.
async fn connect(
    broker: &Broker,
    changes: &[(&str, Option<&str>)],
    patience: Duration,
) -> Result<BTreeMap<String, u32>, ConnectError> {
    let mut variables = broker.variables();
    for (name, value) in changes {
        match value {
            Some(value) => variables.insert((*name).to_owned(), (*value).to_owned()),
            None => variables.remove(*name),
        };
    }
    let clients = KafkaClients::new(KafkaSettings::read(&variables).unwrap(), None).unwrap();
    clients.check(patience).await
}

#[tokio::test]
async fn the_right_password_is_let_in() {
    let broker = with_passwords();
    for mechanism in ["PLAIN", "SCRAM-SHA-256"] {
        let topics = connect(broker, &[("PAYGUARD_KAFKA_SASL_MECHANISM", Some(mechanism))], PATIENCE).await.unwrap();
        assert_eq!(topics.get("payments.raw"), Some(&4), "{mechanism}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_told_so_at_once() {
    let broker = with_passwords();
    let wrong = "an0ther-secret";
    for mechanism in ["PLAIN", "SCRAM-SHA-256"] {
        let changes = [("PAYGUARD_KAFKA_SASL_MECHANISM", Some(mechanism)), ("PAYGUARD_KAFKA_PASSWORD", Some(wrong))];
        let error = connect(broker, &changes, PATIENCE).await.unwrap_err();
        assert!(matches!(&error, ConnectError::Refused(refusal) if refusal.kind == RefusalKind::Authentication));
        let text = format!("{error} {error:?}");
        assert!(text.contains("PAYGUARD_KAFKA_USER") && text.contains("Authentication failed"), "{text}");
        assert!(!text.contains(wrong) && !text.contains(PASSWORD), "{text}");
    }
}

#[tokio::test]
async fn a_mechanism_that_the_broker_does_not_offer_is_told_so() {
    let changes = [("PAYGUARD_KAFKA_SASL_MECHANISM", Some("SCRAM-SHA-512"))];
    let error = connect(with_passwords(), &changes, PATIENCE).await.unwrap_err().to_string();
    assert!(error.contains("refuses the login") && error.contains("SCRAM-SHA-512"), "{error}");
}

#[tokio::test]
async fn nobody_comes_in_without_a_login() {
    let changes = [("PAYGUARD_KAFKA_USER", None), ("PAYGUARD_KAFKA_PASSWORD", None)];
    let error = connect(with_passwords(), &changes, Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("does it ask for a login or TLS (PAYGUARD_KAFKA_USER"), "{error}");
}

#[tokio::test]
async fn tls_needs_a_certificate_that_is_trusted() {
    let broker = Broker::start(BrokerOptions { tls: true, sasl: true, ..BrokerOptions::default() });
    connect(&broker, &[], PATIENCE).await.unwrap();

    let error = connect(&broker, &[("PAYGUARD_KAFKA_CA_FILE", None)], PATIENCE).await.unwrap_err();
    assert!(matches!(&error, ConnectError::Refused(refusal) if refusal.kind == RefusalKind::Tls), "{error}");
    assert!(error.to_string().contains("PAYGUARD_KAFKA_CA_FILE"), "{error}");

    let mut variables = broker.variables();
    for file in ["/nowhere/ca.pem", "/etc/hostname"] {
        variables.insert("PAYGUARD_KAFKA_CA_FILE".to_owned(), file.to_owned());
        let error = KafkaClients::new(KafkaSettings::read(&variables).unwrap(), None).err().unwrap().to_string();
        assert!(error.starts_with("PAYGUARD_KAFKA_CA_FILE cannot be used: "), "{file}: {error}");
    }
}

#[tokio::test]
async fn a_broker_that_is_away_is_named() {
    let variables = [("PAYGUARD_KAFKA_BOOTSTRAP".to_owned(), "localhost:1".to_owned())].into();
    let clients = KafkaClients::new(KafkaSettings::read(&variables).unwrap(), None).unwrap();
    let error = clients.check(Duration::ZERO).await.unwrap_err().to_string();
    assert!(error.starts_with("no answer from Kafka at localhost:1: "), "{error}");
}
