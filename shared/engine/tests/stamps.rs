//! The stamps of a task's outputs, whatever timers it has.

use payguard_engine::StageId;
use payguard_engine::logic::{Collector, Origin};
use payguard_engine::merge::Alignment;
use payguard_engine::merge::{BufferedRow, Merger, Next};
use payguard_engine::segment::{Arrival, SegmentBuilder, SliceReader, Stamp, open};
use payguard_engine::{InputState, TaskId};
use payguard_model::{EventTime, Payment, ProcessingTime};

/// The stamps of what was emitted to the only stream, in order.
fn stamps(out: Collector) -> Vec<i64> {
    let segment = out.finish().0.finish(&[]);
    let slice = &segment.slices[0];
    let mut reader = SliceReader::new(open(slice, &segment.bytes).expect("whole"), slice.count).expect("records");
    let mut stamps = Vec::new();
    while let Some(record) = reader.take().expect("a record") {
        stamps.push(record.header.stamp.watermark.0);
    }
    stamps
}

#[test]
fn the_watermark_of_a_batch_never_goes_back_and_neither_do_stamps() {
    let mut out = Collector::new(SegmentBuilder::new([("s", 1)]), EventTime(10), ProcessingTime(0), Origin::default());
    for watermark in [5, 30, 20] {
        out.advance(EventTime(watermark));
        out.emit(0, "k", EventTime(0), &Payment::default());
    }
    assert_eq!(out.watermark(), EventTime(30));
    assert_eq!(stamps(out), [10, 30, 30]);
}

/// What a timer emits may bear the timer's time; a reader whose time had come there would drop it.
#[test]
fn what_a_timer_emits_comes_before_the_timers_time() {
    let mut out = Collector::new(SegmentBuilder::new([("s", 1)]), EventTime(10), ProcessingTime(0), Origin::default());
    let emit = |out: &mut Collector| out.emit(0, "k", EventTime(0), &Payment::default());
    // A timer in the past, one in the next millisecond, two later ones; then records again.
    for time in [3, 11, 20, 25] {
        out.advance_to_timer(EventTime(time));
        assert_eq!(out.watermark(), EventTime(time.max(10)), "the operators' time");
        emit(&mut out);
    }
    out.advance(EventTime(25));
    emit(&mut out);
    assert_eq!(stamps(out), [10, 10, 19, 24, 25]);
}

#[test]
fn two_streams_of_one_producer_are_read_in_the_order_of_emission_where_their_stamps_are_equal() {
    let id = TaskId::shard(&StageId::new("up"), 0).to_string();
    let at_7 = Stamp { watermark: EventTime(7), arrival: Arrival::default() };
    let mut seen = Vec::new();
    // Emitted b, a, b, a at one watermark: in one commit, or cut after the second.
    for commits in [vec![vec!["b1", "a2", "b3", "a4"]], vec![vec!["b1", "a2"], vec!["b3", "a4"]]] {
        let mut merger = Merger::new(Alignment::Strict);
        merger.add(&id, InputState::untouched(0));
        for (seq, commit) in (1i64..).zip(commits) {
            let mut builder = SegmentBuilder::new([("a", 1), ("b", 1)]);
            for name in commit {
                let stream = usize::from(name.starts_with('b'));
                builder.push(stream, 0, at_7, EventTime(7), 2, |b| b.extend_from_slice(name.as_bytes()));
            }
            let segment = builder.finish(&[]);
            let slices = segment.slices.iter().map(|slice| {
                let from = usize::try_from(slice.offset).expect("small");
                let stored = segment.bytes.slice(from..from + usize::try_from(slice.len).expect("small"));
                let reader = SliceReader::new(open(slice, &stored).expect("whole"), slice.count).expect("records");
                (usize::from(slice.stream == "b"), reader)
            });
            let row = BufferedRow { seq, watermark: EventTime(7), idle: false, sealed: None, slices: slices.collect() };
            merger.push(&id, row).expect("a row");
        }
        let mut order = Vec::new();
        while let Next::Record(record) = merger.take_next().expect("records") {
            order.push(String::from_utf8_lossy(record.payload).into_owned());
        }
        seen.push(order);
    }
    assert_eq!(seen, [["b1", "a2", "b3", "a4"], ["b1", "a2", "b3", "a4"]]);
}
