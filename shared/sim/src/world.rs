//! The world: what is durable, the clock, and the gate through which every store operation goes.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use payguard_engine::gc::Collected;
use payguard_engine::page::{Page, PageAddress};
use payguard_engine::store::{SinkPosition, SinkRecord};
use payguard_engine::task::{Env, Settings};
use payguard_engine::{CommitRow, Head, StageId, StoreError, StoreErrorKind, TaskId};
use payguard_model::ProcessingTime;
use tokio::sync::Notify;

use crate::check::Reads;
use crate::coverage;
use crate::faults::{Fault, FaultPlan, OpKind};
use crate::story::Story;

/// A task's part of the ledger.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskLog {
    /// The head; absent before the first commit.
    pub head: Option<Head>,
    /// The rows by seq.
    pub rows: BTreeMap<u64, CommitRow>,
    /// All rows that ever were, those that have been collected too: for the checks.
    pub history: BTreeMap<u64, CommitRow>,
    /// The lease: owner and end.
    pub lease: Option<(String, ProcessingTime)>,
}

/// What a sink holds for one task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SinkLog {
    /// Where it stands.
    pub position: SinkPosition,
    /// Its records in order.
    pub records: Vec<SinkRecord>,
    /// How many records there were after every batch, by its seq.
    pub ends: BTreeMap<u64, usize>,
}

/// Everything that is durable, and the machinery of faults.
#[derive(Default)]
pub struct World {
    /// The ledger.
    pub logs: BTreeMap<TaskId, TaskLog>,
    /// The registry.
    pub registry: BTreeMap<StageId, BTreeSet<TaskId>>,
    /// The state table.
    pub pages: BTreeMap<PageAddress, Page>,
    /// The segment store.
    pub objects: BTreeMap<String, Bytes>,
    /// All objects that ever were, as they were stored: for the checks.
    pub stored: BTreeMap<String, Bytes>,
    /// What was collected.
    pub collected: Collected,
    /// Who reads what: lets every removal be checked when it is made.
    pub reads: Option<Arc<Reads>>,
    /// Whether sinks may forget their positions.
    pub forgetful: bool,
    /// The sinks.
    pub sinks: BTreeMap<TaskId, SinkLog>,
    /// The files.
    pub files: BTreeMap<String, Bytes>,
    /// The pages that restored tasks began with, by stage: what the log does not tell.
    pub restored: BTreeMap<StageId, Vec<Page>>,
    /// Wake-ups since they were last taken.
    pub woken: Vec<TaskId>,
    /// The faults to come.
    pub plan: FaultPlan,
    /// Operations so far: executor and kind.
    pub trace: Vec<(usize, OpKind)>,
    /// Every commit in the order in which they were made: task and seq.
    pub commits: Vec<(TaskId, u64)>,
    /// Broken invariants, noticed while it happened.
    pub violations: Vec<String>,
    pub(crate) now_ms: i64,
    pub(crate) attempts: u64,
    pub(crate) story: Story,
    ops_of: BTreeMap<usize, u64>,
    dead: BTreeSet<usize>,
    paused: bool,
    delayed: Vec<(u64, Delayed)>,
}

type Delayed = Box<dyn FnOnce(&mut World) + Send>;

/// One executor's view of the world: a handle, cheap to clone.
#[derive(Clone)]
pub struct SimWorld {
    world: Arc<Mutex<World>>,
    resume: Arc<Notify>,
    executor: usize,
    between: Option<Between>,
}

/// What somebody else does before each operation of a process.
pub type Between = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// The guarded process ended at a planned crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crashed;

/// How one operation goes.
struct Verdict {
    fault: Option<Fault>,
    before_ms: u64,
    after_ms: u64,
}

impl SimWorld {
    /// An empty world at processing time `now_ms`, seen by executor 0.
    #[must_use]
    pub fn new(now_ms: i64) -> SimWorld {
        let mut world = World { now_ms, ..World::default() };
        coverage::run();
        world.story.tell(|| "== a new world".to_owned());
        SimWorld { world: Arc::new(Mutex::new(world)), resume: Arc::new(Notify::new()), executor: 0, between: None }
    }

    /// The same world, where somebody else does something before each operation of this process and of those derived
    /// from it. What is done must not go through such a world itself.
    #[must_use]
    pub fn with_between(&self, between: Between) -> SimWorld {
        SimWorld { between: Some(between), ..self.clone() }
    }

    /// The same world seen by another process: its operations are counted apart and it crashes apart.
    #[must_use]
    pub fn executor(&self, executor: usize) -> SimWorld {
        SimWorld { executor, ..self.clone() }
    }

    /// The stores of this world for the engine.
    #[must_use]
    pub fn env(&self, settings: Settings) -> Env {
        let stores = Arc::new(self.clone());
        Env {
            ledger: stores.clone(),
            state: stores.clone(),
            segments: stores.clone(),
            waker: stores.clone(),
            clock: stores.clone(),
            attempts: stores,
            settings,
        }
    }

    /// The world itself.
    ///
    /// # Panics
    /// When a test panicked while it held the world.
    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("nobody panics while holding the world")
    }

    /// Sets the faults to come.
    pub fn plan(&self, plan: FaultPlan) {
        self.lock().plan = plan;
    }

    /// Moves the clock.
    pub fn advance_ms(&self, ms: i64) {
        self.lock().now_ms += ms;
    }

    /// Operations so far, of all executors.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.lock().trace.len() as u64
    }

    /// Runs a process until it is done, or until it crashes: then it is dropped where it stands, and may start anew.
    ///
    /// # Errors
    /// When it crashed.
    pub async fn guard<T>(&self, process: impl Future<Output = T>) -> Result<T, Crashed> {
        let mut process = pin!(process);
        let result = std::future::poll_fn(|context| match process.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Ok(result)),
            // A crash happens while the process is polled, so nobody needs to be woken for it.
            Poll::Pending if self.lock().dead.contains(&self.executor) => Poll::Ready(Err(Crashed)),
            Poll::Pending => Poll::Pending,
        })
        .await;
        self.lock().dead.remove(&self.executor);
        result
    }

    /// Polls a process until it is done (`Some`) or waits at a planned pause (`None`).
    pub async fn until_paused<T>(&self, process: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        std::future::poll_fn(|context| match std::pin::Pin::new(&mut *process).poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if self.lock().paused => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Lets the paused operation go on.
    pub fn resume(&self) {
        self.lock().paused = false;
        self.resume.notify_one();
    }

    /// One operation: counted, delayed, failed, crashed or done, as planned.
    pub(crate) async fn operate<T: Send + 'static>(
        &self,
        kind: OpKind,
        target: String,
        apply: impl FnOnce(&mut World) -> Result<T, StoreError> + Send + 'static,
        unknown: Option<T>,
    ) -> Result<T, StoreError> {
        if let Some(between) = &self.between {
            between().await;
        }
        let Some(verdict) = self.lock().begin(self.executor, kind, &target) else {
            return std::future::pending().await;
        };
        if verdict.before_ms > 0 {
            tokio::time::sleep(Duration::from_millis(verdict.before_ms)).await;
        }
        let unavailable = |detail| Err(StoreError::new(StoreErrorKind::Unavailable, "simulated", target, detail));
        let answer = match verdict.fault {
            None => apply(&mut self.lock()),
            Some(Fault::FailBefore) => unavailable("failed before"),
            Some(Fault::UnknownBefore) => unknown.map_or_else(|| unavailable("failed before"), Ok),
            Some(Fault::FailAfter) => apply(&mut self.lock()).and_then(|_| unavailable("failed after")),
            Some(Fault::UnknownAfter) => {
                apply(&mut self.lock()).and_then(|_| unknown.map_or_else(|| unavailable("failed after"), Ok))
            }
            Some(Fault::UnknownLater(ops)) => {
                self.lock().delay(ops, move |world| drop(apply(world)));
                unknown.map_or_else(|| unavailable("delayed"), Ok)
            }
            Some(Fault::CrashBefore) => self.crash().await,
            Some(Fault::CrashAfter) => {
                drop(apply(&mut self.lock()));
                self.crash().await
            }
            Some(Fault::Pause) => {
                self.lock().paused = true;
                self.resume.notified().await;
                apply(&mut self.lock())
            }
        };
        if let Err(error) = &answer {
            self.lock().story.tell(|| format!("        executor {} is told: {error}", self.executor));
        }
        if verdict.after_ms > 0 {
            tokio::time::sleep(Duration::from_millis(verdict.after_ms)).await;
        }
        answer
    }

    async fn crash<T>(&self) -> T {
        self.lock().dead.insert(self.executor);
        std::future::pending().await
    }
}

impl World {
    /// Counts an operation and says how it goes; `None` for a process that has crashed.
    fn begin(&mut self, executor: usize, kind: OpKind, target: &str) -> Option<Verdict> {
        if self.dead.contains(&executor) {
            return None;
        }
        let global = self.trace.len() as u64;
        self.apply_delayed(global);
        self.trace.push((executor, kind));
        let of_executor = self.ops_of.entry(executor).or_default();
        let index = *of_executor;
        *of_executor += 1;
        let fault = self.plan.decide(global, executor, index, kind);
        let (before_ms, after_ms) = self.plan.latency();
        coverage::operation(kind, fault);
        self.story.tell(|| {
            let fault = fault.map_or_else(String::new, |fault| format!("  <- {fault:?}"));
            format!("{global:>6}  executor {executor:<2}  {:<13} {target}{fault}", format!("{kind:?}"))
        });
        Some(Verdict { fault, before_ms, after_ms })
    }

    fn delay(&mut self, ops: u64, apply: impl FnOnce(&mut World) + Send + 'static) {
        let due = self.trace.len() as u64 + ops;
        self.delayed.push((due, Box::new(apply)));
    }

    fn apply_delayed(&mut self, global: u64) {
        let delayed = std::mem::take(&mut self.delayed);
        for (due, apply) in delayed {
            if due <= global {
                apply(self);
            } else {
                self.delayed.push((due, apply));
            }
        }
    }

    /// What lasts, for comparisons: heads, all rows that ever were, sinks.
    #[must_use]
    pub fn lasting(&self) -> (BTreeMap<TaskId, TaskLog>, BTreeMap<TaskId, SinkLog>) {
        let mut logs = self.logs.clone();
        for log in logs.values_mut() {
            log.lease = None;
            log.rows.clear();
        }
        (logs, self.sinks.clone())
    }
}
