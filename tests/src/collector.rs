//! The collector on a simulated world.

use std::sync::{Arc, Mutex, PoisonError};

use payguard_clock::collect::{Limits, Outcome, collect};
use payguard_engine::segment::object_seq;
use payguard_model::{KEY_GROUPS, ProcessingTime};
use payguard_sim::check::Reads;
use payguard_sim::{Crashed, Rng, SimWorld};
use payguard_topology::{collection, progress};

use crate::setup::{Setup, reads};

/// The collector's number among the executors.
pub const COLLECTOR: usize = 99;

/// All that may go at once, however young.
#[must_use]
pub fn everything(setup: &Setup) -> Limits {
    let stages = collection::stages_with_expiring_pages(&setup.topology()).len();
    let groups = u32::try_from(stages).unwrap_or(0) * KEY_GROUPS;
    Limits { retention_ms: 0, until: ProcessingTime(i64::MAX), rows: u32::MAX, sweeps: usize::MAX, groups }
}

/// One run of the collector, which sees the heads as they are now; every removal is checked when it is made.
///
/// # Errors
/// When it crashes.
pub async fn collect_once(world: &SimWorld, setup: &Setup, limits: Limits) -> Result<Outcome, Crashed> {
    let topology = setup.topology();
    world.lock().reads = Some(Arc::new(reads(&topology)));
    let collector = world.executor(COLLECTOR);
    let env = collector.env(setup.settings.clone());
    let run = async {
        match progress::heads(&*env.ledger, &topology).await {
            Ok(heads) => collect(&env, &topology, &heads, limits).await,
            Err(error) => Outcome { failed: vec![error], ..Outcome::default() },
        }
    };
    collector.guard(run).await
}

/// The world for a process during whose life the collector runs: before so many of a thousand of its operations.
#[must_use]
pub fn collecting(world: &SimWorld, setup: &Setup, seed: u64, permille: u64) -> SimWorld {
    let limits = Limits { groups: 3, ..everything(setup) };
    let draws = Arc::new(Mutex::new(Rng::new(seed ^ 0x6a6b_a6e0)));
    let (world, setup) = (world.clone(), setup.clone());
    world.clone().with_between(Arc::new(move || {
        let runs = draws.lock().unwrap_or_else(PoisonError::into_inner).chance(permille);
        let (world, setup) = (world.clone(), setup.clone());
        Box::pin(async move {
            if runs {
                // Whatever goes wrong: it tries again.
                let _ = collect_once(&world, &setup, limits).await;
            }
        })
    }))
}

/// What is left although nobody needs it: a row that all have passed, an object up to such a row.
#[must_use]
pub fn garbage(world: &SimWorld, reads: &Reads) -> Vec<String> {
    let world = world.lock();
    let mut garbage = Vec::new();
    for (task, log) in &world.logs {
        let passed = world.passed(task, reads);
        garbage.extend(log.rows.range(..=passed).map(|(seq, _)| format!("{task} row {seq}")));
        let is_passed = |key: &&String| object_seq(task, key).is_some_and(|seq| seq <= passed);
        garbage.extend(world.objects.keys().filter(is_passed).cloned());
    }
    garbage
}

/// Two runs, of which the second finds nothing, and a look at what is left.
///
/// # Panics
/// When a run fails, something stays that nobody needs, or an invariant is broken.
pub async fn collect_all(world: &SimWorld, setup: &Setup, context: &str) {
    for _ in 0..2 {
        let outcome = collect_once(world, setup, everything(setup)).await.expect("no crash");
        assert!(outcome.failed.is_empty(), "{context}: {:?}", outcome.failed);
    }
    let reads = reads(&setup.topology());
    assert_eq!(garbage(world, &reads), Vec::<String>::new(), "{context}");
    world.check(&reads).unwrap_or_else(|e| panic!("{context}: {e}"));
}
