//! Lesson 13: the profile of a card before and after it had a country.

use payguard_engine::keyed::KeyedRunner;
use payguard_engine::logic::OperatorState;
use payguard_model::{CardProfile, EventTime, KEY_GROUPS, Payment, key_group};
use payguard_operators::card_profile::CardProfiles;
use payguard_operators::{Context, KeyedOperator, TimerDomain};
use prost::Message;

use crate::cases::{Step, flush, pages, payment, run};
use crate::fixtures::{Recorded, Stored};

/// Version 1 of the state.
#[derive(Clone, PartialEq, Message)]
struct CardProfileV1 {
    #[prost(int64, tag = "1")]
    payment_count: i64,
    #[prost(int64, tag = "2")]
    total_amount_minor: i64,
}

/// Version 1 of the operator.
struct CardProfilesV1;

impl KeyedOperator for CardProfilesV1 {
    type Event = Payment;
    type State = CardProfileV1;
    type Output = CardProfileV1;

    const ID: &'static str = CardProfiles::ID;

    fn on_event(&self, _: &str, payment: &Payment, state: &mut CardProfileV1, ctx: &mut dyn Context<CardProfileV1>) {
        state.payment_count += 1;
        state.total_amount_minor += payment.amount_minor;
        ctx.emit(EventTime(payment.event_time_ms), state.clone());
    }

    fn on_timer(&self, _: &str, _: TimerDomain, _: i64, _: &mut CardProfileV1, _: &mut dyn Context<CardProfileV1>) {}
}

/// What a page holds, as far as it matters here.
#[derive(Clone, PartialEq, Message)]
struct Entries {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", optional, tag = "2")]
    state: Option<Vec<u8>>,
}

const CARD: &str = "c1";
/// Lies on the same page as [`CARD`].
const NEIGHBOUR: &str = "c-154";

/// Five payments of the card.
pub(crate) fn before() -> Vec<Step<Payment>> {
    (1..6).map(|i| Step::Event(CARD, payment("p", CARD, 200, i * 1_000, "DE"))).collect()
}

/// A payment of the card in another country.
pub(crate) fn after() -> Step<Payment> {
    Step::Event(CARD, payment("p6", CARD, 300, 10_000, "FR"))
}

/// The version of the fixtures.
fn recorded(version: u32) -> Stored {
    let recorded = Recorded::load();
    recorded.versions(CardProfiles::ID).into_iter().find(|(v, _)| *v == version).unwrap().1.clone()
}

fn restored<O: KeyedOperator>(operator: O, stored: &Stored) -> KeyedRunner<O> {
    let mut runner = KeyedRunner::new(operator);
    runner.load(pages(O::ID, stored)).unwrap();
    runner
}

/// The state of a card on a page.
fn on_page(stored: &Stored, card: &str) -> CardProfile {
    assert_eq!(stored.len(), 1, "the cards lie on one page");
    let page = Entries::decode(&stored[0].1[..]).unwrap();
    let entry = page.entries.into_iter().find(|entry| entry.key == card).unwrap();
    CardProfile::decode(&entry.state.unwrap()[..]).unwrap()
}

fn profile(payment_count: i64, total_amount_minor: i64, country: Option<&str>) -> CardProfile {
    CardProfile { payment_count, total_amount_minor, last_country: country.map(str::to_owned) }
}

/// A payment of the other card on the page, and the flush that writes the page again.
fn disturb<O: KeyedOperator<Event = Payment>>(runner: &mut KeyedRunner<O>) -> Stored
where
    O::Output: std::fmt::Debug,
{
    assert_eq!(key_group(NEIGHBOUR, KEY_GROUPS), key_group(CARD, KEY_GROUPS));
    run(runner, EventTime::MIN, vec![Step::Event(NEIGHBOUR, payment("q", NEIGHBOUR, 7, 11_000, "ES"))]);
    flush(runner)
}

#[test]
fn the_fixture_is_what_version_1_wrote() {
    let mut old = KeyedRunner::new(CardProfilesV1);
    run(&mut old, EventTime::MIN, before());
    assert_eq!(flush(&mut old), recorded(1));
}

#[test]
fn lesson_13_a_profile_without_a_country_is_read_and_goes_on() {
    let mut today = restored(CardProfiles, &recorded(1));
    let rewritten = disturb(&mut today);
    assert_eq!(on_page(&rewritten, CARD), profile(5, 1_000, None), "read, and written again as it was");
    let (_, emitted) = run(&mut today, EventTime::MIN, vec![after()]);
    assert_eq!(emitted, [format!("10000 {:?}", profile(6, 1_300, Some("FR")))]);
    assert_eq!(on_page(&flush(&mut today), CARD), profile(6, 1_300, Some("FR")));
}

#[test]
fn version_1_reads_what_today_writes_but_for_the_country() {
    let mut old = restored(CardProfilesV1, &recorded(2));
    let (_, emitted) = run(&mut old, EventTime::MIN, vec![after()]);
    assert_eq!(emitted, [format!("10000 {:?}", CardProfileV1 { payment_count: 6, total_amount_minor: 1_300 })]);
}

/// Not wanted, but so: decoders drop what they do not know. `docs/evolution.md` says how a release lives with it.
#[test]
fn a_page_that_version_1_writes_again_has_lost_every_country() {
    assert_eq!(on_page(&recorded(2), CARD), profile(5, 1_000, Some("DE")));
    let mut old = restored(CardProfilesV1, &recorded(2));
    let rewritten = disturb(&mut old);
    assert_eq!(on_page(&rewritten, CARD), profile(5, 1_000, None), "though this card had no payment");
    let (_, emitted) = run(&mut restored(CardProfiles, &rewritten), EventTime::MIN, vec![after()]);
    assert_eq!(emitted, [format!("10000 {:?}", profile(6, 1_300, Some("FR")))], "the next payment brings it back");
}
