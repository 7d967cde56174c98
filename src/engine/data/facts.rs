//! Sizes of a corpus for the plan of a run, estimated without tokenizing all of it.

use super::corpus::Corpus;
use super::corpus_files::{CorpusFiles, TextFiles};
use super::sample::sample;
use super::stories::Split;
use super::tokenizer::Tokenizer;
use super::{Dataset, Spec, Validation, generated, shard};
use crate::error::{Error, Result};
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most held-out stories, in tokens, that are generated to compute the floor. A longer held-out set gets the
/// floor of its first part.
const MAX_GENERATED: usize = 1 << 18;

/// What plans need to know about a corpus. By default nothing is known of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CorpusFacts {
    /// Vocabulary size of the tokenizer.
    pub vocab_size: usize,
    /// Tokens to train on.
    pub train_tokens: usize,
    /// False if the numbers of tokens are estimates, because they come from sampled text or leave out the
    /// last story.
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
}

/// Returns the facts about the corpus that `spec` names, in well under a second: shards by their headers,
/// text by its length and a tokenized sample, generated corpora by the spec and their (small) held-out part.
/// A caller that looks at many corpora passes the `tokenizer` that `spec` names, so that it is opened once.
///
/// # Errors
/// If the corpus or tokenizer is missing, a shard header is damaged, or the held-out share is impossible.
pub fn facts(spec: &Spec, tokenizer: Option<&Arc<Tokenizer>>) -> Result<CorpusFacts> {
    let vocab_size = match tokenizer {
        Some(tokenizer) => tokenizer.vocab_size(),
        None => Tokenizer::size(&spec.tokenizer)?.0,
    };
    let opened = LazyCell::new(|| match tokenizer {
        Some(tokenizer) => Ok(Arc::clone(tokenizer)),
        None => Tokenizer::open_for(&spec.tokenizer, spec.begin_token.as_deref()).map(Arc::new),
    });
    let tokenizer = || (*opened).clone();
    let mut facts = CorpusFacts { vocab_size, exact: true, ..CorpusFacts::default() };
    let (mut train_in_memory, mut held_out_in_memory) = (true, true);
    match Corpus::find(spec)? {
        Corpus::Stories => {
            generated::check_size(spec.validation_tokens)?;
            let generated = spec.validation_tokens.min(MAX_GENERATED);
            let split = Split::Validation;
            let held = generated::generate(spec.seed, split, generated, &*tokenizer()?, &mut |_| Ok(()))?;
            let is_whole = generated == spec.validation_tokens;
            facts.train_tokens = spec.train_tokens;
            facts.validation_tokens = if is_whole { held.tokens } else { spec.validation_tokens };
            facts.floor = held.floor();
            facts.exact = false;
        }
        Corpus::Random => {
            facts.train_tokens = spec.train_tokens;
            facts.validation_tokens = spec.validation_tokens;
            facts.floor = Some((vocab_size as f64).ln());
        }
        Corpus::Files(files) => {
            train_in_memory = matches!(files, CorpusFiles::Text(_));
            held_out_in_memory = match &spec.validation {
                Validation::Path(path) => matches!(CorpusFiles::at(path)?, CorpusFiles::Text(_)),
                Validation::Fraction(_) => train_in_memory,
            };
            (facts.train_tokens, facts.validation_tokens, facts.exact) = splits(&files, spec, &tokenizer)?;
        }
    }
    let mut in_memory = if train_in_memory { facts.train_tokens } else { 0 };
    if held_out_in_memory {
        in_memory = in_memory.saturating_add(facts.validation_tokens);
    }
    for (name, path) in &spec.sets {
        let in_set = |e: Error| e.context(format!("validation.sets.{name}"));
        let files = CorpusFiles::at(path).map_err(in_set)?;
        let (tokens, exact) = whole(&files, spec, &tokenizer).map_err(in_set)?;
        facts.exact &= exact;
        if matches!(files, CorpusFiles::Text(_)) {
            in_memory = in_memory.saturating_add(tokens);
        }
        facts.set_tokens.insert(name.clone(), tokens);
    }
    facts.memory_bytes = in_memory.saturating_mul(size_of::<u32>());
    Ok(facts)
}

/// Opens the tokenizer on first use. Shards need only its size, which for built-in tokenizers is known
/// without building them.
type OpenTokenizer<'a> = dyn Fn() -> Result<Arc<Tokenizer>> + 'a;

/// Returns the number of training tokens, the number of held-out tokens, and whether they are exact.
fn splits(files: &CorpusFiles, spec: &Spec, tokenizer: &OpenTokenizer<'_>) -> Result<(usize, usize, bool)> {
    let (tokens, exact) = match files {
        CorpusFiles::Tokens(files) => (shard::count(&files.train)?, true),
        CorpusFiles::Text(_) => whole(files, spec, tokenizer)?,
    };
    match (&spec.validation, files) {
        (Validation::Path(path), _) => {
            let (held, held_exact) = whole(&CorpusFiles::at(path)?, spec, tokenizer)?;
            Ok((tokens, held, exact && held_exact))
        }
        (_, CorpusFiles::Tokens(files)) if !files.validation.is_empty() => {
            Ok((tokens, shard::count(&files.validation)?, true))
        }
        _ => {
            let held = (tokens as f64 * spec.fraction()?.unwrap_or_default()) as usize;
            Ok((tokens - held, held, false))
        }
    }
}

/// Returns the tokens in all files, and whether the number is exact.
fn whole(files: &CorpusFiles, spec: &Spec, tokenizer: &OpenTokenizer<'_>) -> Result<(usize, bool)> {
    match files {
        CorpusFiles::Tokens(files) => Ok((shard::count(&files.all())?, true)),
        CorpusFiles::Text(text) => Ok((estimate(text, spec, &*tokenizer()?)?, false)),
    }
}

/// Estimates the tokens in text files: their bytes times the tokens per byte of a sample.
fn estimate(text: &TextFiles, spec: &Spec, tokenizer: &Tokenizer) -> Result<usize> {
    let sampled = sample(text, spec, tokenizer)?;
    let per_byte =
        if sampled.file_bytes == 0 { 0.0 } else { sampled.tokens as f64 / sampled.file_bytes as f64 };
    Ok((sampled.all_bytes as f64 * per_byte) as usize)
}
