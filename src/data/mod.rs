//! Text and tokens: tokenizers, corpora, and the seeded loader that feeds training.
//!
//! A corpus becomes two streams of token ids, one to train on and one held out. In a stream the end token stands
//! before every document and after the last, and nowhere else: it opens a document and closes the one before, so
//! that each token of a document, its end included, is predicted exactly once.

mod batch;
mod corpus;
mod documents;
mod encode;
mod facts;
mod generated;
mod loader;
mod sampler;
mod shard;
mod split;
mod statistics;
pub mod stories;
mod stream;
pub mod tokenizer;

pub use batch::{Batch, IGNORED};
pub use corpus::Fed;
pub use facts::{Facts, facts};
pub use loader::{Loader, LoaderSpec, ValidationBatches};
pub use sampler::{Sampler, global_index};
pub(crate) use shard::write_atomically;
pub use shard::{SHARD_TOKENS, Writer as ShardWriter};
pub use statistics::{Counts, Statistics};
pub use stream::Stream;
pub use tokenizer::Tokenizer;

use crate::error::{Error, Result};
use corpus::Corpus;
use std::path::PathBuf;
use std::sync::Arc;

/// The end token's name in every built-in tokenizer.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// Corpora that are generated; every other name is a path.
pub const GENERATED: [&str; 2] = ["stories", "random"];

/// Which part of the corpus is held out.
#[derive(Clone, Debug, PartialEq)]
pub enum Validation {
    /// This share of it, within 0 and 1. Shards that come with a held-out part use that instead.
    Fraction(f64),
    /// Nothing of it, but the corpus at this path.
    Path(PathBuf),
}

/// What to read, with paths already resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// One of [`GENERATED`], or a path: a text file, a folder of them, JSON lines, token shards.
    pub corpus: String,
    /// One of [`tokenizer::BUILT_IN`], or the path of a tokenizer.json.
    pub tokenizer: String,
    /// Text that stands between the documents of a text file.
    pub document_separator: Option<String>,
    /// What is held out; generated corpora hold out `validation_tokens` instead.
    pub validation: Validation,
    /// Tokens to generate for training; the last story may exceed it.
    pub train_tokens: usize,
    /// Tokens to generate for validation; the last story may exceed it.
    pub validation_tokens: usize,
    /// Seed of the generator and of the choice of held-out documents.
    pub seed: u64,
}

impl Spec {
    /// A spec with the recipe's defaults for everything but the two names.
    pub fn new(corpus: &str, tokenizer: &str) -> Self {
        Self {
            corpus: corpus.to_owned(),
            tokenizer: tokenizer.to_owned(),
            document_separator: None,
            validation: Validation::Fraction(0.1),
            train_tokens: 2_000_000,
            validation_tokens: 16_384,
            seed: 0,
        }
    }

    /// The held-out share where there is one.
    ///
    /// # Errors
    /// A share that is not a number within 0 and 1.
    fn fraction(&self) -> Result<Option<f64>> {
        match self.validation {
            Validation::Fraction(f) if f > 0.0 && f < 1.0 => Ok(Some(f)),
            Validation::Fraction(f) => Err(Error::usage(format!(
                "data.validation = {f}: give a share between 0 and 1, or the path of a held-out corpus"
            ))),
            Validation::Path(_) => Ok(None),
        }
    }
}

/// A corpus ready to be trained on.
#[derive(Debug)]
pub struct Dataset {
    /// The tokenizer of both streams.
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens to train on.
    pub train: Stream,
    /// Held-out tokens; the first is context only.
    pub validation: Stream,
    /// The lowest loss that any model can reach on the held-out tokens, in nats per token, where it is known.
    pub floor: Option<f64>,
    /// BLAKE3, in hexadecimal, over tokens and tokenizer: what alters training alters it.
    pub hash: String,
    /// Things to tell the user before the run.
    pub warnings: Vec<String>,
    /// The corpus in one line.
    pub description: String,
}

/// Opens a corpus: generates it, tokenizes it in parallel, or maps its shards.
///
/// # Errors
/// Anything wrong with the corpus or the tokenizer; a split shorter than one window of `seq_len + 1` tokens.
pub fn open(spec: &Spec, seq_len: usize) -> Result<Dataset> {
    let tokenizer = Arc::new(Tokenizer::open(&spec.tokenizer)?);
    let corpus = Corpus::find(spec)?;
    let mut loaded = corpus.load(spec, &tokenizer)?;
    let vocab = tokenizer.vocab_size();
    check_window(spec, loaded.train.len(), loaded.validation.len(), seq_len)?;
    let mut hasher = blake3::Hasher::new();
    for stream in [&loaded.train, &loaded.validation] {
        let digest = stream.digest(vocab).map_err(|e| e.context(format!("corpus {}", spec.corpus)))?;
        hasher.update(digest.as_bytes());
    }
    hasher.update(tokenizer.hash().as_bytes());
    loaded.warnings.extend(corpus.check_tokenizer(&tokenizer));
    Ok(Dataset {
        tokenizer,
        train: loaded.train,
        validation: loaded.validation,
        floor: loaded.floor,
        hash: hasher.finalize().to_hex().to_string(),
        warnings: loaded.warnings,
        description: loaded.description,
    })
}

/// Refuses splits of `train` and `held_out` tokens that are shorter than one window of `seq_len + 1` tokens.
///
/// # Errors
/// A usage error that names the split.
pub fn check_window(spec: &Spec, train: usize, held_out: usize, seq_len: usize) -> Result<()> {
    for (name, tokens) in [("training", train), ("held-out", held_out)] {
        if tokens <= seq_len {
            return Err(Error::usage(format!(
                "corpus {}: the {name} split has {tokens} tokens, and one window of seq_len {seq_len} takes {}; use a \
                 larger corpus, another data.validation or a smaller training.seq_len",
                spec.corpus,
                seq_len.saturating_add(1)
            )));
        }
    }
    Ok(())
}

/// Hands every token of both splits to `sink`, in order and as they are made, without holding the corpus in
/// memory.
///
/// # Errors
/// Anything wrong with the corpus or the tokenizer, or the sink's own error.
pub fn feed(
    spec: &Spec,
    tokenizer: &Tokenizer,
    sink: &mut dyn FnMut(stories::Split, &[u32]) -> Result<()>,
) -> Result<Fed> {
    Corpus::find(spec)?.feed(spec, tokenizer, sink)
}
