//! `payguard explain`: how an alert came about, from the ledger.

use std::process::ExitCode;

use payguard_engine::StageId;
use payguard_engine::input::read_slice;
use payguard_engine::segment::SliceReader;
use payguard_engine::task::Env;
use payguard_model::{Decision, FraudAlert};
use payguard_topology::{Config, Topology, payguard, stage, stream};
use prost::Message;
use serde_json::json;

use crate::Failure;
use crate::config::ConfigArgs;
use crate::log::Log;
use crate::session::{Place, on_folder};
use crate::text::{date_time, duration};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Id of the alert, for example velocity:3d7afcf2-701e-3e1b-be95-6415e9444aa4; one that is older than
    /// gc.retention_ms may have been collected
    #[arg(value_name = "ALERT_ID")]
    alert: String,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let config = config.load_of(&args.place.state)?;
    let topology = payguard(&config);
    let found = on_folder(&args.place.state, &config, async |env| find(env, &topology, &args.alert).await)?;
    let alert = match found {
        Found::Alert(alert) => alert,
        Found::Nothing { since_ms: None } => {
            return Err(format!("{}: no such alert in the log of {}", args.alert, stage::ENRICH).into());
        }
        Found::Nothing { since_ms: Some(since) } => return Err(collected(&args.alert, since, &config).into()),
    };
    let decision = alert.decision.clone().unwrap_or_default();
    if args.place.json {
        say!("{}", json!({ "alert": alert, "decision": decision }));
    } else {
        say!("{}", in_words(&alert, &decision, &config));
    }
    Ok(ExitCode::SUCCESS)
}

/// What the log of `enrich` knows of an alert.
enum Found {
    Alert(FraudAlert),
    /// Nothing. When rows of the log have been collected, what is left begins with this commit, milliseconds since the
    /// epoch.
    Nothing {
        since_ms: Option<i64>,
    },
}

/// The message for an alert that may have been in what is collected.
fn collected(alert: &str, since_ms: i64, config: &Config) -> String {
    format!(
        "{alert}: no such alert in the log of {} since {}; what was committed before has been collected, because \
         gc.retention_ms is {} ({}): set it higher to explain older alerts",
        stage::ENRICH,
        date_time(since_ms),
        config.gc.retention_ms,
        duration(config.gc.retention_ms)
    )
}

/// Looks through the alerts that `enrich` has committed; a log row tells where its alerts are, nothing else is read.
async fn find(env: &Env, topology: &Topology, id: &str) -> Result<Found, Failure> {
    let enrich = StageId::new(stage::ENRICH);
    let registered = env.ledger.tasks(&enrich).await?;
    let tasks = topology.stage(&enrich).map(|stage| topology.tasks_of(stage, &registered));
    let mut since_ms = None;
    for task in tasks.unwrap_or_default() {
        let (mut log, mut first) = (Log::of(env, &task), true);
        while let Some(row) = log.next().await? {
            if std::mem::take(&mut first) && row.seq > 1 {
                since_ms = since_ms.max(Some(row.now_ms));
            }
            for slice in row.slices.iter().filter(|slice| slice.stream == stream::ALERTS) {
                let bytes = match read_slice(&*env.segments, &task, &row, slice).await {
                    // Collected since the row was read.
                    Err(error) if error.is_missing() => continue,
                    bytes => bytes?,
                };
                let mut records = SliceReader::new(bytes, slice.count)?;
                while let Some(record) = records.take()? {
                    let alert = FraudAlert::decode(record.payload)?;
                    if alert.alert_id == id {
                        return Ok(Found::Alert(alert));
                    }
                }
            }
        }
    }
    Ok(Found::Nothing { since_ms })
}

fn in_words(alert: &FraudAlert, decision: &Decision, config: &Config) -> String {
    let mut lines = vec![
        format!("{}: {}", alert.rule_id, alert.detail),
        format!("  card      {} at merchant {} (risk {})", alert.card_id, alert.merchant_id, alert.merchant_risk),
        format!("  payment   {} of {}", alert.payment_id, date_time(alert.event_time_ms)),
        format!(
            "  read as   offset {} of partition {} of {}",
            decision.source_offset, decision.source_partition, config.source.topic
        ),
        format!("  decided   by {} in its commit {}", decision.task, decision.seq),
        format!("  watermark {}", date_time(decision.watermark_ms)),
    ];
    if let Some(version) = decision.rule_version {
        let name = if version == 0 { "the defaults".to_owned() } else { format!("version {version}") };
        lines.push(format!("  rules     {name} (see `payguard rules history`)"));
    }
    lines.extend(decision.facts.iter().map(|fact| format!("  because   {} = {}", fact.name, fact.value)));
    lines.extend(decision.payments.iter().zip(1..).map(|(id, n)| format!("  pattern   {n}. payment {id}")));
    lines.join("\n")
}
