//! The vectors of lessons 5 to 7 that concern operators, run through all of them wired as in the pipeline: watermark of
//! the earlier payments → lateness probe → deduplication → merchant windows, sessions and both rules.

use std::collections::{BTreeMap, HashMap};

use payguard_model::{EventTime, Payment, ProcessingTime};

use crate::amount_spike::AmountSpikeRule;
use crate::card_sessions::{CardSessionWindow, LATE_DROPPED};
use crate::dedup::{Arrival, SeenIds, first_arrival};
use crate::detail::DetailLanguage;
use crate::lateness::LatenessProbe;
use crate::merchant_stats::{MerchantStatsWindow, Output};
use crate::testing::{Harness, payment};
use crate::velocity::VelocityRule;
use crate::watermark::BoundedOutOfOrderness;

/// What arrives.
enum Step {
    /// Payment id, card, merchant, amount, event time.
    Pay(&'static str, &'static str, &'static str, i64, i64),
    /// The same payment so many times, `id1`, `id2`, …, each so many milliseconds after the one before.
    Series(&'static str, &'static str, i64, usize, i64),
    /// A record the parser refused.
    Rejected,
    /// Something that moves the watermark to this time.
    Watermark(i64),
    /// The input ends.
    End,
}
use Step::{End, Pay, Rejected, Series, Watermark};

/// What is looked at afterwards.
enum Expect {
    /// The last emission of each window: merchant, start, end, count, amount.
    Stats(&'static [(&'static str, i64, i64, i64, i64)]),
    /// Emissions of all windows, repetitions included.
    StatsEmissions(usize),
    /// Ids of the payments no window accepted.
    TooLate(&'static [&'static str]),
    /// Card, start, end, count, amount.
    Sessions(&'static [(&'static str, i64, i64, i64, i64)]),
    SessionsDropped(u64),
    /// Alert id and detail, of both rules.
    Alerts(&'static [(&'static str, &'static str)]),
    LateEvents(u64),
    Duplicates(u64),
}
use Expect::{Alerts, Duplicates, LateEvents, Sessions, SessionsDropped, Stats, StatsEmissions, TooLate};

struct Case {
    name: &'static str,
    steps: &'static [Step],
    expect: &'static [Expect],
}

#[derive(Default)]
struct Seen(HashMap<String, ProcessingTime>);

impl SeenIds for Seen {
    fn written_at(&self, id: &str) -> Option<ProcessingTime> {
        self.0.get(id).copied()
    }

    fn write(&mut self, id: &str, at: ProcessingTime) {
        self.0.insert(id.to_owned(), at);
    }
}

struct Pipeline {
    time: BoundedOutOfOrderness,
    probe: LatenessProbe,
    seen: Seen,
    duplicates: u64,
    stats: Harness<MerchantStatsWindow>,
    sessions: Harness<CardSessionWindow>,
    velocity: Harness<VelocityRule>,
    amount: Harness<AmountSpikeRule>,
}

impl Pipeline {
    fn new(velocity_limit: i64, amount_limit: i64) -> Pipeline {
        let language = DetailLanguage::Ru;
        Pipeline {
            time: BoundedOutOfOrderness::default(),
            probe: LatenessProbe::default(),
            seen: Seen::default(),
            duplicates: 0,
            stats: Harness::new(MerchantStatsWindow),
            sessions: Harness::new(CardSessionWindow),
            velocity: Harness::new(VelocityRule { limit: velocity_limit, language }),
            amount: Harness::new(AmountSpikeRule { limit: amount_limit, language }),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Pay(id, card, merchant, amount, t) => self.pay(&payment(id, card, merchant, amount, t)),
            Series(id, card, t, times, apart) => {
                for n in 0..times {
                    let at = t + apart * i64::try_from(n).unwrap();
                    self.pay(&payment(&format!("{id}{}", n + 1), card, "m1", 1_000, at));
                }
            }
            Rejected => {}
            Watermark(ms) => {
                self.time.observe(EventTime(ms + 10_001));
                self.advance(self.time.watermark());
            }
            End => self.advance(EventTime::MAX),
        }
    }

    fn pay(&mut self, payment: &Payment) {
        let t = EventTime(payment.event_time_ms);
        self.probe.observe(t, self.time.watermark());
        match first_arrival(&mut self.seen, &payment.payment_id, ProcessingTime(0)) {
            Arrival::Duplicate => self.duplicates += 1,
            Arrival::First => {
                self.stats.process(&payment.merchant_id, payment);
                self.sessions.process(&payment.card_id, payment);
                self.velocity.process(&payment.card_id, payment);
                self.amount.process(&payment.card_id, payment);
            }
        }
        self.time.observe(t);
        self.advance(self.time.watermark());
    }

    fn advance(&mut self, watermark: EventTime) {
        self.stats.advance_watermark(watermark);
        self.sessions.advance_watermark(watermark);
        self.velocity.advance_watermark(watermark);
        self.amount.advance_watermark(watermark);
    }

    fn check(&self, name: &str, expect: &Expect) {
        match *expect {
            Stats(rows) => {
                let mut last = BTreeMap::new();
                for (_, output) in self.stats.outputs() {
                    if let Output::Stats(s) = output {
                        let row = (s.merchant_id.as_str(), s.window_start_ms);
                        last.insert(row, (s.window_end_ms, s.payment_count, s.amount_minor));
                    }
                }
                let rows =
                    rows.iter().map(|&(merchant, start, end, count, sum)| ((merchant, start), (end, count, sum)));
                assert_eq!(last, rows.collect(), "{name}");
            }
            StatsEmissions(times) => {
                let stats = self.stats.outputs().iter().filter(|(_, output)| matches!(output, Output::Stats(_)));
                assert_eq!(stats.count(), times, "{name}");
            }
            TooLate(ids) => {
                let late = self.stats.outputs().iter().filter_map(|(_, output)| match output {
                    Output::TooLate(payment) => Some(payment.payment_id.as_str()),
                    Output::Stats(_) => None,
                });
                assert_eq!(late.collect::<Vec<_>>(), ids, "{name}");
            }
            Sessions(rows) => {
                let sessions = self.sessions.outputs().iter().map(|(_, s)| {
                    (s.card_id.as_str(), s.session_start_ms, s.session_end_ms, s.payment_count, s.amount_minor)
                });
                assert_eq!(sessions.collect::<Vec<_>>(), rows, "{name}");
            }
            SessionsDropped(times) => {
                assert_eq!(self.sessions.counter(LATE_DROPPED), times, "{name}")
            }
            Alerts(rows) => {
                let alerts = self.velocity.outputs().iter().chain(self.amount.outputs());
                let alerts = alerts.map(|(_, alert)| (alert.alert_id.as_str(), alert.detail.as_str()));
                assert_eq!(alerts.collect::<Vec<_>>(), rows, "{name}");
            }
            LateEvents(times) => assert_eq!(self.probe.late_events(), times, "{name}"),
            Duplicates(times) => assert_eq!(self.duplicates, times, "{name}"),
        }
    }
}

fn run(velocity_limit: i64, amount_limit: i64, cases: &[Case]) {
    for Case { name, steps, expect } in cases {
        let mut pipeline = Pipeline::new(velocity_limit, amount_limit);
        steps.iter().for_each(|step| pipeline.step(step));
        expect.iter().for_each(|expect| pipeline.check(name, expect));
    }
}

#[test]
fn lesson_5_vectors() {
    run(
        10,
        2_000_000,
        &[
            Case {
                name: "a valid payment",
                steps: &[Pay("p1", "c1", "m1", 1_500, 1_000), End],
                expect: &[Sessions(&[("c1", 1_000, 31_000, 1, 1_500)])],
            },
            Case {
                name: "the watermark is newest - 10 s - 1 ms: late by 1 ms of order",
                steps: &[
                    Pay("p1", "c1", "m1", 1_000, 43_205_000),
                    Pay("p2", "c2", "m1", 1_000, 43_212_000),
                    Pay("p3", "c3", "m1", 1_000, 43_209_000),
                    Pay("p4", "c4", "m1", 1_000, 43_201_000),
                    Pay("p5", "c5", "m1", 1_000, 43_202_000),
                ],
                expect: &[LateEvents(1)],
            },
            Case {
                name: "rejected records do not move the watermark",
                steps: &[Pay("p1", "c1", "m1", 1_000, 20_000), Rejected, Pay("p3", "c1", "m1", 1_000, 10_000)],
                expect: &[LateEvents(0)],
            },
            Case {
                name: "no watermark before the first record",
                steps: &[Pay("p1", "c1", "m1", 1_000, 1)],
                expect: &[LateEvents(0), SessionsDropped(0)],
            },
            Case {
                name: "late events go on: 5,000, watermark 10,000, 4,000",
                steps: &[Pay("p1", "c1", "m1", 100, 5_000), Watermark(10_000), Pay("p2", "c1", "m1", 100, 4_000), End],
                expect: &[LateEvents(1), Sessions(&[("c1", 4_000, 35_000, 2, 200)])],
            },
        ],
    );
}

#[test]
fn lesson_6_merchant_vectors() {
    run(
        10,
        2_000_000,
        &[
            Case {
                name: "the lesson's test",
                steps: &[
                    Pay("p1", "c1", "m1", 100, 1_000),
                    Pay("p2", "c2", "m1", 200, 59_000),
                    Pay("p3", "c3", "m2", 300, 10_000),
                    Pay("p4", "c4", "m1", 400, 61_000),
                    End,
                ],
                expect: &[
                    Stats(&[("m1", 0, 60_000, 2, 300), ("m2", 0, 60_000, 1, 300), ("m1", 60_000, 120_000, 1, 400)]),
                    TooLate(&[]),
                ],
            },
            Case {
                name: "windows are aligned to the epoch",
                steps: &[Pay("p1", "c1", "m1", 100, 1_794_085_549_065), End],
                expect: &[Stats(&[("m1", 1_794_085_500_000, 1_794_085_560_000, 1, 100)])],
            },
            Case {
                name: "nothing fires before the end",
                steps: &[Pay("p1", "c1", "m", 100, 1_000), Watermark(59_998)],
                expect: &[Stats(&[])],
            },
            Case {
                name: "fires at end - 1",
                steps: &[Pay("p1", "c1", "m", 100, 1_000), Watermark(59_999)],
                expect: &[Stats(&[("m", 0, 60_000, 1, 100)])],
            },
            Case {
                name: "a late firing repeats the whole total",
                steps: &[Pay("p1", "c1", "m", 100, 1_000), Watermark(60_000), Pay("p2", "c1", "m", 50, 30_000)],
                expect: &[Stats(&[("m", 0, 60_000, 2, 150)]), StatsEmissions(2)],
            },
            Case {
                name: "too late at cleanup time",
                steps: &[
                    Pay("p1", "c1", "m", 100, 1_000),
                    Watermark(60_000),
                    Pay("p2", "c1", "m", 50, 30_000),
                    Watermark(119_999),
                    Pay("p3", "c1", "m", 7, 59_000),
                ],
                expect: &[Stats(&[("m", 0, 60_000, 2, 150)]), TooLate(&["p3"])],
            },
            Case {
                name: "accepted 1 ms before cleanup time",
                steps: &[
                    Pay("p1", "c1", "m", 100, 1_000),
                    Watermark(60_000),
                    Pay("p2", "c1", "m", 50, 30_000),
                    Watermark(119_998),
                    Pay("p3", "c1", "m", 7, 59_000),
                ],
                expect: &[Stats(&[("m", 0, 60_000, 3, 157)]), TooLate(&[]), StatsEmissions(3)],
            },
            Case {
                name: "a late payment of an unseen window fires at once",
                steps: &[Watermark(60_000), Pay("p2", "c1", "m", 50, 30_000)],
                expect: &[Stats(&[("m", 0, 60_000, 1, 50)])],
            },
        ],
    );
}

#[test]
fn lesson_6_session_vectors() {
    run(
        10,
        2_000_000,
        &[
            Case {
                name: "the lesson's test",
                steps: &[
                    Pay("p1", "c1", "m1", 100, 1_000),
                    Pay("p2", "c1", "m1", 200, 20_000),
                    Pay("p3", "c1", "m1", 400, 100_000),
                    End,
                ],
                expect: &[Sessions(&[("c1", 1_000, 50_000, 2, 300), ("c1", 100_000, 130_000, 1, 400)])],
            },
            Case {
                name: "a pause of exactly 30 s continues",
                steps: &[Pay("p1", "c1", "m1", 1_000, 1_000), Pay("p2", "c1", "m1", 1_000, 31_000), End],
                expect: &[Sessions(&[("c1", 1_000, 61_000, 2, 2_000)])],
            },
            Case {
                name: "a pause of 30,001 ms starts a new one",
                steps: &[Pay("p1", "c1", "m1", 1_000, 1_000), Pay("p2", "c1", "m1", 1_000, 31_001), End],
                expect: &[Sessions(&[("c1", 1_000, 31_000, 1, 1_000), ("c1", 31_001, 61_001, 1, 1_000)])],
            },
            Case {
                name: "a bridging payment joins two",
                steps: &[
                    Pay("p1", "c1", "m1", 1_000, 1_000),
                    Pay("p2", "c1", "m1", 1_000, 40_000),
                    Pay("p3", "c1", "m1", 1_000, 25_000),
                    End,
                ],
                expect: &[Sessions(&[("c1", 1_000, 70_000, 3, 3_000)])],
            },
            Case {
                name: "fires at end - 1",
                steps: &[Pay("p1", "c1", "m1", 1_000, 1_000), Watermark(30_999)],
                expect: &[Sessions(&[("c1", 1_000, 31_000, 1, 1_000)])],
            },
            Case {
                name: "not before end - 1",
                steps: &[Pay("p1", "c1", "m1", 1_000, 1_000), Watermark(30_998)],
                expect: &[Sessions(&[])],
            },
            Case {
                name: "a late payment makes a second, overlapping session",
                steps: &[
                    Pay("p1", "c1", "m1", 1_000, 1_000),
                    Watermark(30_999),
                    Pay("p2", "c1", "m1", 1_000, 20_000),
                    Watermark(49_999),
                ],
                expect: &[Sessions(&[("c1", 1_000, 31_000, 1, 1_000), ("c1", 20_000, 50_000, 1, 1_000)])],
            },
            Case {
                name: "dropped at t + 29,999 <= watermark",
                steps: &[Watermark(30_999), Pay("p1", "c1", "m1", 1_000, 1_000), End],
                expect: &[Sessions(&[]), SessionsDropped(1)],
            },
            Case {
                name: "kept 1 ms earlier",
                steps: &[Watermark(30_998), Pay("p1", "c1", "m1", 1_000, 1_000), End],
                expect: &[Sessions(&[("c1", 1_000, 31_000, 1, 1_000)]), SessionsDropped(0)],
            },
        ],
    );
}

#[test]
fn lesson_7_dedup_vectors() {
    run(
        10,
        2_000_000,
        &[
            Case {
                name: "the lesson's test",
                steps: &[
                    Pay("p1", "c1", "m1", 1_000, 1_000),
                    Pay("p1", "c1", "m1", 1_000, 1_000),
                    Pay("p2", "c1", "m1", 1_000, 2_000),
                    End,
                ],
                expect: &[Sessions(&[("c1", 1_000, 32_000, 2, 2_000)]), Duplicates(1)],
            },
            Case {
                name: "the first arrival wins",
                steps: &[Pay("p1", "c1", "m1", 100, 1_000), Pay("p1", "c2", "m2", 999, 1_500), End],
                expect: &[Stats(&[("m1", 0, 60_000, 1, 100)])],
            },
        ],
    );
}

#[test]
fn lesson_7_velocity_vectors_at_limit_10() {
    run(
        10,
        2_000_000,
        &[
            Case {
                name: "bucket precision",
                steps: &[Series("a", "c1", 2_000, 6, 0), Series("b", "c1", 65_000, 5, 0)],
                expect: &[Alerts(&[("velocity:b5", "11 платежей за минуту")])],
            },
            Case {
                name: "a burst of 25 gives one alert",
                steps: &[Series("p", "c1", 1_000, 25, 1)],
                expect: &[Alerts(&[("velocity:p11", "11 платежей за минуту")])],
            },
        ],
    );
}

#[test]
fn lesson_7_velocity_vectors_at_limit_3() {
    run(
        3,
        2_000_000,
        &[
            Case {
                name: "fourth payment",
                steps: &[Series("p", "c1", 1_000, 4, 1_000)],
                expect: &[Alerts(&[("velocity:p4", "4 платежей за минуту")])],
            },
            Case { name: "three payments", steps: &[Series("p", "c1", 1_000, 3, 1_000)], expect: &[Alerts(&[])] },
            Case {
                name: "one alert",
                steps: &[Series("p", "c1", 1_000, 6, 1_000)],
                expect: &[Alerts(&[("velocity:p4", "4 платежей за минуту")])],
            },
            Case {
                name: "cards are separate",
                steps: &[Series("a", "c1", 1_000, 2, 1_000), Series("b", "c2", 3_000, 2, 1_000)],
                expect: &[Alerts(&[])],
            },
            Case {
                name: "eviction",
                steps: &[Series("p", "c1", 1_000, 3, 1_000), Watermark(200_000), Pay("p4", "c1", "m1", 1_000, 201_000)],
                expect: &[Alerts(&[])],
            },
            Case {
                name: "a late payment counts newer buckets",
                steps: &[Series("p", "c1", 61_000, 3, 1_000), Pay("p4", "c1", "m1", 1_000, 30_000)],
                expect: &[Alerts(&[("velocity:p4", "4 платежей за минуту")])],
            },
        ],
    );
}

#[test]
fn lesson_7_velocity_vectors_at_limit_1() {
    run(
        1,
        2_000_000,
        &[
            Case {
                name: "bucket still counted at 69,999",
                steps: &[Pay("p1", "c1", "m1", 1_000, 1), Pay("p2", "c1", "m1", 1_000, 69_999)],
                expect: &[Alerts(&[("velocity:p2", "2 платежей за минуту")])],
            },
            Case {
                name: "bucket not counted at 70,000",
                steps: &[Pay("p1", "c1", "m1", 1_000, 1), Pay("p2", "c1", "m1", 1_000, 70_000)],
                expect: &[Alerts(&[])],
            },
            Case {
                name: "silent for 60 s, inclusive",
                steps: &[
                    Pay("p1", "c1", "m1", 1_000, 1_000),
                    Pay("p2", "c1", "m1", 1_000, 2_000),
                    Pay("p3", "c1", "m1", 1_000, 61_000),
                    Pay("p4", "c1", "m1", 1_000, 62_000),
                ],
                expect: &[Alerts(&[("velocity:p2", "2 платежей за минуту"), ("velocity:p4", "4 платежей за минуту")])],
            },
            Case {
                name: "a late payment older than the last alert is silent",
                steps: &[
                    Pay("p1", "c1", "m1", 1_000, 11_000),
                    Pay("p2", "c1", "m1", 1_000, 12_000),
                    Pay("p3", "c1", "m1", 1_000, 5_000),
                ],
                expect: &[Alerts(&[("velocity:p2", "2 платежей за минуту")])],
            },
        ],
    );
}

#[test]
fn lesson_7_amount_vectors_at_limit_1000() {
    run(
        10,
        1_000,
        &[
            Case {
                name: "5 minutes apart",
                steps: &[Pay("p1", "c1", "m1", 600, 1_000), Pay("p2", "c1", "m1", 600, 300_000)],
                expect: &[Alerts(&[("amount-spike:p2", "потрачено 1200 за 10 минут")])],
            },
            Case {
                name: "more than 10 minutes apart",
                steps: &[Pay("p1", "c1", "m1", 600, 1_000), Pay("p2", "c1", "m1", 600, 700_000)],
                expect: &[Alerts(&[])],
            },
            Case {
                name: "counted at 659,999",
                steps: &[Pay("p1", "c1", "m1", 600, 1_000), Pay("p2", "c1", "m1", 600, 659_999)],
                expect: &[Alerts(&[("amount-spike:p2", "потрачено 1200 за 10 минут")])],
            },
            Case {
                name: "not counted at 660,000",
                steps: &[Pay("p1", "c1", "m1", 600, 1_000), Pay("p2", "c1", "m1", 600, 660_000)],
                expect: &[Alerts(&[])],
            },
            Case {
                name: "exactly the limit is silent",
                steps: &[Pay("p1", "c1", "m1", 500, 1_000), Pay("p2", "c1", "m1", 500, 2_000)],
                expect: &[Alerts(&[])],
            },
        ],
    );
}
