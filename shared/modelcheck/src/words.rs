//! Steps and states in words, for counterexamples.

use std::fmt::{self, Debug, Display, Formatter};

use crate::consumer;
use crate::durable::{At, Log, MAX_ROWS, Name, Page, Seen};
use crate::model::{Action, ConsumerAct, ProducerAct, State};
use crate::producer;
use crate::settle::Move;

impl Debug for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Action::Producer(executor, act) => write!(f, "producer {} {act}", letter(*executor)),
            Action::Consumer(executor, act) => write!(f, "consumer {} {act}", letter(*executor)),
            Action::Produce(records) => write!(f, "the producer commits {}", count(*records)),
            Action::Consume => f.write_str("the consumer takes a row"),
            Action::CollectObject(seq) => write!(f, "the collector removes the object of row {seq}"),
            Action::CollectRow(seq) => write!(f, "the collector removes row {seq}"),
            Action::ProducerLeaseEnds => f.write_str("the producer's lease runs out"),
            Action::ConsumerLeaseEnds => f.write_str("the consumer's lease runs out"),
            Action::DelayedCommit => f.write_str("a commit that was given up arrives at the ledger"),
        }
    }
}

fn letter(executor: u8) -> char {
    char::from(b'A' + executor)
}

fn count(records: u8) -> String {
    if records == 1 { "1 record".to_owned() } else { format!("{records} records") }
}

impl Display for ProducerAct {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        use producer::Act;
        match self.0 {
            Act::Begin { deliver } => write!(f, "is given the records up to {deliver}"),
            Act::ReadHead => f.write_str("reads the head"),
            Act::ReadPage { name: Some(name) } => write!(f, "reads {}", page_name(name)),
            Act::ReadPage { name: None } => f.write_str("reads all pages"),
            Act::ReadRows => f.write_str("reads the rows it has missed"),
            Act::ReadObject => f.write_str("reads the object of the next row and applies its delta"),
            Act::Store { records } => write!(f, "handles {} and stores their object", count(records)),
            Act::Settle(step) => f.write_str(move_text(step)),
            Act::PutPage { name } => write!(f, "writes {}", page_name(name)),
            Act::RemovePage => f.write_str("removes the page that was split"),
            Act::Acknowledge => f.write_str("acknowledges its records"),
            Act::RunOutOfTime => f.write_str("runs out of time"),
            Act::Crash => f.write_str("crashes"),
            Act::FlushEarly => f.write_str("writes pages with what it has not committed"),
        }
    }
}

impl Display for ConsumerAct {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        use consumer::Act;
        match self.0 {
            Act::Begin => f.write_str("is woken"),
            Act::ReadHead => f.write_str("reads the head"),
            Act::ReadPosition => f.write_str("reads the sink's position"),
            Act::ReadRows => f.write_str("reads rows of its input"),
            Act::ReadObject => f.write_str("reads the object of the next row"),
            Act::Take { records } => write!(f, "takes {}", count(records)),
            Act::Write => f.write_str("writes to the sink"),
            Act::WriteAnswerLost => f.write_str("writes to the sink and gets no answer"),
            Act::Settle(step) => f.write_str(move_text(step)),
            Act::Crash => f.write_str("crashes"),
        }
    }
}

fn move_text(step: Move) -> &'static str {
    match step {
        Move::Commit => "sends its commit",
        Move::CommitAnswerLost => "sends its commit and gets no answer",
        Move::CommitNotMade => "sends its commit, which is lost, and gets no answer",
        Move::CommitDelayed => "sends its commit, which is delayed, and gets no answer",
        Move::GiveUp => "gives its commit up",
        Move::LookAtHead => "looks at the head",
        Move::LookAtRow => "looks for its row",
    }
}

fn page_name(name: Name) -> String {
    match name {
        Name::Key(key) => format!("page {}", char::from(b'a' + key)),
        Name::Whole => "page ab".to_owned(),
        Name::Added(seq, tag) => format!("page {seq}-{tag}"),
    }
}

impl Display for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "log {}", log(&self.producer_log))?;
        if !self.table.0.is_empty() {
            let pages: Vec<String> = self.table.0.iter().map(page).collect();
            write!(f, "; {}", pages.join(", "))?;
        }
        if self.consumers.is_empty() {
            write!(f, "; consumer at {}", at(self.consumer_log.head.at))?;
        } else {
            let (sink, consumer) = (&self.sink, &self.consumer_log);
            write!(f, "; sink: batch {}, {}; consumer's log {}", sink.seq, count(sink.records), log(consumer))?;
        }
        write!(f, "; acknowledged {}", self.acknowledged)
    }
}

fn log(log: &Log) -> String {
    let rows: Vec<String> = (1..=MAX_ROWS as u8)
        .filter_map(|seq| Some((seq, log.ever(seq)?)))
        .map(|(seq, row)| {
            let gone = if log.is_collected(seq) { " (collected)" } else { "" };
            format!("{seq}{gone}: {} to {} by {}", at(row.from), at(row.to), row.attempt.text())
        })
        .collect();
    format!("[{}] head {} flushed {}", rows.join(", "), log.head.seq, log.head.flushed)
}

fn at(at: At) -> String {
    if at.within == 0 { at.row.to_string() } else { format!("{}+{}", at.row, at.within) }
}

fn page(page: &Page) -> String {
    format!("{} of {} {{{}}}", page_name(page.name), page.seq, records(page.holds))
}

fn records(seen: Seen) -> String {
    let numbers: Vec<String> =
        (1u8..=8).filter(|n| !seen.and(Seen::between(n - 1, *n)).is_empty()).map(|n| n.to_string()).collect();
    numbers.join(",")
}

impl Debug for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}
