//! `payguard`: run, watch and inspect the pipeline from a terminal.

#[macro_use]
mod text;

mod commands;
mod config;
mod inspect;
mod live;
mod log;
mod savepoints;
mod session;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use payguard_topology::System;

/// Every record makes a few short-lived values in one thread that die in another, which this allocator is good at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// PayGuard: card fraud detection on streams of payments, and verdicts on connection attempts; exactly once, without a
/// cluster.
#[derive(Parser)]
#[command(name = "payguard", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    config: config::ConfigArgs,
    #[command(flatten)]
    system: config::SystemArg,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the pipeline at work: generated payments or connection events through all stages, what is found as it comes
    Demo(commands::demo::Args),
    /// Process files of payments or of connection events to their end; the outputs are the same however often it is killed and run again
    Run(commands::run::Args),
    /// Send generated payments and confirmations, or connection events, to the topics of a Kafka cluster, as they would come
    #[cfg(feature = "kafka")]
    Produce(commands::produce::Args),
    /// Write files of generated payments (and confirmations), or of connection events
    Generate(commands::generate::Args),
    /// Save a pipeline without stopping it, and begin new ones from there
    Savepoint(commands::savepoint::Args),
    /// Show what the pipeline remembers: of one key, of the greatest, of all; now, in a savepoint, or in the past
    State(commands::state::Args),
    /// Say whether two views of the state are equal (exit code 0), differ (1) or cannot be read (2)
    ///
    /// For example: diff-state before-2.0 live --state DIR, or diff-state live@2026-11-30T12:00:00Z live --state DIR
    DiffState(commands::diff_state::Args),
    /// Show the log of tasks: what each commit read and wrote
    Ledger(commands::ledger::Args),
    /// Run the pipeline between the topics of a Kafka cluster, until interrupted
    ///
    /// Where the cluster is: PAYGUARD_KAFKA_BOOTSTRAP, and PAYGUARD_KAFKA_USER, _PASSWORD, _SASL_MECHANISM, _TLS, _CA_FILE.
    /// A database, for totals and the risk of merchants: PAYGUARD_DB_URL, _USER, _PASSWORD and PAYGUARD_DIRECTORY=postgres.
    #[cfg(feature = "kafka")]
    Local(commands::local::Args),
    /// Show every task's progress; name a stage that is stuck
    Status(commands::status::Args),
    /// Show which stage is the bottleneck, and how evenly its tasks are loaded
    Load(commands::load::Args),
    /// Give a stage another number of shards while payments flow
    Rescale(commands::rescale::Args),
    /// Show or change the rules while payments flow
    Rules(commands::rules::Args),
    /// Show how an alert came about
    Explain(commands::explain::Args),
    /// Show stages, operators and streams
    Topology(commands::topology::Args),
    /// Show how keys spread over shards, and how skewed that is
    Keys(commands::keys::Args),
    /// Show the dead letters of a Kafka cluster, or send them back
    #[cfg(feature = "kafka")]
    Dlq(commands::dlq::Args),
    /// Say whether every record of a Kafka topic is there once (exit code 0), not so (1), or unknown (2)
    #[cfg(feature = "kafka")]
    VerifyTopic(commands::verify_topic::Args),
    /// Show alerts as they become readable in a Kafka cluster, and how long after their payment; at the end a histogram
    #[cfg(feature = "kafka")]
    Watch(commands::watch::Args),
    /// Print the effective configuration, as a file that could be used
    Config,
    /// Make the tables in PostgreSQL: merchants, their totals, positions. Doing it again changes nothing
    #[cfg(feature = "postgres")]
    Migrate(commands::migrate::Args),
    /// Serve the embedded DynamoDB and S3 for other processes until interrupted
    Stack(commands::stack::Args),
}

fn main() -> ExitCode {
    let mut cli = Cli::parse();
    cli.config.system = cli.command.system().or(cli.system.system);
    let log = tracing_subscriber::EnvFilter::try_from_env("RUST_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(log.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,dynoxide=error")))
        .with_writer(std::io::stderr)
        .init();
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("payguard: {}", text::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

impl Command {
    /// What a command is told to process.
    fn system(&self) -> Option<System> {
        match self {
            Command::Demo(args) => args.system.system,
            Command::Run(args) => args.system.system,
            Command::Generate(args) => args.system.system,
            Command::Topology(args) => args.system.system,
            _ => None,
        }
    }
}

/// What a command fails with: shown to a person, with all its causes.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn dispatch(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Demo(args) => commands::demo::run(&args, &cli.config),
        Command::Run(args) => commands::run::run(&args, &cli.config),
        #[cfg(feature = "kafka")]
        Command::Produce(args) => commands::produce::run(&args, &cli.config),
        Command::Generate(args) => commands::generate::run(&args, &cli.config),
        Command::Savepoint(args) => commands::savepoint::run(&args, &cli.config),
        Command::State(args) => commands::state::run(&args, &cli.config),
        Command::DiffState(args) => Ok(commands::diff_state::run(&args, &cli.config)),
        Command::Ledger(args) => commands::ledger::run(&args, &cli.config),
        #[cfg(feature = "kafka")]
        Command::Local(args) => commands::local::run(&args, &cli.config),
        Command::Status(args) => commands::status::run(&args, &cli.config),
        Command::Load(args) => commands::load::run(&args, &cli.config),
        Command::Rescale(args) => commands::rescale::run(&args, &cli.config),
        Command::Rules(args) => commands::rules::run(&args, &cli.config),
        Command::Explain(args) => commands::explain::run(&args, &cli.config),
        Command::Topology(args) => commands::topology::run(&args, &cli.config),
        Command::Keys(args) => commands::keys::run(&args),
        #[cfg(feature = "kafka")]
        Command::Dlq(args) => commands::dlq::run(&args, &cli.config),
        #[cfg(feature = "kafka")]
        Command::VerifyTopic(args) => Ok(commands::verify_topic::run(&args)),
        #[cfg(feature = "kafka")]
        Command::Watch(args) => commands::watch::run(&args, &cli.config),
        Command::Config => commands::print_config(&cli.config),
        #[cfg(feature = "postgres")]
        Command::Migrate(args) => commands::migrate::run(&args),
        Command::Stack(args) => commands::stack::run(&args),
    }
}
