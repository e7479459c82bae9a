//! The enrichment against a naive model that steps from event to event: a directory that answers, fails, hangs and
//! recovers as it likes, calls one after another, small limits. Every risk and every counter must be the same.
//!
//! No two events of the plan coincide but those that must (alerts that entered together expire together): the n-th
//! question about a merchant is always answered in a millisecond of its own, counted modulo the time limit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use crate::testing::Scripted;
use crate::{Enrichment, Limits, Risks, UNKNOWN};

const MERCHANTS: [&str; 6] = ["m-0", "m-1", "m-2", "m-3", "m-4", "m-5"];
const TIMEOUT: u64 = 2_000;
/// Questions about one merchant that have a millisecond of their own.
const MOST_ASKED: usize = 300;

/// What the directory does with a question.
#[derive(Clone, Copy, Debug)]
struct Reaction {
    /// It answers after this many milliseconds, and then in its own millisecond.
    at_least: u64,
    answer: Result<Option<&'static str>, &'static str>,
}

#[derive(Clone, Debug)]
struct Case {
    queued: usize,
    concurrent: usize,
    cached: usize,
    /// In time limits.
    cache_for: u64,
    /// The reactions to the questions about a merchant, over and over.
    reactions: Vec<Vec<Reaction>>,
    /// Merchants of the alerts of each call, and the pause after it, in time limits.
    calls: Vec<(Vec<usize>, u64)>,
}

fn cases() -> impl Strategy<Value = Case> {
    let answer = prop_oneof![
        5 => prop::sample::select(vec!["HIGH", "MEDIUM", "LOW"]).prop_map(|level| Ok(Some(level))),
        1 => Just(Ok(None)),
        3 => Just(Err("down")),
    ];
    let at_least = prop_oneof![6 => Just(0_u64), 2 => 0..4_000_u64, 1 => Just(1_000_000)];
    let reaction = (at_least, answer).prop_map(|(at_least, answer)| Reaction { at_least, answer });
    let reactions = prop::collection::vec(prop::collection::vec(reaction, 1..8), MERCHANTS.len());
    let call = (prop::collection::vec(0..MERCHANTS.len(), 0..60), 0..4_u64);
    let limits = (1..40_usize, 1..5_usize, prop_oneof![0..4_usize, Just(100)], 0..6_u64);
    (limits, reactions, prop::collection::vec(call, 1..5)).prop_map(
        |((queued, concurrent, cached, cache_for), reactions, calls)| Case {
            queued,
            concurrent,
            cached,
            cache_for,
            reactions,
            calls,
        },
    )
}

impl Case {
    /// When the n-th question about a merchant, asked at `asked`, is answered, and how.
    fn reaction(&self, merchant: usize, n: usize, asked: u64) -> (u64, Result<Option<&'static str>, &'static str>) {
        assert!(n < MOST_ASKED);
        let Reaction { at_least, answer } = self.reactions[merchant][n % self.reactions[merchant].len()];
        let own = (1 + merchant * MOST_ASKED + n) as u64;
        let earliest = asked + at_least + 1;
        (earliest + (own + TIMEOUT - earliest % TIMEOUT) % TIMEOUT, answer)
    }
}

/// The model's look-up.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Waits,
    Runs(u64, Result<Option<&'static str>, &'static str>),
    Over,
}

struct ModelLookup {
    merchant: usize,
    since: u64,
    stage: Stage,
}

struct Waiting {
    at: usize,
    deadline: u64,
    lookup: usize,
}

/// Times are milliseconds.
struct Model<'a> {
    case: &'a Case,
    now: u64,
    asked: BTreeMap<usize, usize>,
    /// Every answer in the order it came, at most as many as are kept.
    cache: Vec<(usize, &'static str, u64)>,
    lookups: Vec<ModelLookup>,
    waiting: Vec<Waiting>,
    /// Two questions about one merchant began in the same millisecond: which of them is the n-th is not defined.
    undefined: bool,
}

impl Model<'_> {
    fn call(&mut self, merchants: &[usize]) -> Risks {
        let mut found = Risks { risks: vec![UNKNOWN.into(); merchants.len()], ..Risks::default() };
        let mut outside = (0..merchants.len()).collect::<std::collections::VecDeque<_>>();
        loop {
            while self.waiting.len() < self.case.queued {
                let Some(at) = outside.pop_front() else { break };
                self.enter(at, merchants[at], &mut found);
            }
            self.begin_questions();
            let deadlines = self.waiting.iter().map(|w| w.deadline);
            let ends =
                self.lookups.iter().filter_map(|l| if let Stage::Runs(end, _) = l.stage { Some(end) } else { None });
            let Some(next) = deadlines.chain(ends).min().filter(|_| !self.waiting.is_empty()) else { return found };
            self.now = next;
            self.expire(&mut found);
            self.answer(&mut found);
        }
    }

    fn enter(&mut self, at: usize, merchant: usize, found: &mut Risks) {
        let now = self.now;
        if let Some((_, risk, _)) = self.cache.iter().rev().find(|(m, _, expires)| *m == merchant && *expires > now) {
            found.risks[at] = (*risk).into();
            found.cache_hits += 1;
            return;
        }
        let same = |l: &ModelLookup| l.merchant == merchant && l.stage != Stage::Over && now - l.since < TIMEOUT;
        let lookup = match self.lookups.iter().position(same) {
            Some(lookup) => {
                found.shared += 1;
                lookup
            }
            None => {
                found.lookups += 1;
                self.lookups.push(ModelLookup { merchant, since: now, stage: Stage::Waits });
                self.lookups.len() - 1
            }
        };
        self.waiting.push(Waiting { at, deadline: now + TIMEOUT, lookup });
    }

    fn begin_questions(&mut self) {
        let mut running = self.lookups.iter().filter(|l| matches!(l.stage, Stage::Runs(..))).count();
        let mut begun = Vec::new();
        for lookup in &mut self.lookups {
            if lookup.stage == Stage::Waits && running < self.case.concurrent {
                let n = self.asked.entry(lookup.merchant).or_default();
                let (end, answer) = self.case.reaction(lookup.merchant, *n, self.now);
                lookup.stage = Stage::Runs(end, answer);
                *n += 1;
                running += 1;
                self.undefined |= begun.contains(&lookup.merchant);
                begun.push(lookup.merchant);
            }
        }
    }

    fn expire(&mut self, found: &mut Risks) {
        let before = self.waiting.len();
        self.waiting.retain(|w| w.deadline > self.now);
        found.failures += (before - self.waiting.len()) as u64;
        for (id, lookup) in self.lookups.iter_mut().enumerate() {
            if !self.waiting.iter().any(|w| w.lookup == id) {
                lookup.stage = Stage::Over;
            }
        }
    }

    fn answer(&mut self, found: &mut Risks) {
        for id in 0..self.lookups.len() {
            let Stage::Runs(end, answer) = self.lookups[id].stage else { continue };
            if end > self.now {
                continue;
            }
            self.lookups[id].stage = Stage::Over;
            if let Ok(level) = answer {
                let expires = self.now + self.case.cache_for * TIMEOUT;
                self.cache.push((self.lookups[id].merchant, level.unwrap_or(UNKNOWN), expires));
                self.cache.drain(..self.cache.len().saturating_sub(self.case.cached));
            }
            for waiting in self.waiting.extract_if(.., |w| w.lookup == id) {
                match answer {
                    Ok(level) => found.risks[waiting.at] = level.unwrap_or(UNKNOWN).into(),
                    Err(_) => found.failures += 1,
                }
            }
        }
    }
}

/// Runs the calls for real: their results with the milliseconds they ended at, and the number of questions.
async fn run(case: &Case) -> (Vec<(Risks, u64)>, usize) {
    let start = Instant::now();
    let (plan, asked) = (case.clone(), Mutex::new(HashMap::<String, Vec<u64>>::new()));
    let directory = Scripted::new(move |merchant, n| {
        let now = start.elapsed().as_millis() as u64;
        asked.lock().unwrap_or_else(|e| e.into_inner()).entry(merchant.to_owned()).or_default().push(now);
        let at = MERCHANTS.iter().position(|m| *m == merchant).unwrap_or_default();
        let (end, answer) = plan.reaction(at, n, now);
        (start + Duration::from_millis(end), answer)
    });
    let limits = Limits {
        queued: case.queued,
        concurrent: case.concurrent,
        timeout: Duration::from_millis(TIMEOUT),
        cache_for: Duration::from_millis(case.cache_for * TIMEOUT),
        cached_merchants: case.cached,
    };
    let enrichment = Enrichment::new(directory.clone(), limits);
    let mut results = Vec::new();
    for (merchants, pause) in &case.calls {
        let names: Vec<&str> = merchants.iter().map(|m| MERCHANTS[*m]).collect();
        let risks = enrichment.risks(&names).await;
        results.push((risks, start.elapsed().as_millis() as u64));
        tokio::time::sleep(Duration::from_millis(pause * TIMEOUT)).await;
    }
    assert_eq!((directory.running().0, enrichment.sizes().1), (0, 0), "nothing goes on between calls");
    assert!(directory.running().1 <= case.concurrent);
    (results, directory.asked())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_flapping_directory_leads_to_the_models_risks_and_counters(case in cases()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let (results, asked) = runtime.expect("no resources but memory").block_on(run(&case));
        let mut model = Model {
            case: &case,
            now: 0,
            asked: BTreeMap::new(),
            cache: Vec::new(),
            lookups: Vec::new(),
            waiting: Vec::new(),
            undefined: false,
        };
        for ((merchants, pause), (risks, ended)) in case.calls.iter().zip(&results) {
            let expected = model.call(merchants);
            prop_assume!(!model.undefined);
            prop_assert_eq!(risks, &expected);
            prop_assert_eq!(*ended, model.now);
            prop_assert_eq!(risks.lookups + risks.shared + risks.cache_hits, merchants.len() as u64);
            model.now += pause * TIMEOUT;
        }
        prop_assert_eq!(asked, model.asked.values().sum::<usize>());
    }
}
