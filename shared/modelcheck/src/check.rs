//! Checking a configuration, and what is told of it.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter, Write};
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model as _};

use crate::config::Config;
use crate::coverage::Event;
use crate::model::{Action, Model, State};

/// What a check found.
#[derive(Debug)]
pub struct Checked {
    /// What was checked.
    pub config: Config,
    /// States that differ in more than names.
    pub states: usize,
    /// Steps of the longest run that was followed.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// Properties that do not hold, each with a run that shows it.
    pub broken: BTreeMap<&'static str, Story>,
    /// Properties that must hold somewhere and do not.
    pub unseen: Vec<&'static str>,
    /// How often everything happened.
    pub counts: Vec<(Event, u64)>,
}

/// A run in words.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Story {
    /// Its steps.
    pub steps: usize,
    /// The steps, numbered, and what is durable after those that change it.
    pub text: String,
}

impl Checked {
    /// Whether every property holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.broken.is_empty() && self.unseen.is_empty()
    }
}

/// Follows every run of a configuration, or stops where a property is broken.
///
/// A configuration that is broken on purpose is checked by one thread: then the run that shows it is a short one.
#[must_use]
pub fn check(config: Config) -> Checked {
    let began = Instant::now();
    let model = Model::new(config);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if config.mutant.is_some() { 1 } else { cores };
    let checker = model.clone().checker().threads(threads).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let mut found = checker.discoveries();
    let (mut broken, mut unseen) = (BTreeMap::new(), Vec::new());
    for property in model.properties() {
        match (property.expectation, found.remove(property.name)) {
            (Expectation::Sometimes, None) => unseen.push(property.name),
            (Expectation::Always | Expectation::Eventually, Some(path)) => {
                broken.insert(property.name, Story::of(&path.into_vec()));
            }
            (Expectation::Sometimes, Some(_)) | (Expectation::Always | Expectation::Eventually, None) => {}
        }
    }
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    Checked { config, states, depth, took: began.elapsed(), broken, unseen, counts: model.counts() }
}

impl Story {
    fn of(path: &[(State, Option<Action>)]) -> Story {
        let (mut text, mut before) = (String::new(), String::new());
        for (number, pair) in path.windows(2).enumerate() {
            let (Some(action), after) = (&pair[0].1, pair[1].0.to_string()) else { continue };
            let _ = writeln!(text, "  {:>3}. {action:?}", number + 1);
            if after != before {
                let _ = writeln!(text, "         {after}");
            }
            before = after;
        }
        Story { steps: path.len().saturating_sub(1), text }
    }
}

/// One line, and the runs that show what is broken.
impl Display for Checked {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds() { "every property holds" } else { "BROKEN" };
        let seconds = self.took.as_secs_f64();
        write!(f, "{:<12} {:>10} {:>6} {seconds:>8.1}  {verdict}", self.config.name, self.states, self.depth)?;
        let mut stories: BTreeMap<&Story, Vec<&str>> = BTreeMap::new();
        for (rule, story) in &self.broken {
            stories.entry(story).or_default().push(rule);
        }
        for (story, rules) in stories {
            write!(f, "\n  {}\n{}", rules.join("\n  "), story.text)?;
        }
        for rule in self.unseen.iter().filter(|_| self.broken.is_empty()) {
            write!(f, "\n  never: {rule}")?;
        }
        Ok(())
    }
}
