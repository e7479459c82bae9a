//! What is locked, and its text: one fact a line, so that a change of the lock reads like the change it stands for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Everything that stored data depends on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Schema {
    /// Grows with every change of what is stored; only in a lock. Executors that know a smaller one stop.
    pub number: u32,
    /// Ids under which data is stored or addressed.
    pub ids: BTreeSet<Id>,
    /// Ids that were in use once and must not be used again; only in a lock.
    pub retired: BTreeSet<(IdKind, String)>,
    /// Messages by `crate::Type`.
    pub messages: BTreeMap<String, Message>,
}

/// A permanent id and one thing that it stands for; a name may stand for several.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Id {
    /// What it names.
    pub kind: IdKind,
    /// The id.
    pub name: String,
    /// What it stands for, for example `dedup -> rules by cardId`.
    pub of: String,
}

/// What an id names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum IdKind {
    /// A stage: prefix of its tasks, segments and pages.
    Stage,
    /// An operator as the configuration and the counters name it.
    Operator,
    /// The state of an operator: prefix of its pages.
    State,
    /// A stream: name of slices in commit rows.
    Stream,
}

/// The fields of a message, or the variants of a oneof or an enumeration, by tag.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// In use.
    pub fields: BTreeMap<u32, Field>,
    /// In use once, never again; only in a lock.
    pub reserved: BTreeMap<u32, Field>,
}

/// A field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name in the source; not stored.
    pub name: String,
    /// Label and type as they are stored, for example `repeated Slice`.
    pub kind: String,
}

/// A line of a lock that does not parse.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("schema.lock line {line}: `{text}` is not what a lock has; restore it from the repository's history")]
pub struct BadLock {
    line: usize,
    text: String,
}

const HEADER: &str = "\
# What is stored and under which names, so that a change of the code cannot make stored data unreadable unnoticed.
# Written by `PAYGUARD_SCHEMA=write cargo test --release -p payguard-schema`; docs/evolution.md has the rules.
";

impl IdKind {
    const ALL: [IdKind; 4] = [IdKind::Stage, IdKind::Operator, IdKind::State, IdKind::Stream];

    /// The word in a lock.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            IdKind::Stage => "stage",
            IdKind::Operator => "operator",
            IdKind::State => "state",
            IdKind::Stream => "stream",
        }
    }

    fn of_word(word: &str) -> Option<IdKind> {
        IdKind::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.kind)
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEADER)?;
        writeln!(f, "\nnumber {}", self.number)?;
        for kind in IdKind::ALL {
            f.write_str("\n")?;
            for id in self.ids.iter().filter(|id| id.kind == kind) {
                writeln!(f, "{} {}: {}", kind.word(), id.name, id.of)?;
            }
            for (_, name) in self.retired.iter().filter(|retired| retired.0 == kind) {
                writeln!(f, "retired {} {name}", kind.word())?;
            }
        }
        for (name, message) in &self.messages {
            writeln!(f, "\nmessage {name}")?;
            for (tag, field) in &message.fields {
                writeln!(f, "  {tag} {field}")?;
            }
            for (tag, field) in &message.reserved {
                writeln!(f, "  {tag} reserved {field}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Schema {
    type Err = BadLock;

    fn from_str(text: &str) -> Result<Schema, BadLock> {
        let mut schema = Schema::default();
        let mut message = None;
        for (number, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let known = if let Some(field) = line.strip_prefix("  ") {
                message.as_ref().and_then(|name| schema.messages.get_mut(name)).and_then(|of| of.read_line(field))
            } else if let Some(name) = line.strip_prefix("message ") {
                message = Some(name.to_owned());
                schema.messages.insert(name.to_owned(), Message::default()).is_none().then_some(())
            } else {
                schema.read_id(line)
            };
            known.ok_or_else(|| BadLock { line: number + 1, text: line.to_owned() })?;
        }
        Ok(schema)
    }
}

impl Schema {
    fn read_id(&mut self, line: &str) -> Option<()> {
        let (word, rest) = line.split_once(' ')?;
        if word == "number" {
            self.number = rest.parse().ok()?;
            return Some(());
        }
        if word == "retired" {
            let (kind, name) = rest.split_once(' ')?;
            return self.retired.insert((IdKind::of_word(kind)?, name.to_owned())).then_some(());
        }
        let (name, of) = rest.split_once(": ")?;
        let id = Id { kind: IdKind::of_word(word)?, name: name.to_owned(), of: of.to_owned() };
        self.ids.insert(id).then_some(())
    }
}

impl Message {
    fn read_line(&mut self, line: &str) -> Option<()> {
        let (tag, rest) = line.split_once(' ')?;
        let tag: u32 = tag.parse().ok()?;
        let (fields, rest) = match rest.strip_prefix("reserved ") {
            Some(rest) => (&mut self.reserved, rest),
            None => (&mut self.fields, rest),
        };
        let (name, kind) = rest.split_once(": ")?;
        let field = Field { name: name.to_owned(), kind: kind.to_owned() };
        fields.insert(tag, field).is_none().then_some(())
    }
}
