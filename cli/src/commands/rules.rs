//! `payguard rules`: the rules in force, their history, and changes while payments flow.

use std::process::ExitCode;

use payguard_engine::task::Env;
use payguard_engine::task::broadcast::Decided;
use payguard_engine::{Broadcast, StageId, TaskId};
use payguard_local::runner::control;
use payguard_model::{RuleConfig, parse_rule_change};
use payguard_topology::{Config, payguard, stage};
use prost::Message;
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::config::ConfigArgs;
use crate::log::Log;
use crate::session::{Place, on_folder};
use crate::text::date_time;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the rules in force and their version
    Show(Place),
    /// Change the rules from the next batch on; what is not named stays as it is
    ///
    /// For example: rules set --state DIR velocityMaxPayments=20 blockedCountries=PL,DE
    /// (blockedCountries= blocks none)
    Set {
        #[command(flatten)]
        place: Place,
        /// velocityMaxPayments=N and blockedCountries=CC,CC, or one JSON message as on the topic rules.config
        #[arg(required = true, value_name = "FIELD=VALUE")]
        changes: Vec<String>,
    },
    /// Show every version and when it came
    History(Place),
    /// Show what changed from one version to another
    Diff {
        #[command(flatten)]
        place: Place,
        /// The earlier version; 0 are the defaults
        from: u64,
        /// The later version
        to: u64,
    },
}

/// One version and when it was accepted, milliseconds since the epoch.
struct Version {
    number: u64,
    at_ms: i64,
    rules: RuleConfig,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let (Action::Show(place) | Action::Set { place, .. } | Action::History(place) | Action::Diff { place, .. }) =
        &args.action;
    let config = &config.load_of(&place.state)?;
    match &args.action {
        Action::Show(place) => show(place, config),
        Action::Set { place, changes } => set(place, changes, config),
        Action::History(place) => history(place, config),
        Action::Diff { place, from, to } => diff(place, *from, *to, config),
    }
}

fn show(place: &Place, config: &Config) -> Result<ExitCode, Failure> {
    let current = on_folder(&place.state, config, async |env| {
        Ok(control(config, &payguard(config), env.clone()).current().await?)
    })?;
    let (version, rules) = match current {
        Some(Broadcast { version, value }) => (version, RuleConfig::decode(value)?),
        None => (0, config.default_rules()),
    };
    match place.json {
        true => say!("{}", json!({ "version": version, "rules": rules })),
        false => say!("{}", describe(version, &rules)),
    }
    Ok(ExitCode::SUCCESS)
}

fn set(place: &Place, changes: &[String], config: &Config) -> Result<ExitCode, Failure> {
    let message = message(changes)?;
    // Refused here already, with a sentence; the task would only log it.
    parse_rule_change(message.as_bytes()).map_err(|refusal| format!("{message}: {refusal}"))?;
    let decided = on_folder(&place.state, config, async |env| {
        Ok(control(config, &payguard(config), env.clone()).send(message.as_bytes()).await?)
    })?;
    match decided {
        Decided::Accepted(Broadcast { version, value }) => {
            let rules = RuleConfig::decode(value)?;
            match place.json {
                true => say!("{}", json!({ "version": version, "rules": rules })),
                false => say!("{}", describe(version, &rules)),
            }
            Ok(ExitCode::SUCCESS)
        }
        Decided::Refused(reason) => Err(format!("refused: {reason}").into()),
        Decided::Ignored => Err("an empty message changes nothing".into()),
    }
}

fn history(place: &Place, config: &Config) -> Result<ExitCode, Failure> {
    let versions = versions(place, config)?;
    if place.json {
        let versions = versions.iter().map(|v| json!({ "version": v.number, "atMs": v.at_ms, "rules": v.rules }));
        say!("{}", Value::from(versions.collect::<Vec<_>>()));
        return Ok(ExitCode::SUCCESS);
    }
    say!("{}", describe(0, &config.default_rules()));
    for version in &versions {
        say!("{}, since {}", describe(version.number, &version.rules), date_time(version.at_ms));
    }
    Ok(ExitCode::SUCCESS)
}

fn diff(place: &Place, from: u64, to: u64, config: &Config) -> Result<ExitCode, Failure> {
    let versions = versions(place, config)?;
    let find = |number: u64| match number {
        0 => Ok(config.default_rules()),
        _ => versions
            .iter()
            .find(|v| v.number == number)
            .map(|v| v.rules.clone())
            .ok_or_else(|| format!("there is no version {number}; the newest is {}", versions.len())),
    };
    let (before, after) = (fields(&find(from)?), fields(&find(to)?));
    let changed = before.iter().filter(|(name, value)| after.get(*name) != Some(*value));
    let changes: Vec<_> = changed.map(|(name, value)| (name, value, after.get(name).unwrap_or(&Value::Null))).collect();
    if place.json {
        let changes = changes.iter().map(|(name, a, b)| ((*name).clone(), json!({ "from": a, "to": b })));
        say!("{}", Value::Object(changes.collect()));
    } else if changes.is_empty() {
        say!("versions {from} and {to} are equal");
    } else {
        changes.iter().for_each(|(name, a, b)| say!("{name}: {a} -> {b}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn versions(place: &Place, config: &Config) -> Result<Vec<Version>, Failure> {
    on_folder(&place.state, config, async |env| read_versions(env).await)
}

async fn read_versions(env: &Env) -> Result<Vec<Version>, Failure> {
    let task = TaskId::shard(&StageId::new(stage::CONTROL), 0);
    let (mut versions, mut log) = (Vec::new(), Log::of(env, &task));
    while let Some(row) = log.next().await? {
        if let Some(Broadcast { version, value }) = row.broadcast {
            versions.push(Version { number: version, at_ms: row.now_ms, rules: RuleConfig::decode(value)? });
        }
    }
    Ok(versions)
}

/// The message that the arguments stand for.
fn message(changes: &[String]) -> Result<String, Failure> {
    if let [message] = changes
        && message.trim_start().starts_with('{')
    {
        return Ok(message.clone());
    }
    let mut fields = Map::new();
    for change in changes {
        let (name, value) = change.split_once('=').ok_or_else(|| format!("`{change}` is not FIELD=VALUE"))?;
        let value = match value.parse::<i64>() {
            Ok(number) => Value::from(number),
            Err(_) => Value::from(value.split(',').map(str::trim).filter(|c| !c.is_empty()).collect::<Vec<_>>()),
        };
        if fields.insert(name.to_owned(), value).is_some() {
            return Err(format!("{name} is given twice").into());
        }
    }
    Ok(Value::Object(fields).to_string())
}

fn fields(rules: &RuleConfig) -> Map<String, Value> {
    match json!(rules) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// A version in one line.
pub(crate) fn describe(version: u64, rules: &RuleConfig) -> String {
    let blocked =
        if rules.blocked_countries.is_empty() { "none".to_owned() } else { rules.blocked_countries.join(", ") };
    let name = if version == 0 { "defaults".to_owned() } else { format!("version {version}") };
    format!("{name}: at most {} payments a minute, blocked countries: {blocked}", rules.velocity_max_payments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_a_message() {
        let of = |changes: &[&str]| message(&changes.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>());
        let text = |changes: &[&str]| of(changes).unwrap_or_else(|e| e.to_string());
        assert_eq!(text(&["velocityMaxPayments=20"]), r#"{"velocityMaxPayments":20}"#);
        assert_eq!(text(&["blockedCountries=PL, DE"]), r#"{"blockedCountries":["PL","DE"]}"#);
        assert_eq!(text(&["blockedCountries="]), r#"{"blockedCountries":[]}"#);
        assert_eq!(text(&[r#" {"a":1}"#]), r#" {"a":1}"#);
        assert!(text(&["velocity"]).contains("not FIELD=VALUE"));
        assert!(text(&["a=1", "a=2"]).contains("twice"));
    }
}
