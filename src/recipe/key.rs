//! What is known about one key of a recipe, and finding a key by what somebody wrote.

use super::table::{KEYS, SECTIONS};
use std::fmt;
use std::ops::{Bound, RangeBounds};

/// What changing a key does to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Changes the loss curve: a resumed run may not differ in it.
    Training,
    /// Changes how the same curve is computed: a resumed run may differ, and says so.
    Execution,
    /// Changes what is written down.
    Bookkeeping,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Training => "training",
            Self::Execution => "execution",
            Self::Bookkeeping => "bookkeeping",
        })
    }
}

/// A range of finite numbers, each end within it or not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: Bound<f64>,
    /// Upper end.
    pub high: Bound<f64>,
}

impl Interval {
    /// Whether the range holds `x`; false for NaN.
    pub fn contains(&self, x: f64) -> bool {
        x.is_finite() && (self.low, self.high).contains(&x)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.low {
            Bound::Included(low) => write!(f, "{low} ≤ value")?,
            Bound::Excluded(low) => write!(f, "{low} < value")?,
            Bound::Unbounded => f.write_str("value")?,
        }
        match self.high {
            Bound::Included(high) => write!(f, " ≤ {high}"),
            Bound::Excluded(high) => write!(f, " < {high}"),
            Bound::Unbounded => Ok(()),
        }
    }
}

/// What a value has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Type {
    /// Any text.
    Text,
    /// One of these names, or a path.
    NameOrPath(&'static [&'static str]),
    /// `true` or `false`.
    Bool,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number within these bounds, both included.
    Count { min: u64, max: u64 },
    /// A whole number within these bounds, or this word.
    CountOrWord { min: u64, max: u64, word: &'static str },
    /// Whole numbers, all different, each at most `max`.
    Counts { max: u64 },
    /// A number.
    Number(Interval),
    /// Two numbers, each within the interval.
    Pair(Interval),
    /// A share within the interval, or a path.
    FractionOrPath(Interval),
    /// A text that is a [`super::Prediction`].
    Prediction,
    /// A table from keys to one value each.
    Settings,
    /// A list of such tables.
    SettingsList,
    /// A table from keys to lists of values.
    Grid,
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("a text in quotes"),
            Self::NameOrPath(names) => write!(f, "{} or a path, in quotes", quoted(names)),
            Self::Bool => f.write_str("true or false"),
            Self::Word(words) => write!(f, "one of {}", quoted(words)),
            Self::Count { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::CountOrWord { min, max, word } => {
                write!(f, "a whole number from {min} to {max}, or \"{word}\"")
            }
            Self::Counts { max } => write!(f, "a list of different whole numbers up to {max}"),
            Self::Number(interval) => write!(f, "a number, {interval}"),
            Self::Pair(interval) => write!(f, "two numbers, each {interval}"),
            Self::FractionOrPath(interval) => write!(f, "a number, {interval}, or a path in quotes"),
            Self::Prediction => f.write_str(
                "\"faster\", \"slower\", \"no difference\", or a column with the range of its change, such as \"tok_s +30..+60%\"",
            ),
            Self::Settings => f.write_str("a table of keys and values"),
            Self::SettingsList => f.write_str("a list of tables of keys and values"),
            Self::Grid => f.write_str("a table of keys and lists of values"),
        }
    }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|w| format!("{w:?}")).collect::<Vec<_>>().join(", ")
}

/// One key of a recipe.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// `section.name`.
    pub path: &'static str,
    /// What changing it does.
    pub class: Class,
    /// What its value has to be.
    pub kind: Type,
    /// Unit of the value; empty when it has none.
    pub unit: &'static str,
    /// What leaving it out means, for keys without a default value; empty for the others.
    pub unset: &'static str,
    /// One sentence.
    pub meaning: &'static str,
    /// A valid value, in TOML.
    pub example: &'static str,
    /// Other names it may have in its section: the field's other words for the same thing.
    pub aliases: &'static [&'static str],
}

impl Key {
    /// An entry of the table; unit, `unset` and aliases are added by the methods below.
    pub(super) const fn new(
        path: &'static str,
        class: Class,
        kind: Type,
        meaning: &'static str,
        example: &'static str,
    ) -> Self {
        Self { path, class, kind, unit: "", unset: "", meaning, example, aliases: &[] }
    }

    pub(super) const fn unit(mut self, unit: &'static str) -> Self {
        self.unit = unit;
        self
    }

    pub(super) const fn unset(mut self, unset: &'static str) -> Self {
        self.unset = unset;
        self
    }

    pub(super) const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// The part before the dot.
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(section, _)| section)
    }

    /// The part after the dot.
    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    fn is_called(&self, name: &str) -> bool {
        self.name() == name || self.aliases.contains(&name)
    }
}

/// The keys of one section, in the order of the table.
pub fn keys_of(section: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.section() == section)
}

/// The key called `name`, by its own name or an alias, in `section`.
pub fn find(section: &str, name: &str) -> Option<&'static Key> {
    keys_of(section).find(|key| key.is_called(name))
}

/// The key at `path` (`section.name`).
pub fn find_path(path: &str) -> Option<&'static Key> {
    path.split_once('.').and_then(|(section, name)| find(section, name))
}

/// The key somebody probably meant by `name` in `section`, and which of its names that is.
///
/// A key that is called exactly so elsewhere comes first, then the most similar name in the section, then the most
/// similar one anywhere.
pub(super) fn nearest_key(section: &str, name: &str) -> Option<(&'static Key, &'static str)> {
    let named = |key: &'static Key| {
        std::iter::once(key.name()).chain(key.aliases.iter().copied()).map(move |name| ((key, name), name))
    };
    KEYS.iter()
        .flat_map(named)
        .find_map(|(found, known)| (known == name).then_some(found))
        .or_else(|| likest(name, keys_of(section).flat_map(named)))
        .or_else(|| likest(name, KEYS.iter().flat_map(named)))
}

/// The section somebody probably meant by `name`.
pub(super) fn nearest_section(name: &str) -> Option<&'static str> {
    nearest(name, SECTIONS.iter().map(|section| section.0))
}

/// The candidate most like `word`, if any is like it.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    likest(word, candidates.into_iter().map(|candidate| (candidate, candidate)))
}

/// What belongs to the candidate most like `word`, if any is like it; the first of equals.
fn likest<'a, T>(word: &str, candidates: impl Iterator<Item = (T, &'a str)>) -> Option<T> {
    candidates
        .map(|(item, candidate)| (item, likeness(word, candidate)))
        .filter(|&(_, score)| score >= LIKE)
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
        .map(|(item, _)| item)
}

/// Words less alike than this are not offered.
const LIKE: f64 = 0.8;

/// Longer words are no misspelling of a key, and comparing them takes quadratic time.
const LONGEST_WORD: usize = 64;

/// 1 for equal words, 0 for words with nothing in common; upper and lower case are the same.
///
/// A part of a name (`batch_size` of `local_batch_size`) is more like it than any misspelling.
fn likeness(word: &str, candidate: &str) -> f64 {
    if word.len() > LONGEST_WORD {
        return 0.0;
    }
    let (word, candidate) = (word.to_lowercase(), candidate.to_lowercase());
    let part = word.len() > 2 && format!("_{candidate}_").contains(&format!("_{word}_"));
    let covered = if part { 0.9 + 0.1 * word.len() as f64 / candidate.len() as f64 } else { 0.0 };
    // One slip in a word as short as `dim` already counts as a small likeness.
    let slip = if word.len() > 2 && strsim::osa_distance(&word, &candidate) == 1 { LIKE } else { 0.0 };
    strsim::jaro_winkler(&word, &candidate).max(covered).max(slip)
}
