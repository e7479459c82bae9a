//! A process that lists pages one by one while another one splits them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use payguard_engine::page::{Page, PageAddress};
use payguard_engine::store::{PutReply, StateTable};
use payguard_engine::task::consumer::ConsumerTask;
use payguard_engine::task::{Budget, Env};
use payguard_engine::{EngineError, StageId, StoreError, TaskId};
use payguard_model::{KEY_GROUPS, KeyGroup, ProcessingTime, key_group};
use payguard_sim::SimWorld;
use payguard_sim::reference::RawRecord;
use payguard_topology::stage;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::data::{NOW_MS, START_MS, payment_json};
use crate::feed::Feed;
use crate::outputs::Outputs;
use crate::pipeline::Pipeline;
use crate::setup::{Setup, reads};

/// The key group of the crowd.
const GROUP: KeyGroup = KeyGroup(7);

/// Payments of 360 cards with long names and of one key group within 20 s, so that the group's pages are split.
#[must_use]
pub fn crowd() -> Feed {
    Feed::one(&crowd_records(), 120)
}

/// The records of [`crowd`].
#[must_use]
pub fn crowd_records() -> Vec<RawRecord> {
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

/// A flush after each commit.
#[must_use]
pub fn setup() -> Setup {
    Setup::default().with(|s| {
        s.records_per_commit = 120;
        s.flush_every_ms = 0;
    })
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

type Running = JoinHandle<Result<ConsumerTask, EngineError>>;

async fn ended(running: Running) -> Result<ConsumerTask, String> {
    running.await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// One process has committed and is about to split a page, another one has read the head and lists pages. Then the
/// first goes on and makes so many commits more, and after it the second. Returns what is published in the end.
///
/// # Errors
/// What is broken.
///
/// # Panics
/// When the data are not as they are meant: nothing is split.
pub async fn split_while_listed(commits_meanwhile: u32) -> Result<Outputs, String> {
    let (mut feed, setup, world) = (crowd(), setup(), SimWorld::new(NOW_MS));
    let text = |e: EngineError| e.to_string();
    let mut pipeline = Pipeline::new(&world, &setup, 1);
    pipeline.begin(&feed).await.map_err(text)?;
    while feed.has_more() {
        pipeline.deliver_all(&mut feed).await.map_err(text)?;
    }
    let dedup = pipeline.consumers.iter_mut().find(|c| *c.id().stage.0 == *stage::DEDUP).expect("a task");
    dedup.run(commits(u32::MAX)).await.map_err(text)?;

    let (split, listing) = (Stopping::new(&world, Moment::BeforeSplit), Stopping::new(&world, Moment::Listing));
    let (mut writer, mut reader) = (rules_task(&world, &setup, &split), rules_task(&world, &setup, &listing));
    let seen = split.clone();
    let writing: Running = tokio::spawn(async move {
        while !seen.is_reached.load(Ordering::Relaxed) {
            writer.run(commits(1)).await?;
        }
        Ok(writer)
    });
    split.reached.notified().await;
    let budget = if commits_meanwhile == 0 { u32::MAX } else { 0 };
    let reading: Running = tokio::spawn(async move {
        reader.run(commits(budget)).await?;
        Ok(reader)
    });
    listing.reached.notified().await;
    split.go_on.notify_one();
    let mut writer = ended(writing).await?;
    for _ in 0..commits_meanwhile {
        assert_eq!(writer.run(commits(1)).await.map_err(text)?.commits, 1, "there is something left to commit");
    }
    listing.go_on.notify_one();
    let mut reader = ended(reading).await?;
    reader.run(commits(u32::MAX)).await.map_err(text)?;
    world.check(&reads(&setup.topology()))?;
    pipeline.finish().await.map_err(text)?;
    world.check(&reads(&setup.topology()))?;
    crate::account(&world, feed.len())?;
    Ok(Outputs::of(&world))
}
