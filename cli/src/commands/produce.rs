//! `payguard produce`: records into the topics of a Kafka cluster: generated ones, as they would come, or a file's.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use payguard_aws::system::SystemClock;
use payguard_engine::store::Clock;
use payguard_generator::{ConnectionConfig, ConnectionSource, PaymentSource};
use payguard_kafka::rdkafka::error::{KafkaError, RDKafkaErrorCode};
use payguard_kafka::rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use payguard_kafka::{Deliveries, KafkaClients, KafkaSettings};
use payguard_topology::{Config, System};

use super::generate::{ConnectionArgs, LoadArgs};
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
    /// How long records are sent
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Send the lines of this file instead, as they are and at once; - is standard input
    #[arg(long, value_name = "FILE")]
    lines: Option<PathBuf>,
    /// With --lines: all of them to this partition, in their order
    #[arg(long, value_name = "N", requires = "lines")]
    partition: Option<i32>,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    connections: ConnectionArgs,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let config = config.load(Config::default())?;
    let clients = KafkaClients::new(KafkaSettings::read(&std::env::vars().collect())?, None)?;
    clients.check_blocking(CONNECT)?;
    // What is sent again after an error is there once.
    let producer: BaseProducer<Deliveries> =
        clients.config().set("enable.idempotence", "true").create_with_context(Deliveries::new(clients.context()))?;
    let done = match (&args.lines, config.system) {
        (Some(file), _) => send_lines(&producer, config.main_topic(), args.partition, file)?,
        (None, System::Payments) => send_payments(&producer, args, &config)?,
        (None, System::Connections) => send_connections(&producer, args, &config)?,
    };
    finish(&producer)?;
    say!("{done}");
    Ok(ExitCode::SUCCESS)
}

/// Sends generated payments and confirmations at their rate, and says how many.
fn send_payments(producer: &BaseProducer<Deliveries>, args: &Args, config: &Config) -> Result<String, Failure> {
    let mut generator = PaymentSource::new(&args.load.config())?;
    let (mut sent, mut confirmed) = (0u64, 0u64);
    every_tick(producer, args.seconds, |tick| {
        let due = u64::from(args.load.rate) * tick / TICKS_A_SECOND;
        while sent < due {
            let record = generator.next_record(SystemClock.now().0);
            // Without a key, as terminals send them: a card's payments are in all partitions.
            send(producer, BaseRecord::to(&config.source.topic).payload(record.line))?;
            sent += 1;
            if let Some(confirmation) = record.confirmation.filter(|_| config.has_confirmations()) {
                send(producer, BaseRecord::to(&config.source.confirmations_topic).payload(confirmation))?;
                confirmed += 1;
            }
        }
        Ok(())
    })?;
    Ok(format!("{} payments and {} confirmations sent", grouped(sent), grouped(confirmed)))
}

/// Sends generated connection events as they arrive, and says how many.
fn send_connections(producer: &BaseProducer<Deliveries>, args: &Args, config: &Config) -> Result<String, Failure> {
    let start_ms = SystemClock.now().0;
    let mut generator = ConnectionSource::new(&ConnectionConfig { start_ms, ..args.connections.config(&args.load) })?;
    every_tick(producer, args.seconds, |_| {
        let now = SystemClock.now().0;
        while let Some(line) = generator.next_until(now) {
            send(producer, BaseRecord::to(&config.connections.topic).payload(line))?;
        }
        Ok(())
    })?;
    let summary = generator.summary();
    Ok(format!("{} events of {} sessions sent", grouped(summary.records), grouped(summary.sessions)))
}

/// Calls `work` with the numbers of the ticks of so many seconds, each in its time.
fn every_tick(
    producer: &BaseProducer<Deliveries>,
    seconds: u64,
    mut work: impl FnMut(u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let began = Instant::now();
    for tick in 1..=seconds * TICKS_A_SECOND {
        work(tick)?;
        let next = TICK * u32::try_from(tick)?;
        while began.elapsed() < next {
            producer.poll(next.saturating_sub(began.elapsed()));
        }
        troubled(producer)?;
    }
    Ok(())
}

/// Sends every line of a file, and says how many.
fn send_lines(
    producer: &BaseProducer<Deliveries>,
    topic: &str,
    partition: Option<i32>,
    file: &Path,
) -> Result<String, Failure> {
    let failed = |error: std::io::Error| format!("{}: {error}", file.display());
    let lines: Box<dyn BufRead> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(file).map_err(failed)?)),
    };
    let mut sent = 0u64;
    for line in lines.lines() {
        let line = line.map_err(failed)?;
        let record = BaseRecord::to(topic).payload(line.as_str());
        send(producer, BaseRecord { partition, ..record })?;
        sent += 1;
    }
    Ok(format!("{} lines sent to {topic}", grouped(sent)))
}

/// Waits until the cluster has everything.
fn finish(producer: &BaseProducer<Deliveries>) -> Result<(), Failure> {
    let flushed = producer.flush(PATIENCE);
    troubled(producer)?;
    flushed.map_err(|error| format!("not everything was taken by the cluster: {error}").into())
}

/// Ends the command when brokers refuse us, or a record was not taken.
fn troubled(producer: &BaseProducer<Deliveries>) -> Result<(), Failure> {
    if let Some(refusal) = producer.context().context.refusal() {
        return Err(refusal.into());
    }
    match producer.context().take_failure() {
        Some(error) => Err(format!("a record was not taken by the cluster: {error}").into()),
        None => Ok(()),
    }
}

/// Hands a record over; waits while the cluster is behind.
fn send(producer: &BaseProducer<Deliveries>, mut record: BaseRecord<'_, [u8], str>) -> Result<(), Failure> {
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
