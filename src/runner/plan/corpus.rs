//! The description of a recipe's data, and the facts about it that plans need.

use crate::data::{self, Dataset, Spec};
use crate::error::Result;
use crate::machine::Machine;
use crate::policy::CorpusSource;
use crate::recipe::{Recipe, Validation};
use std::collections::BTreeMap;

/// Facts about the corpus that are known before it is read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CorpusFacts {
    /// Vocabulary size of the tokenizer.
    pub vocab_size: usize,
    /// Tokens to train on.
    pub train_tokens: usize,
    /// True if `train_tokens` is a count, false if it is an estimate.
    pub exact: bool,
    /// Tokens held out.
    pub validation_tokens: usize,
    /// Tokens in further held-out sets, by name.
    pub set_tokens: BTreeMap<String, usize>,
    /// The lowest loss that any model can reach on the held-out tokens, in nats per token, if known.
    pub floor: Option<f64>,
    /// Bytes of host memory that the tokens take in every process of a run; token files stay on disk. An
    /// estimate if the counts are.
    pub memory_bytes: usize,
}

/// Most held-out tokens that are generated to compute the floor. A longer held-out set gets the floor of its
/// first part.
const MAX_GENERATED: usize = 1 << 18;

/// Returns the description of a recipe's data for [`data::open`] on a machine. The processes of the run on
/// that machine share its memory.
pub fn data_spec(recipe: &Recipe, machine: &Machine) -> Spec {
    let data = &recipe.values().data;
    Spec {
        corpus: data.corpus.clone(),
        tokenizer: data.tokenizer.clone(),
        document_separator: data.document_separator.clone(),
        extensions: data.extensions.clone(),
        validation: match &data.validation {
            Validation::Fraction(fraction) => data::Validation::Fraction(*fraction),
            Validation::Path(file) => data::Validation::Path(file.into()),
        },
        sets: recipe.values().validation.sets.iter().map(|(name, at)| (name.clone(), at.into())).collect(),
        train_tokens: data.train_tokens,
        validation_tokens: data.validation_tokens,
        seed: data.seed,
        memory_bytes: machine.memory_bytes.map(|bytes| bytes / machine.processes.max(1) as u64),
    }
}

impl CorpusFacts {
    /// Returns the facts about a corpus that was opened; all counts are exact.
    pub fn from_dataset(dataset: &Dataset) -> Self {
        Self {
            vocab_size: dataset.tokenizer.vocab_size(),
            train_tokens: dataset.train.len(),
            exact: true,
            validation_tokens: dataset.validation.tokens.len(),
            set_tokens: dataset.sets.iter().map(|set| (set.name.clone(), set.tokens.len())).collect(),
            floor: dataset.floor,
            memory_bytes: dataset.memory_bytes(),
        }
    }

    /// Returns the facts about a recipe's corpus that are known without reading all of it.
    ///
    /// # Errors
    /// If the corpus or the tokenizer is missing or damaged.
    pub fn estimated(recipe: &Recipe) -> Result<Self> {
        let mut spec = data_spec(recipe, &Machine::none());
        let requested = spec.validation_tokens;
        let shortened = spec.corpus == CorpusSource::Stories && requested > MAX_GENERATED;
        if shortened {
            spec.validation_tokens = MAX_GENERATED;
        }
        let facts = data::facts(&spec, None)?;
        let validation_tokens = if shortened { requested } else { facts.validation_tokens };
        // Held-out tokens that were not generated here count with the requested number.
        let in_memory =
            facts.in_memory.saturating_add(validation_tokens.saturating_sub(facts.validation_tokens));
        Ok(Self {
            vocab_size: facts.vocab_size,
            train_tokens: facts.train_tokens,
            exact: !facts.estimated && !shortened,
            validation_tokens,
            set_tokens: facts.set_tokens,
            floor: facts.floor,
            memory_bytes: in_memory.saturating_mul(size_of::<u32>()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::recipe;
    use std::path::Path;

    #[test]
    fn data_defaults_match_recipe_defaults() {
        let empty = recipe::load_str(Path::new("r.toml"), "", &[], std::iter::empty(), &Machine::none());
        assert_eq!(data_spec(&empty.expect("valid"), &Machine::none()), Spec::new("stories", "stories"));
    }
}
