//! A broker and a database of the test's own, and the command between them.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use payguard_kafka::rdkafka::Message;
use payguard_kafka::rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use payguard_kafka::testing::{Broker, BrokerOptions};
use payguard_kafka::{Isolation, KafkaContext, read_topic};
use payguard_postgres::testing::{PASSWORD, Server, USER};
use payguard_tests::payguard;
use serde_json::Value;
use tempfile::TempDir;

/// The topics that are written, and the key that names them.
const OUTPUTS: [(&str, &str); 7] = [
    ("fraud.alerts", "publish.alerts_topic"),
    ("payments.dlq", "publish.dlq_topic"),
    ("payments.late", "publish.late_topic"),
    ("payments.confirmed", "publish.confirmed_topic"),
    ("card.sessions", "publish.sessions_topic"),
    ("card.profiles", "publish.profiles_topic"),
    ("rules.rejected", "publish.rejected_rules_topic"),
];

/// A pipeline's topics, its database and its folders.
pub(crate) struct Stand {
    name: &'static str,
    alignment: &'static str,
    pub(crate) broker: Of,
    producer: BaseProducer<KafkaContext>,
    server: Server,
    dir: TempDir,
}

/// The broker of all tests, or one of a test's own.
pub(crate) enum Of {
    All(&'static Broker),
    Own(Box<Broker>),
}

impl Deref for Of {
    type Target = Broker;

    fn deref(&self) -> &Broker {
        match self {
            Of::All(broker) => broker,
            Of::Own(broker) => broker,
        }
    }
}

/// `payguard local` at work; killed when it is dropped.
pub(crate) struct Local(Child);

/// What a command said.
pub(crate) struct Said {
    pub(crate) stdout: String,
    code: Option<i32>,
}

impl Said {
    pub(crate) fn success(&self) -> bool {
        self.code == Some(0)
    }
}

pub(crate) fn now_ms() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

pub(crate) fn payment(id: &str, card: &str, merchant: &str, at: i64) -> String {
    format!(
        r#"{{"paymentId":"{id}","cardId":"{card}","merchantId":"{merchant}","amountMinor":100,"currency":"EUR","country":"NL","eventTimeMs":{at}}}"#
    )
}

impl Stand {
    /// Topics, a database and folders of this name; `alignment` is how inputs are kept together.
    pub(crate) async fn new(name: &'static str, alignment: &'static str) -> Stand {
        let broker = tokio::task::spawn_blocking(Broker::shared).await.unwrap();
        Stand::with(Of::All(broker), name, alignment).await
    }

    /// The same at a broker of its own.
    pub(crate) async fn at(options: BrokerOptions, name: &'static str, alignment: &'static str) -> Stand {
        let broker = tokio::task::spawn_blocking(|| Broker::start(options)).await.unwrap();
        Stand::with(Of::Own(Box::new(broker)), name, alignment).await
    }

    async fn with(broker: Of, name: &'static str, alignment: &'static str) -> Stand {
        let mut server = Server::create();
        server.start().await;
        server.migrated("payguard").await;
        let clients = broker.clients();
        let producer = clients.config().create_with_context(clients.context()).unwrap();
        let stand = Stand { name, alignment, broker, producer, server, dir: tempfile::tempdir().unwrap() };
        for (topic, _) in OUTPUTS {
            stand.broker.create_topic(&stand.topic(topic), 4, &[]);
        }
        stand.broker.create_topic(&stand.topic("payments.raw"), 4, &[("retention.ms", "-1")]);
        stand.broker.create_topic(&stand.topic("rules.config"), 1, &[]);
        stand
    }

    /// This test's topic of that name.
    pub(crate) fn topic(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    pub(crate) async fn merchant(&self, id: &str, risk: &str) {
        let client = self.server.connect("payguard").await;
        let insert = "INSERT INTO merchants (merchant_id, risk_level) VALUES ($1, $2)";
        client.execute(insert, &[&id, &risk]).await.unwrap();
    }

    /// Sends a record. Its Kafka timestamp is long past: one that is refused moves no watermark, as in a file.
    pub(crate) fn produce(&self, topic: &str, partition: i32, value: &str) {
        let record = BaseRecord::<[u8], str>::to(topic).partition(partition).payload(value).timestamp(1);
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        if self.producer.in_flight_count() > 1_000 {
            self.flush();
        }
    }

    fn flush(&self) {
        self.producer.flush(Duration::from_secs(30)).unwrap();
    }

    /// Stops the broker as an operator does, does something to its data and starts it again.
    pub(crate) fn restarted(&mut self, between: impl FnOnce(PathBuf)) {
        let Of::Own(broker) = &mut self.broker else { panic!("this broker is of all tests") };
        broker.stop();
        between(broker.data());
        broker.restart();
    }

    /// Lets the pipeline run with other variables until it ends by itself.
    pub(crate) fn refused(&self, variables: &[(&str, Option<&str>)]) -> String {
        let mut command = self.command();
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let output = command.args(["local", "--quiet", "--state", "state", "--out", "out"]).output().unwrap();
        assert!(!output.status.success(), "it must not go on");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(payguard());
        command.current_dir(self.dir.path()).env("RUST_LOG", "warn");
        command.envs(self.broker.variables());
        command.env("PAYGUARD_DB_URL", format!("postgresql://127.0.0.1:{}/payguard", self.server.port()));
        command.envs([("PAYGUARD_DB_USER", USER), ("PAYGUARD_DB_PASSWORD", PASSWORD)]);
        command.env("PAYGUARD_DIRECTORY", "postgres");
        let mut set = |key: &str, value: &str| {
            command.arg("--set").arg(format!("{key}={value}"));
        };
        set("pipeline", self.name);
        set("source.topic", &self.topic("payments.raw"));
        set("source.confirmations_topic", "");
        set("source.rules_topic", &self.topic("rules.config"));
        set("source.partitions", "4");
        set("engine.alignment", self.alignment);
        OUTPUTS.into_iter().for_each(|(topic, key)| set(key, &self.topic(topic)));
        command
    }

    /// Starts the pipeline.
    pub(crate) fn start(&self, flags: &[&str]) -> Local {
        self.flush();
        let log = std::fs::File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        let mut command = self.command();
        command.args(["local", "--quiet", "--state", "state", "--out", "out"]).args(flags);
        Local(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    /// Runs another command to its end.
    pub(crate) fn payguard(&self, arguments: &[&str]) -> Said {
        self.flush();
        let output = self.command().args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { stdout: text(&output.stdout) + &text(&output.stderr), code: output.status.code() }
    }

    pub(crate) fn verify(&self, topic: &str, id: &str, flags: &[&str]) -> Said {
        self.payguard(&[&["verify-topic", &self.topic(topic), "--id", id], flags].concat())
    }

    /// The values of a topic's committed records.
    fn values(&self, topic: &str) -> Vec<Value> {
        let mut values = Vec::new();
        let read = read_topic(&self.broker.clients(), &self.topic(topic), Isolation::Committed, |message| {
            values.push(serde_json::from_slice(message.payload().unwrap()).unwrap());
        });
        read.unwrap();
        values
    }

    /// Waits until the topic's records are as wanted. Panics with the pipeline's log when it ends before, or they are not
    /// for long.
    pub(crate) async fn until(&self, local: &mut Local, topic: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        self.flush();
        for _ in 0..600 {
            let values = tokio::task::block_in_place(|| self.values(topic));
            if wanted(&values) {
                return values;
            }
            if local.0.try_wait().unwrap().is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        panic!("{topic} has {} records and is not as it should be: {log}", self.values(topic).len());
    }

    /// Waits for a record.
    pub(crate) async fn wait_for(&self, local: &mut Local, topic: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let values = self.until(local, topic, |values| values.iter().any(&wanted)).await;
        values.into_iter().find(wanted).unwrap()
    }

    /// What `payguard run` makes of the same partitions, by topic: the lines of its files.
    pub(crate) fn reference(&self, partitions: &[Vec<String>]) -> BTreeMap<String, Vec<String>> {
        let mut command = Command::new(payguard());
        command.current_dir(self.dir.path()).args(["run", "--out", "reference", "--payments"]);
        for (number, lines) in partitions.iter().enumerate() {
            let name = format!("partition-{number}.jsonl");
            std::fs::write(self.dir.path().join(&name), lines.join("\n") + "\n").unwrap();
            command.arg(name);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = |topic: &str| {
            let text =
                std::fs::read_to_string(self.dir.path().join("reference").join(format!("{topic}.jsonl"))).unwrap();
            text.lines().map(str::to_owned).collect()
        };
        OUTPUTS.into_iter().map(|(topic, _)| (topic.to_owned(), lines(topic))).collect()
    }

    /// A file of what a topic must hold.
    pub(crate) fn expected_file(&self, topic: &str, expected: &BTreeMap<String, Vec<String>>) -> PathBuf {
        let path = self.dir.path().join(format!("{topic}.expected"));
        std::fs::write(&path, expected[topic].iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        path
    }
}

impl Local {
    /// Kills it at once.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Ends it as Ctrl-C does.
    pub(crate) fn end(mut self) {
        assert!(Command::new("kill").args(["-INT", &self.0.id().to_string()]).status().unwrap().success());
        assert!(self.0.wait().unwrap().success(), "it ends well");
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
