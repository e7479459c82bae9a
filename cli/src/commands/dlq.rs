//! `payguard dlq`: dead letters, shown and sent back.

mod done;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use payguard_engine::logic::REPLAYS_HEADER;
use payguard_kafka::rdkafka::consumer::{BaseConsumer, Consumer};
use payguard_kafka::rdkafka::error::KafkaError;
use payguard_kafka::rdkafka::message::{BorrowedMessage, Header, OwnedHeaders};
use payguard_kafka::rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use payguard_kafka::rdkafka::{Message, Offset, TopicPartitionList};
use payguard_kafka::{Isolation, KafkaClients, KafkaContext, KafkaSettings, read_topic};
use payguard_model::RejectedRecord;
use payguard_topology::Config;
use serde_json::json;

use self::done::Done;
use crate::Failure;
use crate::config::ConfigArgs;
use crate::text::{date_time, grouped};

/// Characters of a record that are shown.
const SHOWN: usize = 100;
/// Records sent back in one transaction.
const BATCH: usize = 500;
/// How long one call to the cluster may take.
const CALL: Duration = Duration::from_secs(15);
/// How long is waited for what comes next.
const POLL: Duration = Duration::from_millis(100);
/// Header of a record that was sent back: where it lay, as topic-partition@offset.
const FROM_HEADER: &str = "payguard-replayed-from";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show the dead letters
    List(ListArgs),
    /// Send them back to the topic they came from, each once, marked
    Replay(ReplayArgs),
}

#[derive(clap::Args)]
struct ListArgs {
    /// Only those refused for this reason, for example bad-json
    #[arg(long)]
    reason: Option<String>,
    /// Print JSON, one a line, with the whole records
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ReplayArgs {
    /// Only those refused for this reason, for example future-event-time
    #[arg(long)]
    reason: Option<String>,
    /// Where they are sent [default: the topic of payments]
    #[arg(long, value_name = "TOPIC")]
    to: Option<String>,
    /// One that has been sent back so often and was refused again stays
    #[arg(long, value_name = "N", default_value_t = 1)]
    max_replays: u32,
    /// Also those that were sent back before, from the beginning of the topic
    #[arg(long)]
    again: bool,
    /// Only say what would be sent
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let config = config.load(Config::default())?;
    let clients = KafkaClients::new(KafkaSettings::read(&std::env::vars().collect())?, None)?;
    match &args.command {
        Command::List(args) => list(args, &config, &clients)?,
        Command::Replay(args) => replay(args, &config, &clients)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &ListArgs, config: &Config, clients: &KafkaClients) -> Result<(), Failure> {
    let (mut shown, mut foreign) = (0u64, 0u64);
    read_topic(clients, &config.publish.dlq_topic, Isolation::Committed, |message| {
        let Some(letter) = letter(message) else {
            foreign += 1;
            return;
        };
        if args.reason.as_ref().is_some_and(|reason| *reason != letter.reason) {
            return;
        }
        shown += 1;
        let (partition, offset) = (message.partition(), message.offset());
        if args.json {
            let (reason, raw, replays) = (letter.reason, letter.raw, letter.replays);
            let at = letter.rejected_at_ms;
            say!(
                "{}",
                json!({ "partition": partition, "offset": offset, "rejectedAtMs": at, "reason": reason, "replays": replays, "raw": raw })
            );
        } else {
            let raw: String = letter.raw.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN).collect();
            let again =
                if letter.replays > 0 { format!(" (sent back {} times)", letter.replays) } else { String::new() };
            say!("{partition}@{offset:<8} {} {:20} {raw}{again}", date_time(letter.rejected_at_ms), letter.reason);
        }
    })?;
    if !args.json {
        say!("{} dead letters in {}", grouped(shown), config.publish.dlq_topic);
    }
    if foreign > 0 {
        eprintln!("{} records of the topic are none of PayGuard's", grouped(foreign));
    }
    Ok(())
}

fn letter(message: &BorrowedMessage<'_>) -> Option<RejectedRecord> {
    serde_json::from_slice(message.payload()?).ok()
}

/// What is done about a dead letter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Send,
    /// It was sent back so often before.
    Stays,
    /// It is of another reason, or no dead letter of ours.
    Other,
}

fn fate(letter: Option<&RejectedRecord>, reason: Option<&str>, max_replays: u32) -> Fate {
    match letter {
        Some(letter) if reason.is_some_and(|reason| reason != letter.reason) => Fate::Other,
        Some(letter) if letter.replays >= max_replays => Fate::Stays,
        Some(_) => Fate::Send,
        None => Fate::Other,
    }
}

/// Sends dead letters back, with the position in the topic in the same transactions: whatever dies, each once.
fn replay(args: &ReplayArgs, config: &Config, clients: &KafkaClients) -> Result<(), Failure> {
    let to = args.to.as_deref().unwrap_or(&config.source.topic);
    let mut sender = Sender::open(clients, config, args, to)?;
    let (mut sent, mut stays, mut silent_since) = (0u64, 0u64, Instant::now());
    let mut ended = vec![false; sender.done.len()];
    while ended.iter().any(|ended| !ended) {
        match sender.consumer.poll(POLL) {
            None if silent_since.elapsed() > CALL => return Err("nothing comes from the cluster any more".into()),
            None => continue,
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                if let Some(ended) = ended.get_mut(partition.unsigned_abs() as usize) {
                    *ended = true;
                }
            }
            Some(Err(error)) => return Err(sender.failed(&error)),
            Some(Ok(message)) => {
                let letter = letter(&message);
                let done = &mut sender.done[message.partition().unsigned_abs() as usize];
                match (fate(letter.as_ref(), args.reason.as_deref(), args.max_replays), letter) {
                    (Fate::Send, Some(letter)) if args.again || message.offset() >= done.next(Some(&letter.reason)) => {
                        sent += 1;
                        sender.pending.push(Pending::of(&message, letter));
                    }
                    (Fate::Stays, _) => stays += 1,
                    _ => {}
                }
                done.advance(args.reason.as_deref(), message.offset() + 1);
            }
        }
        silent_since = Instant::now();
        if sender.pending.len() >= BATCH {
            sender.send(to)?;
        }
    }
    sender.send(to)?;
    let verb = if args.dry_run { "would be sent" } else { "sent" };
    say!("{} dead letters {verb} to {to}", grouped(sent));
    if stays > 0 {
        say!("{} stay: they were sent back before and refused again (--max-replays)", grouped(stays));
    }
    Ok(())
}

/// A record to be sent.
struct Pending {
    raw: String,
    replays: u32,
    from: String,
}

impl Pending {
    fn of(message: &BorrowedMessage<'_>, letter: RejectedRecord) -> Pending {
        let from = format!("{}-{}@{}", message.topic(), message.partition(), message.offset());
        Pending { raw: letter.raw, replays: letter.replays + 1, from }
    }
}

/// Reads the topic of dead letters where the last replay has ended, and sends in transactions.
struct Sender {
    consumer: BaseConsumer<KafkaContext>,
    /// None when nothing is to be sent.
    producer: Option<BaseProducer<KafkaContext>>,
    topic: String,
    pending: Vec<Pending>,
    /// By partition.
    done: Vec<Done>,
}

impl Sender {
    fn open(clients: &KafkaClients, config: &Config, args: &ReplayArgs, to: &str) -> Result<Sender, Failure> {
        // What was sent elsewhere has not been sent back.
        let elsewhere = if to == config.source.topic { String::new() } else { format!("-to-{to}") };
        let name = format!("{}-dlq-replay{elsewhere}", config.pipeline);
        let consumer: BaseConsumer<KafkaContext> = clients
            .config()
            .set("group.id", &name)
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set("enable.partition.eof", "true")
            .create_with_context(clients.context())?;
        let topic = config.publish.dlq_topic.clone();
        let topics = clients.check_blocking(CALL)?;
        let partitions = *topics.get(&topic).ok_or_else(|| format!("there is no topic {topic}"))?;
        let mut sender = Sender { consumer, producer: None, topic, pending: Vec::new(), done: Vec::new() };
        if !args.dry_run {
            let producer = clients
                .config()
                .set("transactional.id", &name)
                .set("linger.ms", "0")
                .create_with_context(clients.context())?;
            // First of all: another replay, if one runs, cannot commit any more.
            let registered = sender.producer.insert(producer).init_transactions(CALL);
            registered.map_err(|error| sender.failed(&error))?;
        }
        let partitions = 0..i32::try_from(partitions)?;
        let mut committed = TopicPartitionList::new();
        for partition in partitions {
            committed.add_partition(&sender.topic, partition);
        }
        committed = sender.consumer.committed_offsets(committed, CALL).map_err(|error| sender.failed(&error))?;
        let mut from = TopicPartitionList::new();
        for element in committed.elements() {
            let done = match element.offset() {
                Offset::Offset(offset) => Done::of(offset, element.metadata()),
                _ => Done::default(),
            };
            let next = if args.again { Offset::Beginning } else { Offset::Offset(done.next(args.reason.as_deref())) };
            from.add_partition_offset(&sender.topic, element.partition(), next)?;
            sender.done.push(done);
        }
        sender.consumer.assign(&from)?;
        Ok(sender)
    }

    fn send(&mut self, to: &str) -> Result<(), Failure> {
        if let Some(producer) = &self.producer {
            self.transact(producer, to).map_err(|error| self.failed(&error))?;
        }
        self.pending.clear();
        Ok(())
    }

    fn transact(&self, producer: &BaseProducer<KafkaContext>, to: &str) -> Result<(), KafkaError> {
        producer.begin_transaction()?;
        for Pending { raw, replays, from } in &self.pending {
            let replays = replays.to_string();
            let headers = OwnedHeaders::new()
                .insert(Header { key: REPLAYS_HEADER, value: Some(&replays) })
                .insert(Header { key: FROM_HEADER, value: Some(from) });
            let record = BaseRecord::<[u8], str>::to(to).payload(raw).headers(headers);
            producer.send(record).map_err(|(error, _)| error)?;
        }
        let mut offsets = TopicPartitionList::new();
        for (partition, done) in (0..).zip(&self.done) {
            let (offset, text) = done.written();
            let mut element = offsets.add_partition(&self.topic, partition);
            element.set_offset(Offset::Offset(offset))?;
            element.set_metadata(text);
        }
        let group = self.consumer.group_metadata().ok_or(KafkaError::Canceled)?;
        producer.send_offsets_to_transaction(&offsets, &group, CALL)?;
        producer.commit_transaction(CALL)
    }

    /// An error, or the refusal behind it. Nothing of an open transaction will ever be seen.
    fn failed(&self, error: &KafkaError) -> Failure {
        let of_producer = self.producer.as_ref().and_then(|producer| producer.context().refusal());
        match of_producer.or_else(|| self.consumer.context().refusal()) {
            Some(refusal) => refusal.into(),
            None => format!("dead letters cannot be sent back: {error}").into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_back_too_often_stays() {
        let letter = |replays| RejectedRecord { reason: "bad-json".to_owned(), replays, ..RejectedRecord::default() };
        assert_eq!(fate(Some(&letter(0)), None, 1), Fate::Send);
        assert_eq!(fate(Some(&letter(1)), None, 1), Fate::Stays);
        assert_eq!(fate(Some(&letter(1)), Some("bad-json"), 2), Fate::Send);
        assert_eq!(fate(Some(&letter(0)), Some("missing-id"), 1), Fate::Other);
        assert_eq!(fate(None, None, 1), Fate::Other);
    }
}
