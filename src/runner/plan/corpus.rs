//! The description of a recipe's data, and the facts about it that plans need.

use crate::data::{self, CorpusFacts, CorpusLocation, MixtureSource, Spec, TokenCache};
use crate::error::Result;
use crate::machine::Machine;
use crate::recipe::{DataSource, Recipe};

/// Returns the description of a recipe's data for [`data::open`] on a machine. The processes of the run on
/// that machine share its memory.
pub fn data_spec(recipe: &Recipe, machine: &Machine) -> Spec {
    let data = &recipe.values().data;
    // A recipe is checked to name a path for each source.
    let source = |(name, source): (&String, &DataSource)| {
        let paths = source.path.clone().unwrap_or_else(|| "".into());
        let location = CorpusLocation { paths, split: source.split.clone() };
        (name.clone(), MixtureSource { location, counted: source.epochs.is_some() })
    };
    let sets = recipe.values().validation.sets.iter();
    Spec {
        corpus: data.corpus.clone(),
        split: data.split.clone(),
        sources: data.sources.iter().map(source).collect(),
        tokenizer: data.tokenizer.clone(),
        begin_token: data.begin_token.clone(),
        document_separator: data.document_separator.clone(),
        field: data.field.clone(),
        missing: data.missing,
        extensions: data.extensions.clone(),
        validation: data.validation.clone(),
        validation_split: data.validation_split.clone(),
        sets: sets.map(|(name, paths)| (name.clone(), paths.clone().into())).collect(),
        drop: data.drop.as_ref().map(Into::into),
        train_tokens: data.train_tokens,
        validation_tokens: data.validation_tokens,
        seed: data.seed,
        packing: data.packing,
        memory_bytes: machine.memory_bytes.map(|bytes| bytes / machine.processes.max(1) as u64),
    }
}

/// Returns the facts about a recipe's corpus, without tokenizing a long text.
///
/// # Errors
/// If the corpus, the tokenizer or the limit of the token cache is one that a run refuses.
pub fn corpus_facts(recipe: &Recipe) -> Result<CorpusFacts> {
    let spec = data_spec(recipe, &Machine::none());
    data::facts(&spec, recipe.values().training.seq_len, None, TokenCache::user()?.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe;
    use std::path::Path;

    #[test]
    fn data_defaults_match_recipe_defaults() {
        let empty = recipe::load_str(Path::new("r.toml"), "", &[], std::iter::empty(), &Machine::none());
        assert_eq!(data_spec(&empty.expect("valid"), &Machine::none()), Spec::new("stories", "stories"));
    }
}
