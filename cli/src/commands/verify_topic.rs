//! `payguard verify-topic`: is every record there once?

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use payguard_kafka::rdkafka::Message;
use payguard_kafka::{Extent, Isolation, KafkaClients, KafkaSettings, read_topic};
use serde_json::{Value, json};

use crate::Failure;
use crate::text::grouped;

/// Ids that are shown of each kind.
const SHOWN: usize = 5;
/// Stands for the record's key where a field is named.
const KEY: &str = "@key";
/// Stands for the whole value.
const VALUE: &str = "@value";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The topic, in the cluster of PAYGUARD_KAFKA_BOOTSTRAP
    topic: String,
    /// What tells records apart: fields of the JSON value, separated by commas, or @key, or @value
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', required = true)]
    id: Vec<String>,
    /// What is read: what was committed, or aborted records too
    #[arg(long, value_name = "LEVEL", default_value = "read_committed", value_parser = isolation)]
    isolation: Isolation,
    /// File with the records that must be there, and no others: JSON or the id itself, one a line
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Topic with the records that must be there, and no others: of another pipeline that has read the same
    #[arg(long, value_name = "TOPIC", conflicts_with = "expect")]
    expect_topic: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn isolation(text: &str) -> Result<Isolation, String> {
    let found = [Isolation::Committed, Isolation::Uncommitted].into_iter().find(|level| level.word() == text);
    found.ok_or_else(|| "expected read_committed or read_uncommitted".to_owned())
}

/// Exit code 0: every record once; 1: not so, or nothing there; 2: it could not be found out.
pub(crate) fn run(args: &Args) -> ExitCode {
    match verify(args) {
        Ok(verdict) => {
            say!("{}", if args.json { verdict.to_json(args).to_string() } else { verdict.to_text(args) });
            if verdict.holds() { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(error) => {
            eprintln!("payguard: {}", crate::text::chain(&*error));
            ExitCode::from(2)
        }
    }
}

fn verify(args: &Args) -> Result<Verdict, Failure> {
    let clients = KafkaClients::new(KafkaSettings::read(&std::env::vars().collect())?, None)?;
    let expected = match (&args.expect, &args.expect_topic) {
        (Some(path), _) => Some(expected(path, &args.id)?),
        (None, Some(topic)) => Some(whole(topic, there(&clients, topic, args)?)?),
        (None, None) => None,
    };
    let (found, extent, without) = there(&clients, &args.topic, args)?;
    Ok(Verdict {
        records: extent.records,
        held_back: extent.held_back,
        without,
        ..Verdict::of(&found, expected.as_ref())
    })
}

/// The ids of a topic's records, how much there was of it, and how many records lack an id.
fn there(clients: &KafkaClients, topic: &str, args: &Args) -> Result<(Ids, Extent, u64), Failure> {
    let (mut found, mut without) = (Ids::new(), 0);
    let extent = read_topic(clients, topic, args.isolation, |message| {
        match id_of(message.key(), message.payload().unwrap_or_default(), &args.id) {
            Some(id) => *found.entry(id).or_default() += 1,
            None => without += 1,
        }
    })?;
    Ok((found, extent, without))
}

/// Nothing can be measured by a topic that is not all there.
fn whole(topic: &str, (ids, extent, without): (Ids, Extent, u64)) -> Result<Ids, Failure> {
    match (extent.held_back, without) {
        (0, 0) => Ok(ids),
        (0, without) => Err(format!("{topic}: {without} records lack what tells them apart").into()),
        _ => Err(format!("{topic}: an open transaction keeps records back; wait for its end").into()),
    }
}

/// Ids and how often each is there.
type Ids = BTreeMap<String, u64>;

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Verdict {
    records: u64,
    /// Offsets that an open transaction keeps from readers of committed records.
    held_back: u64,
    /// Records without the fields of the id.
    without: u64,
    /// Distinct ids that are there more often than they should be.
    repeated: Vec<String>,
    /// Ids that should be there, or more often; only where it was said which.
    missing: Option<Vec<String>>,
    /// Ids that should not be there at all.
    unexpected: Vec<String>,
    is_empty: bool,
}

impl Verdict {
    fn of(found: &Ids, expected: Option<&Ids>) -> Verdict {
        let wanted = |id: &str| expected.map_or(1, |ids| ids.get(id).copied().unwrap_or(0));
        let ids = |keep: &dyn Fn(&str, u64) -> bool| -> Vec<String> {
            found.iter().filter(|(id, count)| keep(id, **count)).map(|(id, _)| id.clone()).collect()
        };
        let missing = |ids: &Ids| {
            let short = ids.iter().filter(|(id, count)| found.get(*id).is_none_or(|there| there < count));
            short.map(|(id, _)| id.clone()).collect()
        };
        Verdict {
            repeated: ids(&|id, count| wanted(id) > 0 && count > wanted(id)),
            missing: expected.map(missing),
            unexpected: ids(&|id, _| wanted(id) == 0),
            // Nothing repeated in nothing shows nothing.
            is_empty: found.is_empty() && expected.is_none_or(|ids| !ids.is_empty()),
            ..Verdict::default()
        }
    }

    fn holds(&self) -> bool {
        let none = |ids: &Vec<String>| ids.is_empty();
        let whole = none(&self.repeated) && none(&self.unexpected) && self.missing.as_ref().is_none_or(none);
        whole && !self.is_empty && self.without == 0
    }

    fn to_text(&self, args: &Args) -> String {
        let mut text = format!(
            "{} [{}]: {} records, {} repeated ids",
            args.topic,
            args.isolation.word(),
            grouped(self.records),
            grouped(self.repeated.len() as u64)
        );
        if let Some(missing) = &self.missing {
            let (missing, unexpected) = (missing.len() as u64, self.unexpected.len() as u64);
            text.push_str(&format!(", {} missing, {} unexpected", grouped(missing), grouped(unexpected)));
        }
        let mut line = |what: &str, ids: &[String]| {
            if !ids.is_empty() {
                let shown = ids.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
                let more = if ids.len() > SHOWN { ", …" } else { "" };
                text.push_str(&format!("\n  {what}: {shown}{more}"));
            }
        };
        line("repeated", &self.repeated);
        line("missing", self.missing.as_deref().unwrap_or_default());
        line("unexpected", &self.unexpected);
        if self.without > 0 {
            let fields = args.id.join(", ");
            text.push_str(&format!(
                "\n  {} records have no {fields}: is that what tells them apart?",
                grouped(self.without)
            ));
        }
        if self.held_back > 0 {
            let offsets = grouped(self.held_back);
            text.push_str(&format!(
                "\n  {offsets} offsets more are behind an open transaction: readers wait for its end"
            ));
        }
        if self.is_empty {
            text.push_str("\n  nothing is there, which shows nothing");
        }
        text
    }

    fn to_json(&self, args: &Args) -> Value {
        json!({
            "topic": args.topic, "isolation": args.isolation.word(), "records": self.records,
            "repeated": self.repeated, "missing": self.missing, "unexpected": self.unexpected,
            "without_id": self.without, "held_back": self.held_back, "holds": self.holds(),
        })
    }
}

/// What tells a record apart; `None` when it lacks a field of it.
fn id_of(key: Option<&[u8]>, value: &[u8], fields: &[String]) -> Option<String> {
    let json = || serde_json::from_slice::<Value>(value).ok();
    let parts = fields.iter().map(|field| match field.as_str() {
        KEY => Some(String::from_utf8_lossy(key?).into_owned()),
        VALUE => Some(String::from_utf8_lossy(value).into_owned()),
        field => match json()?.get(field)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        },
    });
    Some(parts.collect::<Option<Vec<_>>>()?.join(" "))
}

/// The ids of a file's lines: of a line that is JSON its fields, otherwise the line itself.
fn expected(path: &Path, fields: &[String]) -> Result<Ids, Failure> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut ids = Ids::new();
    for (number, line) in std::io::BufReader::new(std::fs::File::open(path).map_err(failed)?).lines().enumerate() {
        let line = line.map_err(failed)?;
        if line.is_empty() {
            continue;
        }
        let id = match line.starts_with('{') {
            true => id_of(None, line.as_bytes(), fields),
            false => Some(line),
        };
        let at = || format!("{} line {} has no {}", path.display(), number + 1, fields.join(", "));
        *ids.entry(id.ok_or_else(at)?).or_default() += 1;
    }
    Ok(ids)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ids(list: &[&str]) -> Ids {
        list.iter().fold(Ids::new(), |mut ids, id| {
            *ids.entry((*id).to_owned()).or_default() += 1;
            ids
        })
    }

    #[test]
    fn repeats_are_counted_by_id_and_losses_only_where_it_is_known_what_belongs_there() {
        let verdict = Verdict::of(&ids(&["a", "b", "b", "b", "c", "c"]), None);
        assert_eq!((verdict.repeated.len(), &verdict.missing, verdict.holds()), (2, &None, false));
        assert!(Verdict::of(&ids(&["a", "b"]), None).holds());
        assert!(!Verdict::of(&ids(&[]), None).holds(), "no repeat in nothing is no proof");

        let expected = ids(&["a", "b", "b", "d"]);
        let verdict = Verdict::of(&ids(&["a", "a", "b", "e"]), Some(&expected));
        assert_eq!(verdict.repeated, ["a"]);
        assert_eq!(verdict.missing.as_deref().unwrap(), ["b", "d"], "b is there once and should be twice");
        assert_eq!(verdict.unexpected, ["e"]);
        assert!(!verdict.holds());
        assert!(Verdict::of(&expected, Some(&expected)).holds());
        assert!(Verdict::of(&ids(&[]), Some(&ids(&[]))).holds(), "nothing was to be there");
    }

    #[test]
    fn an_id_is_made_of_fields_the_key_or_the_value() {
        let fields = |list: &[&str]| list.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>();
        let value = br#"{"merchantId":"m-1","windowStartMs":60000,"none":null}"#;
        assert_eq!(id_of(None, value, &fields(&["merchantId", "windowStartMs"])).unwrap(), "m-1 60000");
        assert_eq!(id_of(Some(b"k"), value, &fields(&["@key"])).unwrap(), "k");
        assert_eq!(id_of(None, b"x", &fields(&["@value"])).unwrap(), "x");
        for (value, list) in [(&value[..], ["none"]), (&value[..], ["other"]), (b"not json", ["a"]), (b"{}", ["@key"])]
        {
            assert_eq!(id_of(None, value, &fields(&list)), None, "{list:?}");
        }
    }

    #[test]
    fn what_should_be_there_is_a_file_of_records_or_ids() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{\"alertId\":\"velocity:1\"}\n\nvelocity:2\nvelocity:2\n").unwrap();
        let expected = expected(file.path(), &["alertId".to_owned()]).unwrap();
        assert_eq!(expected, ids(&["velocity:1", "velocity:2", "velocity:2"]));
        std::fs::write(file.path(), "{\"id\":1}\n").unwrap();
        let error = super::expected(file.path(), &["alertId".to_owned()]).unwrap_err().to_string();
        assert!(error.ends_with("line 1 has no alertId"), "{error}");
    }
}
