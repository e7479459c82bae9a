//! States that differ in names alone are one state to the checker.
//!
//! The executors of a task are alike, and attempt ids are compared for equality only. So a state is counted as this run
//! of bytes: what is durable, then each executor with its attempts told by what they are equal to, in order.

use std::hash::{Hash, Hasher};

use crate::consumer;
use crate::durable::{At, Head, Log, MAX_ROWS, Name, Page, Row, Task};
use crate::memory::Memory;
use crate::model::State;
use crate::producer;
use crate::settle::Settling;

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write(&self.canonical());
    }
}

/// Bytes under way.
struct Bytes(Vec<u8>);

impl Bytes {
    fn add(&mut self, bytes: impl IntoIterator<Item = u8>) {
        self.0.extend(bytes);
    }

    fn flags<const N: usize>(&mut self, flags: [bool; N]) {
        self.0.push(flags.into_iter().fold(0, |byte, flag| byte * 2 + u8::from(flag)));
    }

    fn at(&mut self, at: At) {
        self.add([at.row, at.within]);
    }

    /// A head; its attempt is that of a row.
    fn head(&mut self, head: &Head, log: &Log) {
        self.add([head.seq, head.watermark, head.flushed]);
        self.at(head.at);
        self.flags([log.ever(head.seq).is_some_and(|row| row.attempt == head.attempt)]);
    }

    fn row(&mut self, row: &Row) {
        self.at(row.from);
        self.at(row.to);
        self.add([row.watermark, row.flushed, row.before.0]);
    }

    fn pages(&mut self, pages: &[Page]) {
        self.add([pages.len() as u8]);
        for page in pages {
            let (kind, tag) = match page.name {
                Name::Key(key) => (0, key),
                Name::Whole => (1, 0),
                Name::Added(seq, tag) => (2 + seq, tag),
            };
            self.add([kind, tag, page.seq, page.holds.0]);
        }
    }

    fn commit(&mut self, commit: &Settling, task: Task, state: &State) {
        let attempt = commit.row.attempt;
        let made = state.log(task).ever(commit.seq).is_some_and(|row| row.attempt == attempt);
        let delayed = state.delayed.is_some_and(|(of, seq, row)| (of, seq, row.attempt) == (task, commit.seq, attempt));
        let has_object = task == Task::Producer && state.objects.has(commit.seq, attempt);
        self.flags([made, delayed, has_object]);
        self.add([commit.seq, commit.step_number()]);
        self.row(&commit.row);
        if let Some(head) = commit.head_seen() {
            self.head(&head, state.log(task));
            self.flags([(head.seq, head.attempt) == (commit.seq, attempt)]);
        }
    }
}

impl State {
    /// Equal for states that differ in names alone.
    pub(crate) fn canonical(&self) -> Vec<u8> {
        let mut bytes = Bytes(Vec::with_capacity(256));
        self.durable(&mut bytes);
        let mut producers: Vec<Vec<u8>> = (0..).zip(&self.producers).map(|(at, p)| self.producer(at, p)).collect();
        let mut consumers: Vec<Vec<u8>> = (0..).zip(&self.consumers).map(|(at, c)| self.consumer(at, c)).collect();
        producers.sort_unstable();
        consumers.sort_unstable();
        for executor in producers.iter().chain(&consumers) {
            bytes.add([executor.len() as u8]);
            bytes.0.extend_from_slice(executor);
        }
        bytes.0
    }

    fn durable(&self, bytes: &mut Bytes) {
        for (log, has_objects) in [(&self.producer_log, true), (&self.consumer_log, false)] {
            bytes.head(&log.head, log);
            for seq in 1..=MAX_ROWS as u8 {
                let Some(row) = log.ever(seq) else { continue };
                bytes.row(&row);
                bytes.flags([true, log.is_collected(seq), has_objects && self.objects.has(seq, row.attempt)]);
            }
        }
        bytes.pages(&self.table.0);
        bytes.at(self.sink.at);
        bytes.add([self.sink.seq, self.sink.records, self.acknowledged]);
        bytes.add([self.faults.crashes, self.faults.lost, self.faults.late]);
        bytes.flags([self.delayed.is_some()]);
        if let Some((task, seq, row)) = &self.delayed {
            let made = self.log(*task).ever(*seq).is_some_and(|it| it.attempt == row.attempt);
            let has_object = *task == Task::Producer && self.objects.has(*seq, row.attempt);
            bytes.flags([*task == Task::Producer, made, has_object]);
            bytes.add([*seq]);
            bytes.row(row);
        }
        bytes.add(self.broken.bytes());
    }

    fn producer(&self, executor: u8, phase: &producer::Phase) -> Vec<u8> {
        use producer::Phase;
        let log = &self.producer_log;
        let mut bytes = Bytes(Vec::with_capacity(64));
        self.lease(executor, Task::Producer, &mut bytes);
        let memory = |bytes: &mut Bytes, memory: &Memory| {
            bytes.head(&memory.head, log);
            bytes.add(memory.rest());
        };
        match phase {
            Phase::Idle { memory: None } => bytes.add([0]),
            Phase::Idle { memory: Some(it) } => {
                bytes.add([1]);
                memory(&mut bytes, it);
            }
            Phase::Resume { deliver, memory: it } => {
                bytes.add([2, *deliver]);
                memory(&mut bytes, it);
            }
            Phase::Load { deliver, missing } => bytes.add([3, *deliver, *missing]),
            Phase::Pages { deliver, head, next, found } => {
                bytes.add([4, *deliver, *next]);
                bytes.head(head, log);
                bytes.pages(found);
            }
            Phase::Rows { deliver, memory: it, goal, listed } => {
                bytes.add([5, *deliver, u8::from(*listed)]);
                memory(&mut bytes, it);
                bytes.head(goal, log);
            }
            Phase::Ready { deliver, memory: it, fresh } => {
                bytes.add([6, *deliver, u8::from(*fresh)]);
                memory(&mut bytes, it);
            }
            Phase::Settle { deliver, memory: it, commit } => {
                bytes.add([7, *deliver]);
                memory(&mut bytes, it);
                bytes.commit(commit, Task::Producer, self);
            }
            Phase::Flush { deliver, memory: it, left } => {
                bytes.add([8, *deliver]);
                memory(&mut bytes, it);
                bytes.pages(left);
            }
        }
        bytes.0
    }

    fn consumer(&self, executor: u8, phase: &consumer::Phase) -> Vec<u8> {
        use consumer::Phase;
        let log = &self.consumer_log;
        let mut bytes = Bytes(Vec::with_capacity(64));
        self.lease(executor, Task::Consumer, &mut bytes);
        let with_head = |bytes: &mut Bytes, phase: u8, head: &Head| {
            bytes.add([phase]);
            bytes.head(head, log);
        };
        match phase {
            Phase::Idle { memory: None } => bytes.add([0]),
            Phase::Idle { memory: Some(head) } => with_head(&mut bytes, 1, head),
            Phase::Resume { memory } => with_head(&mut bytes, 2, memory),
            Phase::Load { missing } => bytes.add([3, *missing]),
            Phase::Follow { head } => with_head(&mut bytes, 4, head),
            Phase::Again { head } => with_head(&mut bytes, 5, head),
            Phase::Ready { memory } => with_head(&mut bytes, 6, memory),
            Phase::Rows { memory, opened, last } => {
                with_head(&mut bytes, 7, memory);
                bytes.add([*opened, *last]);
            }
            Phase::Write { memory, to, position_only } => {
                with_head(&mut bytes, 8, memory);
                bytes.at(*to);
                bytes.flags([*position_only]);
            }
            Phase::Settle { memory, commit, found } => {
                with_head(&mut bytes, 9, memory);
                bytes.flags([*found]);
                bytes.commit(commit, Task::Consumer, self);
            }
            Phase::Reread => bytes.add([10]),
        }
        bytes.0
    }

    fn lease(&self, executor: u8, task: Task, bytes: &mut Bytes) {
        let lease = self.leases[task as usize];
        let is_owner = lease.owner == Some(executor);
        bytes.flags([is_owner, is_owner && lease.is_over]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use stateright::Model as _;

    use super::*;
    use crate::config::{Config, Layout};
    use crate::model::Model;

    /// The canonical successors of every state; panics when two states are taken for one and go on differently.
    fn explore(config: Config) -> (usize, usize) {
        let model = Model::new(config);
        let mut seen: std::collections::HashSet<State> = model.init_states().into_iter().collect();
        let mut waiting: Vec<State> = seen.iter().cloned().collect();
        let mut successors: HashMap<Vec<u8>, (BTreeSet<Vec<u8>>, State)> = HashMap::new();
        while let Some(state) = waiting.pop() {
            let next = model.next_states(&state);
            let after: BTreeSet<Vec<u8>> = next.iter().map(State::canonical).collect();
            let (known, other) = successors.entry(state.canonical()).or_insert_with(|| (after.clone(), state.clone()));
            assert!(*known == after, "taken for one:\n{state}\n{other}");
            waiting.extend(next.into_iter().filter(|state| seen.insert(state.clone())));
        }
        (seen.len(), successors.len())
    }

    #[test]
    fn states_that_are_taken_for_one_go_on_alike() {
        let small = Config { records: 1, batch: 1, crashes: 1, lost: 1, ..Config::STATE };
        let models = [
            Config { records: 2, crashes: 0, ..small },
            Config { late: 1, ..small },
            Config { layout: Layout::Split, lost: 0, ..small },
            Config { layout: Layout::Added, lost: 0, ..small },
            Config { producers: 0, consumers: 2, late: 1, ..small },
            Config { producers: 1, consumers: 2, leases: true, crashes: 0, lost: 0, ..small },
        ];
        for config in models {
            let (all, distinct) = explore(config);
            assert!(distinct < all, "{distinct} of {all}");
        }
    }
}
