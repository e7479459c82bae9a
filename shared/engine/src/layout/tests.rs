//! Every record is taken once, by old tasks or new ones.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::ids::Seq;

const INPUT: &str = "up/0";

fn stage() -> StageId {
    StageId::new("rules")
}

#[test]
fn a_task_says_where_it_belongs() {
    let (first, second) = (Layout::first(2), Layout::first(2).next(4));
    assert_eq!(first.tasks(&stage()).iter().map(TaskId::to_string).collect::<Vec<_>>(), ["rules/0", "rules/1"]);
    assert_eq!(second.task(&stage(), 1).to_string(), "rules/g2.1of4");
    for (layout, shard) in [(first, 1), (second, 3), (second.next(128), 127)] {
        assert_eq!(place(&layout.task(&stage(), shard), first), Some((layout, shard)));
    }
    for text in ["rules/2", "rules/g2.4of4", "rules/g2.1", "rules/gx.1of4", "rules/payments.raw-0"] {
        assert_eq!(place(&text.parse().unwrap(), first), None, "{text}");
    }
    assert_eq!(Layout::newest(first, &first.tasks(&stage())), first);
    let all = [first.tasks(&stage()), second.tasks(&stage()), second.next(3).tasks(&stage())].concat();
    assert_eq!(Layout::newest(first, &all), second.next(3));
}

/// Rows of records, each a key group. A record's place is its name.
type Rows = Vec<Vec<u32>>;

/// What tasks of `layout` have left to take, given what those before them have: (row, order) by task.
fn reads(rows: &Rows, groups: &Range<u32>, taken: &[Taken]) -> Vec<(i64, u64)> {
    let view = View { groups, taken };
    let mut read = Vec::new();
    for (seq, row) in (1i64..).zip(rows) {
        let records: Vec<(u64, u32)> = (0u64..).zip(row.iter().copied()).collect();
        // Slices come by shard, not in the order of emission.
        let (even, odd): (Vec<_>, Vec<_>) = records.iter().copied().partition(|(_, group)| group % 2 == 0);
        let records = [odd, even].concat();
        let mine = view.select(INPUT, seq, &records);
        let mut orders: Vec<u64> = records.iter().zip(mine).filter(|(_, mine)| *mine).map(|(r, _)| r.0).collect();
        orders.sort_unstable();
        read.extend(orders.into_iter().map(|order| (seq, order)));
    }
    read
}

/// The position after `count` records, as the merge counts: rows without records left are passed at once.
fn position(rows: &Rows, all: &[(i64, u64)], count: usize) -> Position {
    let Some(next) = all.get(count) else { return Position { at: i64::try_from(rows.len()).unwrap(), within: 0 } };
    let within = all[..count].iter().filter(|r| r.0 == next.0).count();
    Position { at: next.0 - 1, within: u32::try_from(within).unwrap() }
}

fn head(position: Position) -> Head {
    let state = InputState { position, watermark_ms: position.at, idle: false };
    Head { inputs: [(INPUT.to_owned(), state)].into(), watermark_ms: position.at, seq: 5, ..Head::empty() }
}

proptest! {
    #[test]
    fn over_several_layouts_every_record_is_taken_once_and_in_order(
        rows in prop::collection::vec(prop::collection::vec(0u32..KEY_GROUPS, 0..12), 0..12),
        shards in prop::collection::vec(1u32..6, 1..5),
        shares in prop::collection::vec(0usize..=10, 40),
    ) {
        let mut shares = shares.into_iter().cycle();
        let mut layout = Layout::first(shards[0]);
        let mut begins = vec![Head::empty(); shards[0] as usize];
        let mut taken_by: BTreeMap<(i64, u64), Vec<u32>> = BTreeMap::new();
        for (number, next) in shards.iter().skip(1).chain(&[1]).enumerate() {
            let is_last = number + 1 == shards.len();
            let mut sealed = Vec::new();
            for (shard, begin) in (0..).zip(&begins) {
                let groups = layout.groups(shard);
                let all = reads(&rows, &groups, &begin.taken);
                // What lies before the position it began at, none is left to take.
                let at = begin.inputs.get(INPUT).map_or(0, |s| s.position.at);
                prop_assert!(all.iter().all(|(seq, _)| *seq > at));
                let count = if is_last { all.len() } else { all.len() * shares.next().unwrap() / 10 };
                for record in &all[..count] {
                    taken_by.entry(*record).or_default().push(layout.generation);
                }
                let end = position(&rows, &all, count);
                prop_assert!(end.at >= at);
                let end = Head { generation: layout.generation, taken: begin.taken.clone(), ..head(end) };
                sealed.push((groups, end));
            }
            let following = layout.next(*next);
            let of = |shard| {
                let mine = following.groups(shard);
                let overlaps = |(groups, _): &&(Range<u32>, Head)| groups.start < mine.end && mine.start < groups.end;
                inherit(following, &sealed.iter().filter(overlaps).cloned().collect::<Vec<_>>())
            };
            begins = (0..*next).map(of).collect();
            layout = following;
        }
        for (seq, row) in (1i64..).zip(&rows) {
            for order in 0..row.len() as u64 {
                prop_assert_eq!(taken_by.get(&(seq, order)).map_or(0, Vec::len), 1, "row {} record {}", seq, order);
            }
        }
    }
}

#[test]
fn a_task_begins_with_the_least_of_what_those_before_it_had_reached() {
    let mut ahead = head(Position { at: 7, within: 2 });
    ahead
        .inputs
        .insert("up/1".to_owned(), InputState { position: Position { at: 3, within: 0 }, watermark_ms: 3, idle: true });
    let begin = inherit(Layout::first(2).next(1), &[(0..64, ahead), (64..128, head(Position { at: 4, within: 1 }))]);
    assert_eq!((begin.seq(), begin.generation, begin.shards, begin.watermark_ms), (Seq(0), 2, 1, 4));
    let known = InputState { position: Position { at: 4, within: 0 }, watermark_ms: 4, idle: false };
    let unknown = InputState::untouched(0);
    assert_eq!(begin.inputs, [(INPUT.to_owned(), known), ("up/1".to_owned(), unknown)].into());
    // What was taken before is told apart until the task has read as far.
    let read = |at, of_other| {
        let state = |at| InputState { position: Position { at, within: 0 }, ..unknown };
        BTreeMap::from([(INPUT.to_owned(), state(at)), ("up/1".to_owned(), state(of_other))])
    };
    let ahead =
        |inputs: &BTreeMap<InputId, InputState>| begin.taken.iter().map(|t| t.is_ahead_of(inputs)).collect::<Vec<_>>();
    assert_eq!(ahead(&begin.inputs), [true, true]);
    assert_eq!(ahead(&read(5, 0)), [true, false]);
    assert_eq!(ahead(&read(8, 2)), [true, false]);
    assert_eq!(ahead(&read(7, 3)), [true, false]);
    assert_eq!(ahead(&read(8, 3)), [false, false]);
}

#[test]
fn lesson_13_ranges_sources_and_moved_groups() {
    let ranges = |shards: u32| (0..shards).map(|shard| Layout::first(shards).groups(shard)).collect::<Vec<_>>();
    assert_eq!(ranges(4), [0..32, 32..64, 64..96, 96..128]);
    assert_eq!(ranges(3), [0..43, 43..86, 86..128]);
    assert_eq!(ranges(2), [0..64, 64..128]);
    // Change, the old shards whose groups each new one takes over, groups that change their shard.
    let cases: [(u32, u32, &[&[u32]], usize); 4] = [
        (2, 4, &[&[0], &[0], &[1], &[1]], 96),
        (2, 3, &[&[0], &[0, 1], &[1]], 63),
        (4, 2, &[&[0, 1], &[2, 3]], 96),
        (1, 2, &[&[0], &[0]], 64),
    ];
    for (old, new, sources, moved) in cases {
        let (before, after) = (ranges(old), ranges(new));
        for (mine, sources) in after.iter().zip(sources) {
            let overlap = |theirs: &std::ops::Range<u32>| theirs.start < mine.end && mine.start < theirs.end;
            let found: Vec<u32> = (0..old).filter(|shard| overlap(&before[*shard as usize])).collect();
            assert_eq!(found, *sources, "{old} to {new}");
        }
        let owner = |ranges: &[std::ops::Range<u32>], group| ranges.iter().position(|range| range.contains(&group));
        let found = (0..KEY_GROUPS).filter(|group| owner(&before, *group) != owner(&after, *group)).count();
        assert_eq!(found, moved, "{old} to {new}");
    }
}
