//! What a recipe says of its data, for the data layer and for plans that do not read it.

use super::Corpus;
use crate::data::{self, GENERATED, Spec, tokenizer};
use crate::error::Result;
use crate::recipe::{Resolved, Validation};

/// Held-out tokens that are generated for the floor. Of a longer held-out set a plan has the floor of its beginning.
const MOST_GENERATED: usize = 1 << 18;

/// The data of a recipe, with paths relative to whatever set them resolved.
pub fn data_spec(resolved: &Resolved) -> Spec {
    let data = &resolved.recipe.data;
    let path = |key: &str, value: &str, names: &[&str]| {
        if names.contains(&value) {
            value.to_string()
        } else {
            resolved.path_of(key, value).to_string_lossy().into_owned()
        }
    };
    Spec {
        corpus: path("data.corpus", &data.corpus, &GENERATED),
        tokenizer: path("data.tokenizer", &data.tokenizer, &tokenizer::BUILT_IN),
        document_separator: data.document_separator.clone(),
        validation: match &data.validation {
            Validation::Fraction(share) => data::Validation::Fraction(*share),
            Validation::Path(file) => data::Validation::Path(resolved.path_of("data.validation", file)),
        },
        train_tokens: data.train_tokens,
        validation_tokens: data.validation_tokens,
        seed: data.seed,
    }
}

/// What is known of a recipe's corpus without reading all of it.
///
/// # Errors
/// When the corpus or the tokenizer is missing or damaged.
pub fn corpus_of(resolved: &Resolved) -> Result<Corpus> {
    let mut spec = data_spec(resolved);
    let asked = spec.validation_tokens;
    let shortened = spec.corpus == GENERATED[0] && asked > MOST_GENERATED;
    if shortened {
        spec.validation_tokens = MOST_GENERATED;
    }
    let facts = data::facts(&spec)?;
    Ok(Corpus {
        vocab_size: facts.vocab_size,
        train_tokens: facts.train_tokens,
        exact: !facts.estimated && !shortened,
        validation_tokens: if shortened { asked } else { facts.validation_tokens },
        floor: facts.floor,
    })
}
