//! The merged order depends on the inputs alone.
#![allow(clippy::unwrap_used)]

use bytes::BufMut;
use proptest::prelude::*;

use super::*;
use crate::segment::{SegmentBuilder, open};

/// A record of an input: stamp and stream. Its place is its name.
type Sequence = Vec<(Stamp, usize)>;

const STREAMS: [&str; 2] = ["a", "b"];

/// A row of an input, ready to be opened any number of times.
#[derive(Clone, Debug)]
struct Row {
    records: Vec<(Stamp, usize, String)>,
    watermark: i64,
    idle: bool,
}

impl Row {
    fn open(&self, seq: i64) -> BufferedRow {
        let mut builder = SegmentBuilder::new(STREAMS.map(|s| (s, 1)));
        for (stamp, stream, name) in &self.records {
            builder.push(*stream, 0, *stamp, EventTime(0), name.len(), |b| b.put_slice(name.as_bytes()));
        }
        let segment = builder.finish(&[]);
        let slices = segment.slices.iter().map(|slice| {
            let from = usize::try_from(slice.offset).unwrap();
            let stored = segment.bytes.slice(from..from + usize::try_from(slice.len).unwrap());
            let stream = STREAMS.iter().position(|s| *s == slice.stream).unwrap();
            (stream, SliceReader::new(open(slice, &stored).unwrap(), slice.count).unwrap())
        });
        BufferedRow {
            seq,
            watermark: EventTime(self.watermark),
            idle: self.idle,
            sealed: None,
            slices: slices.collect(),
        }
    }
}

/// Cuts a sequence into rows; the last one ends the input.
fn cut(input: usize, sequence: &Sequence, cuts: &[bool]) -> Vec<Row> {
    let mut rows = vec![Row { records: Vec::new(), watermark: i64::MIN, idle: false }];
    for (i, (stamp, stream)) in sequence.iter().enumerate() {
        if cuts[i % cuts.len()] {
            // A row's watermark is that of its last record or, when time went on, that of the next.
            let last = rows.last_mut().unwrap();
            let reached = last.records.last().map_or(last.watermark, |r| r.0.watermark.0);
            last.watermark = if i % 2 == 0 { stamp.watermark.0 } else { reached };
            let from = last.watermark;
            rows.push(Row { records: Vec::new(), watermark: from, idle: false });
        }
        rows.last_mut().unwrap().records.push((*stamp, *stream, format!("{input}-{i}")));
    }
    let last = rows.last_mut().unwrap();
    last.watermark = last.records.last().map_or(last.watermark, |r| r.0.watermark.0);
    rows.push(Row { records: Vec::new(), watermark: i64::MAX, idle: false });
    rows
}

/// Two tasks of a stage, then those of another.
fn id(input: usize) -> InputId {
    format!("{}/{input}", stage(input))
}

fn stage(input: usize) -> &'static str {
    if input < 2 { "up" } else { "vp" }
}

/// A task that merges rows as they arrive.
struct Task<'r> {
    inputs: &'r [Vec<Row>],
    arrived: Vec<usize>,
    merger: Merger,
    watermark: EventTime,
    seen: Vec<(EventTime, usize, String)>,
}

impl<'r> Task<'r> {
    fn new(inputs: &'r [Vec<Row>], alignment: Alignment) -> Task<'r> {
        let mut merger = Merger::new(alignment);
        (0..inputs.len()).for_each(|i| merger.add(&id(i), InputState::untouched(0)));
        Task { inputs, arrived: vec![0; inputs.len()], merger, watermark: EventTime::MIN, seen: Vec::new() }
    }

    fn arrive(&mut self, input: usize) {
        let at = self.arrived[input];
        if let Some(row) = self.inputs[input].get(at) {
            self.merger.push(&id(input), row.open(i64::try_from(at).unwrap() + 1)).unwrap();
            self.arrived[input] += 1;
        }
    }

    /// Takes at most `limit` records, as a batch does.
    fn batch(&mut self, limit: usize) {
        for _ in 0..limit {
            self.watermark = self.watermark.max(self.merger.watermark().0);
            let Next::Record(record) = self.merger.take_next().unwrap() else { return };
            let name = String::from_utf8(record.payload.to_vec()).unwrap();
            self.seen.push((self.watermark, record.stream, name));
        }
        self.watermark = self.watermark.max(self.merger.watermark().0);
    }

    /// Goes on from the committed states alone.
    fn restart(&mut self) {
        let mut merger = Merger::new(self.merger.alignment);
        for (i, (id, state)) in self.merger.states().enumerate() {
            merger.add(id, *state);
            self.arrived[i] = usize::try_from(state.position.at).unwrap();
        }
        self.merger = merger;
    }

    /// Rows arrive, batches are taken, the task begins anew: in the order of `moves`.
    fn disturb(&mut self, moves: &[(usize, usize)]) {
        for (what, n) in moves {
            match what {
                0..=2 => self.arrive(n % self.inputs.len()),
                3 | 4 => self.batch(n + 1),
                _ => self.restart(),
            }
        }
    }

    fn finish(&mut self) {
        for input in 0..self.inputs.len() {
            while self.arrived[input] < self.inputs[input].len() {
                self.arrive(input);
            }
        }
        self.batch(usize::MAX);
    }

    /// What is known of a silent input: the watermark of its newest row, and whether it is idle.
    fn silent(&self, input: usize) -> Option<(i64, bool)> {
        let taken = |name: &String| self.seen.iter().any(|s| s.2 == *name);
        let rows = &self.inputs[input][..self.arrived[input]];
        let all_taken = rows.iter().flat_map(|r| &r.records).all(|r| taken(&r.2));
        all_taken.then(|| rows.last().map_or((i64::MIN, false), |r| (r.watermark, r.idle)))
    }
}

fn sequences() -> impl Strategy<Value = Vec<Sequence>> {
    let sequence = prop::collection::vec((0i64..4, any_arrival(), 0usize..2), 0..25).prop_map(|steps| {
        let mut reached = 0;
        let grow = |(step, arrival, stream): (i64, Arrival, usize)| {
            reached += step;
            (Stamp { watermark: EventTime(reached), arrival }, stream)
        };
        steps.into_iter().map(grow).collect::<Sequence>()
    });
    prop::collection::vec(sequence, 1..5)
}

fn any_arrival() -> impl Strategy<Value = Arrival> {
    (0u32..3, 0i64..4).prop_map(|(partition, offset)| Arrival { partition, offset })
}

fn cuts() -> impl Strategy<Value = Vec<bool>> {
    prop::collection::vec(any::<bool>(), 1..12)
}

/// The first record of the input with the smallest one, again and again: by watermark, stage, arrival and input.
fn merged(sequences: &[Sequence]) -> Vec<(EventTime, usize, String)> {
    let (mut all, mut taken) = (Vec::new(), vec![0; sequences.len()]);
    loop {
        let firsts = sequences.iter().enumerate().filter_map(|(input, sequence)| {
            let (stamp, stream) = sequence.get(taken[input])?;
            Some((stamp.watermark, stage(input), stamp.arrival, input, *stream))
        });
        let Some((watermark, _, _, input, stream)) = firsts.min() else { return all };
        all.push((watermark, stream, format!("{input}-{}", taken[input])));
        taken[input] += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn strictly_merged_order_and_watermarks_do_not_depend_on_rows_arrival_batches_or_restarts(
        sequences in sequences(),
        cuts in cuts(),
        moves in prop::collection::vec((0usize..6, 0usize..4), 0..80),
    ) {
        let inputs: Vec<Vec<Row>> = sequences.iter().enumerate().map(|(i, s)| cut(i, s, &cuts)).collect();
        let mut task = Task::new(&inputs, Alignment::Strict);
        task.disturb(&moves);
        task.finish();
        prop_assert_eq!(&task.seen, &merged(&sequences));
        prop_assert_eq!(task.watermark, EventTime::MAX);
        prop_assert!(task.merger.inputs().all(MergeInput::ended));
    }

    #[test]
    fn tasks_that_share_out_the_records_of_one_are_merged_into_what_it_would_have_emitted(
        records in prop::collection::btree_map((0i64..6, any_arrival()), (0usize..2, 0usize..2), 0..60),
        cuts in cuts(),
        moves in prop::collection::vec((0usize..6, 0usize..4), 0..80),
    ) {
        let stamp = |(watermark, arrival): &(i64, Arrival)| Stamp { watermark: EventTime(*watermark), arrival: *arrival };
        let share = |task: usize| records.iter().filter(move |(_, to)| to.0 == task);
        let sequence = |task| share(task).map(|(at, to)| (stamp(at), to.1)).collect();
        let sequences: [Sequence; 2] = [sequence(0), sequence(1)];
        let inputs: Vec<Vec<Row>> = sequences.iter().enumerate().map(|(i, s)| cut(i, s, &cuts)).collect();
        let mut task = Task::new(&inputs, Alignment::Strict);
        task.disturb(&moves);
        task.finish();
        let mut places = [0, 0];
        let expected = records.iter().map(|(at, (task, stream))| {
            places[*task] += 1;
            (EventTime(at.0), *stream, format!("{task}-{}", places[*task] - 1))
        });
        prop_assert_eq!(&task.seen, &expected.collect::<Vec<_>>());
    }

    #[test]
    fn with_a_bounded_drift_nothing_runs_further_ahead_and_nothing_is_lost(
        sequences in sequences(),
        cuts in cuts(),
        drift in 0i64..12,
        moves in prop::collection::vec(0usize..4, 0..80),
    ) {
        let inputs: Vec<Vec<Row>> = sequences.iter().enumerate().map(|(i, s)| cut(i, s, &cuts)).collect();
        let mut task = Task::new(&inputs, Alignment::MaxDrift(drift));
        for input in moves {
            task.arrive(input % inputs.len());
            loop {
                let before = task.seen.len();
                let bounds: Vec<i64> = (0..inputs.len())
                    .filter_map(|i| task.silent(i))
                    .filter(|(_, idle)| !idle)
                    .map(|(floor, _)| floor.saturating_add(drift))
                    .collect();
                task.batch(1);
                if task.seen.len() == before {
                    break;
                }
                let name = &task.seen[before].2;
                let stamp = inputs.iter().flatten().flat_map(|r| &r.records).find(|r| r.2 == *name).unwrap().0;
                let stamp = stamp.watermark.0;
                prop_assert!(bounds.iter().all(|bound| stamp <= *bound), "{name} at {stamp} beyond {bounds:?}");
            }
        }
        task.finish();
        let names = |seen: &[(EventTime, usize, String)]| {
            let mut names: Vec<String> = seen.iter().map(|s| s.2.clone()).collect();
            names.sort_unstable();
            names
        };
        prop_assert_eq!(names(&task.seen), names(&merged(&sequences)));
        // The watermark of a task never goes back, and no record came twice.
        prop_assert!(task.seen.is_sorted_by_key(|s| s.0));
    }
}

fn row(records: &[i64], watermark: i64, idle: bool, name: &str) -> Row {
    let stamp = |watermark: i64| Stamp { watermark: EventTime(watermark), arrival: Arrival::default() };
    Row { records: records.iter().map(|s| (stamp(*s), 0, format!("{name}{s}"))).collect(), watermark, idle }
}

fn names<'a>(task: &'a Task<'_>) -> Vec<&'a str> {
    task.seen.iter().map(|s| s.2.as_str()).collect()
}

#[test]
fn an_idle_input_holds_nothing_back_and_counts_again_when_it_returns() {
    for alignment in [Alignment::Strict, Alignment::MaxDrift(5)] {
        let inputs = [
            vec![row(&[1, 2], 2, false, "a"), row(&[50, 60], 60, false, "a"), row(&[70], 70, false, "a")],
            vec![row(&[1], 1, false, "b"), row(&[], 1, true, "b"), row(&[3], 3, false, "b")],
        ];
        let mut task = Task::new(&inputs, alignment);
        task.arrive(0);
        task.arrive(0);
        task.arrive(1);
        task.batch(99);
        assert!(!names(&task).contains(&"a50"), "{alignment:?}: {:?}", names(&task));
        task.arrive(1);
        task.batch(99);
        assert!(names(&task).contains(&"a60"), "{alignment:?}: an idle input is not waited for");
        assert_eq!(task.watermark, EventTime(60), "{alignment:?}");
        // It returns with old records: they come at once, the watermark stays, and it is waited for again.
        task.arrive(1);
        task.arrive(0);
        task.batch(99);
        assert_eq!(names(&task).last(), Some(&"b3"), "{alignment:?}");
        assert_eq!(task.seen.last().unwrap().0, EventTime(60), "{alignment:?}: time does not go back");
    }
}

#[test]
fn when_every_input_is_idle_the_furthest_one_gives_the_time() {
    let inputs = [vec![row(&[5], 5, true, "a")], vec![row(&[9], 9, true, "b")]];
    let mut task = Task::new(&inputs, Alignment::Strict);
    task.arrive(0);
    task.arrive(1);
    task.batch(99);
    assert_eq!(names(&task), ["a5", "b9"]);
    assert_eq!(task.merger.watermark(), (EventTime(9), true));
}

#[test]
fn without_alignment_nothing_is_waited_for() {
    let inputs = [vec![row(&[100], 100, false, "a")], vec![row(&[1], 1, false, "b")]];
    let mut task = Task::new(&inputs, Alignment::Off);
    task.arrive(0);
    task.batch(99);
    assert_eq!(names(&task), ["a100"]);
}
