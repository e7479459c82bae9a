//! Rules that change while payments flow: one order of versions, and every alert right under the version it names.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use payguard_engine::segment::{SliceReader, Stamp};
use payguard_engine::task::Budget;
use payguard_engine::task::broadcast::{BroadcastTask, Decided};
use payguard_engine::task::consumer::ConsumerTask;
use payguard_engine::{EngineError, StageId, TaskId};
use payguard_model::{FraudAlert, Payment, ProcessingTime, RuleConfig};
use payguard_operators::testing::Harness;
use payguard_operators::velocity::VelocityRule;
use payguard_operators::{blocked_country, velocity};
use payguard_sim::reference::RawRecord;
use payguard_sim::{Crashed, Fault, FaultPlan, Rng, SimWorld};
use payguard_tests::data::{NOW_MS, confirmations};
use payguard_tests::feed::as_source;
use payguard_tests::pipeline::control;
use payguard_tests::{Feed, Outputs, Pipeline, Setup, Shape, account, are_chosen, reads, records, seeds};
use payguard_topology::{stage, stream};
use prost::Message;

const VERSIONS: usize = 200;
const SHARDS: u32 = 4;

/// A message that is told from all others by its limit, or is refused.
fn message(rng: &mut Rng, number: usize, is_refused: bool) -> String {
    let limit = 1 + number % 4;
    if is_refused {
        return format!(r#"{{"velocityMaxPayments":-{}}}"#, number + 1);
    }
    let country = rng.pick(&["PL", "FR", "DE"]);
    match rng.below(3) {
        0 => format!(r#"{{"velocityMaxPayments":{limit}}}"#),
        1 => format!(r#"{{"blockedCountries":["{country}"]}}"#),
        _ => format!(r#"{{"velocityMaxPayments":{limit},"blockedCountries":["{country}","XX"]}}"#),
    }
}

/// What the message says, read by other code than the pipeline's.
fn after(rules: &RuleConfig, message: &str) -> Option<RuleConfig> {
    let message: serde_json::Value = serde_json::from_str(message).expect("JSON");
    let limit = message["velocityMaxPayments"].as_i64();
    let countries = message["blockedCountries"].as_array();
    let texts = |list: &Vec<serde_json::Value>| list.iter().map(|c| c.as_str().unwrap_or("").to_owned()).collect();
    (limit.is_none_or(|limit| limit >= 0)).then(|| RuleConfig {
        velocity_max_payments: limit.unwrap_or(rules.velocity_max_payments),
        blocked_countries: countries.map_or(rules.blocked_countries.clone(), texts),
    })
}

fn control_id() -> TaskId {
    TaskId::shard(&StageId::new(stage::CONTROL), 0)
}

/// Delivers messages of one partition as Kafka may: cut anew, again and late, to executors that come and go.
async fn deliver(world: &SimWorld, setup: &Setup, partition: &str, texts: &[String], seed: u64) {
    let mut rng = Rng::new(seed);
    let mut tasks: Vec<BroadcastTask> = (0..2).map(|_| control(world, setup)).collect();
    let input = partition.to_owned();
    let record =
        |(offset, text): (i64, &String)| RawRecord { offset, timestamp: None, value: Some(text.clone().into_bytes()) };
    let messages: Vec<RawRecord> = (0..).zip(texts).map(record).collect();
    let mut front = 0;
    while front < messages.len() {
        let back = usize::try_from(rng.below(4)).expect("small");
        let from = if rng.chance(300) { front.saturating_sub(back) } else { front };
        let to = (from + 1 + usize::try_from(rng.below(5)).expect("small")).min(messages.len());
        let batch: Vec<_> = messages[from..to].iter().map(as_source).collect();
        let which = usize::try_from(rng.below(2)).expect("small");
        match world.guard(tasks[which].ingest(&input, &batch)).await {
            Ok(Ok(())) => front = front.max(to),
            Ok(Err(EngineError::Broken { invariant, detail, .. })) => panic!("{invariant}: {detail}"),
            Ok(Err(_)) => {}
            Err(Crashed) => tasks[which] = control(world, setup),
        }
        tokio::time::sleep(std::time::Duration::from_millis(rng.below(1_200))).await;
    }
}

/// Drives payments through all stages until everything is delivered, with a fresh process after each crash.
async fn drive(world: &SimWorld, setup: &Setup, feed: &Feed) -> Pipeline {
    let mut feed = feed.clone();
    let mut pipeline = Pipeline::new(world, setup, 1);
    loop {
        let step = async {
            pipeline.deliver_all(&mut feed).await?;
            pipeline.run_consumers().await
        };
        match world.guard(step).await {
            Ok(Err(EngineError::Broken { invariant, detail, .. })) => panic!("{invariant}: {detail}"),
            Ok(_) => {}
            Err(Crashed) => pipeline = Pipeline::new(world, setup, 1),
        }
        if !feed.has_more() {
            return pipeline;
        }
        tokio::time::sleep(std::time::Duration::from_millis(60)).await;
    }
}

/// Runs the rules' tasks once more beside everybody else, on old memory.
async fn zombies(world: &SimWorld, setup: &Setup, seed: u64) {
    let mut rng = Rng::new(seed);
    let topology = setup.topology();
    let make = payguard_rules::make(&setup.config, &topology);
    let new = |shard| {
        let plan = topology.plan(&TaskId::shard(&StageId::new(stage::RULES), shard)).expect("a plan");
        ConsumerTask::new(world.env(setup.settings.clone()), plan, make.clone())
    };
    let mut tasks: Vec<ConsumerTask> = (0..SHARDS).map(new).collect();
    for _ in 0..40 {
        tokio::time::sleep(std::time::Duration::from_millis(rng.below(1_500))).await;
        let at = usize::try_from(rng.below(u64::from(SHARDS))).expect("small");
        let budget = Budget { until: ProcessingTime(i64::MAX), commits: 2 };
        if !matches!(world.guard(tasks[at].run(budget)).await, Ok(Ok(_))) {
            tasks[at] = new(u32::try_from(at).expect("small"));
        }
    }
}

/// The records of a stream in the rows of a task, for one shard: seq, stamp, record.
fn emitted<M: Message + Default>(world: &SimWorld, task: &TaskId, wanted: &str, shard: u32) -> Vec<(u64, Stamp, M)> {
    let world = world.lock();
    let mut found = Vec::new();
    for row in world.logs.get(task).into_iter().flat_map(|log| log.rows.values()) {
        for slice in row.slices.iter().filter(|s| s.stream == wanted && s.shard == shard) {
            let bytes = world.slice_bytes(row, slice).expect("whole");
            let mut reader = SliceReader::new(bytes, slice.count).expect("records");
            while let Some(record) = reader.take().expect("a record") {
                found.push((row.seq, record.header.stamp, M::decode(record.payload).expect("a record")));
            }
        }
    }
    found
}

/// The log of control, message by message: every one decided about once, accepted ones with versions 1, 2, 3 and so on,
/// each made from the one before. Gives the versions.
fn check_versions(
    world: &SimWorld,
    defaults: RuleConfig,
    sent: &BTreeMap<String, Vec<String>>,
) -> BTreeMap<u64, RuleConfig> {
    let mut versions = BTreeMap::from([(0, defaults)]);
    let mut decided: BTreeSet<(String, i64)> = BTreeSet::new();
    let world = world.lock();
    for row in world.logs[&control_id()].rows.values() {
        let Some((input, to)) = row.to.iter().next() else { continue };
        let offset = to.position.at;
        assert!(decided.insert((input.clone(), offset)), "{input} {offset} twice");
        let message = &sent[input][usize::try_from(offset).expect("an offset")];
        let (newest, rules) = versions.last_key_value().expect("the defaults");
        let expected = after(rules, message).map(|rules| (newest + 1, rules));
        let found = row.broadcast.as_ref();
        let found = found.map(|b| (b.version, RuleConfig::decode(b.value.clone()).expect("rules")));
        assert_eq!(found, expected, "{input} {offset}: {message}");
        versions.extend(found);
    }
    assert_eq!(decided.len(), sent.values().map(Vec::len).sum::<usize>(), "every message is decided about");
    versions
}

/// Each batch of a task was handled with the newest version that was committed when it began: not an older one than
/// when the batch before it was committed, not a younger one than when it was committed itself.
fn check_pins(world: &SimWorld, task: &TaskId) {
    let world = world.lock();
    let (mut version, mut at_least) = (0, 0);
    for (committed, seq) in &world.commits {
        let row = &world.logs[committed].rows[seq];
        if *committed == control_id() {
            version = row.broadcast.as_ref().map_or(version, |b| b.version);
        } else if committed == task {
            assert!(
                (at_least..=version).contains(&row.pinned),
                "{task} {seq}: {} of {at_least} to {version}",
                row.pinned
            );
            at_least = version;
        }
    }
}

/// The alerts of the rules that have versions, computed anew: every payment of a task, in the order in which strict
/// merging gives it, under the version that its batch was handled with.
fn recomputed(world: &SimWorld, setup: &Setup, shard: u32, rules: &BTreeMap<u64, RuleConfig>) -> Vec<(String, u64)> {
    let mut payments: Vec<(Stamp, Payment)> = Vec::new();
    for from in 0..SHARDS {
        let dedup = TaskId::shard(&StageId::new(stage::DEDUP), from);
        let clean = emitted::<Payment>(world, &dedup, stream::CLEAN_BY_CARD, shard);
        payments.extend(clean.into_iter().map(|(_, stamp, payment)| (stamp, payment)));
    }
    payments.sort_by_key(|(stamp, _)| *stamp);
    let mut payments = payments.into_iter();
    let mut velocity = Harness::new(VelocityRule { limit: 0, language: setup.config.language() });
    let mut expected = Vec::new();
    let world = world.lock();
    for row in world.logs[&TaskId::shard(&StageId::new(stage::RULES), shard)].rows.values() {
        let taken = row.counters.get(&format!("in.{}", stream::CLEAN_BY_CARD)).copied().unwrap_or(0);
        let rules = &rules[&row.pinned];
        velocity.operator_mut().limit = rules.velocity_max_payments;
        for (stamp, payment) in payments.by_ref().take(usize::try_from(taken).expect("small")) {
            if payment.country.as_ref().is_some_and(|country| rules.blocked_countries.contains(country)) {
                expected.push((format!("{}:{}", blocked_country::RULE_ID, payment.payment_id), row.pinned));
            }
            velocity.advance_watermark(stamp.watermark);
            velocity.process(&payment.card_id, &payment);
            expected.extend(velocity.take_outputs().into_iter().map(|alert| (alert.alert_id, row.pinned)));
        }
    }
    assert_eq!(payments.next(), None, "every payment was taken");
    expected
}

/// The same as the task decided it; each alert names the commit it is part of.
fn decided(world: &SimWorld, shard: u32) -> Vec<(String, u64)> {
    let task = TaskId::shard(&StageId::new(stage::RULES), shard);
    let mut found = Vec::new();
    for to in 0..SHARDS {
        for (seq, _, alert) in emitted::<FraudAlert>(world, &task, stream::CARD_ALERTS, to) {
            let decision = alert.decision.expect("a decision");
            assert_eq!((decision.task, decision.seq), (task.to_string(), seq), "{}", alert.alert_id);
            let has_versions = [velocity::RULE_ID, blocked_country::RULE_ID].contains(&alert.rule_id.as_str());
            assert_eq!(decision.rule_version.is_some(), has_versions, "{}", alert.alert_id);
            found.extend(decision.rule_version.map(|version| (alert.alert_id, version)));
        }
    }
    found
}

#[tokio::test(start_paused = true)]
async fn two_hundred_versions_during_a_run_have_one_order_and_every_alert_is_right_under_its_version() {
    let (mut alerts, mut used) = (0, 0);
    for seed in seeds(12) {
        let mut rng = Rng::new(seed);
        let mut setup = Setup::full().with_shards(SHARDS).with(|s| {
            s.records_per_commit = 6;
            s.store_backoff_ms = 5;
        });
        setup.commits = 3;
        let data = records(seed, 400, Shape { cards: 12, ..Shape::TIDY.attacked() });
        let feed = Feed::one(&data, 8).confirmed(confirmations(seed, &data));
        // Two senders, each with a partition of its own; every sixth message is refused.
        let mut number = 0;
        let mut sent: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for partition in ["rules.config-0", "rules.config-1"] {
            for n in 0..VERSIONS / 2 * 6 / 5 {
                number += 1;
                sent.entry(partition.to_owned()).or_default().push(message(&mut rng, number, n % 6 == 5));
            }
        }
        let world = SimWorld::new(NOW_MS);
        Pipeline::new(&world, &setup, 1).begin(&feed).await.expect("no fault");
        let plan = if seed % 3 == 0 { FaultPlan::default() } else { FaultPlan::random(seed, 6, true) };
        world.plan(plan.with_latency(seed, 6));
        let worlds: Vec<SimWorld> = (1..=6).map(|executor| world.executor(executor)).collect();
        let senders = |at: usize, partition: &'static str| {
            deliver(&worlds[at], &setup, partition, &sent[partition], seed * 9 + at as u64)
        };
        tokio::join!(
            senders(0, "rules.config-0"),
            senders(1, "rules.config-1"),
            // Zombies: the same deliveries to other executors.
            senders(2, "rules.config-0"),
            senders(3, "rules.config-1"),
            zombies(&worlds[4], &setup, seed),
            drive(&worlds[5], &setup, &feed),
        );
        world.plan(FaultPlan::default());
        // What was on its way when its sender gave up has arrived or never will.
        for _ in 0..20 {
            control(&world, &setup).current().await.expect("no fault");
        }
        Pipeline::new(&world, &setup, 1).finish().await.expect("no fault");

        world.check(&reads(&setup.topology())).unwrap_or_else(|e| panic!("SIM_SEEDS={seed}: {e}"));
        account(&world, feed.len()).unwrap_or_else(|e| panic!("SIM_SEEDS={seed}: {e}"));
        let versions = check_versions(&world, setup.config.default_rules(), &sent);
        assert_eq!(versions.len(), VERSIONS + 1, "SIM_SEEDS={seed}");
        for shard in 0..SHARDS {
            let (mut expected, mut found) = (recomputed(&world, &setup, shard, &versions), decided(&world, shard));
            check_pins(&world, &TaskId::shard(&StageId::new(stage::RULES), shard));
            used += expected.iter().map(|(_, version)| version).collect::<BTreeSet<_>>().len();
            expected.sort();
            found.sort();
            assert_eq!(found, expected, "SIM_SEEDS={seed} shard {shard}");
            alerts += found.len();
        }
        let mut refused: Vec<String> = sent.values().flatten().filter(|m| m.contains(":-")).cloned().collect();
        let topic = payguard_publish::REJECTED_RULES_TOPIC;
        let outputs = Outputs::of(&world);
        let mut rejected: Vec<String> = outputs.publish.iter().filter(|r| r.topic == topic).map(raw).collect();
        refused.sort();
        rejected.sort();
        assert_eq!(rejected, refused, "SIM_SEEDS={seed}");
    }
    assert!(are_chosen() || alerts > 1_000 && used > 500, "{alerts} alerts under {used} versions");
}

fn raw(record: &payguard_engine::store::SinkRecord) -> String {
    serde_json::from_slice::<payguard_model::RejectedRule>(&record.value).expect("a refused message").raw
}

#[tokio::test(start_paused = true)]
async fn messages_sent_directly_by_two_at_once_get_a_version_each() {
    for seed in seeds(20) {
        let setup = Setup::default();
        let world = SimWorld::new(NOW_MS);
        world.plan(FaultPlan::default().with_latency(seed, 20));
        let send = async |executor: usize| {
            let control = control(&world.executor(executor), &setup);
            let mut decided = Vec::new();
            for n in 0..30 {
                let limit = i64::try_from(executor).expect("small") * 100 + n;
                let message = format!(r#"{{"velocityMaxPayments":{limit}}}"#);
                let Ok(Decided::Accepted(broadcast)) = control.send(message.as_bytes()).await else {
                    panic!("refused")
                };
                let rules = RuleConfig::decode(broadcast.value).expect("rules");
                assert_eq!(rules.velocity_max_payments, limit, "SIM_SEEDS={seed}: the answer is about another message");
                decided.push(broadcast.version);
            }
            decided
        };
        let (a, b) = tokio::join!(send(1), send(2));
        let mut all: Vec<u64> = a.iter().chain(&b).copied().collect();
        assert!(a.is_sorted() && b.is_sorted(), "SIM_SEEDS={seed}: each sender's own order is kept");
        all.sort_unstable();
        assert!(all.into_iter().eq(1..=60), "SIM_SEEDS={seed}: no gap and no version twice");
        world.check(&reads(&setup.topology())).unwrap_or_else(|e| panic!("SIM_SEEDS={seed}: {e}"));
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_message_leaves_out_keeps_its_value_also_in_a_new_process() {
    let setup = Setup::default();
    let world = SimWorld::new(NOW_MS);
    let mut expected = setup.config.default_rules();
    let messages = [
        r#"{"blockedCountries":["PL"]}"#,
        r#"{"velocityMaxPayments":7}"#,
        r#"{"blockedCountries":[]}"#,
        r#"{"velocityMaxPayments":null,"blockedCountries":["FR","DE"]}"#,
        r#"{"velocityMaxPayments":0}"#,
    ];
    for (version, message) in (1..).zip(messages) {
        // Nothing but the ledger remembers the version before.
        let decided = control(&world, &setup).send(message.as_bytes()).await.expect("no fault");
        expected = after(&expected, message).expect("accepted");
        let Decided::Accepted(broadcast) = decided else { panic!("{message}: {decided:?}") };
        assert_eq!(broadcast.version, version, "{message}");
        assert_eq!(RuleConfig::decode(broadcast.value).expect("rules"), expected, "{message}");
        if version == 1 {
            assert_eq!(expected.velocity_max_payments, 2, "not 0, as a message with countries alone made it once");
        }
    }
    let before = control(&world, &setup).current().await.expect("no fault");
    for refused in
        [r#"{"velocityMaxPayments":-1}"#, "{}", r#"{"velocityMaxPayment":3}"#, r#"{"blockedCountries":["pl"]}"#, "x"]
    {
        let decided = control(&world, &setup).send(refused.as_bytes()).await.expect("no fault");
        assert!(matches!(decided, Decided::Refused(_)), "{refused}: {decided:?}");
        assert_eq!(control(&world, &setup).current().await.expect("no fault"), before, "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_whose_fate_nobody_knows_any_more_is_not_made_twice() {
    let (world, setup) = (SimWorld::new(NOW_MS), Setup::default());
    let sleeper = world.executor(1);
    // It reads the head, registers, commits without an answer, and falls asleep before it looks what became of it.
    let faults = [((1, 2), Fault::UnknownAfter), ((1, 3), Fault::Pause)];
    world.plan(FaultPlan { of_executor: faults.into(), ..FaultPlan::default() });
    let task = control(&sleeper, &setup);
    let mut sending = pin!(task.send(br#"{"velocityMaxPayments":1}"#));
    assert!(sleeper.until_paused(&mut sending).await.is_none());

    // Others change the same again, and the row of the first change is collected.
    let others = control(&world.executor(2), &setup);
    for message in [r#"{"velocityMaxPayments":2}"#, r#"{"velocityMaxPayments":3}"#] {
        assert!(matches!(others.send(message.as_bytes()).await, Ok(Decided::Accepted(_))));
    }
    let row = world.lock().logs.get_mut(&control_id()).and_then(|log| log.rows.remove(&1));
    assert!(row.is_some_and(|row| row.broadcast.is_some()), "the first change was made");
    world.resume();
    let sent = sending.await;
    assert!(matches!(sent, Err(EngineError::Unresolved { .. })), "{sent:?}");
    let current = others.current().await.expect("no fault").expect("a value");
    assert_eq!(current.version, 3, "nothing was made twice");
    assert_eq!(RuleConfig::decode(current.value).expect("rules").velocity_max_payments, 3);
}
