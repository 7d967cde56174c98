//! Opens a corpus as two streams of tokens.

use super::corpus::{Corpus, CorpusSummary, Loaded, Whole, unused_fields};
use super::corpus_files::CorpusFiles;
use super::file::FileStamp;
use super::held_out::{HeldOut, TextBytes};
use super::overlap::{self, share_in_training};
use super::packing::{self, Packed, Rows};
use super::stories::Split;
use super::token_cache::TokenCache;
use super::tokenizer::LostBytes;
use super::{Packing, Spec, Stream, Tokenizer, Validation};
use crate::error::{Error, Result};
use crate::format::plural;
use crate::policy::CorpusSource;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A corpus ready to be trained on.
#[derive(Debug)]
pub struct Dataset {
    /// The tokenizer of both streams.
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens to train on.
    pub train: Stream,
    /// The rows that documents are packed into; `None` if the stream is cut into windows.
    pub(super) rows: Option<Arc<Rows>>,
    /// What packing made of the corpus; `None` if nothing was packed.
    pub packed: Option<Packed>,
    /// The set that `data.validation` holds out.
    pub validation: HeldOut,
    /// Further held-out sets, in the order of their names.
    pub sets: Vec<HeldOut>,
    /// The lowest loss that any model can reach on the held-out tokens, in nats per token, if known.
    pub floor: Option<f64>,
    /// BLAKE3 hash of the tokens and the tokenizer, in hexadecimal.
    pub hash: String,
    /// Notes for the user, shown before the run.
    pub warnings: Vec<String>,
    /// One line that describes the corpus.
    pub description: String,
    /// The files of the corpus; a generated corpus has none. Files of further held-out sets are left out.
    pub files: Vec<FileStamp>,
}

impl Dataset {
    /// Checks that no token file, and no cached tokens, were written to since the dataset was opened. Text
    /// files do not count: they were tokenized.
    ///
    /// # Errors
    /// If a token file was written to, replaced or removed.
    pub fn check_unchanged(&self) -> Result<()> {
        self.train.check()?;
        self.held_out().try_for_each(|set| set.tokens.check())
    }

    /// Returns every held-out set: the one of `data.validation` first, then the others by name.
    pub fn held_out(&self) -> impl Iterator<Item = &HeldOut> {
        std::iter::once(&self.validation).chain(&self.sets)
    }

    /// Returns the bytes of memory that the tokens take. Tokens in token files stay on disk and count
    /// nothing.
    pub fn memory_bytes(&self) -> usize {
        self.train.memory_bytes() + self.held_out().map(|set| set.tokens.memory_bytes()).sum::<usize>()
    }

    /// Returns the number of tokenizer entries and the token that opens a document.
    pub(super) fn vocabulary(&self) -> (usize, u32) {
        (self.tokenizer.vocab_size(), self.tokenizer.opening_token())
    }
}

/// Opens a corpus: generates it, tokenizes it in parallel, takes its tokens from the cache if there is one,
/// or opens its shards. A caller that opens many corpora passes the `tokenizer` that `spec` names, so that it
/// is read once.
///
/// # Errors
/// If anything is wrong with the corpus or the tokenizer, if a split is shorter than one window of `seq_len +
/// 1` tokens, or if the tokens take more memory than the spec allows.
pub fn open(
    spec: &Spec,
    seq_len: usize,
    tokenizer: Option<&Arc<Tokenizer>>,
    cache: Option<&TokenCache>,
) -> Result<Dataset> {
    let tokenizer = match tokenizer {
        Some(tokenizer) => Arc::clone(tokenizer),
        None => Arc::new(Tokenizer::open_for(&spec.tokenizer, spec.begin_token.as_deref())?),
    };
    let corpus = Corpus::find(spec)?;
    let Loaded { train, validation, is_held_out_apart, summary } = corpus.load(spec, &tokenizer, cache)?;
    let lost = summary.lost_warning();
    let CorpusSummary { floor, mut warnings, description, held_out_bytes, .. } = summary;
    warnings.extend(lost);
    let vocab = tokenizer.vocab_size();
    check_window(spec, train.len(), validation.len(), seq_len)?;
    let digest =
        |stream: &Stream| stream.digest(vocab).map_err(|e| e.context(format!("corpus {}", spec.corpus)));
    let (train_hash, held_hash) = (digest(&train)?, digest(&validation)?);
    let mut hasher = blake3::Hasher::new();
    hasher.update(train_hash.as_bytes()).update(held_hash.as_bytes()).update(tokenizer.hash().as_bytes());
    let bytes = tokenizer.token_byte_counts().map(Arc::new);
    let loses_bytes = loses_bytes(&tokenizer, bytes.is_some(), summary.held_out_lost);
    if loses_bytes && summary.held_out_lost.is_some() {
        warnings.push(format!("the held-out text {NO_BITS_PER_BYTE}"));
    }
    let in_training = match corpus {
        Corpus::Files(_) => share_in_training(&train, &validation)?,
        // Held-out stories are others by construction.
        Corpus::Stories | Corpus::Random => None,
    };
    let validation = HeldOut {
        name: String::new(),
        in_training,
        tokens: validation,
        hash: held_hash.to_hex().to_string(),
        text: match corpus {
            Corpus::Random => TextBytes::Unknown,
            _ => TextBytes::new(bytes.as_ref(), held_out_bytes, loses_bytes),
        },
    };
    let held = train.len() + validation.tokens.len();
    let mut sets = open_sets(spec, &tokenizer, bytes.as_ref(), held, cache, &mut warnings)?;
    for set in &mut sets {
        set.in_training = share_in_training(&train, &set.tokens)?;
    }
    let apart = Some((overlap::HELD_OUT.to_owned(), in_training)).filter(|_| is_held_out_apart);
    let shares = sets.iter().map(|set| (overlap::set_name(&set.name), set.in_training));
    let shares = apart.into_iter().chain(shares);
    warnings.extend(shares.filter_map(|(name, share)| Some(overlap::warning(&name, share?))));
    let files = corpus.list(spec)?.into_iter().map(FileStamp::from_path).collect::<Result<_>>()?;
    let held_out = match &spec.validation {
        Validation::Path(path) => Some(CorpusFiles::at(path, &spec.extensions)?),
        Validation::Fraction(_) => None,
    };
    for files in corpus.files().into_iter().chain(&held_out) {
        warnings.extend(files.check_tokenizer(&tokenizer)?);
    }
    for path in spec.sets.values() {
        warnings.extend(CorpusFiles::at(path, &spec.extensions)?.check_tokenizer(&tokenizer)?);
    }
    warnings.extend(unused_fields(spec)?);
    let (rows, packed) = pack(spec, &train, &tokenizer, seq_len)?.unzip();
    Ok(Dataset {
        tokenizer,
        train,
        rows: rows.map(Arc::new),
        packed,
        validation,
        sets,
        floor,
        hash: hasher.finalize().to_hex().to_string(),
        warnings,
        description,
        files,
    })
}

/// Packs the documents of a stream into rows of `seq_len` inputs, if the spec asks for it; a caller that
/// trains nothing passes 0.
///
/// # Errors
/// If the stream cannot be read.
pub(super) fn pack(
    spec: &Spec,
    train: &Stream,
    tokenizer: &Tokenizer,
    seq_len: usize,
) -> Result<Option<(Rows, Packed)>> {
    if spec.packing == Packing::Stream || seq_len == 0 {
        return Ok(None);
    }
    let documents = packing::documents(train, tokenizer)?;
    let rows = Rows::pack(&documents, seq_len);
    let packed = rows.summary(documents.len());
    Ok(Some((rows, packed)))
}

/// Says of a text why its bits per byte are not reported.
const NO_BITS_PER_BYTE: &str = "has bytes that the tokenizer loses, so bits per byte are not reported for it: a model is not asked to predict them";

/// Returns true if tokens of a text lose bytes of it, or may do so. `lost` is what is known of the text, and
/// `counts_bytes` true if the bytes of each token are known.
fn loses_bytes(tokenizer: &Tokenizer, counts_bytes: bool, lost: Option<LostBytes>) -> bool {
    match lost {
        Some(lost) => lost.total() > 0,
        None => counts_bytes && !tokenizer.keeps_every_byte(),
    }
}

/// Opens the further held-out sets. `held` is the number of tokens already in memory.
fn open_sets(
    spec: &Spec,
    tokenizer: &Tokenizer,
    bytes: Option<&Arc<Vec<u32>>>,
    mut held: usize,
    cache: Option<&TokenCache>,
    warnings: &mut Vec<String>,
) -> Result<Vec<HeldOut>> {
    let mut open = |(name, path): (&String, &PathBuf)| -> Result<HeldOut> {
        let Whole { tokens, text_bytes: whole, lost, warnings: found } =
            Corpus::whole(path, spec, tokenizer, held, cache)?;
        warnings.extend(found);
        warnings.extend(
            lost.zip(whole)
                .and_then(|(lost, whole)| lost.warning(&format!("the held-out set {name}"), whole)),
        );
        let loses_bytes = loses_bytes(tokenizer, bytes.is_some(), lost);
        if loses_bytes && lost.is_some() {
            warnings.push(format!("the held-out set {name} {NO_BITS_PER_BYTE}"));
        }
        check_set(path, tokens.len())?;
        held += tokens.memory_bytes() / size_of::<u32>();
        let hash = tokens.digest(tokenizer.vocab_size())?.to_hex().to_string();
        let text = TextBytes::new(bytes, whole, loses_bytes);
        Ok(HeldOut { name: name.clone(), tokens, hash, text, in_training: None })
    };
    let named = |name: &str| format!("validation.sets.{name}");
    spec.sets.iter().map(|set| open(set).map_err(|e| e.context(named(set.0)))).collect()
}

/// Refuses a further held-out set in which there is nothing to predict.
pub(super) fn check_set(path: &Path, tokens: usize) -> Result<()> {
    match tokens {
        0 | 1 => Err(Error::usage(format!("{} has no token to predict", path.display()))),
        _ => Ok(()),
    }
}

/// Refuses splits of `train` and `held_out` tokens that are shorter than one window of `seq_len + 1` tokens.
///
/// # Errors
/// If a split is too short. The usage error names the split.
pub fn check_window(spec: &Spec, train: usize, held_out: usize, seq_len: usize) -> Result<()> {
    for (name, tokens) in [("training", train), ("held-out", held_out)] {
        if tokens <= seq_len {
            // A text may be short because most of the folder was passed over.
            let files = match &spec.corpus {
                CorpusSource::Path(path) => CorpusFiles::at(path, &spec.extensions).ok(),
                CorpusSource::Stories | CorpusSource::Random => None,
            };
            let passed = files.and_then(|files| files.passed_over(&spec.extensions).ok().flatten());
            return Err(Error::usage(format!(
                "corpus {}: the {name} split has {tokens} token{}, and one window of seq_len {seq_len} takes {}; use a \
                 larger corpus, another data.validation or a smaller training.seq_len{}",
                spec.corpus,
                plural(tokens),
                seq_len.saturating_add(1),
                passed.map_or(String::new(), |passed| format!(" ({passed})"))
            )));
        }
    }
    Ok(())
}

/// Hands every token of both splits to `sink`, in order and as it is made, without holding the corpus in
/// memory.
///
/// # Errors
/// If anything is wrong with the corpus or the tokenizer, or if the sink fails.
pub fn feed(
    spec: &Spec,
    tokenizer: &Tokenizer,
    sink: &mut dyn FnMut(Split, &[u32]) -> Result<()>,
) -> Result<CorpusSummary> {
    let mut fed = Corpus::find(spec)?.feed(spec, tokenizer, sink)?;
    fed.warnings.extend(unused_fields(spec)?);
    Ok(fed)
}
