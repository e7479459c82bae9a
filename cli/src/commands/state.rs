//! `payguard state`: what the pipeline remembers, of one key or of all.

use std::process::ExitCode;

use payguard_engine::StageId;
use payguard_inspect::source::{AsOf, GroupState};
use payguard_inspect::states::{Readable, StateKind};
use payguard_inspect::tally::{Ranked, Size, Top, readable, sizes, top};
use payguard_inspect::time::utc;
use payguard_inspect::{Asked, Source};
use payguard_model::{KEY_GROUPS, key_group};
use payguard_operators::KeyedOperator;
use payguard_operators::card_profile::CardProfiles;
use payguard_operators::detail::DetailLanguage;
use payguard_topology::Config;
use serde_json::{Value, json};

use crate::Failure;
use crate::config::ConfigArgs;
use crate::inspect::{View, config_of, looked_as_json, looked_in_words};
use crate::text::{bytes, date_time, grouped, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the state and the timers of one key; exit code 1 when it has none
    ///
    /// For example: state get card-profile c-4868 --state DIR --at 2026-11-30T12:00:00Z
    Get {
        /// Id of the state: deduplicate, merchant-stats-1m, merchant-stats-salted, card-sessions, merchant-stats-total,
        /// rule-velocity, rule-amount-spike, card-sequences, card-profile or payment-matching
        #[arg(value_name = "STATE")]
        id: String,
        /// The key: a card, merchant or payment id, as the state has it
        key: String,
        #[command(flatten)]
        view: View,
    },
    /// Count the keys of a state and show the greatest
    ///
    /// For example: state top card-profile --by totalAmountMinor -n 10 --state DIR
    Top {
        /// Id of the state, see `state get --help`
        #[arg(value_name = "STATE")]
        id: String,
        /// The number to put keys in order by: one of the state's, or bytes [default: the state's first]
        #[arg(long, value_name = "FIELD")]
        by: Option<String>,
        /// How many to show
        #[arg(short, long, value_name = "N", default_value_t = 5)]
        number: usize,
        #[command(flatten)]
        view: View,
    },
    /// Count the keys of a state
    ///
    /// For example: state count card-sessions --state DIR --savepoint before-2.0
    Count {
        /// Id of the state, see `state get --help`
        #[arg(value_name = "STATE")]
        id: String,
        #[command(flatten)]
        view: View,
    },
    /// Show keys and bytes of every state
    ///
    /// Bytes are those of a savepoint. For example: state sizes --state DIR
    Sizes {
        #[command(flatten)]
        view: View,
    },
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let (Action::Get { view, .. } | Action::Top { view, .. } | Action::Count { view, .. } | Action::Sizes { view }) =
        &args.action;
    let config = config_of(view.state.as_deref(), config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match &args.action {
            Action::Get { id, key, view } => get(StateKind::find(id)?, key, view, &config).await,
            Action::Top { id, by, number, view } => {
                greatest(StateKind::find(id)?, by.as_deref(), Some(*number), view, &config).await
            }
            Action::Count { id, view } => greatest(StateKind::find(id)?, None, None, view, &config).await,
            Action::Sizes { view } => all_sizes(view, &config).await,
        }
    })
}

async fn get(kind: &StateKind, key: &str, view: &View, config: &Config) -> Result<ExitCode, Failure> {
    let group = key_group(key, KEY_GROUPS).0;
    let asked = Asked { groups: group..group + 1, ..view.asked(Some(kind.id))? };
    let GroupState { as_of, mut states } =
        view.look(config, asked, async |source| Ok(source.group(&StageId::new(kind.stage), group).await?)).await?;
    let stored = states.get_mut(kind.id).and_then(|keys| keys.remove(key));
    let state = stored.map(|stored| readable(kind, key, &stored)).transpose()?;
    if view.json {
        say!("{}", get_as_json(kind, key, group, as_of.as_ref(), state.as_ref()));
        return Ok(if state.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let as_of = as_of_in_words(as_of.as_ref());
    let state = state.ok_or_else(|| format!("{key} has no state {} {as_of}", kind.id))?;
    say!("{} of {key} ({}, key group {group}), {as_of}", kind.id, kind.key);
    say!("{}", serde_json::to_string_pretty(&state.value)?);
    print(&timers_in_words(&state));
    Ok(ExitCode::SUCCESS)
}

fn get_as_json(kind: &StateKind, key: &str, group: u32, as_of: Option<&AsOf>, state: Option<&Readable>) -> Value {
    let times = |times: &[i64]| times.iter().map(|ms| json!({ "ms": ms, "utc": utc(*ms) })).collect::<Vec<_>>();
    json!({
        "state": kind.id, "stage": kind.stage, "key": key, "group": group,
        "as_of": as_of.map(|as_of| json!({
            "task": as_of.task, "seq": as_of.seq, "committed_at_ms": as_of.at_ms,
            "committed_at": as_of.at_ms.map(date_time),
        })),
        "value": state.map(|state| &state.value),
        "event_timers": state.map(|state| times(&state.event_timers)),
        "processing_timers": state.map(|state| times(&state.processing_timers)),
    })
}

fn as_of_in_words(as_of: Option<&AsOf>) -> String {
    match as_of {
        None => "(no task had committed anything for its key group)".to_owned(),
        Some(AsOf { task, seq, at_ms: None }) => format!("as of commit {seq} of {task}"),
        Some(AsOf { task, seq, at_ms: Some(ms) }) => format!("as of commit {seq} of {task} ({})", date_time(*ms)),
    }
}

fn timers_in_words(state: &Readable) -> String {
    let line = |name: &str, times: &[i64]| {
        let times: Vec<String> = times.iter().map(|ms| date_time(*ms)).collect();
        if times.is_empty() { String::new() } else { format!("{name}: {}\n", times.join(", ")) }
    };
    line("event-time timers", &state.event_timers) + &line("processing-time timers", &state.processing_timers)
}

/// The greatest keys, or without a number of them only how many keys there are.
async fn greatest(
    kind: &StateKind,
    by: Option<&str>,
    number: Option<usize>,
    view: &View,
    config: &Config,
) -> Result<ExitCode, Failure> {
    let measure = kind.field(by)?;
    let asked = view.asked(Some(kind.id))?;
    let found =
        view.look(config, asked, async |source| Ok(top(source, kind, measure, number.unwrap_or(0)).await?)).await?;
    if view.json {
        let rows = found.greatest.iter().map(|Ranked { number, key, state }| {
            json!({ "key": key, "number": i64::try_from(*number).ok(), "value": state.value })
        });
        let mut told = json!({ "state": kind.id, "keys": found.keys, "as_of": looked_as_json(&found.looked) });
        if number.is_some() {
            told["by"] = json!(measure.name());
            told["top"] = rows.collect();
        }
        say!("{told}");
    } else {
        eprintln!("{}", looked_in_words(&found.looked));
        print(&top_in_words(kind, &found, config.language()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The output of the state inspector (lesson 13); of other states than profiles in the same manner.
fn top_in_words(kind: &StateKind, found: &Top, language: DetailLanguage) -> String {
    let is_profile = kind.id == CardProfiles::ID;
    let what = match (is_profile, language) {
        (true, DetailLanguage::En) => "Cards in state",
        (true, DetailLanguage::Ru) => "Карт в состоянии",
        (false, DetailLanguage::En) => "Keys in state",
        (false, DetailLanguage::Ru) => "Ключей в состоянии",
    };
    let mut text = format!("{what}: {}\n", found.keys);
    for Ranked { number, key, state } in &found.greatest {
        match is_profile {
            true => text.push_str(&card_row(key, &state.value)),
            false => text.push_str(&format!("{number:>12}  {key}  {}\n", state.value)),
        }
    }
    text
}

/// A card as the inspector of lesson 13 writes it: the text of a Java record.
fn card_row(card: &str, profile: &Value) -> String {
    let of = |name: &str| match &profile[name] {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let (count, total, country) = (of("paymentCount"), of("totalAmountMinor"), of("lastCountry"));
    format!(
        "CardRow[cardId={card}, profile=CardProfile[paymentCount={count}, totalAmountMinor={total}, \
         lastCountry={country}]]\n"
    )
}

async fn all_sizes(view: &View, config: &Config) -> Result<ExitCode, Failure> {
    let asked = view.asked(None)?;
    let task = asked.task.clone();
    let (sizes, looked) = view
        .look(config, asked, async |source: &mut Source<'_>| {
            let stages: Vec<StageId> = match &task {
                // Of one task: its stage alone.
                Some(task) => vec![task.stage.clone()],
                None => source.stages(),
            };
            Ok(sizes(source, &stages).await?)
        })
        .await?;
    if view.json {
        let states = sizes.iter().map(|(stage, state, Size { keys, bytes })| {
            json!({ "stage": stage.to_string(), "state": state, "keys": keys, "bytes": bytes })
        });
        say!("{}", json!({ "states": states.collect::<Vec<_>>(), "as_of": looked_as_json(&looked) }));
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{}", looked_in_words(&looked));
    say!("{:10} {:24} {:>12} {:>12}", "stage", "state of", "keys", "bytes");
    for (stage, state, size) in sizes {
        say!("{:10} {state:24} {:>12} {:>12}", stage.to_string(), grouped(size.keys), bytes(size.bytes));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lesson_13_the_inspectors_output() {
        let kind = StateKind::find("card-profile").expect("a state");
        let row = |key: &str, count: i64, country: Value| Ranked {
            number: count.into(),
            key: key.to_owned(),
            state: Readable {
                value: json!({ "paymentCount": count, "totalAmountMinor": 275_240, "lastCountry": country }),
                event_timers: vec![],
                processing_timers: vec![],
            },
        };
        let greatest = vec![row("c-4868", 12, json!("FR")), row("c-2932", 11, Value::Null)];
        let found = Top { keys: 4826, greatest, ..Top::default() };
        let rows = "CardRow[cardId=c-4868, profile=CardProfile[paymentCount=12, totalAmountMinor=275240, lastCountry=FR]]\n\
                    CardRow[cardId=c-2932, profile=CardProfile[paymentCount=11, totalAmountMinor=275240, lastCountry=null]]\n";
        assert_eq!(top_in_words(kind, &found, DetailLanguage::Ru), format!("Карт в состоянии: 4826\n{rows}"));
        assert_eq!(top_in_words(kind, &found, DetailLanguage::En), format!("Cards in state: 4826\n{rows}"));
        let other = StateKind::find("rule-velocity").expect("a state");
        assert!(
            top_in_words(other, &found, DetailLanguage::En).starts_with("Keys in state: 4826\n          12  c-4868  {")
        );
    }
}
