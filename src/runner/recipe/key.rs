//! One row of the table of keys: class, type, bounds, unit, description.

use super::condition::{UNSET, When};
use crate::expression::Scope;
use crate::model_text::BUILT_IN_NAMES;
use serde::Serialize;
use std::fmt;
use std::ops::{Bound, RangeBounds};

/// The effect of a key on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Changes the loss curve: a resumed run must have the same value.
    Training,
    /// Changes how the same curve is computed: a resumed run may have another value, and notes it.
    Execution,
    /// Changes what a figure of a run is measured on: figures of runs with different values are not
    /// comparable, and a resumed run must have the same value.
    Measuring,
    /// Changes only what is recorded.
    Bookkeeping,
}

impl Class {
    /// Returns true if keys of this class change what is trained or how, so that a recipe's hash covers them.
    pub fn is_hashed(self) -> bool {
        matches!(self, Self::Training | Self::Execution)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Training => "training",
            Self::Execution => "execution",
            Self::Measuring => "measuring",
            Self::Bookkeeping => "bookkeeping",
        })
    }
}

/// A range of finite numbers with open or closed ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberRange {
    /// Lower end.
    pub low: Bound<f64>,
    /// Upper end.
    pub high: Bound<f64>,
    /// The format in which a run uses the number.
    pub used_as: NumberFormat,
}

/// The format in which a run uses a number, which must not change what the number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberFormat {
    /// A number in fp32, as kernels and optimizers use it. bf16 has the same range.
    Fp32,
    /// A number in fp64, as the host uses it.
    Fp64,
    /// A whole number of these parts of the key's unit.
    Whole {
        /// Parts per unit of the key.
        per_unit: u64,
        /// Name of a part.
        part: &'static str,
    },
}

impl NumberFormat {
    /// Bytes, for keys in MiB.
    pub const BYTES_PER_MIB: Self = Self::Whole { per_unit: 1 << 20, part: "byte" };
    /// Bytes, for keys in GiB.
    pub const BYTES_PER_GIB: Self = Self::Whole { per_unit: 1 << 30, part: "byte" };
    /// Nanoseconds, for keys in seconds.
    pub const NANOSECONDS: Self = Self::Whole { per_unit: 1_000_000_000, part: "nanosecond" };
    /// Nanoseconds, for keys in minutes.
    pub const NANOSECONDS_PER_MINUTE: Self = Self::Whole { per_unit: 60_000_000_000, part: "nanosecond" };
}

impl NumberRange {
    /// Returns true if the range contains `x`; false for NaN.
    pub fn contains(&self, x: f64) -> bool {
        x.is_finite() && (self.low, self.high).contains(&x)
    }

    /// Returns what becomes of a number of this range in the format in which it is used, if that is another
    /// number to the run: 0, infinite, or out of range. Rounding alone is not reported.
    pub fn format_fault(&self, x: f64) -> Option<String> {
        match self.used_as {
            NumberFormat::Fp64 => None,
            NumberFormat::Fp32 => {
                let used = f64::from(x as f32);
                if x != 0.0 && used.abs() < f64::from(f32::MIN_POSITIVE) {
                    Some("vanishes in fp32, whose numbers begin at 1.2e-38".to_owned())
                } else if !used.is_finite() {
                    Some("is beyond fp32, whose numbers end at 3.4e38".to_owned())
                } else {
                    (!self.contains(used)).then(|| format!("becomes {used:?} in fp32"))
                }
            }
            NumberFormat::Whole { per_unit, part } => (x != 0.0 && x.abs() * (per_unit as f64) < 1.0)
                .then(|| format!("is less than one {part}, and counts as 0")),
        }
    }
}

impl fmt::Display for NumberRange {
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

/// Type and bounds of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Type {
    /// Any string.
    Text,
    /// One of these names, or a path; if there are no names, only a path.
    NameOrPath(&'static [&'static str]),
    /// One of these names, or a path, or a list of paths.
    NameOrPaths(&'static [&'static str]),
    /// A model text, a path of one, or the name of a built-in one.
    ModelText,
    /// `true` or `false`.
    Bool,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A list of different words out of these; it may be empty.
    Words(&'static [&'static str]),
    /// One of these words, or a formula of this kind.
    WordOrFormula(&'static [&'static str], Scope),
    /// A whole number within these bounds, both included.
    Count { min: u64, max: u64 },
    /// A whole number within these bounds, or this word.
    CountOrWord { min: u64, max: u64, word: &'static str },
    /// Whole numbers, all different, each at most `max`.
    Counts { max: u64 },
    /// Pairs of whole numbers from 1 on, `[steps, count]`, with ascending steps up to `max_steps` and counts
    /// up to `max`.
    Stages { max_steps: u64, max: u64 },
    /// File extensions, all different, each with its dot; the empty one is that of files without any.
    Extensions,
    /// A number.
    Number(NumberRange),
    /// Two numbers, each within the range.
    Pair(NumberRange),
    /// A fraction within the range, or a path, or a list of paths.
    FractionOrPaths(NumberRange),
    /// A table of names, each with a path or a list of paths.
    NamedPaths,
    /// A list of different names of tasks or of sets of tasks, and paths that end in `.toml`; it may be
    /// empty.
    TaskNames,
    /// A list of tables, each with a fraction of training and the weights of sources from there on.
    Phases,
    /// A string that parses as a [`super::Prediction`].
    Prediction,
    /// A string that parses as a [`super::Until`].
    Until,
    /// A table of keys, each with one value.
    Settings,
    /// A list of such tables.
    SettingsList,
    /// A table of keys, each with a list of values.
    Grid,
    /// A table of numeric keys, each with the two ends of a range.
    Ranges(RangeScale),
}

impl Type {
    /// Returns true if a value may be any text in quotes, so that the command line can do without the quotes.
    pub(super) const fn is_any_text(&self) -> bool {
        matches!(
            self,
            Self::Text
                | Self::NameOrPath(_)
                | Self::NameOrPaths(_)
                | Self::ModelText
                | Self::WordOrFormula(..)
        )
    }

    /// Returns true if a value may be a list of paths.
    pub(super) const fn takes_paths(&self) -> bool {
        matches!(self, Self::NameOrPaths(_) | Self::FractionOrPaths(_))
    }
}

/// The scale on which samples from a range are uniform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeScale {
    /// The values themselves.
    Linear,
    /// Their logarithms.
    Log,
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("a string in quotes"),
            Self::NameOrPath([]) => f.write_str("a path in quotes"),
            Self::NameOrPath(names) => write!(f, "{} or a path, in quotes", quoted(names)),
            Self::NameOrPaths([]) => f.write_str("a path in quotes, or a list of them"),
            Self::NameOrPaths(names) => write!(f, "{} or a path, in quotes, or a list of paths", quoted(names)),
            Self::ModelText => write!(f, "a model text, a path of one, or one of {}", quoted(&BUILT_IN_NAMES)),
            Self::Bool => f.write_str("true or false"),
            Self::Word(words) => write!(f, "one of {}", quoted(words)),
            Self::Words(words) => write!(f, "a list of different words, each one of {}", quoted(words)),
            Self::WordOrFormula(words, scope) => {
                write!(f, "one of {}, or a formula {}", quoted(words), scope.meaning())
            }
            Self::Count { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::CountOrWord { min, max, word } => {
                write!(f, "a whole number from {min} to {max}, or \"{word}\"")
            }
            Self::Counts { max } => write!(f, "a list of different whole numbers up to {max}"),
            Self::Stages { max_steps, max } => write!(
                f,
                "a list of [step, number], with ascending steps up to {max_steps} and whole numbers from 1 to {max}"
            ),
            Self::Extensions => f.write_str("a list of different file endings in quotes, such as \".py\", or \"\" for files without one"),
            Self::Number(interval) => write!(f, "a number, {interval}"),
            Self::Pair(interval) => write!(f, "two numbers, each {interval}"),
            Self::FractionOrPaths(interval) => {
                write!(f, "a number, {interval}, or a path in quotes, or a list of paths")
            }
            Self::NamedPaths => f.write_str(
                "a table of paths in quotes, or lists of them, under names of letters, digits, `-` and `_`",
            ),
            Self::TaskNames => f.write_str(
                "a list of different names of tasks or sets of tasks, or paths of definitions ending in .toml, in quotes",
            ),
            Self::Phases => f.write_str(
                "a list of tables, each with `from`, a fraction of training above 0 and below 1, in ascending order, and `weights`, a table of sources and numbers from 0 to 1000000",
            ),
            Self::Prediction => f.write_str(
                "\"faster\", \"slower\", \"better\", \"worse\", \"no difference\", or a column with the range of its change, such as \"tok_s +30..+60%\" or \"val_loss -0.05..-0.01\"",
            ),
            Self::Until => write!(f, "a budget of {}", super::until::FORMS),
            Self::Settings => f.write_str("a table of keys and values"),
            Self::SettingsList => f.write_str("a list of tables of keys and values"),
            Self::Grid => f.write_str("a table of keys and lists of values"),
            Self::Ranges(RangeScale::Linear) => {
                f.write_str("a table of keys of numbers and ranges [low, high]")
            }
            Self::Ranges(RangeScale::Log) => {
                f.write_str("a table of keys of numbers and ranges [low, high] above 0")
            }
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
    /// The effect on a run.
    pub class: Class,
    /// Type and bounds of the value.
    pub kind: Type,
    /// Unit of the value; empty if it has none.
    pub unit: &'static str,
    /// Behavior if the key is unset, for keys without a default value; empty for others.
    pub unset: &'static str,
    /// One sentence, with no markup except backquotes.
    pub meaning: &'static str,
    /// A valid value, as TOML.
    pub example: &'static str,
    /// Names that other frameworks use for the key, accepted in its section.
    pub aliases: &'static [&'static str],
    /// True for an execution key whose change leaves every bit of the loss curve the same, on a given machine
    /// with a given table of matrix-product algorithms. Other execution keys may change rounding: with more
    /// than two ranks on GPUs, the start of a bucket decides the order in which the gradients of ranks are
    /// added.
    pub same_bits: bool,
    /// The value (as TOML, or `unset`) at which resolved recipes and hashes leave the key out. It stands for
    /// the behavior before the key existed, so that hashes of earlier recipes stay valid. A resolved recipe
    /// without the key has this value, whatever the default is.
    pub implied: Option<&'static str>,
    /// The default of a hyperparameter that is newer than stored recipes, which did the same without it. It is
    /// left out like the implied value.
    pub implied_default: Option<&'static str>,
    /// Conditions under which the key has no effect. A value that is set nevertheless is reported.
    pub idle: &'static [When],
    /// Conditions under which the key has no effect and a value is refused, because a result would claim more
    /// than it has.
    pub refused: &'static [When],
}

/// Returns the text of a doc comment, without the space between the slashes and its first word.
pub(super) const fn doc_text(doc: &'static str) -> &'static str {
    doc.split_at(1).1
}

impl Key {
    /// Creates a row of the table; the methods below add the optional fields.
    pub(super) const fn new(
        path: &'static str,
        class: Class,
        kind: Type,
        meaning: &'static str,
        example: &'static str,
    ) -> Self {
        Self {
            path,
            class,
            kind,
            unit: "",
            unset: "",
            meaning,
            example,
            aliases: &[],
            same_bits: false,
            implied: None,
            implied_default: None,
            idle: &[],
            refused: &[],
        }
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

    pub(super) const fn same_bits(mut self) -> Self {
        self.same_bits = true;
        self
    }

    pub(super) const fn implied(mut self, value: &'static str) -> Self {
        self.implied = Some(value);
        self
    }

    pub(super) const fn idle(mut self, when: &'static [When]) -> Self {
        self.idle = when;
        self
    }

    pub(super) const fn refused(mut self, when: &'static [When]) -> Self {
        self.refused = when;
        self
    }

    /// Returns true if resolved recipes and hashes leave the key out at this value.
    pub(super) fn is_implied(&self, value: Option<&str>) -> bool {
        let implied = [self.implied, self.implied_default];
        implied.into_iter().flatten().any(|implied| implied == value.unwrap_or(UNSET))
    }

    /// Returns the part before the dot.
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(section, _)| section)
    }

    /// Returns the part after the dot.
    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    /// Returns true if the key is in a table within its section, as the keys of groups are.
    pub fn is_nested(&self) -> bool {
        self.name().contains('.')
    }

    /// Returns true if `name` is the key's name or an alias.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.name() == name || self.aliases.contains(&name)
    }
}
