//! Hyperparameters: keys in a recipe's `[optimizer]` section that belong to particular optimizers.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

/// A hyperparameter of an optimizer, as recipes spell it.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyperparameter {
    /// The key in `[optimizer]`. Optimizers may share a name if they give it the same form.
    pub name: &'static str,
    /// Form and bounds of its value.
    pub form: Form,
    /// The value if a recipe sets none.
    pub default: Value,
    /// Meaning, in one sentence.
    pub meaning: &'static str,
    /// True if the hyperparameter is newer than stored runs, which did what the default does: resolved recipes
    /// and hashes leave the default out.
    pub default_is_implied: bool,
    /// A valid value other than the default, in TOML.
    pub example: &'static str,
    /// Other names for it in the field.
    pub aliases: &'static [&'static str],
}

/// Form of a hyperparameter's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// A finite number between two bounds.
    Number(Bound<f64>, Bound<f64>),
    /// Two such numbers.
    Pair(Bound<f64>, Bound<f64>),
    /// A whole number within these bounds, both included.
    Count {
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// True or false.
    Flag,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// Value of a hyperparameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// True or false.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A whole number. Recipes parse it as [`Value::Number`], and [`Hyperparameter::value`] converts it.
    Count(u64),
    /// Two numbers.
    Pair([f64; 2]),
    /// A word.
    Word(Cow<'static, str>),
}

impl Value {
    /// Returns another value of the same form, to see whether anything reads the value.
    #[must_use]
    pub fn other(&self) -> Self {
        match self {
            Self::Flag(is_set) => Self::Flag(!is_set),
            Self::Number(x) => Self::Number(x + 1.0),
            Self::Count(n) => Self::Count(n + 1),
            Self::Pair([first, second]) => Self::Pair([first + 1.0, second + 1.0]),
            Self::Word(word) => Self::Word(format!("not {word}").into()),
        }
    }
}

impl Hyperparameter {
    /// Converts a value as written in a recipe to the form of this hyperparameter.
    pub fn value(&self, written: &Value) -> Value {
        match (self.form, written) {
            (Form::Count { .. }, Value::Number(x)) => Value::Count(*x as u64),
            _ => written.clone(),
        }
    }
}

impl fmt::Display for Value {
    /// Writes the value in TOML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(is_set) => write!(f, "{is_set}"),
            Self::Number(x) => write!(f, "{x:?}"),
            Self::Count(n) => write!(f, "{n}"),
            Self::Word(word) => write!(f, "{word:?}"),
            Self::Pair([first, second]) => write!(f, "[{first:?}, {second:?}]"),
        }
    }
}

/// Values of all hyperparameters of one optimizer, by name. They print as `eps=1e-8 weight_decay=0.1`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values(BTreeMap<&'static str, Value>);

impl Values {
    /// Returns values for the `declared` hyperparameters, from `written` or else by default. Other names in
    /// `written` are ignored.
    pub fn from_written<'a>(
        declared: impl IntoIterator<Item = &'a Hyperparameter>,
        written: &BTreeMap<String, Value>,
    ) -> Self {
        let value = |h: &Hyperparameter| h.value(written.get(h.name).unwrap_or(&h.default));
        Self(declared.into_iter().map(|h| (h.name, value(h))).collect())
    }

    /// Returns the value with this name; `None` if the optimizer has no such hyperparameter.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Returns the values with the number of this name multiplied by `factor`, if the optimizer has such a
    /// number.
    #[must_use]
    pub fn scaled(mut self, name: &str, factor: f64) -> Self {
        if let Some(Value::Number(x)) = self.0.get_mut(name) {
            *x *= factor;
        }
        self
    }

    /// Returns the values without the one of this name.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.0.remove(name);
        self
    }

    /// Returns the values with another value of this name, if there is one.
    #[must_use]
    pub fn with_other(mut self, name: &str) -> Self {
        if let Some(value) = self.0.get_mut(name) {
            *value = value.other();
        }
        self
    }

    /// Returns what `pick` takes from the value with this name.
    ///
    /// Panics if the optimizer declares no such value: a programming error.
    fn find<'a, T>(&'a self, name: &str, what: &str, pick: impl Fn(&'a Value) -> Option<T>) -> T {
        let found = self.0.get(name);
        found.and_then(pick).unwrap_or_else(|| panic!("{name} is declared as {what}, not {found:?}"))
    }

    /// Returns the number with this name. Panics if the optimizer declares none: a programming error.
    pub fn number(&self, name: &str) -> f64 {
        self.find(name, "a number", |value| if let Value::Number(x) = value { Some(*x) } else { None })
    }

    /// Returns the pair with this name. Panics if the optimizer declares none: a programming error.
    pub fn pair(&self, name: &str) -> [f64; 2] {
        self.find(name, "a pair", |value| if let Value::Pair(pair) = value { Some(*pair) } else { None })
    }

    /// Returns the whole number with this name. Panics if the optimizer declares none: a programming error.
    pub fn count(&self, name: &str) -> usize {
        self.find(name, "a whole number", |value| if let Value::Count(n) = value { Some(*n) } else { None })
            as usize
    }

    /// Returns the flag with this name. Panics if the optimizer declares none: a programming error.
    pub fn flag(&self, name: &str) -> bool {
        self.find(name, "a flag", |value| if let Value::Flag(is_set) = value { Some(*is_set) } else { None })
    }

    /// Returns the word with this name. Panics if the optimizer declares none: a programming error.
    pub fn word(&self, name: &str) -> &str {
        self.find(name, "a word", |value| if let Value::Word(word) = value { Some(&**word) } else { None })
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        f.write_str(&values.join(" "))
    }
}
