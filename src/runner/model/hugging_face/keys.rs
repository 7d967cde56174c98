//! A configuration translated into recipe keys.

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
    /// Keys of `[model]` without their section, each with its value in TOML.
    pub model: Vec<(&'static str, String)>,
}

impl Keys {
    /// Creates keys with an empty `[model]`.
    pub(super) fn new(class: &'static str, vocab_size: usize, context: usize) -> Self {
        Self { class, vocab_size, context, model: Vec::new() }
    }

    /// Sets a key to a count or a boolean.
    pub(super) fn set(&mut self, key: &'static str, value: impl ToString) {
        self.model.push((key, value.to_string()));
    }

    /// Sets a key to a floating-point number.
    pub(super) fn set_number(&mut self, key: &'static str, value: f64) {
        // TOML tells floats from integers by the point or the exponent, which `Debug` always writes.
        self.model.push((key, format!("{value:?}")));
    }

    /// Sets a key to a word.
    pub(super) fn set_word(&mut self, key: &'static str, word: impl std::fmt::Display) {
        self.model.push((key, format!("\"{word}\"")));
    }

    /// Returns the `[model]` section of a recipe.
    pub fn to_toml(&self) -> String {
        let mut text = "[model]\n".to_owned();
        let _ = writeln!(text, "vocab_size = {}", self.vocab_size);
        for (key, value) in &self.model {
            let _ = writeln!(text, "{key} = {value}");
        }
        text
    }
}
