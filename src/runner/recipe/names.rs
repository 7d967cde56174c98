//! The names that a recipe chooses: those of held-out sets and of sources.

use super::scalars::InvalidValue;
use crate::format::shortened;
use toml::Spanned;
use toml::de::DeString;

/// Longest name of a named path or of a source, in bytes.
const LONGEST_NAME: usize = 64;

/// Returns what is wrong with the name of a held-out set or of a source. Names become parts of column names,
/// of measures and of pages, so their characters are restricted.
pub(super) fn name_fault(name: &str) -> Option<String> {
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match name.find(|c| !is_name_char(c)) {
        Some(at) => Some(format!("has {:?}", name[at..].chars().next().unwrap_or_default())),
        None if name.is_empty() => Some("empty".to_owned()),
        None if name.len() > LONGEST_NAME => Some(format!("longer than {LONGEST_NAME} characters")),
        None => None,
    }
}

/// Says that the table called `owner` cannot have a name, and which names it can have.
pub(super) fn refusal(owner: &str, name: &str) -> (String, String) {
    let name = shortened(&format!("{name:?}"), LONGEST_NAME + 2);
    (format!("{owner} cannot have the name {name}"), "a name has letters, digits, `-` and `_`".to_owned())
}

/// Refuses a name that has a fault in the table called `owner`.
pub(super) fn wrong_name(owner: &str, name: &Spanned<DeString<'_>>, fault: String) -> InvalidValue {
    let (title, help) = refusal(owner, name.get_ref());
    InvalidValue { span: name.span(), title, label: fault, help }
}
