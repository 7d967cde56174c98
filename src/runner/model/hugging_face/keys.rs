//! A configuration translated into recipe keys.

use crate::error::Error;
use std::fmt::Write;

/// The recipe keys that correspond to a configuration, and its values that are not keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Keys {
    /// Name of the class.
    pub class: &'static str,
    /// Number of entries in the vocabulary.
    pub vocab_size: usize,
    /// Length of the longest sequence in tokens.
    pub context: usize,
    /// Keys of `[model]`.
    pub model: Vec<Setting>,
    /// Sentences about keys of the configuration that have no effect.
    pub notes: Vec<String>,
}

/// A key of `[model]` that a configuration sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The key without its section.
    pub key: &'static str,
    /// The key of the configuration that it comes from; empty if the class has no key for it.
    pub from: &'static str,
    /// The value in TOML.
    pub value: String,
}

impl Keys {
    /// Creates keys with an empty `[model]`.
    pub(super) fn new(class: &'static str, vocab_size: usize, context: usize) -> Self {
        Self { class, vocab_size, context, model: Vec::new(), notes: Vec::new() }
    }

    /// Sets a key to a count or a boolean. `from` is the key of the configuration.
    pub(super) fn set(&mut self, key: &'static str, from: &'static str, value: impl ToString) {
        self.model.push(Setting { key, from, value: value.to_string() });
    }

    /// Sets a key to a floating-point number.
    pub(super) fn set_number(&mut self, key: &'static str, from: &'static str, value: f64) {
        // TOML tells floats from integers by the point or the exponent, which `Debug` always writes.
        self.set(key, from, format!("{value:?}"));
    }

    /// Sets a key to a word.
    pub(super) fn set_word(&mut self, key: &'static str, from: &'static str, word: impl std::fmt::Display) {
        self.set(key, from, format!("\"{word}\""));
    }

    /// Returns the count that a key was set to.
    pub(super) fn count(&self, key: &str) -> Option<usize> {
        self.model.iter().find(|setting| setting.key == key)?.value.parse().ok()
    }

    /// Returns the keys without one of them.
    #[must_use]
    pub fn without(&self, key: &str) -> Self {
        let mut keys = self.clone();
        keys.model.retain(|setting| setting.key != key);
        keys
    }

    /// Returns the `[model]` section of a recipe.
    pub fn to_toml(&self) -> String {
        let mut text = "[model]\n".to_owned();
        let _ = writeln!(text, "vocab_size = {}", self.vocab_size);
        for Setting { key, value, .. } in &self.model {
            let _ = writeln!(text, "{key} = {value}");
        }
        text
    }

    /// Adds to an error of the recipe with these keys which keys of the configuration at `place` it is about.
    pub fn explain(&self, error: &Error, place: &str) -> Error {
        let about = |setting: &&Setting| {
            let path = format!("model.{}", setting.key);
            error.problems().iter().any(|problem| problem.keys.contains(&path))
        };
        let mut named: Vec<String> = self
            .model
            .iter()
            .filter(about)
            .filter(|setting| !setting.from.is_empty())
            .map(|setting| format!("{} = {}", setting.from, setting.value))
            .collect();
        if error.problems().iter().any(|problem| problem.keys.iter().any(|key| key == "model.vocab_size")) {
            named.push(format!("vocab_size = {}", self.vocab_size));
        }
        let named = if named.is_empty() { "its keys".to_owned() } else { named.join(", ") };
        Error::usage(format!("{place}: xrun has no model with {named}:\n{}", error.message()))
    }
}
