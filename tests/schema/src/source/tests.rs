#![allow(clippy::unwrap_used)]

use super::*;

/// The fields of the one message of a text, `tag name: type` each.
fn fields(text: &str) -> Vec<String> {
    let declared = read_text("a", text).unwrap();
    declared.messages["a::M"].fields.iter().map(|(tag, field)| format!("{tag} {field}")).collect()
}

#[test]
fn a_field_is_told_by_what_is_stored_of_it() {
    let cases = [
        (r#"#[prost(sint64, tag = "1")] f: i64"#, "1 f: sint64"),
        (r#"#[prost(int64, optional, tag = "2")] f: Option<i64>"#, "2 f: optional int64"),
        (r#"#[prost(bytes = "vec", optional, tag = "2")] f: Option<Vec<u8>>"#, "2 f: optional bytes"),
        (r#"#[prost(bytes = "bytes", tag = "2")] f: Bytes"#, "2 f: bytes"),
        (r#"#[prost(message, repeated, tag = "3")] f: Vec<a::Slice>"#, "3 f: repeated Slice"),
        (r#"#[prost(message, required, tag = 3)] f: Slice"#, "3 f: required Slice"),
        (r#"#[prost(message, optional, boxed, tag = "3")] f: Option<Box<Slice>>"#, "3 f: optional Slice"),
        (r#"#[prost(btree_map = "string, message", tag = "4")] f: BTreeMap<Id, State>"#, "4 f: map<string, State>"),
        (r#"#[prost(map = "string, uint64", tag = "4")] f: HashMap<String, u64>"#, "4 f: map<string, uint64>"),
        (r#"#[prost(enumeration = "Kind", tag = "5")] f: i32"#, "5 f: enumeration Kind"),
        (r#"#[prost(int64, repeated, packed = "false", tag = "6")] f: Vec<i64>"#, "6 f: repeated int64 packed false"),
    ];
    for (field, expected) in cases {
        assert_eq!(fields(&format!("#[derive(Message)] struct M {{ {field} }}")), [expected]);
    }
}

#[test]
fn oneofs_and_enumerations_are_messages_of_their_variants() {
    let parent = r#"#[derive(Message)] struct M { #[prost(oneof = "Where", tags = "7, 8")] at: Option<Where> }"#;
    assert_eq!(fields(parent), ["7 at: oneof Where", "8 at: oneof Where"]);
    let oneof = r#"#[derive(prost::Oneof)] enum M { #[prost(string, tag = "8")] Key(String),
        #[prost(message, tag = "7")] Inline(Slice) }"#;
    assert_eq!(fields(oneof), ["7 Inline: Slice", "8 Key: string"]);
    assert_eq!(
        fields("#[derive(Clone, prost::Enumeration)] enum M { No = 0, Yes = 4 }"),
        ["0 No: value", "4 Yes: value"]
    );
}

#[test]
fn operators_tell_their_state_and_tests_tell_nothing() {
    let text = r#"
        impl KeyedOperator for Velocity { type State = RuleState; const ID: &'static str = "rule-velocity"; }
        impl crate::logic::OperatorState for TtlSet {}
        mod inner { impl<O: KeyedOperator> OperatorState for KeyedRunner<O> {} }
        #[cfg(test)] mod tests { #[derive(Message)] struct M { #[prost(bool, tag = "1")] f: bool } }
        #[cfg(any(test, feature = "testing"))] mod testing { impl OperatorState for Fake {} }
        struct NoMessage { f: bool }
    "#;
    let declared = read_text("a", text).unwrap();
    assert_eq!(declared.keyed, BTreeMap::from([("rule-velocity".to_owned(), "RuleState".to_owned())]));
    assert_eq!(declared.page_formats, BTreeSet::from(["KeyedRunner".to_owned(), "TtlSet".to_owned()]));
    assert!(declared.messages.is_empty());
}

#[test]
fn what_is_not_understood_is_an_error_and_never_left_out() {
    let cases = [
        (r#"#[derive(Message)] struct M { f: i64 }"#, "field `f` has no `prost` attribute"),
        (r#"#[derive(Message)] struct M { #[prost(int64)] f: i64 }"#, "it has no tag"),
        (r#"#[derive(Message)] struct M { #[prost(tag = "1")] f: i64 }"#, "it has no type"),
        (r#"#[derive(Message)] struct M { #[prost(int64, tag = "x")] f: i64 }"#, "`x` is not a tag"),
        (
            r#"#[derive(Message)] struct M { #[prost(bool, tag = "1")] f: bool, #[prost(bool, tag = "1")] g: bool }"#,
            "tag 1 is that of `f` too",
        ),
        ("#[derive(Enumeration)] enum M { No }", "has no number of its own"),
        ("#[derive(Message)] struct M {} mod a { #[derive(Message)] struct M {} }", "another message `M`"),
        ("impl KeyedOperator for V { type State = S; const ID: &'static str = OTHER; }", "must be a text"),
        ("struct", "expected"),
    ];
    for (text, expected) in cases {
        let error = read_text("a", text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
