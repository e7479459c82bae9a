//! Raw records of Kafka partitions, drawn from a seed.

use payguard_model::{EventTime, ParsePolicy, ProcessingTime, parse_payment};
use payguard_sim::Rng;
use payguard_sim::reference::RawRecord;

/// Event time of the first record.
pub const START_MS: i64 = 1_794_085_500_000;
/// Processing time of a run: after every event.
pub const NOW_MS: i64 = START_MS + 7_200_000;

/// What a run of records is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// An event is at most this late, milliseconds.
    pub late_ms: i64,
    /// Share of events that are late at all, in a thousand.
    pub late_permille: u64,
    /// Share of repeats of an earlier record, in a thousand.
    pub repeats: u64,
    /// Share of records that are refused, in a thousand.
    pub bad: u64,
    /// Cards that pay.
    pub cards: u64,
    /// Merchants that are paid.
    pub merchants: u64,
    /// Event time between records, milliseconds at most.
    pub step_ms: i64,
    /// Event times are multiples of this, so that watermarks and timers often coincide.
    pub grain_ms: i64,
    /// Whether small and large amounts and other countries are mixed in, so that every rule fires.
    pub is_attacked: bool,
}

impl Shape {
    /// Disorder within the bound, with repeats and broken records.
    pub const TIDY: Shape = Shape {
        late_ms: 10_000,
        late_permille: 500,
        repeats: 80,
        bad: 60,
        cards: 4,
        merchants: 3,
        step_ms: 6_000,
        grain_ms: 1,
        is_attacked: false,
    };

    /// Late by up to 200 s.
    pub const DIRTY: Shape = Shape { late_ms: 200_000, late_permille: 300, ..Shape::TIDY };

    /// Late by up to 200 s, all times whole seconds.
    pub const COARSE: Shape = Shape { grain_ms: 1_000, ..Shape::DIRTY };

    /// The same with everything that raises an alert.
    #[must_use]
    pub const fn attacked(self) -> Shape {
        Shape { is_attacked: true, ..self }
    }
}

/// A confirmation, and what the payments' watermark was when it came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Confirmation {
    /// The record.
    pub record: RawRecord,
    /// The watermark.
    pub bound: EventTime,
    /// How many payments had come before it.
    pub after: usize,
}

/// Confirmations of most of these payments, offsets from 0: some in time, some too late, some before their payment,
/// some twice, some that are none.
#[must_use]
pub fn confirmations(seed: u64, payments: &[RawRecord]) -> Vec<Confirmation> {
    let mut rng = Rng::new(seed ^ 0x00c0_4f14);
    let policy = ParsePolicy::default();
    let mut newest = None;
    let mut watermarks = vec![EventTime::MIN];
    let mut arrivals: Vec<(usize, Vec<u8>)> = Vec::new();
    for (at, record) in payments.iter().enumerate() {
        let parsed = record.value.as_ref().map(|raw| parse_payment(raw, ProcessingTime(NOW_MS), &policy));
        if let Some(Ok(payment)) = &parsed {
            for chance in [800, 80] {
                if rng.chance(chance) {
                    let after = if rng.chance(150) {
                        at.saturating_sub(below(&mut rng, 9))
                    } else {
                        at + 1 + below(&mut rng, 20)
                    };
                    let delay =
                        if rng.chance(80) { rng.between(299_990, 300_030) } else { rng.between(-1_000, 30_000) };
                    let text = confirmation_json(&payment.payment_id, payment.event_time_ms + delay);
                    let text = if rng.chance(30) { text.replace("eventTimeMs", "when") } else { text };
                    arrivals.push((after.min(payments.len()), text.into_bytes()));
                }
            }
        }
        let time = match parsed {
            None => None,
            Some(Ok(payment)) => Some(payment.event_time_ms),
            Some(Err(_)) => record.timestamp,
        };
        newest = newest.max(time);
        watermarks.push(newest.map_or(EventTime::MIN, |time| EventTime(time - 10_001)));
    }
    arrivals.sort_by_key(|(after, _)| *after);
    let confirmation = |(offset, (after, text)): (i64, (usize, Vec<u8>))| Confirmation {
        record: RawRecord { offset, timestamp: None, value: Some(text) },
        bound: watermarks[after],
        after,
    };
    (0..).zip(arrivals).map(confirmation).collect()
}

/// One confirmation as JSON.
#[must_use]
pub fn confirmation_json(id: &str, time: i64) -> String {
    format!(r#"{{"paymentId":"{id}","status":"APPROVED","eventTimeMs":{time}}}"#)
}

fn below(rng: &mut Rng, bound: u64) -> usize {
    usize::try_from(rng.below(bound)).unwrap_or(0)
}

/// `count` records of one partition, offsets from 0.
#[must_use]
pub fn records(seed: u64, count: usize, shape: Shape) -> Vec<RawRecord> {
    let mut rng = Rng::new(seed);
    let mut records: Vec<RawRecord> = Vec::with_capacity(count);
    let mut newest = START_MS;
    for offset in 0..i64::try_from(count).unwrap_or(0) {
        newest += rng.between(0, shape.step_ms);
        if rng.chance(15) {
            // A pause that ends sessions and closes windows.
            newest += 45_000;
        }
        let timestamp = Some(newest);
        let value = if rng.chance(shape.repeats) && !records.is_empty() {
            rng.pick(&records).value.clone()
        } else if rng.chance(shape.bad) {
            refused(&mut rng)
        } else {
            Some(payment(&mut rng, seed, offset, newest, shape).into_bytes())
        };
        records.push(RawRecord { offset, timestamp, value });
    }
    records
}

/// One payment as JSON.
#[must_use]
pub fn payment_json(id: &str, card: &str, merchant: &str, amount: i64, time: i64) -> String {
    format!(
        r#"{{"paymentId":"{id}","cardId":"{card}","merchantId":"{merchant}","amountMinor":{amount},"currency":"EUR","country":"DE","eventTimeMs":{time}}}"#
    )
}

fn payment(rng: &mut Rng, seed: u64, offset: i64, newest: i64, shape: Shape) -> String {
    let late = if rng.chance(shape.late_permille) { rng.between(0, shape.late_ms + 1) } else { 0 };
    let id = match rng.chance(800) {
        true => format!("{:08x}-0000-4000-8000-{offset:012x}", rng.bits() >> 32),
        false => format!("p-{seed}-{offset}"),
    };
    let card = format!("c-{:04}", rng.below(shape.cards));
    let merchant = format!("m-{:04}", rng.below(shape.merchants));
    let amount = rng.between(1, 3_000);
    let time = (newest - late) / shape.grain_ms * shape.grain_ms;
    if !shape.is_attacked {
        return payment_json(&id, &card, &merchant, amount, time);
    }
    let amount = match rng.below(4) {
        0 => amount,
        1 => 30_000 + amount,
        _ => 1 + amount % 499,
    };
    let country = *rng.pick(&["DE", "DE", "DE", "DE", "DE", "FR", "PL"]);
    payment_json(&id, &card, &merchant, amount, time).replace(r#""country":"DE""#, &format!(r#""country":"{country}""#))
}

fn refused(rng: &mut Rng) -> Option<Vec<u8>> {
    let text = match rng.below(4) {
        0 => return None,
        1 => "{\"paymentId\": broken".to_owned(),
        2 => payment_json("", "c-0001", "m-0001", 5, START_MS),
        _ => payment_json("p", "c-0001", "m-0001", -5, START_MS),
    };
    Some(text.into_bytes())
}
