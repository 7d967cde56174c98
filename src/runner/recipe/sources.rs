//! The tables of `[data.sources]`: the sources of a mixture, under names that the recipe chooses.
//!
//! A source's key has the name `sources.NAME.KEY` in the section `[data]`, so every layer sets it like any
//! other key, and a higher layer may change one key of one source. The table of keys has the rows of a
//! source called `NAME`, which stand for those of every source; the keys of other names are made when they
//! are looked up.

use super::condition::{Fact, UNSET, When};
use super::groups::leak;
use super::key::Class::{Bookkeeping, Execution, Training};
use super::key::{Key, NumberFormat, NumberRange, Type};
use super::names::{name_fault, refusal};
use crate::policy::{MissingField, PathList, TextFormat};
use crate::suggest::nearest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::sync::{Mutex, PoisonError};
use toml::{Table, Value};

/// Most sources of a mixture.
pub(super) const MAX_SOURCES: usize = 64;

/// Largest weight, and largest number of passes.
pub(super) const MAX_NUMBER: f64 = 1e6;

/// The table of sources, its name within the section, and the section.
pub(super) const TABLE: &str = "data.sources";
pub(super) const SECTION: &str = "data";
pub(super) const SOURCES: &str = "sources";

/// The name in the table of keys that stands for any.
pub(super) const ANY_NAME: &str = "NAME";

/// Most names whose keys are found. Keys of a name stay in memory as long as the program, and a server looks
/// up names that others send.
const MAX_KNOWN_NAMES: usize = 4096;

/// A source of a mixture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSource {
    /// Files or folders of text or token shards. A checked recipe sets it for every source.
    pub path: Option<PathList>,
    /// Split of its folders that is trained on; `None` for all files.
    pub split: Option<String>,
    /// Text that separates the documents of its text files: empty for none, and `None` for that of `[data]`.
    pub document_separator: Option<String>,
    /// Field or column that holds the text of a document; `None` for that of `[data]`.
    pub field: Option<String>,
    /// What happens to a document without that field; `None` for what `[data]` says.
    pub missing: Option<MissingField>,
    /// What its files are; `None` for what `[data]` says.
    pub format: Option<TextFormat>,
    /// Extensions of the files read from a folder of text; `None` for those of `[data]`.
    pub extensions: Option<Vec<String>>,
    /// Share of the training sequences, relative to the sum of all weights. A checked recipe with several
    /// sources sets it for every source; for a single one it has no effect.
    pub weight: Option<f64>,
    /// Largest number of passes over the source; `None` for no limit.
    pub epochs: Option<f64>,
    /// Origin and licence of its text.
    pub card: Option<String>,
}

impl DataSource {
    /// Returns true if a key of the source says how its documents are read.
    pub fn is_read_otherwise(&self) -> bool {
        self.document_separator.is_some()
            || self.field.is_some()
            || self.missing.is_some()
            || self.format.is_some()
            || self.extensions.is_some()
    }
}

const NUMBER: Type =
    Type::Number(NumberRange { low: Excluded(0.0), high: Included(MAX_NUMBER), used_as: NumberFormat::Fp64 });

/// Keys within a source.
pub(super) const PATH: &str = "path";
pub(super) const WEIGHT: &str = "weight";

/// The key that says where training text comes from.
pub(super) const CORPUS: &str = "data.corpus";

/// The keys of a source called `NAME`.
const ROWS: [Key; 10] = [
    Key::new(
        "data.sources.NAME.path",
        Training,
        Type::NameOrPaths(&[]),
        "Files or folders of text or token shards of the source `NAME`, a name of letters, digits, `-` and `_`.",
        "[\"web/*.parquet\", \"more\"]",
    )
    .unset("required")
    .implied(UNSET),
    Key::new(
        "data.sources.NAME.split",
        Training,
        Type::Text,
        "Split of the source's folders to train on, as for `data.split`.",
        "\"train\"",
    )
    .unset("all files")
    .implied(UNSET),
    Key::new(
        "data.sources.NAME.document_separator",
        Training,
        Type::Text,
        "Text that separates two documents of the source's text files; `\"\"` makes each file one document.",
        "\"<|endoftext|>\"",
    )
    .unset("`data.document_separator`")
    .implied(UNSET),
    Key::new(
        "data.sources.NAME.field",
        Training,
        Type::Text,
        "Field of a JSON object, or column of a table, that holds the text of a document of the source.",
        "\"content\"",
    )
    .unset("`data.field`")
    .implied(UNSET),
    Key::new(
        "data.sources.NAME.missing",
        Execution,
        Type::Word(MissingField::WORDS),
        "What happens to a document of the source that lacks the field, as for `data.missing`.",
        "\"skip\"",
    )
    .unset("`data.missing`")
    .implied(UNSET),
    Key::new(
        "data.sources.NAME.format",
        Training,
        Type::Word(TextFormat::WORDS),
        "What the source's files are, as for `data.format`.",
        "\"jsonl\"",
    )
    .unset("`data.format`")
    .implied(UNSET),
    Key::new(
        "data.sources.NAME.extensions",
        Training,
        Type::Extensions,
        "Extensions of the files to read from the source's folders, as for `data.extensions`.",
        "[\".py\", \".rs\"]",
    )
    .unset("`data.extensions`")
    .implied(UNSET),
    Key::new(
        "data.sources.NAME.weight",
        Training,
        NUMBER,
        "Share of the training sequences that comes from the source, relative to the sum of all weights.",
        "0.25",
    )
    .unset("required if there are several sources")
    .implied(UNSET)
    .idle(&[When::Fact(Fact::OneSource)]),
    Key::new(
        "data.sources.NAME.epochs",
        Training,
        NUMBER,
        "Largest number of passes over the source.",
        "4.0",
    )
    .unit("epochs")
    .unset("no limit")
    .implied(UNSET),
    Key::new(
        "data.sources.NAME.card",
        Bookkeeping,
        Type::Text,
        "Origin and licence of the source's text, for the summary and for exports.",
        "\"CC-BY-4.0, from a crawl of 2024\"",
    )
    .unset("none")
    .implied(UNSET),
];

/// Returns the rows of the table of keys: those of a source called `NAME`.
pub(super) fn keys() -> Vec<Key> {
    ROWS.to_vec()
}

/// Returns true for the row that ends the table's rows of sources.
pub(super) fn is_last_row(key: &Key) -> bool {
    key.path == ROWS[ROWS.len() - 1].path
}

/// The keys of names, which are made once and stay as long as the program.
#[derive(Debug)]
struct Names(Mutex<BTreeMap<String, &'static [Key]>>);

/// The names that were looked up.
static KNOWN: Names = Names(Mutex::new(BTreeMap::new()));

impl Names {
    /// Returns the keys of the source called `name`; `None` for a new one if there are already `most` names.
    fn keys(&self, name: &str, most: usize) -> Option<&'static [Key]> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(name) && known.len() < most {
            let key = |row: &Key| Key { path: leak(row.path.replace(ANY_NAME, name)), ..*row };
            known.insert(name.to_owned(), ROWS.iter().map(key).collect::<Vec<_>>().leak());
        }
        known.get(name).copied()
    }
}

/// Returns the keys of the source called `name`, which a recipe has.
pub(super) fn keys_of(name: &str) -> &'static [Key] {
    KNOWN.keys(name, usize::MAX).unwrap_or_default()
}

/// Returns the key of a source at `section.name`; `None` for other names, for a source whose name is invalid,
/// and for a new source after [`MAX_KNOWN_NAMES`] others.
pub(super) fn find(section: &str, name: &str) -> Option<&'static Key> {
    let (source, field) = split(section, name)?;
    let is_called = |key: &&Key| name_and_field(key).is_some_and(|(_, own)| own == field);
    if name_fault(source).is_some() || !ROWS.iter().any(|row| is_called(&row)) {
        return None;
    }
    KNOWN.keys(source, MAX_KNOWN_NAMES)?.iter().find(is_called)
}

/// Splits `sources.NAME.KEY` in `[data]` into name and key.
fn split<'n>(section: &str, name: &'n str) -> Option<(&'n str, &'n str)> {
    if section != SECTION {
        return None;
    }
    name.strip_prefix(SOURCES)?.strip_prefix('.')?.split_once('.')
}

/// Returns the name of the source that a key belongs to, and the key's name within the source.
pub(super) fn name_and_field(key: &Key) -> Option<(&'static str, &'static str)> {
    split(key.section(), key.name())
}

/// Returns the name of a source if `name` is its table in the section: `sources.NAME`.
pub(super) fn table_name<'n>(section: &str, name: &'n str) -> Option<&'n str> {
    if section != SECTION {
        return None;
    }
    name.strip_prefix(SOURCES)?.strip_prefix('.')
}

/// Returns true for the full path of the key that says where a source lies.
pub fn is_source_path(key: &str) -> bool {
    let field = key.split_once('.').and_then(|(section, name)| split(section, name));
    field.is_some_and(|(_, field)| field == PATH)
}

/// Returns the full path of the key that says where the source called `name` lies.
pub fn source_path_key(name: &str) -> String {
    path(name, PATH)
}

/// Returns the full path of a key of a source.
pub(super) fn path(name: &str, field: &str) -> String {
    format!("{SECTION}.{SOURCES}.{name}.{field}")
}

/// Puts keys of sources, which layers set as `sources.NAME.KEY`, into tables of a section's table.
pub(super) fn nest(section: &str, keys: Table) -> Table {
    let mut nested = Table::new();
    for (key, value) in keys {
        match split(section, &key) {
            Some((source, field)) => {
                let mut at = &mut nested;
                for name in [SOURCES, source] {
                    let inner = at.entry(name).or_insert_with(|| Value::Table(Table::new()));
                    at = inner.as_table_mut().expect("only this function sets tables of sources");
                }
                at.insert(field.to_owned(), value);
            }
            None => _ = nested.insert(key, value),
        }
    }
    nested
}

/// Explains a name in `[data]` that starts like the key of a source but is not one: what is wrong, and what
/// to write instead. `None` for other names. `by_env` is true for the name of an environment variable.
pub(super) fn explain_unknown(section: &str, name: &str, by_env: bool) -> Option<(String, String)> {
    let fields = ROWS.map(|row| split(SECTION, row.name()).map_or("", |(_, field)| field));
    let below = |name: &str| format!("write [data.sources.{name}] and its keys {} below", fields.join(", "));
    if section == SECTION && name == SOURCES {
        return Some(("data.sources is a table of sources, not a value".to_owned(), below(ANY_NAME)));
    }
    let rest = table_name(section, name)?;
    let (source, field) = rest.split_once('.').unwrap_or((rest, ""));
    if let Some(fault) = name_fault(source) {
        let (title, help) = refusal(TABLE, source);
        return Some((format!("{title}: {fault}"), help));
    }
    let title = match field {
        "" => format!("data.sources.{source} is a table, not a value"),
        field => format!("a source has no key `{field}`"),
    };
    let help = match nearest(field, fields) {
        _ if field.is_empty() => below(source),
        _ if by_env && field.contains('.') => {
            "`__` separates the parts of a variable's name, so it cannot be part of a source's name: set the key on the \
             command line"
                .to_owned()
        }
        Some(near) => format!("did you mean data.sources.{source}.{near}?"),
        None => format!("a source has {}", fields.join(", ")),
    };
    Some((title, help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_name_are_made_once_and_of_only_so_many_names() {
        let names = Names(Mutex::new(BTreeMap::new()));
        let paths = |name: &str| names.keys(name, 2).map(|keys| [keys[0].path, keys[1].path]);
        let a = paths("a").expect("the first");
        assert_eq!(a, ["data.sources.a.path", "data.sources.a.split"]);
        assert_eq!(paths("b").map(|keys| keys[0]), Some("data.sources.b.path"));
        assert_eq!(paths("c"), None);
        assert!(std::ptr::eq(paths("a").expect("known")[0], a[0]));
    }
}
