//! `payguard load`: which stage is the bottleneck, and whether one task has more to do than the others.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use payguard_engine::Head;
use payguard_engine::TaskId;
use payguard_engine::task::{BUSY_MS, IN, WAITED_MS};
use payguard_topology::{payguard, progress};
use serde_json::json;

use crate::Failure;
use crate::config::ConfigArgs;
use crate::session::{Place, on_folder};
use crate::text::{grouped, print};

/// A stage that is busy for less than this share of the time holds nobody up.
const BOTTLENECK_PERCENT: u64 = 80;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Look twice, this many seconds apart, and show what happened between; 0 shows everything since the beginning
    #[arg(long, default_value_t = 0)]
    seconds: u64,
}

/// What one task did.
#[derive(Clone, Copy, Default)]
struct Done {
    records: u64,
    busy_ms: u64,
    waited_ms: u64,
}

/// What the tasks of a stage did.
struct Stage {
    id: String,
    tasks: usize,
    /// The largest share of its time that a task was busy, percent; `None` for tasks that others feed.
    busiest: Option<u64>,
    /// The smallest share that a task waited, percent.
    waited: Option<u64>,
    least: u64,
    most: u64,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let config = config.load_of(&args.place.state)?;
    let topology = payguard(&config);
    let (before, after) = on_folder(&args.place.state, &config, async |env| {
        let first = progress::heads(&*env.ledger, &topology).await?;
        if args.seconds == 0 {
            return Ok((Vec::new(), first));
        }
        tokio::time::sleep(Duration::from_secs(args.seconds)).await;
        Ok((first, progress::heads(&*env.ledger, &topology).await?))
    })?;
    let stages = stages(&before, &after);
    if args.place.json {
        let stages = stages.iter().map(|s| {
            json!({
                "stage": s.id, "tasks": s.tasks, "busy_percent_max": s.busiest, "waiting_percent_min": s.waited,
                "records_min": s.least, "records_max": s.most, "skew": s.skew(),
            })
        });
        say!("{}", serde_json::Value::from(stages.collect::<Vec<_>>()));
    } else {
        print(&table(&stages));
    }
    Ok(ExitCode::SUCCESS)
}

fn stages(before: &[(TaskId, Head)], after: &[(TaskId, Head)]) -> Vec<Stage> {
    let before: BTreeMap<&TaskId, Done> = before.iter().map(|(task, head)| (task, Done::of(head))).collect();
    let mut stages: Vec<(String, Vec<Done>)> = Vec::new();
    // Who has handed over has no load to share any more.
    for (task, head) in after.iter().filter(|(_, head)| head.sealed.is_none()) {
        let done = Done::of(head).since(before.get(task).copied().unwrap_or_default());
        match stages.last_mut() {
            Some((id, tasks)) if *id == *task.stage.0 => tasks.push(done),
            _ => stages.push((task.stage.to_string(), vec![done])),
        }
    }
    let stage = |(id, tasks): (String, Vec<Done>)| {
        let timed: Vec<&Done> = tasks.iter().filter(|d| d.busy_ms + d.waited_ms > 0).collect();
        let share = |part: u64, d: &Done| part * 100 / (d.busy_ms + d.waited_ms);
        Stage {
            id,
            tasks: tasks.len(),
            busiest: timed.iter().map(|d| share(d.busy_ms, d)).max(),
            waited: timed.iter().map(|d| share(d.waited_ms, d)).min(),
            least: tasks.iter().map(|d| d.records).min().unwrap_or(0),
            most: tasks.iter().map(|d| d.records).max().unwrap_or(0),
        }
    };
    stages.into_iter().map(stage).collect()
}

fn table(stages: &[Stage]) -> String {
    let mut text = format!(
        "{:10} {:>5} {:>9} {:>9} {:>14} {:>14} {:>6}\n",
        "stage", "tasks", "busy max", "wait min", "records least", "records most", "skew"
    );
    for stage in stages {
        let skew = stage.skew().map_or_else(|| "-".to_owned(), |skew| format!("{skew:.1}x"));
        let percent = |share: Option<u64>| share.map_or_else(|| "-".to_owned(), |share| format!("{share}%"));
        text.push_str(&format!(
            "{:10} {:>5} {:>9} {:>9} {:>14} {:>14} {:>6}\n",
            stage.id,
            stage.tasks,
            percent(stage.busiest),
            percent(stage.waited),
            grouped(stage.least),
            grouped(stage.most),
            skew
        ));
    }
    let busiest = stages.iter().filter_map(|stage| Some((stage.busiest?, &stage.id))).max();
    match busiest.filter(|(percent, _)| *percent >= BOTTLENECK_PERCENT) {
        Some((percent, id)) => text.push_str(&format!("bottleneck: {id} is busy {percent} % of the time\n")),
        None => text.push_str("no stage is busy all the time\n"),
    }
    text
}

impl Done {
    fn of(head: &Head) -> Done {
        let count = |name: &str| head.counters.get(name).copied().unwrap_or(0);
        let read = head.counters.iter().filter(|(name, _)| name.starts_with(IN) || *name == "source.records_in");
        Done { records: read.map(|(_, n)| n).sum(), busy_ms: count(BUSY_MS), waited_ms: count(WAITED_MS) }
    }

    fn since(self, before: Done) -> Done {
        Done {
            records: self.records.saturating_sub(before.records),
            busy_ms: self.busy_ms.saturating_sub(before.busy_ms),
            waited_ms: self.waited_ms.saturating_sub(before.waited_ms),
        }
    }
}

impl Stage {
    /// How many times more the task with the most records had than the one with the least; `None` when that had none.
    fn skew(&self) -> Option<f64> {
        (self.least > 0).then(|| self.most as f64 / self.least as f64)
    }
}

#[cfg(test)]
mod tests {
    use payguard_engine::StageId;

    use super::*;

    fn task(stage: &str, shard: u32, records: u64, busy_ms: u64, waited_ms: u64) -> (TaskId, Head) {
        let counters = [("in.x".to_owned(), records), (BUSY_MS.to_owned(), busy_ms), (WAITED_MS.to_owned(), waited_ms)];
        (TaskId::shard(&StageId::new(stage), shard), Head { counters: counters.into(), ..Head::empty() })
    }

    #[test]
    fn lesson_18_the_braked_stage_is_named_and_the_hot_task_shows() {
        let before = [task("dedup", 0, 100, 10, 10), task("rules", 0, 50, 0, 0), task("rules", 1, 50, 0, 0)];
        let after = [task("dedup", 0, 300, 60, 160), task("rules", 0, 150, 990, 10), task("rules", 1, 310, 500, 500)];
        let stages = stages(&before, &after);
        assert_eq!((stages[0].busiest, stages[0].waited, stages[0].skew()), (Some(25), Some(75), Some(1.0)));
        assert_eq!((stages[1].busiest, stages[1].least, stages[1].most), (Some(99), 100, 260));
        assert_eq!(stages[1].skew(), Some(2.6));
        assert!(table(&stages).contains("bottleneck: rules is busy 99 %"));
    }
}
