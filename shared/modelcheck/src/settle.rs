//! One commit of either task: the conditional write, and what became of it. The decisions are the engine's.

use payguard_engine::Seq;
use payguard_engine::commit::{AfterReply, CommitOutcome, Resolution, after_reply, check_succession, resolve};
use payguard_engine::store::CommitReply;

use crate::durable::{Attempt, Head, Row, Task};
use crate::invariants::Rule;
use crate::model::{Faults, Model, State};

/// A commit on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Settling {
    pub(crate) seq: u8,
    pub(crate) row: Row,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    /// The write is sent; `again` after its fate was unknown.
    Send { again: bool },
    /// The head is to be read.
    LookHead,
    /// The row is to be read, after this head.
    LookRow { head: Head },
}

/// What an executor does, or what happens to it, on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Move {
    Commit,
    CommitAnswerLost,
    CommitNotMade,
    CommitDelayed,
    GiveUp,
    LookAtHead,
    LookAtRow,
}

/// What comes of it.
pub(crate) enum Settled {
    /// Not known yet.
    Open(Settling),
    /// Known.
    Done(CommitOutcome),
    /// No answer and no row for too long, or an invariant is broken: memory is dropped.
    Failed,
}

impl Settling {
    pub(crate) fn new(seq: u8, row: Row) -> Settling {
        Settling { seq, row, step: Step::Send { again: false } }
    }

    /// Whether nobody knows yet whether it was made.
    pub(crate) fn is_unknown(&self) -> bool {
        self.step != Step::Send { again: false }
    }

    /// A number for where it stands.
    pub(crate) fn step_number(&self) -> u8 {
        match self.step {
            Step::Send { again: false } => 0,
            Step::Send { again: true } => 1,
            Step::LookHead => 2,
            Step::LookRow { .. } => 3,
        }
    }

    /// The head that was looked at, while it counts.
    pub(crate) fn head_seen(&self) -> Option<Head> {
        match self.step {
            Step::LookRow { head } => Some(head),
            Step::Send { .. } | Step::LookHead => None,
        }
    }

    pub(crate) fn moves(&self, faults: Faults) -> impl Iterator<Item = Move> {
        let sends = matches!(self.step, Step::Send { .. });
        let again = self.step == Step::Send { again: true };
        [
            (Move::Commit, sends),
            (Move::CommitAnswerLost, sends && faults.lost > 0),
            (Move::CommitNotMade, sends && faults.lost > 0),
            (Move::CommitDelayed, sends && faults.late > 0),
            (Move::GiveUp, again),
            (Move::LookAtHead, self.step == Step::LookHead),
            (Move::LookAtRow, matches!(self.step, Step::LookRow { .. })),
        ]
        .into_iter()
        .filter_map(|(step, may)| may.then_some(step))
    }

    pub(crate) fn make(self, step: Move, task: Task, model: &Model, state: &mut State) -> Settled {
        let unknown = || CommitReply::Unknown("no answer".to_owned());
        match step {
            Move::Commit => {
                let made = commit(task, self.seq, self.row, model, state);
                self.after(&if made { CommitReply::Committed } else { CommitReply::Refused })
            }
            Move::CommitAnswerLost => {
                state.faults.lost -= 1;
                commit(task, self.seq, self.row, model, state);
                self.after(&unknown())
            }
            Move::CommitNotMade => {
                state.faults.lost -= 1;
                self.after(&unknown())
            }
            Move::CommitDelayed => {
                state.faults.late -= 1;
                state.delayed = Some((task, self.seq, self.row));
                self.after(&unknown())
            }
            Move::GiveUp => Settled::Failed,
            Move::LookAtHead => self.at(Step::LookRow { head: state.log(task).head }),
            Move::LookAtRow => self.look(task, state),
        }
    }

    fn at(self, step: Step) -> Settled {
        Settled::Open(Settling { step, ..self })
    }

    fn after(self, reply: &CommitReply) -> Settled {
        match after_reply(reply) {
            AfterReply::Done(outcome) => Settled::Done(outcome),
            AfterReply::Look => self.at(Step::LookHead),
        }
    }

    fn look(self, task: Task, state: &mut State) -> Settled {
        let Step::LookRow { head } = self.step else { return Settled::Failed };
        let head = (head.seq > 0).then(|| head.stored());
        let row = state.log(task).row(self.seq).map(|row| row.stored(self.seq));
        match resolve(head.as_ref(), row.as_ref(), &self.row.attempt.id(), Seq(u64::from(self.seq))) {
            Resolution::Known(outcome) => Settled::Done(outcome),
            Resolution::NotApplied => self.at(Step::Send { again: true }),
            Resolution::Broken(_) => {
                state.broken.note(Rule::Inv1);
                Settled::Failed
            }
        }
    }
}

/// The commit of a row after `head`, if the engine lets it be sent.
pub(crate) fn propose(head: &Head, row: Row) -> Option<Settling> {
    let seq = head.seq + 1;
    check_succession(&head.stored(), &row.stored(seq)).is_ok().then(|| Settling::new(seq, row))
}

/// An attempt that is not about any more, or never was: ids are never used again, but what nobody has is as good as
/// new.
pub(crate) fn fresh_attempt(executor: u8, task: Task, seq: u8, state: &State) -> Attempt {
    let row = state.log(task).ever(seq).map(|row| row.attempt);
    let delayed = state.delayed.filter(|(of, at, _)| (*of, *at) == (task, seq)).map(|(_, _, row)| row.attempt);
    let has_object = |a: Attempt| task == Task::Producer && state.objects.has(seq, a);
    let fresh = Attempt::of(executor).find(|a| row != Some(*a) && delayed != Some(*a) && !has_object(*a));
    fresh.expect("of an executor's attempts at a row one may be made and one delayed")
}

/// The ledger's conditional write.
pub(crate) fn commit(task: Task, seq: u8, row: Row, model: &Model, state: &mut State) -> bool {
    let mut broken = state.broken;
    let expected = crate::durable::Seen::between(0, row.from.row);
    let made = state.log_mut(task).commit(seq, row, &model.config, &mut broken);
    if made && task == Task::Producer && row.before != expected {
        broken.note(Rule::Computed);
    }
    state.broken = broken;
    made
}
