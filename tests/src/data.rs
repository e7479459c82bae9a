//! Raw records of Kafka partitions, drawn from a seed.

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
    };

    /// Late by up to 200 s.
    pub const DIRTY: Shape = Shape { late_ms: 200_000, late_permille: 300, ..Shape::TIDY };

    /// Late by up to 200 s, all times whole seconds.
    pub const COARSE: Shape = Shape { grain_ms: 1_000, ..Shape::DIRTY };
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
    payment_json(&id, &card, &merchant, rng.between(1, 3_000), (newest - late) / shape.grain_ms * shape.grain_ms)
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
