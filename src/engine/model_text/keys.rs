//! What a text reads of a recipe: the values of its keys, by name.

use super::names::KEY_NAMES;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyValue {
    /// A number.
    Number(f64),
    /// True or false.
    Bool(bool),
    /// A word or other text, as recipes write it.
    Word {
        /// The value.
        word: Arc<str>,
        /// All words that the key may have; empty if it may be any text.
        words: &'static [&'static str],
    },
    /// Unset, with no value derived for it.
    None,
}

/// The keys that a text may read: the numbers of [`KEY_NAMES`], and the section `[model]`.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The values of [`KEY_NAMES`], in their order.
    pub(super) named: [f64; KEY_NAMES.len()],
    /// The keys of the section `[model]`, without the section.
    pub(super) model: BTreeMap<&'static str, KeyValue>,
    /// True if the activation that the recipe names takes a gate.
    pub(super) gated: bool,
}

impl Keys {
    /// Creates the keys of a recipe: the values of [`KEY_NAMES`] in their order, those of the section
    /// `[model]` without the section's name, and whether its activation takes a gate.
    pub fn new(
        named: [f64; KEY_NAMES.len()],
        model: impl IntoIterator<Item = (&'static str, KeyValue)>,
        gated: bool,
    ) -> Self {
        Self { named, model: model.into_iter().collect(), gated }
    }

    /// Returns the value of a name in [`KEY_NAMES`].
    pub(super) fn named(&self, name: &str) -> Option<f64> {
        KEY_NAMES.iter().position(|(known, _)| *known == name).map(|index| self.named[index])
    }

    /// Returns the number of layers, which recipes limit to 1,024.
    pub(super) fn n_layers(&self) -> usize {
        self.named("n_layers").unwrap_or(0.0) as usize
    }
}
