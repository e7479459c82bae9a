//! The vectors of lessons 11 and 13.

use std::collections::BTreeSet;

use payguard_engine::StageId;
use payguard_engine::export::{Held, Value};
use payguard_engine::layout::Layout;
use payguard_model::key_group::shard_of;
use payguard_model::{CardProfile, KEY_GROUPS, KeyGroup, key_group};
use payguard_savepoint::format::{DataFile, decode_keys, encode_keys};
use payguard_savepoint::{Manifest, show};
use payguard_sim::reference::RawRecord;
use payguard_sim::{Fault, FaultPlan, SimWorld};
use payguard_tests::data::{NOW_MS, START_MS, payment_json};
use payguard_tests::{Feed, Order, Pipeline, Setup, undisturbed};
use payguard_topology::config::AlignmentMode;
use payguard_topology::keys::encoding;
use payguard_topology::{operator, stage};
use prost::Message;

use crate::support::{NAME, bring_back, busy, finish, restored, take, with_files_of};

fn payment(offset: i64, id: &str, card: &str, amount: i64, country: &str) -> RawRecord {
    let text = payment_json(id, card, "m-0001", amount, START_MS + 1_000 * offset);
    let text = text.replace(r#""country":"DE""#, &format!(r#""country":"{country}""#));
    RawRecord { offset, timestamp: None, value: Some(text.into_bytes()) }
}

/// The profiles published of a card, in order.
fn profiles(world: &SimWorld, card: &str) -> Vec<CardProfile> {
    let outputs = payguard_tests::Outputs::of(world);
    let mine = outputs.publish.iter().filter(|r| r.topic == payguard_publish::PROFILES_TOPIC && r.key == card);
    mine.map(|r| serde_json::from_slice(&r.value).expect("a profile")).collect()
}

/// Lesson 11: channel 1 brings a1, the barrier, a2, a3; channel 2 b1, b2, b3, the barrier. The counter ends at 6; without
/// a consistent cut it would end at 8.
#[tokio::test(start_paused = true)]
async fn lesson_11_two_inputs_a_counter_ends_at_six() {
    let a: Vec<_> = (0..3).map(|i| payment(i, &format!("a{}", i + 1), "c-1", 100, "DE")).collect();
    let b: Vec<_> = (0..3).map(|i| payment(i, &format!("b{}", i + 1), "c-1", 100, "DE")).collect();
    let mut setup = Setup::default();
    // As live: nothing waits for the other channel.
    setup.config.engine.alignment = AlignmentMode::Off;
    let feed = Feed::many(vec![a, b], 1, Order::InTurn);
    let begin = async |world: &SimWorld| {
        let (mut feed, mut pipeline) = (feed.clone(), Pipeline::new(world, &setup, 2));
        pipeline.begin(&feed).await.expect("begun");
        for partition in [0, 1, 1, 1] {
            pipeline.deliver(&mut feed, partition).await.expect("delivered");
            pipeline.run_consumers().await.expect("counted");
        }
        (feed, pipeline)
    };
    let calm = SimWorld::new(NOW_MS);
    begin(&calm).await;
    take(&calm.executor(1), &setup, NAME).await.expect("saved");
    let ops = calm.lock().trace.iter().filter(|(executor, _)| *executor == 1).count() as u64;
    let mut counted_before = BTreeSet::new();
    for k in 0..ops {
        let world = SimWorld::new(NOW_MS);
        let (mut feed, mut pipeline) = begin(&world).await;
        world.plan(FaultPlan::of(1, k, Fault::Pause));
        let saver = world.executor(1);
        let mut saving = Box::pin(take(&saver, &setup, NAME));
        assert!(world.until_paused(&mut saving).await.is_none(), "it waits at operation {k}");
        // The stream does not stop: a2 and a3 go all the way while the savepoint is taken.
        for _ in 0..2 {
            pipeline.deliver(&mut feed, 0).await.expect("delivered");
            pipeline.run_consumers().await.expect("counted");
        }
        world.resume();
        let manifest = saving.await.expect("saved");
        let again = restored(&world, &setup).await;
        let before = crate::support::outputs_before(&world, &manifest);
        let published = |outputs: &payguard_tests::Outputs| outputs.count(payguard_publish::PROFILES_TOPIC);
        counted_before.insert(published(&before));
        let after = finish(&again, &setup, &feed.in_batches(1).from_the_start()).await;
        let last = profiles(&again, "c-1").pop().unwrap_or_else(|| profiles(&world, "c-1").pop().expect("a profile"));
        assert_eq!(last.payment_count, 6, "operation {k}");
        assert_eq!(last.total_amount_minor, 600, "operation {k}");
        assert_eq!(published(&before) + published(&after), 6, "operation {k}: each once");
    }
    assert!(counted_before.contains(&4), "cuts lie before a2: {counted_before:?}");
}

/// Replaces the stored state of a card by what `change` makes of it, as another version of the code would have it.
fn edit_state(world: &SimWorld, manifest: &Manifest, card: &str, change: impl Fn(CardProfile) -> Vec<u8>) {
    let group = key_group(card, KEY_GROUPS).0;
    let mut manifest = manifest.clone();
    let is_it =
        |s: &&mut payguard_savepoint::format::StateFile| s.operator == operator::CARD_PROFILE && s.group == group;
    let file = manifest.state.iter_mut().find(is_it).expect("the card has state");
    let bytes = world.lock().files[&file.file.path].clone();
    let mut keys = decode_keys(encoding(operator::CARD_PROFILE), &file.file, bytes).expect("decodes");
    let Some(Value::State(held)) = keys.get_mut(card) else { panic!("the card is there") };
    *held = Held { state: change(CardProfile::decode(&held.state[..]).expect("a profile")), ..held.clone() };
    let (bytes, entries) = encode_keys(keys);
    file.file = DataFile::of(file.file.path.clone(), entries, &bytes);
    let path = file.file.path.clone();
    let document = manifest.write().expect("written");
    let mut world = world.lock();
    world.files.insert(path, bytes);
    world.files.insert(format!("{NAME}/manifest.json"), document);
}

/// Lesson 13: state (5, 1000) of version 1, which had no country, is (5, 1000, none) to version 2; then a payment of 300
/// in FR makes it (6, 1300, "FR").
#[tokio::test(start_paused = true)]
async fn lesson_13_a_field_is_added_between_savepoint_and_restore() {
    let setup = Setup::default();
    let five: Vec<_> = (0..5).map(|i| payment(i, &format!("p{i}"), "c-1", 200, "DE")).collect();
    let feed = Feed::one(&five, 5);
    let world = SimWorld::new(NOW_MS);
    let (mut deliveries, mut pipeline) = (feed.clone(), Pipeline::new(&world, &setup, 1));
    pipeline.begin(&feed).await.expect("begun");
    pipeline.deliver_all(&mut deliveries).await.expect("delivered");
    pipeline.run_consumers().await.expect("run");
    let manifest = take(&world, &setup, NAME).await.expect("saved");
    let profile = |count, total, country: Option<&str>| CardProfile {
        payment_count: count,
        total_amount_minor: total,
        last_country: country.map(str::to_owned),
    };
    edit_state(&world, &manifest, "c-1", |found| {
        assert_eq!(found, profile(5, 1_000, Some("DE")));
        // Version 1 wrote the first two fields alone.
        let version_1 = profile(5, 1_000, None).encode_to_vec();
        assert!(version_1.len() < found.encoded_len());
        version_1
    });
    let again = restored(&world, &setup).await;
    let held: Vec<CardProfile> = {
        let world = again.lock();
        let mine = world.pages.values().filter(|page| page.address.operator == operator::CARD_PROFILE);
        let pages: Vec<_> = mine.cloned().collect();
        let keys = encoding(operator::CARD_PROFILE).read_pages(pages).expect("pages decode");
        keys.into_values()
            .map(|value| match value {
                Value::State(held) => CardProfile::decode(&held.state[..]).expect("a profile"),
                Value::WrittenAt(_) => panic!("no id"),
            })
            .collect()
    };
    assert_eq!(held, [profile(5, 1_000, None)]);
    let six: Vec<_> = five.iter().cloned().chain([payment(5, "p5", "c-1", 300, "FR")]).collect();
    finish(&again, &setup, &Feed::one(&six, 6)).await;
    assert_eq!(profiles(&again, "c-1"), [profile(6, 1_300, Some("FR"))]);
}

/// Lesson 13: a field that was renamed, number and all, starts without an error and counts from zero.
#[tokio::test(start_paused = true)]
async fn lesson_13_a_field_of_another_number_is_another_field() {
    let (setup, feed) = (Setup::default(), Feed::one(&[payment(0, "p0", "c-1", 200, "DE")], 1));
    let (world, _) = undisturbed(&setup, &feed).await;
    let manifest = take(&world, &setup, NAME).await.expect("saved");
    edit_state(&world, &manifest, "c-1", |found| {
        // Field 2, the total, under the number 9.
        let mut bytes = CardProfile { total_amount_minor: 0, ..found.clone() }.encode_to_vec();
        prost::encoding::int64::encode(9, &found.total_amount_minor, &mut bytes);
        bytes
    });
    let again = restored(&world, &setup).await;
    finish(&again, &setup, &Feed::one(&[payment(0, "p0", "c-1", 200, "DE"), payment(1, "p1", "c-1", 50, "DE")], 2))
        .await;
    assert_eq!(profiles(&again, "c-1").pop().map(|p| (p.payment_count, p.total_amount_minor)), Some((2, 50)));
}

/// Lesson 13: whole key groups move, totals stay, and every key ends up with the shard that owns its group.
#[tokio::test(start_paused = true)]
async fn lesson_13_every_key_is_where_its_group_went() {
    let feed = busy(4, 120, 11);
    let setup = |shards| Setup::full().with_shards(shards).with(|s| s.flush_every_ms = 0);
    let (world, _) = undisturbed(&setup(2), &feed).await;
    let saved = take(&world, &setup(2), NAME).await.expect("saved").sizes();
    for shards in [1, 2, 3, 4] {
        let again = restored(&world, &setup(shards)).await;
        let manifest = {
            again.lock().files.clear();
            take(&again, &setup(shards), NAME).await.expect("saved again")
        };
        assert_eq!(manifest.sizes(), saved, "{shards} shards hold the same keys in the same bytes");
        let tasks: BTreeSet<&str> = manifest.tasks.iter().filter(|t| t.sealed.is_none()).map(|t| &*t.task).collect();
        for file in &manifest.state {
            let owner = shard_of(KeyGroup(file.group), shards, KEY_GROUPS);
            let layout = Layout { generation: if shards == 2 { 1 } else { 2 }, shards };
            let owner = layout.task(&StageId::new(&file.stage), owner).to_string();
            assert!(tasks.contains(&*owner), "{owner} is not in {tasks:?}");
        }
    }
}

/// What the topology says of state is what the stages do.
#[tokio::test(start_paused = true)]
async fn states_of_the_topology_are_those_of_the_stages() {
    for (operators, salts) in [("all", 0), ("all", 4), ("core", 0), ("rule-card-testing,card-profile", 0)] {
        let mut setup = Setup::full();
        setup.config.operators = operators.split(',').map(str::to_owned).collect();
        setup.config.stats.salts = salts;
        let topology = setup.topology();
        for stage in &topology.stages {
            let Some(mut logic) = payguard_local::runner::fresh_operators(&setup.config, &topology, &stage.id) else {
                assert!(stage.states.is_empty(), "{}", stage.id);
                continue;
            };
            let states: Vec<&str> = logic.states().iter().map(|state| state.operator()).collect();
            // A stage may hold an operator that gets no records; it never lacks one.
            assert!(stage.states.iter().all(|id| states.contains(id)), "{}: {states:?}", stage.id);
            if &*stage.id.0 != stage::WINDOW {
                assert_eq!(stage.states, states, "{}", stage.id);
            }
        }
    }
}

/// Lesson 20: a new pipeline of its own name and log, at the saved positions: nothing is read again.
#[tokio::test(start_paused = true)]
async fn lesson_20_a_planned_change_reads_no_record_again() {
    let (setup, feed) = (Setup::full(), busy(9, 60, 8));
    let world = SimWorld::new(NOW_MS);
    let (mut first, mut pipeline) = (feed.clone(), Pipeline::new(&world, &setup, 1));
    pipeline.begin(&first).await.expect("begun");
    for _ in 0..4 {
        pipeline.deliver_all(&mut first).await.expect("delivered");
        pipeline.run_consumers().await.expect("run");
    }
    let manifest = take(&world, &setup, NAME).await.expect("saved");
    let again = restored(&world, &setup).await;
    finish(&again, &setup, &feed).await;
    let parse = |world: &SimWorld, counter: &str| -> u64 {
        let world = world.lock();
        let heads = world
            .logs
            .iter()
            .filter(|(task, _)| &*task.stage.0 == stage::PARSE)
            .filter_map(|(_, log)| log.head.as_ref());
        heads.filter_map(|head| head.counters.get(counter)).sum()
    };
    assert_eq!(parse(&again, "source.records_in"), feed.len(), "each record once, counted on from the savepoint");
    let heads: Vec<String> =
        again.lock().logs.values().filter_map(|log| log.head.as_ref()).map(|head| head.restored_from.clone()).collect();
    let restored = heads.iter().filter(|from| *from == "world/before-the-change").count();
    assert!(restored >= manifest.tasks.len(), "heads say where they come from");
    assert!(show(&again, &setup.settings, NAME).await.is_ok(), "the savepoint is left as it was");
    let untouched = with_files_of(&again);
    bring_back(&untouched, &setup, NAME).await.expect("it may be restored any number of times");
}
