//! The set against a map that forgets by the clock, through deltas, pages, half-written flushes and expired pages.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use payguard_operators::dedup::{Arrival, first_arrival};
use proptest::prelude::*;

use super::*;
use crate::ids::StageId;
use crate::page::PageAddress;

#[derive(Clone, Debug)]
enum Step {
    Arrive(usize),
    Wait(i64),
    Commit,
    /// A flush that writes these of its pages.
    Flush(Vec<bool>),
    Restart,
    TakeOver,
    /// The table forgets pages that are past their time.
    Expire,
}

fn id(n: usize) -> String {
    match n % 3 {
        0 => format!("{n:08x}-0000-4000-8000-00000000abcd"),
        1 => format!("p-{n}"),
        // Like a UUID, and not one that can be told back.
        _ => format!("{n:08X}-0000-4000-8000-00000000ABCD"),
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let mask = prop::collection::vec(prop::bool::weighted(0.8), 12);
    let step = prop_oneof![
        20 => (0usize..40).prop_map(Step::Arrive),
        3 => (0i64..1_500_000).prop_map(Step::Wait),
        1 => Just(Step::Wait(REMEMBER_FOR_MS)),
        6 => Just(Step::Commit),
        2 => Just(Step::Flush(vec![true])),
        2 => mask.prop_map(Step::Flush),
        3 => Just(Step::Restart),
        1 => Just(Step::TakeOver),
        2 => Just(Step::Expire),
    ];
    prop::collection::vec(step, 0..300)
}

struct Bench {
    set: TtlSet,
    replica: TtlSet,
    /// When each id was let pass last.
    model: BTreeMap<String, i64>,
    now: i64,
    deltas: Vec<Vec<u8>>,
    table: Vec<Page>,
    flushed: usize,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            set: TtlSet::new("t"),
            replica: TtlSet::new("t"),
            model: BTreeMap::new(),
            now: 1_000_000,
            deltas: Vec::new(),
            table: Vec::new(),
            flushed: 0,
        }
    }

    fn arrive(&mut self, id: &str) {
        let repeats = self.model.get(id).is_some_and(|at| self.now - at < REMEMBER_FOR_MS);
        let expected = if repeats { Arrival::Duplicate } else { Arrival::First };
        if !repeats {
            self.model.insert(id.to_owned(), self.now);
        }
        assert_eq!(first_arrival(&mut self.set, id, ProcessingTime(self.now)), expected, "{id} at {}", self.now);
    }

    fn commit(&mut self) {
        let delta = self.set.take_delta();
        self.replica.apply_delta(&delta).unwrap();
        self.deltas.push(delta);
    }

    fn flush(&mut self, mask: &[bool]) {
        self.commit();
        let seq = self.deltas.len() as u64;
        let dirty = self.set.take_dirty_pages(seq);
        assert!(dirty.delete.is_empty());
        let mut complete = true;
        for (i, body) in dirty.put.into_iter().enumerate() {
            if !mask[i % mask.len()] {
                complete = false;
                continue;
            }
            let page = Page {
                address: PageAddress {
                    stage: StageId::new("s"),
                    group: body.group,
                    operator: "t".into(),
                    page: body.page,
                },
                version: seq,
                body: Bytes::from(body.body),
                expires_at_s: body.expires_at_s,
            };
            assert!(self.table.iter().all(|p| p.address != page.address), "a page is written once");
            self.table.push(page);
        }
        match complete {
            true => self.flushed = self.deltas.len(),
            false => self.set = self.recover(),
        }
    }

    fn recover(&self) -> TtlSet {
        let mut set = TtlSet::new("t");
        if self.flushed > 0 {
            set.load(self.table.iter().rev().cloned().collect()).unwrap();
        }
        for delta in &self.deltas[self.flushed..] {
            set.apply_delta(delta).unwrap();
        }
        set
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Arrive(n) => self.arrive(&id(*n)),
            Step::Wait(ms) => {
                self.now += ms;
                self.set.sweep(ProcessingTime(self.now));
            }
            Step::Commit => self.commit(),
            Step::Flush(mask) => self.flush(mask),
            Step::Restart => {
                self.commit();
                self.set = self.recover();
            }
            Step::TakeOver => {
                self.commit();
                std::mem::swap(&mut self.set, &mut self.replica);
            }
            Step::Expire => {
                let now_s = self.now / 1000;
                self.table.retain(|p| p.expires_at_s.is_none_or(|at| at > now_s));
            }
        }
    }
}

proptest! {
    #[test]
    fn an_id_passes_once_an_hour_whatever_is_restarted_flushed_or_expired(steps in steps()) {
        let mut bench = Bench::new();
        for step in &steps {
            bench.step(step);
        }
        bench.step(&Step::Restart);
        for n in 0..40 {
            bench.step(&Step::Arrive(n));
        }
    }

    #[test]
    fn an_id_is_told_back_exactly(text in "[0-9a-fA-F]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\\PC{0,40}") {
        prop_assert_eq!(Id::new(&text).text(), text);
    }
}

#[test]
fn an_id_is_remembered_for_exactly_an_hour_and_then_swept() {
    let mut set = TtlSet::new("t");
    assert_eq!(first_arrival(&mut set, "a", ProcessingTime(0)), Arrival::First);
    assert_eq!(first_arrival(&mut set, "a", ProcessingTime(REMEMBER_FOR_MS - 1)), Arrival::Duplicate);
    assert_eq!(set.sweep(ProcessingTime(REMEMBER_FOR_MS - 1)), 0);
    assert_eq!(set.sweep(ProcessingTime(REMEMBER_FOR_MS)), 0, "looks at most once a minute");
    assert_eq!(first_arrival(&mut set, "a", ProcessingTime(REMEMBER_FOR_MS)), Arrival::First);
    assert_eq!(set.keys(), 1);
    assert_eq!(set.sweep(ProcessingTime(2 * REMEMBER_FOR_MS)), 1);
    assert_eq!(set.keys(), 0);
}

#[test]
fn a_page_stays_below_its_limit_and_nothing_falls_between_two_pages() {
    let mut set = TtlSet::new("t");
    let ids: Vec<String> =
        (0..).map(|i| format!("{i:0>9000}")).filter(|t| key_group(t, KEY_GROUPS).0 == 5).take(80).collect();
    for (i, id) in (0i64..).zip(&ids) {
        set.write(id, ProcessingTime(i / 10));
    }
    set.take_delta();
    assert_eq!(set.dirty_bytes(), ids.len() * (1 + 2 + 9000));
    let dirty = set.take_dirty_pages(7);
    assert_eq!(set.dirty_bytes(), 0);
    assert!(dirty.put.len() > 2, "{}", dirty.put.len());
    let mut back = TtlSet::new("t");
    for body in dirty.put {
        assert!(body.body.len() < PAGE_BYTES + 1000, "{}", body.body.len());
        for run in WrittenRuns::decode(&body.body[..]).unwrap().runs {
            back.add(&run, |_, _| ()).unwrap();
        }
    }
    for (i, id) in (0i64..).zip(&ids) {
        assert_eq!(back.written_at(id), Some(ProcessingTime(i / 10)));
    }
}
