//! Finding a key by its path, by an alias, or by a misspelling.

use super::key::Key;
use super::schema::{KEYS, SECTIONS};
use crate::suggest::{nearest, nearest_by};

/// Returns the keys of one section, in the order of the table.
pub fn keys_of(section: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.section() == section)
}

/// Returns the key called `name`, by its own name or an alias, in `section`.
pub fn find(section: &str, name: &str) -> Option<&'static Key> {
    keys_of(section).find(|key| key.is_called(name))
}

/// Returns the key at `path` (`section.name`).
pub fn find_path(path: &str) -> Option<&'static Key> {
    path.split_once('.').and_then(|(section, name)| find(section, name))
}

/// Returns the key that a misspelled `name` in `section` probably means, and which of its names is similar.
///
/// A key with exactly this name in another section comes first, then the most similar name in the section,
/// then the most similar one anywhere.
pub(super) fn nearest_key(section: &str, name: &str) -> Option<(&'static Key, &'static str)> {
    let named = |key: &'static Key| {
        std::iter::once(key.name()).chain(key.aliases.iter().copied()).map(move |name| ((key, name), name))
    };
    KEYS.iter()
        .flat_map(named)
        .find_map(|(found, known)| (known == name).then_some(found))
        .or_else(|| nearest_by(name, keys_of(section).flat_map(named)))
        .or_else(|| nearest_by(name, KEYS.iter().flat_map(named)))
}

/// Returns the section that a misspelled `name` probably means.
pub(super) fn nearest_section(name: &str) -> Option<&'static str> {
    nearest(name, SECTIONS.iter().map(|section| section.0))
}
