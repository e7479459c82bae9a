//! `payguard diff-state`: whether two views of a pipeline's state are equal, and where they differ.

use std::path::PathBuf;
use std::process::ExitCode;

use payguard_engine::TaskId;
use payguard_inspect::states::Readable;
use payguard_inspect::tally::{Diff, Difference, diff};
use payguard_inspect::{Asked, At, Source};
use payguard_topology::Config;
use serde_json::{Value, json};

use crate::Failure;
use crate::config::ConfigArgs;
use crate::inspect::{Pipeline, SavedPlace, config_of, looked_as_json, looked_in_words};
use crate::text::{chain, date_time, grouped, print};

/// The exit code of an error: 1 says that the views differ.
const FAILED: u8 = 2;
/// What live tables are called.
const LIVE: &str = "live";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A savepoint, by its name or its path, or `live`, or `live@SEQ|TIME` for the past
    #[arg(value_name = "A")]
    a: String,
    /// The other one
    #[arg(value_name = "B")]
    b: String,
    /// Folder with the durable state [default: the deployed stores that the environment names]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Where savepoints are [default: savepoints/ in the state folder, or in the bucket of the segments]
    #[arg(long, value_name = "DIR|s3://BUCKET/PREFIX")]
    savepoints: Option<String>,
    /// Compare the keys of this task alone, for example rules/0; needed with live@SEQ
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// Keys to show of every state that differs
    #[arg(short, long, value_name = "N", default_value_t = 3)]
    number: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A view of the state.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Side<'a> {
    Live(At),
    Saved(&'a str),
}

impl<'a> Side<'a> {
    fn of(text: &'a str) -> Result<Side<'a>, Failure> {
        match text.split_once('@') {
            _ if text == LIVE => Ok(Side::Live(At::Newest)),
            Some((LIVE, at)) => Ok(Side::Live(at.parse()?)),
            _ => Ok(Side::Saved(text)),
        }
    }
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> ExitCode {
    match compare(args, config) {
        Ok(found) => {
            match args.json {
                true => say!("{}", as_json(&found)),
                false => {
                    eprintln!("A {}\nB {}", looked(&found.looked.0), looked(&found.looked.1));
                    print(&in_words(&found));
                }
            }
            if is_equal(&found) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("payguard: {}", chain(&*error));
            ExitCode::from(FAILED)
        }
    }
}

fn compare(args: &Args, config: &ConfigArgs) -> Result<Diff, Failure> {
    let config = config_of(args.state.as_deref(), config)?;
    let (a, b) = (Side::of(&args.a)?, Side::of(&args.b)?);
    if args.task.is_none() && [&a, &b].iter().any(|side| matches!(side, Side::Live(At::Seq(_)))) {
        return Err("commits are numbered by task: say --task, or a time instead of a commit".into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let needs_stores = matches!(a, Side::Live(_)) || matches!(b, Side::Live(_));
        let pipeline = match needs_stores {
            true => Some(Pipeline::open(args.state.as_deref(), &config).await?),
            false => None,
        };
        let result = compare_sides(args, pipeline.as_ref(), [&a, &b], &config).await;
        if let Some(pipeline) = pipeline {
            pipeline.stores.close().await;
        }
        result
    })
}

async fn compare_sides(
    args: &Args,
    pipeline: Option<&Pipeline>,
    [a, b]: [&Side<'_>; 2],
    config: &Config,
) -> Result<Diff, Failure> {
    let (of_a, of_b) = (place(args, a, config).await?, place(args, b, config).await?);
    let task = args.task.as_deref().map(str::parse::<TaskId>).transpose()?;
    let (mut a, mut b) = (
        source(pipeline, a, of_a.as_ref(), task.as_ref()).await?,
        source(pipeline, b, of_b.as_ref(), task.as_ref()).await?,
    );
    let found = diff(&mut a, &mut b, task.as_ref().map(|task| &task.stage), args.number).await;
    drop((a, b));
    for place in [of_a, of_b].into_iter().flatten() {
        place.close().await;
    }
    Ok(found?)
}

async fn place(args: &Args, side: &Side<'_>, config: &Config) -> Result<Option<SavedPlace>, Failure> {
    match side {
        Side::Live(_) => Ok(None),
        Side::Saved(name) => {
            Ok(Some(SavedPlace::open(name, args.savepoints.as_deref(), args.state.as_deref(), config).await?))
        }
    }
}

async fn source<'a>(
    pipeline: Option<&'a Pipeline>,
    side: &Side<'_>,
    place: Option<&'a SavedPlace>,
    task: Option<&TaskId>,
) -> Result<Source<'a>, Failure> {
    match (side, pipeline, place) {
        (Side::Live(at), Some(pipeline), _) => {
            Ok(Source::Live(pipeline.live(Asked { at: *at, task: task.cloned(), ..Asked::everything() })?))
        }
        (_, _, Some(place)) => Ok(Source::Saved(place.saved(None).await?)),
        (_, None, None) | (Side::Saved(_), Some(_), None) => Err("nothing to look at".into()),
    }
}

fn is_equal(found: &Diff) -> bool {
    found.states.iter().all(|(_, _, state)| state.is_equal())
}

fn looked(looked: &payguard_inspect::tally::Looked) -> String {
    looked_in_words(looked).replace('\n', "\n  ")
}

fn in_words(found: &Diff) -> String {
    let mut text = format!(
        "{:10} {:24} {:>12} {:>10} {:>10} {:>10}\n",
        "stage", "state of", "equal", "only in A", "only in B", "differ"
    );
    for (stage, id, state) in &found.states {
        let numbers = [state.equal, state.only_a, state.only_b, state.differ].map(grouped);
        let [equal, only_a, only_b, differ] = numbers;
        text.push_str(&format!(
            "{:10} {id:24} {equal:>12} {only_a:>10} {only_b:>10} {differ:>10}\n",
            stage.to_string()
        ));
        for Difference { key, a, b } in &state.examples {
            text.push_str(&format!("    {key}\n        A {}\n        B {}\n", side(a.as_ref()), side(b.as_ref())));
        }
    }
    text.push_str(if is_equal(found) { "equal\n" } else { "they differ\n" });
    text
}

fn side(state: Option<&Readable>) -> String {
    let Some(state) = state else { return "-".to_owned() };
    let times = |times: &[i64]| times.iter().map(|ms| date_time(*ms)).collect::<Vec<_>>().join(", ");
    let timers = |name: &str, of: &[i64]| if of.is_empty() { String::new() } else { format!(", {name} {}", times(of)) };
    let (event, processing) =
        (timers("timers", &state.event_timers), timers("processing-time timers", &state.processing_timers));
    format!("{}{event}{processing}", state.value)
}

fn as_json(found: &Diff) -> Value {
    let side = |state: Option<&Readable>| {
        state.map(|state| {
            json!({
                "value": state.value, "event_timers_ms": state.event_timers,
                "processing_timers_ms": state.processing_timers,
            })
        })
    };
    let states = found.states.iter().map(|(stage, id, state)| {
        let examples =
            state.examples.iter().map(|d| json!({ "key": d.key, "a": side(d.a.as_ref()), "b": side(d.b.as_ref()) }));
        json!({
            "stage": stage.to_string(), "state": id, "equal": state.equal, "only_a": state.only_a,
            "only_b": state.only_b, "differ": state.differ, "examples": examples.collect::<Vec<_>>(),
        })
    });
    json!({
        "equal": is_equal(found), "states": states.collect::<Vec<_>>(),
        "as_of": { "a": looked_as_json(&found.looked.0), "b": looked_as_json(&found.looked.1) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_live_or_a_savepoint() {
        let of = |text| Side::of(text).map_err(|e| e.to_string());
        assert_eq!(of("live"), Ok(Side::Live(At::Newest)));
        assert_eq!(of("live@17"), Ok(Side::Live(At::Seq(17))));
        assert_eq!(of("live@1970-01-01T00:00:00Z"), Ok(Side::Live(At::Time(0))));
        assert_eq!(of("state/savepoints/live"), Ok(Side::Saved("state/savepoints/live")));
        assert_eq!(of("before@2"), Ok(Side::Saved("before@2")));
        assert!(of("live@noon").is_err_and(|e| e.contains("such as 17")));
    }
}
