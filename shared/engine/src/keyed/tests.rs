//! Keyed state against the operators' own test harness, through deltas, pages, half-written and late flushes.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use payguard_operators::testing::Harness;
use proptest::prelude::*;

use super::*;
use crate::ids::StageId;
use crate::logic::Origin;
use crate::page::PageAddress;
use crate::segment::SegmentBuilder;

/// Does to its key what the event says.
struct Toy;

#[derive(Clone, Debug)]
enum Do {
    Add(i64),
    /// Makes the state large, so that pages are split.
    Pad(usize),
    Set(TimerDomain, i64),
    Delete(TimerDomain, i64),
    Forget,
}

#[derive(Clone, PartialEq, Message)]
struct ToyState {
    #[prost(sint64, tag = "1")]
    sum: i64,
    #[prost(bytes = "vec", tag = "2")]
    padding: Vec<u8>,
}

impl KeyedOperator for Toy {
    type Event = Do;
    type State = ToyState;
    type Output = String;

    const ID: &'static str = "toy";

    fn on_event(&self, key: &str, event: &Do, state: &mut ToyState, ctx: &mut dyn Context<String>) {
        match event {
            Do::Add(by) => state.sum += by,
            Do::Pad(bytes) => state.padding = vec![7; *bytes],
            Do::Set(domain, time) => ctx.register_timer(*domain, *time),
            Do::Delete(domain, time) => ctx.delete_timer(*domain, *time),
            Do::Forget => *state = ToyState::default(),
        }
        ctx.emit(EventTime(state.sum), format!("{key} {event:?} {} at {}", state.sum, ctx.watermark()));
    }

    fn on_timer(&self, key: &str, domain: TimerDomain, time: i64, state: &mut ToyState, ctx: &mut dyn Context<String>) {
        ctx.emit(EventTime(time), format!("{key} {domain:?} {time} {}", state.sum));
        match time % 3 {
            0 => *state = ToyState::default(),
            // A timer that sets another, which may be due at once.
            1 => ctx.register_timer(domain, time + 1 + time % 7),
            _ => state.sum += 1,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Event(usize, Do),
    Watermark(i64),
    Now(i64),
    Commit,
    /// A flush that writes these of its pages, then removes these of the pages left behind.
    Flush(Vec<bool>),
    /// Fresh memory, from pages and deltas.
    Restart,
    /// Another instance, kept up by deltas alone, takes over.
    TakeOver,
    /// An abandoned flush goes on after all.
    LateFlush(Vec<bool>),
}

/// Keys of two key groups, so that these grow large, and a few others.
fn keys() -> Vec<String> {
    let of = |group: u32| (0..).map(|i| format!("k-{i}")).filter(move |k| key_group(k, KEY_GROUPS).0 == group);
    of(3).take(70).chain(of(90).take(20)).chain(of(91).take(3)).collect()
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let domain = || prop_oneof![Just(TimerDomain::EventTime), Just(TimerDomain::ProcessingTime)];
    let event = prop_oneof![
        (-3i64..4).prop_map(Do::Add),
        (0usize..1500).prop_map(Do::Pad),
        (domain(), 0i64..60).prop_map(|(d, t)| Do::Set(d, t)),
        (domain(), 0i64..60).prop_map(|(d, t)| Do::Delete(d, t)),
        Just(Do::Forget),
    ];
    let mask = || prop::collection::vec(prop::bool::weighted(0.7), 40);
    let step = prop_oneof![
        40 => (0usize..93, event).prop_map(|(key, event)| Step::Event(key, event)),
        4 => (0i64..60).prop_map(Step::Watermark),
        4 => (0i64..60).prop_map(Step::Now),
        10 => Just(Step::Commit),
        2 => Just(Step::Flush(vec![true; 40])),
        3 => mask().prop_map(Step::Flush),
        2 => mask().prop_map(Step::LateFlush),
        3 => Just(Step::Restart),
        2 => Just(Step::TakeOver),
    ];
    prop::collection::vec(step, 0..400)
}

/// A runner with what is durable of it, and the model next to it.
struct Bench {
    make: fn() -> KeyedRunner<Toy>,
    runner: KeyedRunner<Toy>,
    replica: KeyedRunner<Toy>,
    model: Harness<Toy>,
    outputs: Vec<(EventTime, String)>,
    deltas: Vec<Vec<u8>>,
    table: BTreeMap<(u32, String), Page>,
    flushed: usize,
    abandoned: Vec<(u64, DirtyPages)>,
    watermark: i64,
    now: i64,
    splits: usize,
}

impl Bench {
    fn new() -> Bench {
        Bench::of(|| KeyedRunner::new(Toy))
    }

    fn of(make: fn() -> KeyedRunner<Toy>) -> Bench {
        Bench {
            make,
            runner: make(),
            replica: make(),
            model: Harness::new(Toy),
            outputs: Vec::new(),
            deltas: Vec::new(),
            table: BTreeMap::new(),
            flushed: 0,
            abandoned: Vec::new(),
            watermark: i64::MIN,
            now: 0,
            splits: 0,
        }
    }

    fn with_runner(&mut self, run: impl FnOnce(&mut KeyedRunner<Toy>, &mut Collector, &mut Emit<'_, String>)) {
        let mut out = Collector::new(
            SegmentBuilder::new([]),
            EventTime(self.watermark),
            ProcessingTime(self.now),
            Origin::default(),
        );
        let outputs = &mut self.outputs;
        run(&mut self.runner, &mut out, &mut |_, time, text| outputs.push((time, text)));
    }

    fn step(&mut self, keys: &[String], step: &Step) {
        match step {
            Step::Event(key, event) => {
                self.model.process(&keys[*key], event);
                self.with_runner(|runner, out, emit| runner.process(&keys[*key], event, out, emit));
            }
            Step::Watermark(to) if *to > self.watermark => {
                self.watermark = *to;
                self.model.advance_watermark(EventTime(*to));
                self.with_runner(|runner, out, emit| runner.fire(TimerDomain::EventTime, out, emit));
            }
            Step::Now(to) if *to > self.now => {
                self.now = *to;
                self.model.advance_processing_time(ProcessingTime(*to));
                self.with_runner(|runner, out, emit| runner.fire(TimerDomain::ProcessingTime, out, emit));
            }
            Step::Watermark(_) | Step::Now(_) => {}
            Step::Commit => self.commit(),
            Step::Flush(mask) => self.flush(mask),
            Step::Restart => {
                self.commit();
                self.runner = self.recover();
            }
            Step::TakeOver => {
                self.commit();
                std::mem::swap(&mut self.runner, &mut self.replica);
            }
            Step::LateFlush(mask) => {
                if let Some((version, dirty)) = self.abandoned.pop() {
                    self.write(&dirty, version, mask);
                }
            }
        }
    }

    fn commit(&mut self) {
        let delta = self.runner.take_delta();
        self.replica.apply_delta(&delta).unwrap();
        self.deltas.push(delta);
    }

    /// As the engine flushes: committed state only; when it stops half-way, memory is given up.
    fn flush(&mut self, mask: &[bool]) {
        self.commit();
        let version = self.deltas.len() as u64;
        let dirty = self.runner.take_dirty_pages(version);
        self.splits += usize::from(!dirty.delete.is_empty());
        for page in &dirty.put {
            assert!(page.body.len() <= SPLIT_BYTES + 2_000, "a page of {} bytes", page.body.len());
        }
        if self.write(&dirty, version, mask) {
            self.flushed = self.deltas.len();
        } else {
            self.abandoned.push((version, dirty));
            self.runner = self.recover();
        }
    }

    /// Writes the pages that the mask names; true when all were written.
    fn write(&mut self, dirty: &DirtyPages, version: u64, mask: &[bool]) -> bool {
        let mut mask = mask.iter().copied().chain(std::iter::repeat(mask.iter().all(|m| *m)));
        let mut complete = true;
        for body in &dirty.put {
            if !mask.next().unwrap() {
                complete = false;
                continue;
            }
            let address = PageAddress {
                stage: StageId::new("s"),
                group: body.group,
                operator: "toy".into(),
                page: body.page.clone(),
            };
            let page = Page { address, version, body: Bytes::from(body.body.clone()), expires_at_s: None };
            let old = self.table.entry((body.group, body.page.clone())).or_insert_with(|| page.clone());
            if old.version < version {
                *old = page;
            }
        }
        for (group, name) in dirty.delete.iter().filter(|_| complete) {
            if !mask.next().unwrap() {
                return false;
            }
            self.table.retain(|at, old| *at != (*group, name.clone()) || old.version > version);
        }
        complete
    }

    fn recover(&self) -> KeyedRunner<Toy> {
        let mut runner = (self.make)();
        if self.flushed > 0 {
            // In any order: here youngest first.
            let mut pages: Vec<Page> = self.table.values().cloned().collect();
            pages.sort_by_key(|p| std::cmp::Reverse(p.version));
            runner.load(pages).unwrap();
        }
        for delta in &self.deltas[self.flushed..] {
            runner.apply_delta(delta).unwrap();
        }
        runner
    }

    /// At last every timer of a recovered instance fires as the model's does.
    fn end(&mut self, keys: &[String]) {
        for step in [Step::Restart, Step::Watermark(1000), Step::Now(1000), Step::Restart] {
            self.step(keys, &step);
            self.compare(keys, &step);
        }
    }

    fn compare(&mut self, keys: &[String], after: &Step) {
        assert_eq!(self.outputs, self.model.outputs(), "{after:?}");
        assert_eq!(self.runner.keys(), self.model.key_count(), "{after:?}");
        for key in keys {
            let id = self.runner.slots.find(key);
            let slot = id.and_then(|id| self.runner.slots.get_mut(id));
            let slot = slot.as_deref();
            assert_eq!(slot.map(|s| &s.state), self.model.state(key), "{key} after {after:?}");
            assert_eq!(slot.map(|s| &s.timers), self.model.timers(key), "{key} after {after:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn state_and_timers_survive_deltas_restarts_and_flushes_that_stop_anywhere_or_come_late(steps in steps()) {
        let keys = keys();
        let mut bench = Bench::new();
        for step in &steps {
            bench.step(&keys, step);
            bench.compare(&keys, step);
        }
        bench.end(&keys);
    }

    #[test]
    fn so_they_do_when_they_are_written_through_from_the_beginning_or_from_some_day_on(
        before in steps(), steps in steps(), from_the_beginning in any::<bool>(),
    ) {
        let keys = keys();
        let mut bench = if from_the_beginning { Bench::of(through) } else { Bench::new() };
        for step in &before {
            bench.step(&keys, step);
        }
        // A savepoint is restored: complete pages, no memory, nobody who sleeps.
        bench.flush(&[true]);
        bench.abandoned.clear();
        bench.make = through;
        (bench.runner, bench.replica) = (bench.recover(), bench.recover());
        for step in &steps {
            bench.step(&keys, step);
            bench.compare(&keys, step);
        }
        bench.end(&keys);
    }
}

fn through() -> KeyedRunner<Toy> {
    KeyedRunner::new(Toy).write_through()
}

#[test]
fn written_through_only_what_changed_is_written() {
    let keys = keys();
    let mut bench = Bench::of(through);
    for at in 0..keys.len() {
        bench.step(&keys, &Step::Event(at, Do::Add(1)));
    }
    bench.flush(&[true]);
    let pages = bench.table.len();
    assert!(pages > keys.len() - 3, "{pages} pages of {} keys", keys.len());
    for (at, event) in [(5, Do::Add(1)), (80, Do::Forget)] {
        bench.step(&keys, &Step::Event(at, event));
    }
    bench.commit();
    assert!(bench.runner.writes_through());
    assert_eq!(bench.runner.take_dirty_pages(9).put.len(), 2);
}

#[test]
fn a_key_group_that_grows_is_split_and_comes_back_whole_from_its_pages_alone() {
    let keys = keys();
    let mut bench = Bench::new();
    for round in 0..3i64 {
        for key in &keys {
            bench.step(&keys, &Step::Event(keys.iter().position(|k| k == key).unwrap(), Do::Pad(600)));
            bench.step(&keys, &Step::Event(keys.iter().position(|k| k == key).unwrap(), Do::Add(round)));
        }
        bench.flush(&[true]);
        assert_eq!(bench.flushed, bench.deltas.len(), "the flush is complete");
        bench.runner = bench.recover();
        bench.compare(&keys, &Step::Restart);
    }
    assert!(bench.splits > 0, "no page was split");
    assert!(bench.table.keys().all(|(group, page)| *group != 3 || !page.starts_with("0-")), "the old page is gone");
    // Keys that are forgotten leave their page.
    for at in 0..keys.len() {
        bench.step(&keys, &Step::Event(at, Do::Forget));
    }
    bench.flush(&[true]);
    bench.runner = bench.recover();
    assert_eq!(bench.runner.keys(), 0);
}

#[test]
fn the_pages_of_a_split_that_come_late_do_not_hide_a_younger_page_that_was_never_split() {
    let keys = keys();
    let mut bench = Bench::new();
    for at in 0..70 {
        bench.step(&keys, &Step::Event(at, Do::Pad(600)));
    }
    bench.flush(&[false]);
    assert!(bench.splits == 1 && bench.table.is_empty());
    for at in 0..65 {
        bench.step(&keys, &Step::Event(at, Do::Forget));
    }
    bench.flush(&[true]);
    assert_eq!(bench.table.len(), 1);
    bench.step(&keys, &Step::LateFlush(vec![true]));
    assert!(bench.table.len() > 2, "old and young pages lie side by side");
    bench.step(&keys, &Step::Restart);
    bench.compare(&keys, &Step::Restart);
    // And the next flush of what was recovered is right again.
    bench.step(&keys, &Step::Event(66, Do::Add(1)));
    bench.flush(&[true]);
    bench.step(&keys, &Step::Restart);
    bench.compare(&keys, &Step::Restart);
}

#[test]
fn pages_that_a_split_left_behind_are_removed_after_the_next_flush() {
    let keys = keys();
    let mut bench = Bench::new();
    for at in 0..70 {
        bench.step(&keys, &Step::Event(at, Do::Pad(100)));
    }
    bench.flush(&[true]);
    for at in 0..70 {
        bench.step(&keys, &Step::Event(at, Do::Pad(600)));
    }
    // Everything is written, nothing removed.
    let (split, written) = (1, [[true; 4].as_slice(), &[false]].concat());
    bench.flush(&written);
    let old: Vec<_> = bench.table.keys().filter(|(_, page)| page == "0-0").cloned().collect();
    assert!(bench.splits == split && old.len() == 1 && bench.table.len() > 2, "{:?}", bench.table.keys());
    bench.step(&keys, &Step::Restart);
    bench.compare(&keys, &Step::Restart);
    bench.flush(&[true]);
    assert!(!bench.table.contains_key(&old[0]), "{:?}", bench.table.keys());
    bench.step(&keys, &Step::Restart);
    bench.compare(&keys, &Step::Restart);
}

#[test]
fn one_key_with_a_large_state_does_not_split_its_key_group_for_ever() {
    let keys = keys();
    let mut bench = Bench::new();
    for key in 0..10 {
        bench.step(&keys, &Step::Event(key, Do::Pad(if key == 0 { 3 * SPLIT_BYTES } else { 100 })));
    }
    bench.commit();
    let dirty = bench.runner.take_dirty_pages(1);
    assert!(dirty.put.len() <= 4, "{} pages for ten keys", dirty.put.len());
}

#[test]
fn a_page_or_delta_that_is_not_one_is_refused() {
    let mut runner = KeyedRunner::new(Toy);
    assert!(runner.apply_delta(&[0xff, 1, 2]).is_err());
    let page = |name: &str, body: &'static [u8]| Page {
        address: PageAddress { stage: StageId::new("s"), group: 1, operator: "toy".into(), page: name.into() },
        version: 1,
        body: Bytes::from_static(body),
        expires_at_s: None,
    };
    for (name, body) in [("", &[][..]), ("1", &[]), ("1-2", &[]), ("17-0", &[]), ("x-0", &[]), ("0-0", &[0xff])] {
        assert!(KeyedRunner::new(Toy).load(vec![page(name, body)]).is_err(), "{name} {body:?}");
    }
    assert!(KeyedRunner::new(Toy).load(vec![page("1-1", &[])]).is_ok());
}
