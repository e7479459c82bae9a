//! A flush that stops at any page, also while pages are split, and one that goes on long after.
#![allow(missing_docs)]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use payguard_engine::page::{Page, PageAddress};
use payguard_engine::store::{PutReply, StateTable};
use payguard_engine::task::consumer::ConsumerTask;
use payguard_engine::task::{Budget, Env};
use payguard_engine::{StageId, StoreError, TaskId};
use payguard_model::{KEY_GROUPS, KeyGroup, ProcessingTime, key_group};
use payguard_sim::reference::RawRecord;
use payguard_sim::{Fault, FaultPlan, OpKind, SimWorld};
use payguard_tests::collector::collecting;
use payguard_tests::data::{NOW_MS, START_MS, payment_json};
use payguard_tests::{
    Feed, Outputs, Pipeline, Restart, Setup, Shape, assert_same, reads, records, run_to_end, undisturbed,
};
use payguard_topology::stage;
use tokio::sync::Notify;

/// The key group of the crowd.
const GROUP: KeyGroup = KeyGroup(7);

/// Payments of 360 cards with long names and of one key group within 20 s, so that the group's pages are split.
fn crowd() -> Feed {
    Feed::one(&crowd_records(), 120)
}

fn crowd_records() -> Vec<RawRecord> {
    let in_group = |prefix: &'static str, width: usize| {
        (0..).map(move |i| format!("{prefix}-{i:0>width$}")).filter(|id| key_group(id, KEY_GROUPS) == GROUP)
    };
    let (cards, ids): (Vec<_>, Vec<_>) = (in_group("c", 60).take(360).collect(), in_group("p", 1).take(360).collect());
    let record = |(offset, (card, id)): (i64, (&String, &String))| {
        let time = START_MS + offset * 50;
        let json = payment_json(id, card, "m-0001", 3_500 + offset, time);
        RawRecord { offset, timestamp: Some(time), value: Some(json.into_bytes()) }
    };
    let records: Vec<_> = (0i64..).zip(cards.iter().zip(&ids)).map(record).collect();
    // The first cards again, long after: their pages shrink and time goes on.
    let again = (360i64..).zip(&cards).take(30).map(|(offset, card)| {
        let time = START_MS + 400_000 + offset;
        let json = payment_json(&format!("again-{offset}"), card, "m-0001", 3_500, time);
        RawRecord { offset, timestamp: Some(time), value: Some(json.into_bytes()) }
    });
    records.iter().cloned().chain(again).collect()
}

fn setup() -> Setup {
    Setup::default().with(|s| {
        s.records_per_commit = 120;
        s.flush_every_ms = 0;
    })
}

/// What a calm run publishes, and its operations on pages.
async fn pages_of(setup: &Setup, feed: &Feed) -> (Outputs, Vec<(u64, OpKind)>) {
    let (world, expected) = undisturbed(setup, feed).await;
    let trace = world.lock().trace.clone();
    let pages: Vec<_> = (0u64..)
        .zip(trace)
        .map(|(k, (_, kind))| (k, kind))
        .filter(|(_, kind)| matches!(kind, OpKind::PutPage | OpKind::DeletePage))
        .collect();
    (expected, pages)
}

async fn calm(feed: &Feed) -> (Outputs, Vec<(u64, OpKind)>) {
    let (expected, pages) = pages_of(&setup(), feed).await;
    assert!(pages.iter().any(|(_, kind)| *kind == OpKind::DeletePage), "no page was split");
    assert!(!expected.publish.is_empty() && !expected.totals.is_empty());
    (expected, pages)
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_stops_at_any_page_loses_nothing() {
    let feed = crowd();
    let (expected, pages) = calm(&feed).await;
    for (k, kind) in pages {
        for (fault, restart) in [
            (Fault::CrashBefore, Restart::Fresh),
            (Fault::CrashAfter, Restart::Fresh),
            (Fault::CrashAfter, Restart::Warm),
            (Fault::FailAfter, Restart::Warm),
        ] {
            let world = SimWorld::new(NOW_MS);
            world.plan(FaultPlan::at(k, fault));
            let outputs = run_to_end(&world, &setup(), &feed, restart).await;
            assert_same(&outputs, &expected, &format!("{kind:?} {k} {fault:?} {restart:?}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_commit_changed_and_a_flush_missed_is_in_a_later_flush() {
    // Many cards and merchants, so that what one commit touches the next one often does not.
    let shape = Shape { cards: 40, merchants: 40, repeats: 0, bad: 0, step_ms: 900, ..Shape::TIDY };
    let feed = Feed::one(&records(9, 50, shape), 10);
    let setup = Setup::default().with(|s| {
        s.records_per_commit = 10;
        s.flush_every_ms = 0;
    });
    let (expected, pages) = pages_of(&setup, &feed).await;
    assert!(pages.len() > 200, "{}", pages.len());
    for (k, kind) in pages {
        let world = SimWorld::new(NOW_MS);
        let restart = if k % 2 == 0 { Restart::Fresh } else { Restart::Warm };
        let mut plan = FaultPlan::at(k, Fault::CrashBefore);
        // Later crashes read back what the later flushes wrote.
        plan.at.extend([200, 350, 500, 650, 800].map(|later| (k + later, Fault::CrashBefore)));
        world.plan(plan);
        let outputs = run_to_end(&world, &setup, &feed, restart).await;
        assert_same(&outputs, &expected, &format!("{kind:?} {k} {restart:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_stops_and_is_then_repeated_by_a_process_that_stops_too_loses_nothing() {
    let feed = crowd();
    let (expected, pages) = calm(&feed).await;
    for (i, (k, kind)) in pages.iter().enumerate() {
        for later in [1, 150] {
            let world = SimWorld::new(NOW_MS);
            let fault = if i % 2 == 0 { Fault::CrashAfter } else { Fault::CrashBefore };
            let mut plan = FaultPlan::at(*k, fault);
            plan.at.insert(k + later, Fault::CrashAfter);
            world.plan(plan);
            let outputs = run_to_end(&world, &setup(), &feed, Restart::Fresh).await;
            assert_same(&outputs, &expected, &format!("{kind:?} {k} {fault:?} and {later} later"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_goes_on_after_another_process_has_finished_harms_nothing() {
    let feed = crowd();
    let (expected, pages) = calm(&feed).await;
    for (k, kind) in pages {
        let world = SimWorld::new(NOW_MS);
        world.plan(FaultPlan::of(1, k, Fault::Pause));
        let sleeper = world.executor(1);
        let (zombie_setup, setup) = (setup(), setup());
        let mut zombie = pin!(run_to_end(&sleeper, &zombie_setup, &feed, Restart::Fresh));
        assert!(sleeper.until_paused(&mut zombie).await.is_none(), "operation {k} is reached");
        let outputs = run_to_end(&world.executor(2), &setup, &feed, Restart::Fresh).await;
        assert_same(&outputs, &expected, &format!("beside {kind:?} {k}"));
        let before = world.lock().lasting();
        world.resume();
        // The sleeper checks the invariants, pages included, at its end.
        assert_same(&zombie.await, &expected, &format!("the sleeper at {kind:?} {k}"));
        assert_eq!(world.lock().lasting(), before, "{kind:?} {k}");
    }
}

/// Pages of key groups that have deeper ones. Pages that expire are not split.
fn left_behind(world: &SimWorld) -> Vec<PageAddress> {
    let world = world.lock();
    let lasting: Vec<_> = world.pages.values().filter(|p| p.expires_at_s.is_none()).map(|p| &p.address).collect();
    let depth = |page: &PageAddress| page.page.split_once('-').map(|(depth, _)| depth.parse::<u8>().expect("a depth"));
    let place = |page: &PageAddress| (page.stage.clone(), page.operator.clone(), page.group);
    let has_deeper = |page: &PageAddress| lasting.iter().any(|p| place(p) == place(page) && depth(p) > depth(page));
    lasting.iter().copied().filter(|page| has_deeper(page)).cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn what_an_interrupted_split_left_behind_goes_while_the_run_and_a_collector_go_on() {
    // After the crowd one card alone: a few commits more, and nothing to split.
    let mut records = crowd_records();
    let alone = (390i64..750).map(|offset| {
        let time = START_MS + 400_000 + offset * 60_000;
        let json = payment_json(&format!("alone-{offset}"), "c", "m-0001", 3_500, time);
        RawRecord { offset, timestamp: Some(time), value: Some(json.into_bytes()) }
    });
    records.extend(alone);
    let (feed, setup) = (Feed::one(&records, 120), setup());
    let (calm, expected) = undisturbed(&setup, &feed).await;
    assert_eq!(left_behind(&calm), []);
    let removals = pages_of(&setup, &feed).await.1.into_iter().filter(|(_, kind)| *kind == OpKind::DeletePage);
    let removals: Vec<u64> = removals.map(|(k, _)| k).collect();
    assert!(!removals.is_empty());
    for k in removals {
        for permille in [0, 30] {
            let context = format!("a crash before page {k} is removed, {permille}");
            let world = SimWorld::new(NOW_MS);
            world.plan(FaultPlan::of(1, k, Fault::CrashBefore));
            let watched = collecting(&world.executor(1), &setup, k, permille).executor(1);
            let outputs = run_to_end(&watched, &setup, &feed, Restart::Fresh).await;
            assert_same(&outputs, &expected, &context);
            assert_eq!(left_behind(&world), [], "{context}");
            world.check(&reads(&setup.topology())).unwrap_or_else(|e| panic!("{context}: {e}"));
        }
    }
}

/// The moment at which a process stops once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Before it writes the first page of a split.
    BeforeSplit,
    /// While it lists the pages of the crowd.
    Listing,
}

/// The table as one process sees it. It lists pages one after the other, those of a split first, as a table may.
struct Stopping {
    table: SimWorld,
    moment: Moment,
    is_reached: AtomicBool,
    reached: Notify,
    go_on: Notify,
}

impl Stopping {
    fn new(world: &SimWorld, moment: Moment) -> Arc<Stopping> {
        let (reached, go_on) = (Notify::new(), Notify::new());
        Arc::new(Stopping { table: world.clone(), moment, is_reached: AtomicBool::new(false), reached, go_on })
    }

    async fn stop(&self) {
        if !self.is_reached.swap(true, Ordering::Relaxed) {
            self.reached.notify_one();
            self.go_on.notified().await;
        }
    }
}

fn is_split(address: &PageAddress) -> bool {
    !address.page.starts_with("0-")
}

#[async_trait]
impl StateTable for Stopping {
    async fn load_pages(&self, stage: &StageId, group: KeyGroup) -> Result<Vec<Page>, StoreError> {
        let mut pages = self.table.load_pages(stage, group).await?;
        pages.retain(|page| is_split(&page.address));
        if self.moment == Moment::Listing && group == GROUP {
            self.stop().await;
        }
        let rest = self.table.load_pages(stage, group).await?;
        pages.extend(rest.into_iter().filter(|page| !is_split(&page.address)));
        Ok(pages)
    }

    async fn put_page(&self, page: &Page) -> Result<PutReply, StoreError> {
        if self.moment == Moment::BeforeSplit && is_split(&page.address) {
            self.stop().await;
        }
        self.table.put_page(page).await
    }

    async fn delete_page(&self, address: &PageAddress, version: u64) -> Result<(), StoreError> {
        self.table.delete_page(address, version).await
    }
}

/// The task `rules/0` of a process with this table.
fn rules_task(world: &SimWorld, setup: &Setup, table: &Arc<Stopping>) -> ConsumerTask {
    let topology = setup.topology();
    let plan = topology.plan(&TaskId::shard(&StageId::new(stage::RULES), 0)).expect("a plan");
    let env = Env { state: table.clone(), ..world.env(setup.settings.clone()) };
    ConsumerTask::new(env, plan, payguard_rules::make(&setup.config, &topology))
}

fn commits(commits: u32) -> Budget {
    Budget { until: ProcessingTime(i64::MAX), commits }
}

/// Who lists pages while another process splits them must not go on with half of them: neither when nothing was
/// committed since, nor when it finds out later that it was.
#[tokio::test(start_paused = true)]
async fn pages_that_are_split_while_they_are_listed_are_not_missed() {
    let (feed, setup) = (crowd(), setup());
    let (_, expected) = undisturbed(&setup, &feed).await;
    for commits_meanwhile in [0, 1] {
        let world = SimWorld::new(NOW_MS);
        let mut pipeline = Pipeline::new(&world, &setup, 1);
        let mut feed = feed.clone();
        pipeline.begin(&feed).await.expect("no fault");
        while feed.has_more() {
            pipeline.deliver_all(&mut feed).await.expect("no fault");
        }
        let dedup = pipeline.consumers.iter_mut().find(|c| *c.id().stage.0 == *stage::DEDUP).expect("a task");
        dedup.run(commits(u32::MAX)).await.expect("no fault");

        // One process has committed and is about to split a page; the other has read the head and lists pages.
        let (split, listing) = (Stopping::new(&world, Moment::BeforeSplit), Stopping::new(&world, Moment::Listing));
        let (mut writer, mut reader) = (rules_task(&world, &setup, &split), rules_task(&world, &setup, &listing));
        let seen = split.clone();
        let writing = tokio::spawn(async move {
            while !seen.is_reached.load(Ordering::Relaxed) {
                writer.run(commits(1)).await.expect("no fault");
            }
            writer
        });
        split.reached.notified().await;
        let budget = if commits_meanwhile == 0 { u32::MAX } else { 0 };
        let reading = tokio::spawn(async move {
            reader.run(commits(budget)).await.expect("no fault");
            reader
        });
        listing.reached.notified().await;
        split.go_on.notify_one();
        let mut writer = writing.await.expect("the writer goes on");
        for _ in 0..commits_meanwhile {
            assert_eq!(writer.run(commits(1)).await.expect("no fault").commits, 1);
        }
        listing.go_on.notify_one();
        let mut reader = reading.await.expect("the reader goes on");
        reader.run(commits(u32::MAX)).await.expect("no fault");
        world.check(&reads(&setup.topology())).unwrap_or_else(|e| panic!("{commits_meanwhile}: {e}"));

        pipeline.finish().await.expect("no fault");
        assert_same(&Ok(Outputs::of(&world)), &expected, &format!("{commits_meanwhile} commits meanwhile"));
    }
}
