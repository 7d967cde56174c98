//! A corpus as two streams of tokens.

use super::corpus::{Corpus, Fed};
use super::file::FileStamp;
use super::stories::Split;
use super::{Spec, Stream, Tokenizer};
use crate::error::{Error, Result};
use std::sync::Arc;

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
    /// BLAKE3 hash of tokens and tokenizer, in hexadecimal: equal for equal tokens and tokenizers.
    pub hash: String,
    /// Notes for the user, shown before the run.
    pub warnings: Vec<String>,
    /// The corpus in one line.
    pub description: String,
    /// The files that it is read from; none of a generated one.
    pub files: Vec<FileStamp>,
}

impl Dataset {
    /// Checks that no file that the dataset is read from was written to since it was opened. Text was
    /// tokenized into memory by then, and does not count.
    ///
    /// # Errors
    /// A file that was, or is gone.
    pub fn check_unchanged(&self) -> Result<()> {
        self.train.check()?;
        self.validation.check()
    }

    /// Returns the bytes of memory that the tokens take; those of token files stay on disk.
    pub fn memory_bytes(&self) -> usize {
        self.train.memory_bytes() + self.validation.memory_bytes()
    }

    /// The number of entries of the tokenizer, and the end token.
    pub(super) fn vocabulary(&self) -> (usize, u32) {
        (self.tokenizer.vocab_size(), self.tokenizer.end_token())
    }
}

/// Opens a corpus: generates it, tokenizes it in parallel, or opens its shards.
///
/// # Errors
/// Anything wrong with the corpus or the tokenizer; a split shorter than one window of `seq_len + 1` tokens;
/// tokens that take more memory than the spec leaves them.
pub fn open(spec: &Spec, seq_len: usize) -> Result<Dataset> {
    open_with(spec, Arc::new(Tokenizer::open(&spec.tokenizer)?), seq_len)
}

/// As [`open`], with the tokenizer that `spec` names, where a caller opens many corpora.
///
/// # Errors
/// As [`open`].
pub fn open_with(spec: &Spec, tokenizer: Arc<Tokenizer>, seq_len: usize) -> Result<Dataset> {
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
    let files = corpus.files(spec)?.into_iter().map(FileStamp::from_path).collect::<Result<_>>()?;
    loaded.warnings.extend(corpus.check_tokenizer(&tokenizer));
    Ok(Dataset {
        tokenizer,
        train: loaded.train,
        validation: loaded.validation,
        floor: loaded.floor,
        hash: hasher.finalize().to_hex().to_string(),
        warnings: loaded.warnings,
        description: loaded.description,
        files,
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
    sink: &mut dyn FnMut(Split, &[u32]) -> Result<()>,
) -> Result<Fed> {
    Corpus::find(spec)?.feed(spec, tokenizer, sink)
}
