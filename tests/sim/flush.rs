//! A flush that stops at any page, also while pages are split, and one that goes on long after.
#![allow(missing_docs)]

use std::pin::pin;

use payguard_engine::page::PageAddress;
use payguard_sim::reference::RawRecord;
use payguard_sim::{Fault, FaultPlan, OpKind, SimWorld};
use payguard_tests::collector::collecting;
use payguard_tests::data::{NOW_MS, START_MS, payment_json};
use payguard_tests::splitting::{crowd, crowd_records, setup, split_while_listed};
use payguard_tests::{Feed, Outputs, Restart, Setup, Shape, assert_same, reads, records, run_to_end, undisturbed};

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
            (Fault::FailBefore, Restart::Warm),
            (Fault::FailAfter, Restart::Warm),
            // It arrives when the same page has been written again, and perhaps a younger one.
            (Fault::UnknownLater(40), Restart::Warm),
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

/// Who lists pages while another process splits them must not go on with half of them: neither when nothing was
/// committed since, nor when it finds out later that it was.
#[tokio::test(start_paused = true)]
async fn pages_that_are_split_while_they_are_listed_are_not_missed() {
    let (_, expected) = undisturbed(&setup(), &crowd()).await;
    for commits_meanwhile in [0, 1] {
        let outputs = split_while_listed(commits_meanwhile).await;
        assert_same(&outputs, &expected, &format!("{commits_meanwhile} commits meanwhile"));
    }
}
