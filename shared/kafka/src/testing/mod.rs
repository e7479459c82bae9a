//! A real Apache Kafka of the test's own: a single node with transactions, on free ports of this machine, with its data in
//! a temporary folder. It dies with the test.
//!
//! Starting takes some seconds: tests of one binary share a broker where they can ([`Broker::shared`]) and keep to topics
//! and groups of their own.

mod java;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};

use self::java::{Java, Process};
use crate::{KafkaClients, KafkaContext, KafkaSettings};

/// The user of the pipeline, on a broker that asks for one.
pub const USER: &str = "payguard";
/// Their password, with signs that have a meaning elsewhere.
pub const PASSWORD: &str = "p@ss w/rd:&%'1#=";
const ADMIN_PASSWORD: &str = "admin-secret";

/// How a broker differs from an open one with the usual settings.
#[derive(Clone, Default, Debug)]
pub struct BrokerOptions {
    /// Clients must log in as [`USER`] with [`PASSWORD`]: `PLAIN` or `SCRAM-SHA-256`.
    pub sasl: bool,
    /// Clients must speak TLS and trust [`Broker::ca_file`].
    pub tls: bool,
    /// Further settings of the broker, for example `transaction.max.timeout.ms`; they count more than ours.
    pub properties: Vec<(String, String)>,
}

/// A broker, running or not. What runs is killed when it is dropped, and its data are gone.
pub struct Broker {
    options: BrokerOptions,
    java: Java,
    dir: PathBuf,
    ports: Ports,
    running: Option<Process>,
}

#[derive(Clone, Copy)]
struct Ports {
    broker: u16,
    controller: u16,
}

impl Broker {
    /// A broker that runs. Blocks until it answers.
    ///
    /// # Panics
    /// When there are no Java and no Apache Kafka (the message says what to run), or the broker ends.
    #[must_use]
    pub fn start(options: BrokerOptions) -> Broker {
        let java = Java::find();
        let dir = java::folder();
        let mut broker = Broker { options, java, dir, ports: Ports::free(), running: None };
        if broker.options.tls {
            broker.java.make_certificate(&broker.dir);
        }
        broker.write_properties();
        broker.format();
        broker.restart();
        broker
    }

    /// An open broker with the usual settings that all tests of a process share.
    #[must_use]
    pub fn shared() -> &'static Broker {
        static SHARED: OnceLock<Broker> = OnceLock::new();
        SHARED.get_or_init(|| Broker::start(BrokerOptions::default()))
    }

    /// Where clients connect: `host:port`. The same after a restart.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        // Certificates are for names.
        format!("localhost:{}", self.ports.broker)
    }

    /// The certificate that clients must trust, with `tls`.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.dir.join(java::CERTIFICATE)
    }

    /// The folder with the data of the partitions, one folder each: `<topic>-<partition>`.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// What the environment of a program that uses this broker says: `PAYGUARD_KAFKA_*`.
    #[must_use]
    pub fn variables(&self) -> BTreeMap<String, String> {
        self.variables_of(USER, PASSWORD)
    }

    /// Clients of this broker, logged in when that is needed.
    ///
    /// # Panics
    /// Never: the settings are right.
    #[must_use]
    pub fn clients(&self) -> KafkaClients {
        clients(&self.variables())
    }

    /// Makes a topic and waits until it has leaders.
    ///
    /// # Panics
    /// When the broker refuses it, for example because it is there.
    pub fn create_topic(&self, name: &str, partitions: u32, config: &[(&str, &str)]) {
        let count = i32::try_from(partitions).expect("a number of partitions");
        let mut topic = NewTopic::new(name, count, TopicReplication::Fixed(1));
        for (key, value) in config {
            topic = topic.set(key, value);
        }
        let clients = self.admin();
        let admin: AdminClient<KafkaContext> =
            clients.config().create_with_context(clients.context()).expect("a client of the broker");
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
        let made = java::blocking(admin.create_topics([&topic], &options)).expect("an answer of the broker");
        for result in made {
            result.unwrap_or_else(|(name, error)| panic!("topic {name}: {error}"));
        }
        while clients.check_blocking(PATIENCE).expect("a broker that answers").get(name) != Some(&partitions) {}
    }

    /// Stops it as an operator does: it hands over and closes its files.
    ///
    /// # Panics
    /// When it does not run.
    pub fn stop(&mut self) {
        self.running.take().expect("a broker that runs").end("TERM");
    }

    /// Kills it, as by a crash. The system still writes what it has written.
    ///
    /// # Panics
    /// When it does not run.
    pub fn kill(&mut self) {
        self.running.take().expect("a broker that runs").end("KILL");
    }

    /// Starts it with its data where it was, after stopping it if it runs. Blocks until it answers.
    ///
    /// # Panics
    /// When it ends.
    pub fn restart(&mut self) {
        if self.running.is_some() {
            self.stop();
        }
        let mut process = self.java.spawn("kafka.Kafka", &self.properties_file(), &self.log());
        let clients = self.admin();
        while clients.check_blocking(Duration::ZERO).is_err() {
            assert!(process.runs(), "the broker ended: {}", std::fs::read_to_string(self.log()).unwrap_or_default());
        }
        self.running = Some(process);
    }

    fn admin(&self) -> KafkaClients {
        clients(&self.variables_of("admin", ADMIN_PASSWORD))
    }

    fn variables_of(&self, user: &str, password: &str) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::from([("PAYGUARD_KAFKA_BOOTSTRAP", self.bootstrap())]);
        if self.options.sasl {
            variables.insert("PAYGUARD_KAFKA_USER", user.to_owned());
            variables.insert("PAYGUARD_KAFKA_PASSWORD", password.to_owned());
        }
        if self.options.tls {
            variables.insert("PAYGUARD_KAFKA_TLS", "true".to_owned());
            variables.insert("PAYGUARD_KAFKA_CA_FILE", self.ca_file().display().to_string());
        }
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn properties_file(&self) -> PathBuf {
        self.dir.join("server.properties")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn format(&self) {
        let properties = self.properties_file().display().to_string();
        let scram = format!("SCRAM-SHA-256=[name={USER},password={PASSWORD}]");
        let mut arguments = vec!["format", "--cluster-id", "4L6g3nShT-eMCtK--X86sw", "--config", &properties];
        if self.options.sasl {
            arguments.extend(["--add-scram", &scram]);
        }
        self.java.run("kafka.tools.StorageTool", &arguments);
    }

    fn write_properties(&self) {
        let Ports { broker, controller } = self.ports;
        let protocol = match (self.options.sasl, self.options.tls) {
            (false, false) => "PLAINTEXT",
            (true, false) => "SASL_PLAINTEXT",
            (false, true) => "SSL",
            (true, true) => "SASL_SSL",
        };
        let mut text = format!(
            "listeners=CLIENTS://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=CLIENTS://localhost:{broker}\n\
             listener.security.protocol.map=CLIENTS:{protocol},CONTROLLER:PLAINTEXT\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             log.dirs={}\n{SINGLE_NODE}",
            self.data().display()
        );
        if self.options.sasl {
            let login = "org.apache.kafka.common.security";
            let _ = writeln!(
                text,
                "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256\n\
                 sasl.mechanism.inter.broker.protocol=PLAIN\n\
                 listener.name.clients.plain.sasl.jaas.config={login}.plain.PlainLoginModule required \
                 username=\"admin\" password=\"{ADMIN_PASSWORD}\" user_admin=\"{ADMIN_PASSWORD}\" \
                 user_{USER}=\"{PASSWORD}\";\n\
                 listener.name.clients.scram-sha-256.sasl.jaas.config={login}.scram.ScramLoginModule required;"
            );
        }
        if self.options.tls {
            let _ = writeln!(
                text,
                "ssl.keystore.location={}\nssl.keystore.password={secret}\nssl.key.password={secret}\n\
                 ssl.truststore.location={}\nssl.truststore.password={secret}",
                self.dir.join(java::KEYSTORE).display(),
                self.dir.join(java::KEYSTORE).display(),
                secret = java::KEYSTORE_PASSWORD,
            );
        }
        for (key, value) in &self.options.properties {
            let _ = writeln!(text, "{key}={value}");
        }
        std::fs::write(self.properties_file(), text).expect("a temporary folder that can be written");
    }
}

/// How long a broker that runs may be silent.
const PATIENCE: Duration = Duration::from_mins(1);

/// What a single node needs, small and quick.
const SINGLE_NODE: &str = "\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=CLIENTS
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4194304
";

impl Ports {
    fn free() -> Ports {
        let [broker, controller] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let port = |listener: &TcpListener| listener.local_addr().expect("it is bound").port();
        Ports { broker: port(&broker), controller: port(&controller) }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.kill();
        }
        // A folder that stays is removed by the next test's broker.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn clients(variables: &BTreeMap<String, String>) -> KafkaClients {
    let settings = KafkaSettings::read(variables).expect("settings that are right");
    KafkaClients::new(settings, None).expect("no credentials are needed")
}
