//! `payguard local`: the pipeline between the topics of a Kafka cluster, on this machine.
//!
//! Two event source mappings read the topics as Lambda's do. What they invoke are the handlers of the functions, in this
//! process or behind `cargo lambda watch`; everything else is in this process, or behind it too.

mod options;
mod tick;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{OptionFuture, try_join};
use payguard_aws::event::{BatchResponse, StageEvent};
use payguard_kafka::{KafkaClients, KafkaSettings};
use payguard_lambda::{BroadcastHost, Host, SourceHost};
use payguard_local::runner::LocalPipeline;
use payguard_mapping::{FailureFolder, FnInvoker, HttpInvoker, Invoker, Mapping, MappingOptions, Summary};
use payguard_topology::{Config, System, stage};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use self::options::MappingArgs;
use self::tick::{tick_functions, tick_pipeline};
use crate::Failure;
use crate::config::ConfigArgs;
use crate::live::{AlertWatch, Screen};
use crate::session::Session;
use crate::text::grouped;

/// How long brokers are waited for at the start.
const PATIENCE: Duration = Duration::from_secs(30);
/// What an invocation in this process may take.
const INVOCATION: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder with the durable state; what was killed goes on from it
    #[arg(long, value_name = "DIR", default_value = "payguard-state")]
    state: PathBuf,
    /// Folder for what goes to no topic: totals, unless PAYGUARD_DB_URL names a database for them
    #[arg(long, value_name = "DIR", default_value = "payguard-out")]
    out: PathBuf,
    /// Invoke the functions behind `cargo lambda watch` at HOST:PORT instead of running the stages in this process
    #[arg(long, value_name = "HOST:PORT")]
    functions: Option<String>,
    /// Show no alerts
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    mapping: MappingArgs,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let config = config.load(Config::default())?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(args, config))
}

async fn serve(args: &Args, config: Config) -> Result<ExitCode, Failure> {
    let clients = KafkaClients::new(KafkaSettings::read(&std::env::vars().collect())?, None)?;
    let config = with_partitions(config, &clients).await?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        if let (Ok(mut interrupt), Ok(mut terminate)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            let _ = stop.send(true);
            // What is at work is waited for; who does not want to asks again. Nothing is lost by it.
            eprintln!("ending once the invocations at work have; again to end at once");
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            std::process::exit(130);
        }
    });
    let done = match &args.functions {
        Some(functions) => serve_functions(args, &config, &clients, functions, stopped).await?,
        None => serve_here(args, config, &clients, stopped).await?,
    };
    say!(
        "stopped after {} invocations with {} records ({} failed, {} records given up); the same command goes on",
        grouped(done.invocations),
        grouped(done.delivered),
        grouped(done.failed),
        grouped(done.discarded)
    );
    Ok(ExitCode::SUCCESS)
}

/// Knows all partitions from the beginning, unless it is said which: a catch-up that is given one after another then
/// finds its readers waiting for the others.
async fn with_partitions(mut config: Config, clients: &KafkaClients) -> Result<Config, Failure> {
    let there = clients.check(PATIENCE).await?;
    if config.source.partitions == 0 {
        let all = source_topics(&config).into_iter();
        config.source.partitions = all.filter_map(|topic| there.get(&topic)).copied().max().unwrap_or(0);
    }
    Ok(config)
}

/// All stages in this process.
async fn serve_here(
    args: &Args,
    config: Config,
    clients: &KafkaClients,
    stopped: watch::Receiver<bool>,
) -> Result<Summary, Failure> {
    let observer = match args.quiet {
        true => None,
        false => Some(Arc::new(AlertWatch::new(Screen::new()?))),
    };
    let observer = observer.map(|watch| watch as _);
    let session = Session::open_outside(config, &args.state, &args.out, clients.clone(), observer).await?;
    let pipeline = &session.pipeline;
    let control = pipeline.control_if_any();
    if let Some(control) = &control {
        control.begin().await?;
    }
    let parse = Arc::new(parse_host(pipeline));
    say!(
        "{} reads {}; {} go to {}; state in {}; Ctrl-C ends it",
        pipeline.config.pipeline,
        topics(&pipeline.config).join(", "),
        if control.is_some() { "alerts" } else { "verdicts" },
        pipeline.config.main_output_topic(),
        args.state.display()
    );
    let mut running = pipeline.start();
    let control = control.map(|_| here(Arc::new(control_host(pipeline))));
    let mappings = map(args, &pipeline.config, clients, (here(parse.clone()), control), stopped);
    let ended = tokio::select! {
        ended = mappings => ended,
        failed = running.finished() => Err(match failed {
            Err(error) => error.into(),
            Ok(()) => "the pipeline has ended: this state is of a run over files, which ends; choose another --state".into(),
        }),
        failed = tick_pipeline(pipeline, &parse, clients) => Err(failed),
    };
    if ended.is_ok() {
        running.stop().await?;
    }
    session.stack.stop().await;
    ended
}

/// The stages behind `cargo lambda watch`; `clock` is invoked every second.
async fn serve_functions(
    args: &Args,
    config: &Config,
    clients: &KafkaClients,
    functions: &str,
    stopped: watch::Receiver<bool>,
) -> Result<Summary, Failure> {
    let of = |stage: &str| Arc::new(HttpInvoker::new(functions, stage, true)) as Arc<dyn Invoker>;
    say!("{} reads {} and invokes {functions}; Ctrl-C ends it", config.pipeline, topics(config).join(", "));
    let control = rules_topic(config).map(|_| of(stage::CONTROL));
    let mappings = map(args, config, clients, (of(stage::PARSE), control), stopped);
    tokio::select! {
        ended = mappings => ended,
        () = tick_functions(functions) => Err("the clock has stopped".into()),
    }
}

/// The mapping of `parse`, and that of `control` if there is one, until they are stopped; what they did, added up.
async fn map(
    args: &Args,
    config: &Config,
    clients: &KafkaClients,
    (parse, control): (Arc<dyn Invoker>, Option<Arc<dyn Invoker>>),
    stopped: watch::Receiver<bool>,
) -> Result<Summary, Failure> {
    let run = |options: MappingOptions, invoker| {
        let mut stopped = stopped.clone();
        let failures = Arc::new(FailureFolder::new(args.out.join("given-up").join(&options.group)));
        let shutdown = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
        Mapping::run(clients, options, invoker, failures, shutdown)
    };
    let source = run(args.mapping.of_parse(config, source_topics(config)), parse);
    let rules = control.zip(rules_topic(config));
    let rules = OptionFuture::from(rules.map(|(invoker, topic)| run(args.mapping.of_control(config, topic), invoker)));
    let (source, rules) = try_join(source, rules.map(Option::transpose)).await?;
    let rules = rules.unwrap_or_default();
    Ok(Summary {
        invocations: source.invocations + rules.invocations,
        failed: source.failed + rules.failed,
        delivered: source.delivered + rules.delivered,
        discarded: source.discarded + rules.discarded,
    })
}

/// The topics of `parse`.
fn source_topics(config: &Config) -> Vec<String> {
    let mut topics = vec![config.main_topic().to_owned()];
    if config.has_confirmations() {
        topics.push(config.source.confirmations_topic.clone());
    }
    topics
}

/// The topic of `control`, if the pipeline has rules.
fn rules_topic(config: &Config) -> Option<String> {
    (config.system == System::Payments).then(|| config.source.rules_topic.clone())
}

/// All topics that are read.
fn topics(config: &Config) -> Vec<String> {
    source_topics(config).into_iter().chain(rules_topic(config)).collect()
}

fn parse_host(pipeline: &LocalPipeline) -> SourceHost {
    let make = payguard_parse::make(&pipeline.config, &pipeline.topology);
    SourceHost::new(pipeline.topology.clone(), pipeline.env.clone(), stage::PARSE, make)
        .report_batch_item_failures(true)
}

fn control_host(pipeline: &LocalPipeline) -> BroadcastHost {
    let logic = payguard_control::make(&pipeline.config);
    BroadcastHost::new(pipeline.topology.clone(), pipeline.env.clone(), stage::CONTROL, logic)
        .report_batch_item_failures(true)
}

/// A function's handler in this process.
fn here<H: Host<Answer = BatchResponse>>(host: Arc<H>) -> Arc<dyn Invoker> {
    Arc::new(FnInvoker::new(move |event| {
        let host = host.clone();
        async move { host.handle(StageEvent::Kafka(event), INVOCATION).await.map_err(|error| error.to_string()) }
    }))
}
