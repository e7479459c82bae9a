//! `payguard produce`: generated payments and confirmations into the topics of a Kafka cluster, as they would come.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use payguard_aws::system::SystemClock;
use payguard_engine::store::Clock;
use payguard_generator::PaymentSource;
use payguard_kafka::rdkafka::error::{KafkaError, RDKafkaErrorCode};
use payguard_kafka::rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use payguard_kafka::{KafkaClients, KafkaContext, KafkaSettings};
use payguard_topology::Config;

use super::generate::LoadArgs;
use crate::Failure;
use crate::config::ConfigArgs;
use crate::text::grouped;

/// Payments are made and sent this often.
const TICK: Duration = Duration::from_millis(50);
const TICKS_A_SECOND: u64 = 20;
/// How long the cluster may take to say that it has everything.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the cluster is waited for at the start.
const CONNECT: Duration = Duration::from_secs(15);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long payments are sent
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let config = config.load(Config::default())?;
    let clients = KafkaClients::new(KafkaSettings::read(&std::env::vars().collect())?, None)?;
    clients.check_blocking(CONNECT)?;
    // What is sent again after an error is there once.
    let producer: BaseProducer<KafkaContext> =
        clients.config().set("enable.idempotence", "true").create_with_context(clients.context())?;
    let mut generator = PaymentSource::new(&args.load.config())?;
    let (began, mut sent, mut confirmed) = (Instant::now(), 0u64, 0u64);
    for tick in 1..=args.seconds * TICKS_A_SECOND {
        let due = u64::from(args.load.rate) * tick / TICKS_A_SECOND;
        while sent < due {
            let record = generator.next_record(SystemClock.now().0);
            // Without a key, as terminals send them: a card's payments are in all partitions.
            send(&producer, &config.source.topic, record.line)?;
            sent += 1;
            if let Some(confirmation) = record.confirmation.filter(|_| config.has_confirmations()) {
                send(&producer, &config.source.confirmations_topic, confirmation)?;
                confirmed += 1;
            }
        }
        let next = TICK * u32::try_from(tick)?;
        while began.elapsed() < next {
            producer.poll(next.saturating_sub(began.elapsed()));
        }
        if let Some(refusal) = producer.context().refusal() {
            return Err(refusal.into());
        }
    }
    producer.flush(PATIENCE).map_err(|error| format!("not everything was taken by the cluster: {error}"))?;
    say!("{} payments and {} confirmations sent", grouped(sent), grouped(confirmed));
    Ok(ExitCode::SUCCESS)
}

/// Hands a record over; waits while the cluster is behind.
fn send(producer: &BaseProducer<KafkaContext>, topic: &str, value: &str) -> Result<(), Failure> {
    let mut record = BaseRecord::<[u8], str>::to(topic).payload(value);
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                record = back;
                producer.poll(TICK);
            }
            Err((error, _)) => return Err(error.into()),
        }
    }
}
