//! Sizes of a corpus for the plan of a run, estimated without tokenizing all of it.

use super::corpus::Corpus;
use super::corpus_files::{CorpusFiles, TextFiles};
use super::stories::Split;
use super::tokenizer::Tokenizer;
use super::{Spec, Validation, generated, shard, source};
use crate::error::{Error, Result};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a text corpus tokenized at each sampled place.
const SAMPLE_BYTES: usize = 32 << 10;

/// Places of a text corpus that are sampled.
const SAMPLES: u64 = 4;

/// Sizes of a corpus.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Entries of the tokenizer.
    pub vocab_size: usize,
    /// The end token.
    pub end_token: u32,
    /// Tokens to train on.
    pub train_tokens: usize,
    /// Held-out tokens.
    pub validation_tokens: usize,
    /// True if the two counts are estimates, because they come from sampled text or leave out the last story.
    pub estimated: bool,
    /// The lowest possible loss in nats per token, if known.
    pub floor: Option<f64>,
    /// Tokens of each further held-out set, by name.
    pub set_tokens: BTreeMap<String, usize>,
    /// How many of these tokens are held in memory. Those in token files stay on disk.
    pub in_memory: usize,
}

/// Returns the sizes of the corpus that `spec` names, in well under a second: shards by their headers, text
/// by its length and a tokenized sample, generated corpora by the spec and their (small) held-out part. A
/// caller that looks at many corpora passes the `tokenizer` that `spec` names, so that it is opened once.
///
/// # Errors
/// If the corpus or tokenizer is missing, a shard header is damaged, or the held-out share is impossible.
pub fn facts(spec: &Spec, tokenizer: Option<&Arc<Tokenizer>>) -> Result<Facts> {
    let tokenizer = LazyTokenizer {
        name: &spec.tokenizer,
        opened: tokenizer.cloned().map_or_else(OnceCell::new, OnceCell::from),
    };
    let (vocab_size, end_token) = tokenizer.size()?;
    let mut facts = Facts {
        vocab_size,
        end_token,
        train_tokens: 0,
        validation_tokens: 0,
        estimated: false,
        floor: None,
        set_tokens: BTreeMap::new(),
        in_memory: 0,
    };
    let mut on_disk = false;
    match Corpus::find(spec)? {
        Corpus::Stories => {
            let held = generated::generate(
                spec.seed,
                Split::Validation,
                spec.validation_tokens,
                &*tokenizer.get()?,
                &mut |_| Ok(()),
            )?;
            facts.train_tokens = spec.train_tokens;
            facts.validation_tokens = held.tokens;
            facts.floor = held.floor();
            facts.estimated = true;
        }
        Corpus::Random => {
            facts.train_tokens = spec.train_tokens;
            facts.validation_tokens = spec.validation_tokens;
            facts.floor = Some((vocab_size as f64).ln());
        }
        Corpus::Files(files) => {
            on_disk = matches!(files, CorpusFiles::Tokens(_));
            (facts.train_tokens, facts.validation_tokens, facts.estimated) =
                splits(&files, spec, &tokenizer)?;
        }
    }
    if !on_disk {
        facts.in_memory = facts.train_tokens.saturating_add(facts.validation_tokens);
    }
    for (name, path) in &spec.sets {
        let in_set = |e: Error| e.context(format!("validation.sets.{name}"));
        let files = CorpusFiles::at(path).map_err(in_set)?;
        let (tokens, guessed) = whole(&files, spec, &tokenizer).map_err(in_set)?;
        facts.estimated |= guessed;
        if matches!(files, CorpusFiles::Text(_)) {
            facts.in_memory = facts.in_memory.saturating_add(tokens);
        }
        facts.set_tokens.insert(name.clone(), tokens);
    }
    Ok(facts)
}

/// A tokenizer that is opened on first use. Shards need only its size, which for built-in tokenizers is known
/// without building them.
struct LazyTokenizer<'n> {
    name: &'n str,
    opened: OnceCell<Arc<Tokenizer>>,
}

impl LazyTokenizer<'_> {
    /// Returns the number of entries and the end token.
    fn size(&self) -> Result<(usize, u32)> {
        match self.opened.get() {
            Some(tokenizer) => Ok((tokenizer.vocab_size(), tokenizer.end_token())),
            None => Tokenizer::size(self.name),
        }
    }

    fn get(&self) -> Result<Arc<Tokenizer>> {
        if let Some(tokenizer) = self.opened.get() {
            return Ok(Arc::clone(tokenizer));
        }
        let tokenizer = Arc::new(Tokenizer::open(self.name)?);
        Ok(Arc::clone(self.opened.get_or_init(|| tokenizer)))
    }
}

/// Refuses shards made by a tokenizer other than `tokenizer`, the one that `spec` names.
///
/// # Errors
/// If a different `tokenizer.json` lies beside the shards, or the corpus is missing.
pub fn refuse_other_tokenizer(spec: &Spec, tokenizer: &Tokenizer) -> Result<()> {
    Corpus::find(spec)?.refuse_other_tokenizer(spec, tokenizer)
}

/// Returns the warnings to show before a run on the corpus that `spec` names, in well under a second.
/// `has_floor` is true if the floor of its held-out text is known.
///
/// # Errors
/// If the corpus or the tokenizer is missing.
pub fn warnings(spec: &Spec, has_floor: bool) -> Result<Vec<String>> {
    Corpus::find(spec)?.warnings(spec, has_floor)
}

/// Returns the number of training tokens, the number of held-out tokens, and whether they are estimates.
fn splits(files: &CorpusFiles, spec: &Spec, tokenizer: &LazyTokenizer<'_>) -> Result<(usize, usize, bool)> {
    let (tokens, estimated) = match files {
        CorpusFiles::Tokens(files) => (shard::count(&files.train)?, false),
        CorpusFiles::Text(_) => whole(files, spec, tokenizer)?,
    };
    match (&spec.validation, files) {
        (Validation::Path(path), _) => {
            let (held, guessed) = whole(&CorpusFiles::at(path)?, spec, tokenizer)?;
            Ok((tokens, held, estimated || guessed))
        }
        (_, CorpusFiles::Tokens(files)) if !files.validation.is_empty() => {
            Ok((tokens, shard::count(&files.validation)?, false))
        }
        _ => {
            let held = (tokens as f64 * spec.fraction()?.unwrap_or_default()) as usize;
            Ok((tokens - held, held, true))
        }
    }
}

/// Returns the tokens in all files, and whether the number is an estimate.
fn whole(files: &CorpusFiles, spec: &Spec, tokenizer: &LazyTokenizer<'_>) -> Result<(usize, bool)> {
    match files {
        CorpusFiles::Tokens(files) => Ok((shard::count(&files.all())?, false)),
        CorpusFiles::Text(text) => Ok((estimate(text, spec, &*tokenizer.get()?)?, true)),
    }
}

/// Estimates the tokens in text files: their bytes times the tokens per byte of a sample.
fn estimate(text: &TextFiles, spec: &Spec, tokenizer: &Tokenizer) -> Result<usize> {
    let files = source::open(text.list(&spec.extensions)?)?;
    let total: u64 = files.iter().map(|content| content.file().bytes()).sum();
    let (mut bytes, mut tokens) = (0, 0);
    for i in 0..SAMPLES {
        // Samples are spread evenly over all bytes; each stays within its file.
        let mut at = total / SAMPLES * i;
        let mut file = 0;
        while file + 1 < files.len() && at >= files[file].file().bytes() {
            at -= files[file].file().bytes();
            file += 1;
        }
        let sample = files[file].sample(at, SAMPLE_BYTES)?;
        bytes += sample.file_bytes;
        tokens += tokenizer.encode(&text.source.sampled(&sample.content))?.len();
    }
    let per_byte = if bytes == 0 { 0.0 } else { tokens as f64 / bytes as f64 };
    Ok((total as f64 * per_byte) as usize)
}
