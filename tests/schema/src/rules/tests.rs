#![allow(clippy::unwrap_used)]

use super::*;
use crate::source::read_text;

const PROFILE: &str = r#"#[prost(int64, tag = "1")] count: i64, #[prost(int64, tag = "2")] total: i64,"#;

/// A crate with message `CardProfile` of these fields.
fn with_fields(fields: &str) -> Schema {
    let text = format!("#[derive(Clone, prost::Message)] pub struct CardProfile {{ {fields} }}");
    Schema { messages: read_text("model", &text).unwrap().messages, ..Schema::default() }
}

fn id(kind: IdKind, name: &str, of: &str) -> Id {
    Id { kind, name: name.to_owned(), of: of.to_owned() }
}

fn with_ids<const N: usize>(ids: [&Id; N]) -> Schema {
    Schema { ids: ids.into_iter().cloned().collect(), ..Schema::default() }
}

/// What a lock that is written and read again says of the change.
fn change(lock: &Schema, now: &Schema) -> Comparison {
    let lock: Schema = lock.to_string().parse().unwrap();
    compare(&lock, now)
}

#[test]
fn what_stored_bytes_may_become_is_recorded() {
    let cases = [
        ("nothing", PROFILE.to_owned(), vec![]),
        (
            "a new tag",
            format!(r#"{PROFILE} #[prost(string, optional, tag = "3")] country: Option<String>,"#),
            vec!["`model::CardProfile` has a new field 3 (country: optional string)"],
        ),
        ("another name", PROFILE.replace("total", "total_minor"), vec!["field 2: `total` is now `total_minor`"]),
        (
            "a field less",
            r#"#[prost(int64, tag = "1")] count: i64,"#.to_owned(),
            vec!["no longer has field 2 (total: int64)"],
        ),
        (
            "another type beside the old one",
            r#"#[prost(int64, tag = "1")] count: i64, #[prost(int64, tag = "2")] total_v1: i64,
               #[prost(string, tag = "3")] total: String,"#
                .to_owned(),
            vec!["field 2: `total` is now `total_v1`", "has a new field 3 (total: string)"],
        ),
        (
            "another order",
            r#"#[prost(int64, tag = "2")] total: i64, #[prost(int64, tag = "1")] count: i64,"#.to_owned(),
            vec![],
        ),
    ];
    for (what, fields, expected) in cases {
        let result = change(&with_fields(PROFILE), &with_fields(&fields));
        assert_eq!(result.refused, Vec::<String>::new(), "{what}");
        assert_eq!(result.unrecorded.len(), expected.len(), "{what}: {:?}", result.unrecorded);
        for (said, expected) in result.unrecorded.iter().zip(&expected) {
            assert!(said.contains(*expected), "{what}: {said}");
        }
        let stores_other = expected.iter().any(|said| !said.contains("is now"));
        assert_eq!(result.lock.number, u32::from(stores_other), "{what}: older code stops at what it does not know");
        let again = change(&result.lock, &with_fields(&fields));
        assert_eq!((again.unrecorded, again.lock), (Vec::new(), result.lock), "{what} is recorded once");
    }
}

#[test]
fn what_would_lose_or_misread_stored_bytes_is_refused_with_the_cure() {
    let cases = [
        ("another type", PROFILE.replace("int64, tag = \"2\"", "string, tag = \"2\""), "keep reading tag 2 as `int64`"),
        ("another number's type", PROFILE.replace("int64, tag = \"2\"", "sint64, tag = \"2\""), "is `total: sint64`"),
        (
            "a label",
            PROFILE.replace("int64, tag = \"2\"", "int64, optional, tag = \"2\""),
            "is `total: optional int64`",
        ),
        ("another tag", PROFILE.replace("tag = \"2\"", "tag = \"7\""), "Give it tag 2 back"),
        (
            "tags swapped",
            r#"#[prost(int64, tag = "1")] total: i64, #[prost(int64, tag = "2")] count: i64,"#.to_owned(),
            "`total` has gone from tag 2 to tag 1",
        ),
        ("a name that moves up", PROFILE.replace("count", "x").replace("total", "count"), "Give it tag 1 back"),
    ];
    for (what, fields, cure) in cases {
        let result = change(&with_fields(PROFILE), &with_fields(&fields));
        assert!(result.refused.iter().any(|said| said.contains(cure)), "{what}: {result:?}");
        assert!(result.refused.iter().all(|said| said.contains("model::CardProfile")), "{what}: {result:?}");
    }
}

#[test]
fn a_tag_that_was_removed_is_never_used_again() {
    let without = with_fields(r#"#[prost(int64, tag = "1")] count: i64,"#);
    let removed = change(&with_fields(PROFILE), &without).lock;
    for (name, kind, ty) in [("total", "int64", "i64"), ("other", "string", "String")] {
        let fields = format!(r#"#[prost(int64, tag = "1")] count: i64, #[prost({kind}, tag = "2")] {name}: {ty},"#);
        let result = change(&removed, &with_fields(&fields));
        let cure = format!("Give `{name}` a tag that was never used.");
        assert!(result.refused.iter().any(|said| said.ends_with(&cure)), "{result:?}");
    }
    let other = format!(r#"{} #[prost(int64, tag = "3")] total: i64,"#, r#"#[prost(int64, tag = "1")] count: i64,"#);
    let result = change(&removed, &with_fields(&other));
    assert_eq!((result.refused.len(), result.unrecorded.len()), (0, 1), "its name may be: it is not stored");
}

#[test]
fn a_message_may_come_and_may_not_go() {
    let result = change(&Schema::default(), &with_fields(PROFILE));
    assert_eq!((result.refused.len(), result.unrecorded), (0, vec!["message `model::CardProfile` is new".to_owned()]));
    let result = change(&with_fields(PROFILE), &Schema::default());
    assert!(result.refused[0].contains("Keep it as long as anything stored has it"), "{result:?}");
}

#[test]
fn an_id_may_come_and_may_not_go_or_stand_for_something_else() {
    let cases = [
        (id(IdKind::Stage, "rules", "Operators"), "left behind"),
        (id(IdKind::Operator, "rule-velocity", "rules"), "settings and counters"),
        (id(IdKind::State, "card-profile", "rules: CardProfile"), "belong to no operator"),
        (id(IdKind::Stream, "clean-by-card", "dedup -> rules by cardId"), "pass over their records"),
    ];
    for (old, effect) in cases {
        let word = old.kind.word();
        let [renamed, changed] =
            [Id { name: "renamed".into(), ..old.clone() }, Id { of: "other".into(), ..old.clone() }];
        for (now, what) in [(renamed, "is gone"), (changed, "and is `other`")] {
            let said = change(&with_ids([&old]), &with_ids([&now])).refused;
            assert!(said.len() == 1 && said[0].contains(what) && said[0].contains(effect), "{word}: {said:?}");
            assert!(said[0].contains(&format!("`retired {word} {}`", old.name)), "{said:?}");
        }
        let result = change(&Schema::default(), &with_ids([&old]));
        assert_eq!((result.refused.len(), result.unrecorded.len()), (0, 1), "{word}");
        let more = Id { of: "another use".into(), ..old.clone() };
        let result = change(&with_ids([&old]), &with_ids([&old, &more]));
        assert_eq!((result.refused.len(), result.unrecorded.len()), (0, 1), "{word}: one name for two uses");

        let retired = Schema { retired: [(old.kind, old.name.clone())].into(), ..Schema::default() };
        let gone = change(&retired, &Schema::default());
        assert_eq!((gone.refused.len(), gone.unrecorded.len(), gone.lock), (0, 0, retired.clone()), "{word}");
        let said = change(&retired, &with_ids([&old])).refused;
        assert!(said.len() == 1 && said[0].ends_with("Choose another id."), "{word}: {said:?}");
    }
}

#[test]
fn a_lock_that_was_damaged_is_not_read_as_another() {
    let good = "message a::B\n  1 x: int64\n";
    assert!(good.parse::<Schema>().is_ok());
    for (bad, line) in [
        ("  1 x: int64\n", 1),
        ("message a::B\n  1 x: int64\n  1 y: int64\n", 3),
        ("message a::B\nmessage a::B\n", 2),
        ("message a::B\n<<<<<<< ours\n", 2),
        ("table x: y\n", 1),
    ] {
        let error = bad.parse::<Schema>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("schema.lock line {line}:")), "{error}");
    }
}
