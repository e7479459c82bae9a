//! What is stored, made by today's code from fixed events, and how it is known that it was read.

use std::collections::BTreeMap;
use std::fmt::Debug;

use bytes::{BufMut, Bytes};
use payguard_engine::keyed::KeyedRunner;
use payguard_engine::layout::{Layout, Taken};
use payguard_engine::logic::{Collector, OperatorDelta, OperatorState, Origin, StageDelta};
use payguard_engine::page::{Page, PageAddress};
use payguard_engine::row::{SegmentLocation, Slice};
use payguard_engine::segment::{Arrival, Segment, SegmentBuilder, SliceReader, Stamp, open};
use payguard_engine::store::SinkPosition;
use payguard_engine::ttl_set::TtlSet;
use payguard_engine::{Broadcast, CommitRow, Head, InputState, Position, Seq, StageId};
use payguard_model::*;
use payguard_operators::amount_spike::AmountSpikeRule;
use payguard_operators::card_profile::CardProfiles;
use payguard_operators::card_sessions::CardSessionWindow;
use payguard_operators::connections::{ArrivalOrder, EventTimeOrder};
use payguard_operators::dedup::{self, SeenIds};
use payguard_operators::detail::DetailLanguage;
use payguard_operators::matching::PaymentMatching;
use payguard_operators::merchant_stats::MerchantStatsWindow;
use payguard_operators::salted_stats::{CombineParts, SaltedStatsWindow};
use payguard_operators::sequences::SequenceRules;
use payguard_operators::velocity::VelocityRule;
use payguard_operators::{KeyedOperator, MatchEvent, TimerDomain};
use prost::Message;

use crate::fixtures::Stored;

/// Given the version that wrote, and the bytes.
pub(crate) type Read = dyn Fn(u32, &Stored);

/// Something durable.
pub(crate) struct Case {
    /// Name in the fixtures; that of a state is its id.
    pub(crate) name: &'static str,
    /// Messages that it holds, besides those that are fields of these.
    pub(crate) messages: Vec<String>,
    /// What today's code writes.
    pub(crate) written: Stored,
    /// Reads what a version wrote; panics when it is not what was meant.
    pub(crate) read: Box<Read>,
}

/// What happens to an operator.
pub(crate) enum Step<E> {
    Event(&'static str, E),
    Watermark(i64),
}

use Step::{Event, Watermark};

const EN: DetailLanguage = DetailLanguage::En;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = states();
    cases.extend([ids(), commit_row(), message("head", head), message("rules", rules), sink_position()]);
    cases.extend(records());
    cases.extend(crate::savepoint::cases());
    cases
}

/// The records of streams. A case is given the version that wrote; a field that is younger has no value before.
fn records() -> Vec<Case> {
    vec![
        message("connection-event", |_| connection("s1", payguard_model::Step::Dns, Some("no answer"), 4_000)),
        message("connection-verdict", |_| verdict()),
        message("payment", |_| payment("p1", "c1", 1_250, 60_001, "FR")),
        message("rejected-record", |version| RejectedRecord {
            raw: "{".to_owned(),
            reason: "bad-json".to_owned(),
            rejected_at_ms: 77,
            replays: if version < 2 { 0 } else { 1 },
        }),
        message("merchant-stats", |_| MerchantStats {
            merchant_id: "m1".to_owned(),
            window_start_ms: 60_000,
            window_end_ms: 120_000,
            payment_count: 3,
            amount_minor: -5,
        }),
        message("card-session", |_| CardSession {
            card_id: "c1".to_owned(),
            session_start_ms: 1,
            session_end_ms: 30_002,
            payment_count: 2,
            amount_minor: 900,
        }),
        message("merchant-part", |_| part(3, 4, 500)),
        message("confirmation", |_| confirmation("p1", 61_000)),
        message("confirmed-payment", |_| ConfirmedPayment {
            payment_id: "p1".to_owned(),
            merchant_id: "m1".to_owned(),
            amount_minor: 1_250,
            status: Some("APPROVED".to_owned()),
            confirmation_delay_ms: 999,
        }),
        message("card-profile-of", |_| CardProfileOf {
            card_id: "c1".to_owned(),
            profile: Some(CardProfile {
                payment_count: 5,
                total_amount_minor: 1_000,
                last_country: Some("DE".to_owned()),
            }),
        }),
        message("alert", alert),
        message("rejected-rule", |_| RejectedRule {
            raw: "[]".to_owned(),
            reason: "bad-json".to_owned(),
            detail: "the message is not one JSON object".to_owned(),
            rejected_at_ms: 78,
        }),
    ]
}

fn alert(_version: u32) -> FraudAlert {
    FraudAlert {
        alert_id: "velocity:p1".to_owned(),
        rule_id: "velocity".to_owned(),
        card_id: "c1".to_owned(),
        merchant_id: "m1".to_owned(),
        payment_id: "p1".to_owned(),
        detail: "11 payments".to_owned(),
        event_time_ms: 60_001,
        merchant_risk: "HIGH".to_owned(),
        decision: Some(Decision {
            rule_version: Some(0),
            source_partition: 2,
            source_offset: 17,
            task: "rules/0".to_owned(),
            seq: 9,
            watermark_ms: -1,
            facts: vec![Fact { name: "limit".to_owned(), value: 10 }],
            payments: vec!["p0".to_owned(), "p1".to_owned()],
        }),
    }
}

fn rules(_version: u32) -> RuleConfig {
    RuleConfig { velocity_max_payments: 20, blocked_countries: vec!["PL".to_owned(), "DE".to_owned()] }
}

fn input_state(at: i64) -> InputState {
    InputState { position: Position { at, within: 3 }, watermark_ms: at * 1_000, idle: true }
}

fn sink_position() -> Case {
    let position = || SinkPosition {
        seq: Seq(12),
        inputs: BTreeMap::from([("rules/0".to_owned(), input_state(7))]),
        counters: BTreeMap::from([("in.alerts".to_owned(), 2)]),
    };
    let written = vec![("-".to_owned(), position().to_bytes())];
    let read = move |version, stored: &Stored| {
        assert_eq!(SinkPosition::from_bytes(&stored[0].1).unwrap(), position(), "version {version}");
    };
    Case { name: "sink-position", messages: vec!["StoredSinkPosition".to_owned()], written, read: Box::new(read) }
}

fn head(version: u32) -> Head {
    Head {
        seq: 12,
        attempt: "a-1".to_owned(),
        watermark_ms: -10_001,
        idle: true,
        inputs: BTreeMap::from([("parse/payments.raw-0".to_owned(), input_state(-1))]),
        flushed_seq: 11,
        next_timer_ms: Some(0),
        generation: 2,
        code: "0.1.0".to_owned(),
        committed_at_ms: 1_000,
        last_input_at_ms: 999,
        counters: BTreeMap::from([("deduplicate.duplicates".to_owned(), 4)]),
        gauges: BTreeMap::from([("parse.lag".to_owned(), -4)]),
        broadcast: Some(Broadcast { version: 3, value: rules(1).encode_to_vec().into() }),
        pinned: 3,
        shards: 4,
        sealed: Some(Layout { generation: 3, shards: 2 }),
        taken: vec![Taken {
            generation: 1,
            from_group: 32,
            to_group: 64,
            inputs: BTreeMap::from([("dedup/0".to_owned(), Position { at: 7, within: 1 })]),
        }],
        restored_from: if version < 2 { String::new() } else { "savepoints/s".to_owned() },
        schema: if version < 3 { 0 } else { 1 },
    }
}

/// A message that is stored as it is. `of` gives the value that was written by a version.
pub(crate) fn message<M: Message + PartialEq + Default + Debug + 'static>(
    name: &'static str,
    of: fn(u32) -> M,
) -> Case {
    Case {
        name,
        messages: vec![type_name::<M>()],
        written: vec![("-".to_owned(), of(u32::MAX).encode_to_vec())],
        read: Box::new(move |version, stored| {
            assert_eq!(M::decode(&stored[0].1[..]).unwrap(), of(version), "{name} version {version}");
        }),
    }
}

fn type_name<T>() -> String {
    std::any::type_name::<T>().rsplit("::").next().unwrap_or_default().to_owned()
}

/// A commit with its segment: short records, records long enough to be compressed, and a delta.
fn commit_row() -> Case {
    let written = vec![("-".to_owned(), row(u32::MAX).encode_to_vec())];
    let messages = vec![type_name::<CommitRow>(), type_name::<StageDelta>()];
    Case { name: "commit-row", messages, written, read: Box::new(|version, stored| read_row(version, &stored[0].1)) }
}

const RECORDS: [(u32, i64, &[u8]); 3] = [(0, 60_000, b"short"), (1, -5, &[7; 2_000]), (0, 60_001, b"")];

fn delta() -> StageDelta {
    StageDelta { operators: vec![OperatorDelta { operator: "card-profile".to_owned(), changes: vec![1, 2, 3] }] }
}

fn stamp(at: i64) -> Stamp {
    Stamp { watermark: EventTime(at), arrival: Arrival { partition: 2, offset: at + 1 } }
}

fn row(version: u32) -> CommitRow {
    let mut builder = SegmentBuilder::new([("card-alerts", 2)]);
    for (shard, at, payload) in RECORDS {
        builder.push(0, shard, stamp(at), EventTime(at), payload.len(), |bytes| bytes.put_slice(payload));
    }
    let Segment { bytes, slices, delta } = builder.finish(&delta().encode_to_vec());
    CommitRow {
        seq: 12,
        attempt: "a-1".to_owned(),
        from: BTreeMap::from([("dedup/0".to_owned(), Position { at: 6, within: 0 })]),
        to: BTreeMap::from([("dedup/0".to_owned(), input_state(7))]),
        watermark_ms: -10_001,
        idle: true,
        segment: Some(SegmentLocation::Inline(bytes)),
        slices,
        delta,
        now_ms: 1_000,
        counters: BTreeMap::from([("alerts.velocity".to_owned(), 2)]),
        code: "0.1.0".to_owned(),
        generation: 2,
        broadcast: Some(Broadcast { version: 3, value: Bytes::from_static(b"x") }),
        pinned: 3,
        sealed: Some(Layout { generation: 3, shards: 2 }),
        schema: if version < 2 { 0 } else { 1 },
    }
}

fn read_row(version: u32, stored: &[u8]) {
    let read = CommitRow::decode(stored).unwrap();
    let Some(SegmentLocation::Inline(bytes)) = &read.segment else { panic!("version {version} has no segment") };
    let unpack = |slice: &Slice| {
        let from = usize::try_from(slice.offset).unwrap();
        open(slice, &bytes.slice(from..from + usize::try_from(slice.len).unwrap())).unwrap()
    };
    for (number, slice) in read.slices.iter().enumerate() {
        let mut records = SliceReader::new(unpack(slice), slice.count).unwrap();
        for (order, (_, at, payload)) in RECORDS.iter().enumerate().filter(|(_, record)| record.0 == slice.shard) {
            let record = records.take().unwrap().unwrap();
            let got = (record.header.stamp, record.header.order, record.payload);
            assert_eq!(got, (stamp(*at), order as u64, *payload), "version {version}, slice {number}");
        }
        assert!(records.take().unwrap().is_none());
    }
    assert!(read.slices[1].len < read.slices[1].raw_len, "one slice is compressed");
    assert_eq!(StageDelta::decode(unpack(read.delta.as_ref().unwrap())).unwrap(), delta());
    // Where its bytes are, and how many, is the segment's; the rest is the row's.
    let CommitRow { segment, slices, delta, .. } = read.clone();
    assert_eq!(read, CommitRow { segment, slices, delta, ..row(version) }, "version {version}");
    let object = CommitRow { segment: Some(SegmentLocation::Object("rules/0/1-a".to_owned())), ..read };
    assert_eq!(object.encode_to_vec().windows(13).filter(|w| w == b"\x42\x0brules/0/1-a").count(), 1, "tag 8, a text");
}

/// The ids of deduplication.
fn ids() -> Case {
    const IDS: [(&str, i64); 3] =
        [("578ddfd0-d664-e72e-0229-acfe83cf0e79", 1_000), ("p-1", 1_000), ("not-a-uuid", 2_000)];
    let mut set = TtlSet::new(dedup::ID);
    for (id, at) in IDS {
        set.write(id, ProcessingTime(at));
    }
    Case {
        name: dedup::ID,
        messages: vec!["WrittenRuns".to_owned()],
        written: flush(&mut set),
        read: Box::new(|version, stored| {
            let (mut by_page, mut by_delta) = (TtlSet::new(dedup::ID), TtlSet::new(dedup::ID));
            by_page.load(pages(dedup::ID, stored)).unwrap();
            stored.iter().for_each(|(_, delta)| by_delta.apply_delta(delta).unwrap());
            for set in [by_page, by_delta] {
                assert_eq!(set.keys(), IDS.len(), "version {version}");
                for (id, at) in IDS {
                    assert_eq!(set.written_at(id), Some(ProcessingTime(at)), "version {version}: {id}");
                }
            }
        }),
    }
}

/// The keyed states: what an operator says after it was restored is what it says when it was never interrupted.
fn states() -> Vec<Case> {
    let pay = |id, card, amount, at| Event(card, payment(id, card, amount, at, "DE"));
    vec![
        state(|| CardProfiles, crate::profile::before, || vec![crate::profile::after()]),
        state(
            || VelocityRule { limit: 2, language: EN },
            move || {
                (1..4)
                    .map(|i| pay("p", "c1", 10, i * 1_000))
                    .chain([pay("q", "c2", 10, 1), pay("q", "c2", 10, 2)])
                    .collect()
            },
            move || vec![pay("p5", "c1", 10, 5_000), pay("q3", "c2", 10, 3)],
        ),
        state(
            || AmountSpikeRule { limit: 1_000, language: EN },
            move || vec![pay("p1", "c1", 700, 1_000), pay("p2", "c1", 200, 70_000), pay("q1", "c2", 1_001, 5)],
            move || vec![pay("p3", "c1", 101, 80_000), pay("q2", "c2", 1_001, 6)],
        ),
        state(
            || SequenceRules { card_testing: true, impossible_travel: true, language: EN },
            move || (1..4).map(|i| pay("p", "c1", 100, i * 1_000)).chain([Watermark(2_500)]).collect(),
            || vec![Event("c1", payment("p4", "c1", 50_000, 4_000, "FR")), Watermark(10_000)],
        ),
        state(
            || PaymentMatching { join: true, unconfirmed: true, language: EN },
            || {
                vec![
                    Event("p1", MatchEvent::Payment(payment("p1", "c1", 100, 1_000, "DE"))),
                    Event("p2", MatchEvent::Confirmation(confirmation("p2", 2_000))),
                    Event("p3", MatchEvent::Payment(payment("p3", "c1", 300, 3_000, "DE"))),
                ]
            },
            || {
                vec![
                    Event("p1", MatchEvent::Confirmation(confirmation("p1", 5_000))),
                    Event("p2", MatchEvent::Payment(payment("p2", "c1", 200, 1_500, "DE"))),
                    Watermark(400_000),
                ]
            },
        ),
        state(
            || CardSessionWindow,
            move || vec![pay("p1", "c1", 100, 1_000), pay("p2", "c1", 200, 5_000)],
            move || vec![pay("p3", "c1", 300, 20_000), Watermark(100_000)],
        ),
        state(
            || MerchantStatsWindow,
            move || vec![pay("p1", "m1", 100, 1_000), pay("p2", "m1", 200, 61_000)],
            move || vec![pay("p3", "m1", 300, 2_000), Watermark(119_999)],
        ),
        state(
            || SaltedStatsWindow { late_updates: true },
            move || vec![pay("p1", "m1#3", 100, 1_000), Watermark(59_999)],
            move || vec![pay("p2", "m1#3", 300, 2_000)],
        ),
        state(
            || CombineParts { late_updates: true },
            || vec![Event("m1", part(0, 1, 100)), Event("m1", part(3, 2, 200))],
            || vec![Event("m1", part(3, 4, 500)), Watermark(119_999)],
        ),
        state(EventTimeOrder::default, sessions_before, sessions_after),
        state(ArrivalOrder::default, sessions_before, sessions_after),
    ]
}

fn state<O>(
    operator: fn() -> O,
    before: impl Fn() -> Vec<Step<O::Event>> + 'static,
    after: impl Fn() -> Vec<Step<O::Event>> + 'static,
) -> Case
where
    O: KeyedOperator,
    O::Output: Debug,
{
    let mut runner = KeyedRunner::new(operator());
    run(&mut runner, EventTime::MIN, before());
    let written = flush(&mut runner);
    let read = move |version, stored: &Stored| {
        let mut whole = KeyedRunner::new(operator());
        let (watermark, _) = run(&mut whole, EventTime::MIN, before());
        whole.take_delta();
        let (_, expected) = run(&mut whole, watermark, after());
        let (mut by_page, mut by_delta) = (KeyedRunner::new(operator()), KeyedRunner::new(operator()));
        by_page.load(pages(O::ID, stored)).unwrap();
        stored.iter().for_each(|(_, delta)| by_delta.apply_delta(delta).unwrap());
        for restored in [&mut by_page, &mut by_delta] {
            assert_eq!(run(restored, watermark, after()).1, expected, "{} version {version}", O::ID);
        }
        // What it has not said yet, such as timers that are not due, is in its pages.
        assert_eq!(flush(&mut by_delta), flush(&mut whole), "{} version {version}", O::ID);
        let (_, without) = run(&mut KeyedRunner::new(operator()), watermark, after());
        assert_ne!(without, expected, "{}: the events do not tell whether anything was restored", O::ID);
    };
    let messages = vec!["Entries".to_owned(), type_name::<O::State>()];
    Case { name: O::ID, messages, written, read: Box::new(read) }
}

/// Gives steps to an operator; returns the watermark after them and what was emitted.
pub(crate) fn run<O>(
    runner: &mut KeyedRunner<O>,
    watermark: EventTime,
    steps: Vec<Step<O::Event>>,
) -> (EventTime, Vec<String>)
where
    O: KeyedOperator,
    O::Output: Debug,
{
    let builder = SegmentBuilder::new(std::iter::empty());
    let mut out = Collector::new(builder, watermark, ProcessingTime(1_000), Origin::default());
    let mut emitted = Vec::new();
    let mut emit =
        |_: &mut Collector, time: EventTime, output: O::Output| emitted.push(format!("{} {output:?}", time.0));
    for step in steps {
        match step {
            Event(key, event) => runner.process(key, &event, &mut out, &mut emit),
            Watermark(time) => {
                out.advance(EventTime(time));
                runner.fire(TimerDomain::EventTime, &mut out, &mut emit);
            }
        }
    }
    (out.watermark(), emitted)
}

/// The pages that a flush writes.
pub(crate) fn flush(state: &mut dyn OperatorState) -> Stored {
    assert!(!state.take_delta().is_empty());
    let put = state.take_dirty_pages(7).put;
    put.into_iter().map(|page| (format!("{}/{}", page.group, page.page), page.body)).collect()
}

/// Stored pages as the state table gives them back.
pub(crate) fn pages(operator: &str, stored: &Stored) -> Vec<Page> {
    let page = |(place, body): &(String, Vec<u8>)| {
        let (group, page) = place.split_once('/').unwrap();
        let (group, operator, page) = (group.parse().unwrap(), operator.to_owned(), page.to_owned());
        let address = PageAddress { stage: StageId::new("rules"), group, operator, page };
        Page { address, version: 7, body: body.clone().into(), expires_at_s: None }
    };
    stored.iter().map(page).collect()
}

pub(crate) fn payment(id: &str, card: &str, amount_minor: i64, event_time_ms: i64, country: &str) -> Payment {
    Payment {
        payment_id: id.to_owned(),
        card_id: card.to_owned(),
        merchant_id: "m1".to_owned(),
        amount_minor,
        currency: "EUR".to_owned(),
        country: Some(country.to_owned()),
        event_time_ms,
        source_partition: 2,
        source_offset: event_time_ms,
    }
}

fn confirmation(id: &str, event_time_ms: i64) -> PaymentConfirmation {
    PaymentConfirmation { payment_id: id.to_owned(), status: Some("APPROVED".to_owned()), event_time_ms }
}

/// A session that is open, with a late event, and one that was told of and is opened again.
fn sessions_before() -> Vec<Step<ConnectionEvent>> {
    vec![
        Event("s1", connection("s1", payguard_model::Step::Dhcp, None, 3_000)),
        Event("s2", connection("s2", payguard_model::Step::Auth, Some("timeout"), 1_000)),
        Watermark(31_000),
        Event("s2", connection("s2", payguard_model::Step::Auth, None, 1_500)),
        Event("s1", connection("s1", payguard_model::Step::Auth, Some("rejected"), 1_000)),
    ]
}

fn sessions_after() -> Vec<Step<ConnectionEvent>> {
    vec![
        Event("s1", connection("s1", payguard_model::Step::Auth, None, 2_000)),
        Event("s1", connection("s1", payguard_model::Step::Assoc, None, 2_500)),
        Watermark(40_000),
        Event("s1", connection("s1", payguard_model::Step::Dns, Some("no answer"), 4_000)),
        Watermark(50_000),
    ]
}

fn connection(id: &str, step: payguard_model::Step, reason: Option<&str>, event_time_ms: i64) -> ConnectionEvent {
    ConnectionEvent {
        session_id: id.to_owned(),
        client_id: "c1".to_owned(),
        step: step.number(),
        ok: reason.is_none(),
        reason: reason.map(str::to_owned),
        event_time_ms,
    }
}

fn verdict() -> ConnectionVerdict {
    ConnectionVerdict {
        session_id: "s1".to_owned(),
        client_id: "c1".to_owned(),
        variant: "b".to_owned(),
        outcome: Outcome::Failed.number(),
        failed_step: Some(payguard_model::Step::Dhcp.number()),
        reason: Some("no lease".to_owned()),
        steps: vec![4, 5, 2],
        started_at_ms: 1_000,
        duration_ms: 2_000,
        late_events: 1,
        evicted: true,
        revision: 2,
    }
}

fn part(salt: u32, payment_count: i64, amount_minor: i64) -> MerchantPart {
    MerchantPart {
        merchant_id: "m1".to_owned(),
        salt,
        window_start_ms: 0,
        window_end_ms: 60_000,
        payment_count,
        amount_minor,
    }
}
