//! Reads Rust sources for what they declare about stored data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, Fields, GenericArgument, ImplItem, Item, Lit, Meta, PathArguments, Token, Type};

use crate::schema::{Field, Message};

/// What the sources of a crate declare.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Declared {
    /// Messages, oneofs and enumerations by `crate::Type`.
    pub messages: BTreeMap<String, Message>,
    /// State message of every `KeyedOperator` by its id.
    pub keyed: BTreeMap<String, String>,
    /// Types that are an `OperatorState`: each stores its pages in a way of its own.
    pub page_formats: BTreeSet<String>,
}

/// A source that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {detail}")]
pub struct SourceError {
    file: String,
    detail: String,
}

/// Collects what one crate declares, file by file.
struct Reader<'a> {
    krate: &'a str,
    declared: Declared,
}

/// What the code of a file says, or what is wrong with it.
type Read<T> = Result<T, String>;

/// Reads a crate from its `lib.rs` on, following its modules; what is compiled for tests alone is left out.
///
/// # Errors
/// When a file is missing or does not parse, or a message is declared in a way that is not understood.
pub fn read_crate(krate: &str, lib: &Path) -> Result<Declared, SourceError> {
    let mut reader = Reader { krate, declared: Declared::default() };
    let dir = lib.parent().map(Path::to_owned).unwrap_or_default();
    let mut files = vec![(lib.to_owned(), dir)];
    while let Some((file, dir)) = files.pop() {
        let failed = |detail: String| SourceError { file: file.display().to_string(), detail };
        let text = std::fs::read_to_string(&file).map_err(|e| failed(e.to_string()))?;
        for module in reader.text(&text).map_err(failed)? {
            let (flat, nested) = (dir.join(module.with_extension("rs")), dir.join(&module).join("mod.rs"));
            files.push((if flat.exists() { flat } else { nested }, dir.join(module)));
        }
    }
    Ok(reader.declared)
}

/// Reads one source text of crate `krate`, modules in other files left out.
///
/// # Errors
/// As [`read_crate`].
pub fn read_text(krate: &str, text: &str) -> Result<Declared, SourceError> {
    let mut reader = Reader { krate, declared: Declared::default() };
    reader.text(text).map_err(|detail| SourceError { file: krate.to_owned(), detail })?;
    Ok(reader.declared)
}

impl Reader<'_> {
    /// Takes in a file; returns the paths of its modules that are files of their own.
    fn text(&mut self, text: &str) -> Read<Vec<PathBuf>> {
        let file = syn::parse_file(text).map_err(|e| e.to_string())?;
        let mut modules = Vec::new();
        self.items(&file.items, Path::new(""), &mut modules)?;
        Ok(modules)
    }

    fn items(&mut self, items: &[Item], within: &Path, modules: &mut Vec<PathBuf>) -> Read<()> {
        for item in items {
            match item {
                Item::Mod(module) if !is_for_tests(&module.attrs) => {
                    let path = within.join(module.ident.to_string());
                    match &module.content {
                        Some((_, items)) => self.items(items, &path, modules)?,
                        None => modules.push(path),
                    }
                }
                Item::Struct(item) if derives(&item.attrs, "Message") => {
                    self.add(&item.ident, message(&item.fields))?;
                }
                Item::Enum(item) if derives(&item.attrs, "Oneof") => {
                    let fields = item.variants.iter().map(|v| (v.ident.to_string(), &v.attrs, inner_of(&v.fields)));
                    self.add(&item.ident, collect(fields))?;
                }
                Item::Enum(item) if derives(&item.attrs, "Enumeration") => self.add(&item.ident, enumeration(item))?,
                Item::Impl(item) => self.implementation(item)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, ident: &syn::Ident, message: Read<Message>) -> Read<()> {
        let name = format!("{}::{ident}", self.krate);
        let message = message.map_err(|detail| format!("{ident}: {detail}"))?;
        match self.declared.messages.insert(name, message) {
            None => Ok(()),
            Some(_) => {
                Err(format!("there is another message `{ident}` in this crate; the lock tells them by this name"))
            }
        }
    }

    fn implementation(&mut self, item: &syn::ItemImpl) -> Read<()> {
        let Some((path, _)) = &item.trait_ else { return Ok(()) };
        let of = last_segment(&item.self_ty).unwrap_or_default();
        if path.segments.last().is_some_and(|s| s.ident == "OperatorState") {
            self.declared.page_formats.insert(of.clone());
        }
        if path.segments.last().is_none_or(|s| s.ident != "KeyedOperator") {
            return Ok(());
        }
        let (mut id, mut state) = (None, None);
        for item in &item.items {
            match item {
                ImplItem::Const(item) if item.ident == "ID" => id = text_of(&item.expr),
                ImplItem::Type(item) if item.ident == "State" => state = last_segment(&item.ty),
                _ => {}
            }
        }
        let (Some(id), Some(state)) = (id, state) else {
            return Err(format!("{of}: the operator's ID must be a text, and its State a type"));
        };
        match self.declared.keyed.insert(id.clone(), state) {
            None => Ok(()),
            Some(_) => Err(format!("{of}: there is another operator `{id}`")),
        }
    }
}

fn message(fields: &Fields) -> Read<Message> {
    let named = fields.iter().map(|field| {
        let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
        (name, &field.attrs, last_segment(&field.ty))
    });
    collect(named)
}

fn enumeration(item: &syn::ItemEnum) -> Read<Message> {
    let mut message = Message::default();
    for variant in &item.variants {
        let name = variant.ident.to_string();
        let value = variant.discriminant.as_ref().and_then(|(_, value)| number_of(value));
        let value = value.ok_or_else(|| format!("`{name}` has no number of its own"))?;
        insert(&mut message, value, Field { name, kind: "value".to_owned() })?;
    }
    Ok(message)
}

/// Makes a message of fields given by name, attributes and the type that they hold.
fn collect<'a>(fields: impl Iterator<Item = (String, &'a Vec<Attribute>, Option<String>)>) -> Read<Message> {
    let mut message = Message::default();
    for (name, attributes, held) in fields {
        let attribute = attributes.iter().find(|a| a.path().is_ident("prost"));
        let attribute = attribute.ok_or_else(|| format!("field `{name}` has no `prost` attribute"))?;
        let parts = attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
        let parts = parts.map_err(|e| format!("field `{name}`: {e}"))?;
        let (tags, kind) = field(&parts, held.as_deref()).map_err(|detail| format!("field `{name}`: {detail}"))?;
        for tag in tags {
            insert(&mut message, tag, Field { name: name.clone(), kind: kind.clone() })?;
        }
    }
    Ok(message)
}

fn insert(message: &mut Message, tag: u32, field: Field) -> Read<()> {
    match message.fields.insert(tag, field) {
        None => Ok(()),
        Some(other) => Err(format!("tag {tag} is that of `{}` too", other.name)),
    }
}

/// Tags of a field, and its label and type without what concerns its form in Rust alone.
fn field(parts: &Punctuated<Meta, Token![,]>, held: Option<&str>) -> Read<(Vec<u32>, String)> {
    let held = held.ok_or("its type is not understood")?;
    let (mut tags, mut label, mut kind, mut rest) = (Vec::new(), String::new(), None, String::new());
    for part in parts {
        let word = part.path().get_ident().map(ToString::to_string).unwrap_or_default();
        let value = match part {
            Meta::NameValue(pair) => text_of(&pair.value).or_else(|| number_of(&pair.value).map(|n| n.to_string())),
            _ => None,
        };
        match (word.as_str(), value) {
            ("tag" | "tags", Some(value)) => {
                let numbers: Result<Vec<u32>, _> = value.split(',').map(|tag| tag.trim().parse()).collect();
                tags = numbers.map_err(|_| format!("`{value}` is not a tag"))?;
            }
            ("boxed", None) => {}
            ("optional" | "required" | "repeated", None) => label = format!("{word} "),
            ("message" | "group", None) => kind = Some(held.to_owned()),
            ("bytes", _) => kind = Some("bytes".to_owned()),
            ("enumeration", Some(of)) => kind = Some(format!("enumeration {of}")),
            ("oneof", Some(of)) => kind = Some(format!("oneof {of}")),
            ("map" | "btree_map" | "hash_map", Some(of)) => {
                kind = Some(format!("map<{}>", of.replace("message", held)))
            }
            (_, None) => kind = Some(word),
            (_, Some(value)) => rest += &format!(" {word} {value}"),
        }
    }
    if tags.is_empty() {
        return Err("it has no tag".to_owned());
    }
    let kind = kind.ok_or("it has no type")?;
    Ok((tags, format!("{label}{kind}{rest}")))
}

/// Whether an item is compiled for tests alone.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    let of_tests = |meta: &Meta| match meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            let words: BTreeSet<&str> = condition.split(|c: char| !c.is_alphanumeric()).collect();
            words.contains("test") && !words.contains("not")
        }
        _ => false,
    };
    attributes.iter().any(|attribute| of_tests(&attribute.meta))
}

fn derives(attributes: &[Attribute], name: &str) -> bool {
    let derived = attributes
        .iter()
        .filter(|a| a.path().is_ident("derive"))
        .filter_map(|attribute| attribute.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated).ok());
    derived.flatten().any(|path| path.segments.last().is_some_and(|s| s.ident == name))
}

fn inner_of(fields: &Fields) -> Option<String> {
    fields.iter().next().and_then(|field| last_segment(&field.ty))
}

/// The innermost type of `Option<T>`, `Vec<T>`, `Box<T>`; the last of a map's; the name of any other.
fn last_segment(ty: &Type) -> Option<String> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    let inner = match &last.arguments {
        PathArguments::AngleBracketed(arguments) if is_wrapper(&last.ident) => {
            arguments.args.iter().rev().find_map(|argument| match argument {
                GenericArgument::Type(ty) => last_segment(ty),
                _ => None,
            })
        }
        _ => None,
    };
    Some(inner.unwrap_or_else(|| last.ident.to_string()))
}

fn is_wrapper(ident: &syn::Ident) -> bool {
    ["Option", "Vec", "Box", "BTreeMap", "HashMap"].iter().any(|wrapper| ident == wrapper)
}

fn text_of(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

fn number_of(expr: &Expr) -> Option<u32> {
    match expr {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
