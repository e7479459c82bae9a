//! The runs of the simulation tests, each with one seed, on an engine of which one rule may be broken.

use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;

use payguard_engine::teeth::{Broken, Mutant};
use payguard_sim::{Fault, FaultPlan, OpKind, Rng, SimWorld};
use payguard_tests::collector::{collect_once, everything};
use payguard_tests::data::NOW_MS;
use payguard_tests::splitting::{self, split_while_listed};
use payguard_tests::{
    Feed, Order, Outputs, Pipeline, Redraw, Restart, Setup, Shape, account, difference, reads, records, run_to_end,
    undisturbed,
};
use payguard_topology::stage;

/// So begins what is said of a difference.
pub(crate) const DIFFERS: &str = "what is published differs";
/// Many times what a run takes.
const OPERATIONS: u64 = 100_000;

/// What happens in a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Scenario {
    /// Crashes and failures at random.
    Crashes,
    /// Failures at random, and nobody tries again before the next delivery.
    Failures,
    /// Two processes that interleave at random.
    Interleaved,
    /// Warm processes that take turns.
    Turns,
    /// One sleeps until another has finished.
    Sleeper,
    /// One sleeps while another goes on a little and all that may go is collected.
    Collected,
    /// A partition appears when another has been read.
    Joining,
    /// Pages are split while somebody lists them.
    Splitting,
    /// The shards of two stages are redrawn, with crashes at random.
    Redrawn,
}

impl Scenario {
    /// All of them.
    pub(crate) const ALL: [Scenario; 9] = [
        Scenario::Crashes,
        Scenario::Failures,
        Scenario::Interleaved,
        Scenario::Turns,
        Scenario::Sleeper,
        Scenario::Collected,
        Scenario::Joining,
        Scenario::Splitting,
        Scenario::Redrawn,
    ];

    /// How many seeds there are at most.
    pub(crate) fn seeds(self) -> u64 {
        match self {
            Scenario::Joining => 4,
            Scenario::Splitting => 2,
            _ => 40,
        }
    }

    /// Runs with the engine as it is, and then with the broken rule.
    ///
    /// # Errors
    /// What is noticed: a broken invariant, or the first record that differs.
    pub(crate) async fn run(self, seed: u64, broken: Option<Mutant>) -> Result<(), String> {
        match self {
            Scenario::Crashes => random(seed, broken, FaultPlan::random(seed, 8, true), &busy()).await,
            Scenario::Failures => {
                let setup = busy().with(|s| s.store_tries = 1);
                random(seed, broken, FaultPlan::random(seed, 8, false), &setup).await
            }
            Scenario::Interleaved => interleaved(seed, broken).await,
            Scenario::Turns => turns(seed, broken).await,
            Scenario::Sleeper => sleeper(seed, broken).await,
            Scenario::Collected => collected(seed, broken).await,
            Scenario::Joining => joining(seed, broken).await,
            Scenario::Redrawn => redrawn(seed, broken).await,
            Scenario::Splitting => {
                let (_, expected) = undisturbed(&splitting::setup(), &splitting::crowd()).await;
                let _broken = broken.map(Broken::new);
                same(split_while_listed(u32::try_from(seed).expect("small")).await, &expected)
            }
        }
    }
}

/// A world whose processes stop as soon as an invariant is seen to be broken, or when they run for ever.
fn watched() -> SimWorld {
    let world = SimWorld::new(NOW_MS);
    let seen = world.clone();
    world.with_between(Arc::new(move || {
        let endless = (seen.ops() > OPERATIONS).then(|| "the run does not come to its end".to_owned());
        let violation = seen.lock().violations.first().cloned();
        if let Some(why) = violation.or(endless) {
            resume_unwind(Box::new(why));
        }
        Box::pin(async {})
    }))
}

/// Small commits, a flush after each.
fn busy() -> Setup {
    Setup::full().with(|s| {
        s.records_per_commit = 20;
        s.flush_every_ms = 0;
    })
}

fn same(found: Result<Outputs, String>, expected: &Outputs) -> Result<(), String> {
    difference(&found?, expected).map_or(Ok(()), |difference| Err(format!("{DIFFERS}: {difference}")))
}

async fn random(seed: u64, broken: Option<Mutant>, plan: FaultPlan, setup: &Setup) -> Result<(), String> {
    let feed = Feed::drawn(seed, 60, Shape::COARSE, 5 + usize::try_from(seed % 20).expect("small"));
    let (_, expected) = undisturbed(setup, &feed).await;
    let _broken = broken.map(Broken::new);
    let world = watched();
    world.plan(plan);
    let restart = if seed.is_multiple_of(2) { Restart::Fresh } else { Restart::Warm };
    same(run_to_end(&world, setup, &feed, restart).await, &expected)
}

async fn interleaved(seed: u64, broken: Option<Mutant>) -> Result<(), String> {
    let (setup, feed) = (busy(), Feed::drawn(seed, 60, Shape::COARSE, 9));
    let (_, expected) = undisturbed(&setup, &feed).await;
    let _broken = broken.map(Broken::new);
    let world = watched();
    let plan = if seed.is_multiple_of(2) { FaultPlan::default() } else { FaultPlan::random(seed, 10, true) };
    world.plan(plan.with_latency(seed, 40));
    let (a, b) = (world.executor(1), world.executor(2));
    let (first, second) = (feed.in_batches(7), feed.in_batches(11));
    let (first, second) =
        tokio::join!(run_to_end(&a, &setup, &first, Restart::Warm), run_to_end(&b, &setup, &second, Restart::Fresh),);
    same(first, &expected).and(same(second, &expected))
}

async fn turns(seed: u64, broken: Option<Mutant>) -> Result<(), String> {
    let (mut rng, setup) = (Rng::new(seed), busy());
    let mut feed = Feed::drawn(seed, 80, Shape::COARSE, 3);
    let (_, expected) = undisturbed(&setup, &feed).await;
    let _broken = broken.map(Broken::new);
    let world = watched();
    let mut processes: Vec<Pipeline> = (0..3).map(|_| Pipeline::new(&world, &setup, 1)).collect();
    let reads = reads(&setup.topology());
    processes[0].begin(&feed).await.map_err(|e| e.to_string())?;
    while feed.has_more() {
        let process = &mut processes[usize::try_from(rng.below(3)).expect("small")];
        process.deliver_all(&mut feed).await.map_err(|e| e.to_string())?;
        process.run_some(&mut rng).await.map_err(|e| e.to_string())?;
        world.check(&reads)?;
    }
    processes[0].finish().await.map_err(|e| e.to_string())?;
    world.check(&reads)?;
    account(&world, feed.len())?;
    same(Ok(Outputs::of(&world)), &expected)
}

/// One sleeps at an operation until `meanwhile` is over.
async fn beside_a_sleeper(
    seed: u64,
    broken: Option<Mutant>,
    feed: Feed,
    meanwhile: impl AsyncFnOnce(&SimWorld, &Setup, &Outputs) -> Result<(), String>,
) -> Result<(), String> {
    let setup = busy();
    let (calm, expected) = undisturbed(&setup, &feed).await;
    let _broken = broken.map(Broken::new);
    let world = watched();
    world.plan(FaultPlan::of(1, pause_at(seed, &calm), Fault::Pause));
    let asleep = world.executor(1);
    let mut zombie = pin!(run_to_end(&asleep, &setup, &feed, Restart::Warm));
    if let Some(outputs) = asleep.until_paused(&mut zombie).await {
        return same(outputs, &expected);
    }
    meanwhile(&world, &setup, &expected).await?;
    world.resume();
    same(zombie.await, &expected)
}

async fn sleeper(seed: u64, broken: Option<Mutant>) -> Result<(), String> {
    let feed = Feed::drawn(seed, 60, Shape::DIRTY, 17);
    beside_a_sleeper(seed, broken, feed.clone(), async |world, setup, expected| {
        same(run_to_end(&world.executor(2), setup, &feed, Restart::Fresh).await, expected)
    })
    .await
}

async fn collected(seed: u64, broken: Option<Mutant>) -> Result<(), String> {
    let feed = Feed::drawn(seed, 60, Shape::COARSE, 9);
    beside_a_sleeper(seed, broken, feed.clone(), async |world, setup, _| {
        let (mut part, mut rng) = (feed, Rng::new(seed));
        let mut other = Pipeline::new(&world.executor(2), setup, 1);
        other.begin(&part).await.map_err(|e| e.to_string())?;
        for _ in 0..=rng.below(5) {
            other.deliver_all(&mut part).await.map_err(|e| e.to_string())?;
            other.run_some(&mut rng).await.map_err(|e| e.to_string())?;
        }
        let outcome = collect_once(world, setup, everything(setup)).await.map_err(|_| "the collector crashed")?;
        world.check(&reads(&setup.topology()))?;
        outcome.failed.first().map_or(Ok(()), |error| Err(error.to_string()))
    })
    .await
}

async fn joining(seed: u64, broken: Option<Mutant>) -> Result<(), String> {
    let partitions = vec![records(seed, 40, Shape::TIDY), records(seed + 100, 40, Shape::TIDY)];
    let (setup, feed) = (Setup::default(), Feed::many(partitions, 10, Order::OneAfterTheOther));
    let (_, expected) = undisturbed(&setup, &feed).await;
    let _broken = broken.map(Broken::new);
    same(run_to_end(&watched(), &setup, &feed, Restart::Fresh).await, &expected)
}

async fn redrawn(seed: u64, broken: Option<Mutant>) -> Result<(), String> {
    let (mut setup, feed) = (busy().with_shards(2), Feed::drawn(seed, 60, Shape::DIRTY, 7));
    let (_, expected) = undisturbed(&setup, &feed).await;
    let redraw = |after, stage, shards| Redraw { after, stage, shards };
    setup.redraws = vec![redraw(20, stage::RULES, 3), redraw(30, stage::DEDUP, 1), redraw(50, stage::RULES, 2)];
    let _broken = broken.map(Broken::new);
    let world = watched();
    world.plan(FaultPlan::random(seed, 8, true));
    let found = run_to_end(&world, &setup, &feed, Restart::Fresh).await?;
    // Alerts of different merchants may change places.
    if found.sets() == expected.sets() { Ok(()) } else { Err(format!("{DIFFERS}, whatever its order")) }
}

/// An operation of a calm run at which to sleep: often a commit or the writing of a page, otherwise any.
fn pause_at(seed: u64, calm: &SimWorld) -> u64 {
    let mut rng = Rng::new(seed ^ 0x7ee7);
    let trace = calm.lock().trace.clone();
    let wanted = [None, Some(OpKind::Commit), Some(OpKind::PutPage)][usize::try_from(seed % 3).expect("small")];
    let operations = (0u64..).zip(trace).filter(|(_, (_, kind))| wanted.is_none_or(|wanted| *kind == wanted));
    *rng.pick(&operations.map(|(k, _)| k).collect::<Vec<_>>())
}
