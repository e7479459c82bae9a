//! What the function `clock` does, every second.

use std::time::Duration;

use payguard_aws::event::{HeartbeatEvent, StageEvent};
use payguard_clock::{Tick, decide};
use payguard_engine::{Head, TaskId};
use payguard_kafka::{KafkaClients, has_more};
use payguard_lambda::{Host, SourceHost};
use payguard_local::runner::LocalPipeline;
use payguard_mapping::http::invoke;
use payguard_topology::progress;

use super::INVOCATION;
use crate::Failure;

const EVERY: Duration = Duration::from_secs(1);

/// Wakes tasks that have input, and tells partitions that have long been silent that they are, if nothing waits in them:
/// one that is merely not read, because a store or a broker is away, is not silent.
pub(super) async fn tick_pipeline(pipeline: &LocalPipeline, parse: &SourceHost, clients: &KafkaClients) -> Failure {
    let mut timer = tokio::time::interval(EVERY);
    loop {
        timer.tick().await;
        let heads = match progress::heads(&*pipeline.env.ledger, &pipeline.topology).await {
            Ok(heads) => heads,
            Err(error) => {
                tracing::warn!(%error, "the clock waits");
                continue;
            }
        };
        let mut silent = Vec::new();
        for tick in decide(&pipeline.topology, &heads, pipeline.env.clock.now()) {
            match tick {
                Tick::Wake(task) => pipeline.env.waker.wake(&task).await,
                Tick::Heartbeat(task) => {
                    if has_nothing(clients, &task, &heads).await {
                        silent.push(task.to_string());
                    }
                }
            }
        }
        if !silent.is_empty() {
            let beat = StageEvent::Heartbeat(HeartbeatEvent { heartbeat: silent });
            if let Err(error) = parse.handle(beat, INVOCATION).await {
                tracing::warn!(%error, "a heartbeat failed");
            }
        }
    }
}

/// Whether a partition has no record behind the position of its task.
async fn has_nothing(clients: &KafkaClients, task: &TaskId, heads: &[(TaskId, Head)]) -> bool {
    let Some((topic, partition)) = task.topic_partition() else { return false };
    let head = heads.iter().find(|(id, _)| id == task).map(|(_, head)| head);
    let input = head.and_then(|head| head.inputs.get(&*task.instance));
    let (clients, topic, next) = (clients.clone(), topic.to_owned(), input.map_or(0, |input| input.position.at + 1));
    let asked = tokio::task::spawn_blocking(move || has_more(&clients, &topic, partition, next)).await;
    matches!(asked, Ok(Ok(false)))
}

/// Invokes the function `clock`, as its schedule does.
pub(super) async fn tick_functions(authority: &str) {
    let mut timer = tokio::time::interval(EVERY);
    loop {
        timer.tick().await;
        let schedule = br#"{"source":"aws.events"}"#.as_slice();
        match invoke(authority, payguard_topology::stage::CLOCK, schedule.into()).await {
            Ok(answer) if answer.status == 200 && !answer.function_error => {}
            Ok(answer) => {
                tracing::warn!(status = answer.status, "clock failed: {}", String::from_utf8_lossy(&answer.body))
            }
            Err(error) => tracing::warn!(error, "clock was not invoked"),
        }
    }
}
