//! The description of a recipe's data, and the facts about it that plans need.

use super::tasks;
use crate::data::chat::Renderer;
use crate::data::{self, CorpusFacts, CorpusLocation, MixtureSource, Reading, Spec, TokenCache};
use crate::error::Result;
use crate::machine::Machine;
use crate::recipe::{Data, DataSource, Recipe};

/// Returns the description of a recipe's data for [`data::open`] on a machine. The processes of the run on
/// that machine share its memory.
pub fn data_spec(recipe: &Recipe, machine: &Machine) -> Spec {
    let data = &recipe.values().data;
    // A recipe is checked to name a path for each source.
    let source = |(name, source): (&String, &DataSource)| {
        let paths = source.path.clone().unwrap_or_else(|| "".into());
        let location = CorpusLocation { paths, split: source.split.clone() };
        let reading = source.is_read_otherwise().then(|| reading(data, source));
        (name.clone(), MixtureSource { location, counted: source.epochs.is_some(), reading })
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
        format: data.format,
        extensions: data.extensions.clone(),
        held_out_reading: None,
        table: "data".to_owned(),
        validation: data.validation.clone(),
        validation_split: data.validation_split.clone(),
        sets: sets.map(|(name, paths)| (name.clone(), paths.clone().into())).collect(),
        drop: data.drop.as_ref().map(Into::into),
        train_tokens: data.train_tokens,
        validation_tokens: data.validation_tokens,
        seed: data.seed,
        packing: data.packing,
        shuffle: data.shuffle,
        memory_bytes: machine.memory_bytes.map(|bytes| bytes / machine.processes.max(1) as u64),
        chat_template: data.chat_template.as_ref().map(Into::into),
        row_len: recipe.values().training.seq_len,
        renderer: Renderer::Child,
    }
}

/// Returns how the documents of a source are found and read: as the source says, and else as `[data]` does.
fn reading(data: &Data, source: &DataSource) -> Reading {
    // An empty separator is none: each file is one document.
    let separator = source.document_separator.as_ref().or(data.document_separator.as_ref());
    Reading {
        document_separator: separator.filter(|separator| !separator.is_empty()).cloned(),
        field: source.field.as_ref().unwrap_or(&data.field).clone(),
        missing: source.missing.unwrap_or(data.missing),
        format: source.format.unwrap_or(data.format),
        extensions: source.extensions.as_ref().unwrap_or(&data.extensions).clone(),
    }
}

/// Returns the facts about a recipe's corpus and tasks, without tokenizing a long text of the corpus.
///
/// # Errors
/// If the corpus, a task, the tokenizer or the limit of the token cache is one that a run refuses.
pub fn corpus_facts(recipe: &Recipe) -> Result<CorpusFacts> {
    let spec = data_spec(recipe, &Machine::none());
    let facts = data::facts(&spec, recipe.values().training.seq_len, None, TokenCache::user()?.as_ref())?;
    Ok(CorpusFacts { tasks: tasks::facts_of_tasks(recipe)?, ..facts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe;
    use std::path::Path;

    #[test]
    fn data_defaults_match_recipe_defaults() {
        let empty = recipe::load_str(Path::new("r.toml"), "", &[], std::iter::empty(), &Machine::none());
        let recipe = empty.expect("valid");
        let row_len = recipe.values().training.seq_len;
        assert_eq!(data_spec(&recipe, &Machine::none()), Spec { row_len, ..Spec::new("stories", "stories") });
    }
}
