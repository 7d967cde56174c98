//! Opens a corpus as two streams of tokens.

use super::chat_corpus::ChatFacts;
use super::corpus::{Corpus, CorpusSummary, held_out_files};
use super::corpus_facts::SourceFacts;
use super::corpus_files::CorpusFiles;
use super::file::FileStamp;
use super::held_out::{HeldOut, TextBytes};
use super::location::CorpusLocation;
use super::marked;
use super::opened::{Opened, Opening};
use super::overlap::share_in_training;
use super::packing::{self, Packed, Rows};
use super::part::Part;
use super::token_cache::TokenCache;
use super::tokenizer::LostBytes;
use super::{Packing, Spec, Stream, Tokenizer};
use crate::error::{Error, Result};
use crate::format::plural;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A source of a mixture that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedSource {
    /// Its name.
    pub name: String,
    /// BLAKE3 hash of its tokens and the tokenizer, in hexadecimal: that of a corpus of its own.
    pub hash: String,
    /// Its tokens to train on; `None` while they are made.
    pub train_tokens: Option<usize>,
}

/// Tokens of a source that its bytes per token are taken from.
const RATED_TOKENS: usize = 1 << 20;

/// A corpus ready to be trained on.
#[derive(Debug)]
pub struct Dataset {
    /// The tokenizer of both streams.
    pub tokenizer: Arc<Tokenizer>,
    /// The sources of the tokens to train on: one, or those of a mixture.
    pub(super) parts: Vec<Part>,
    /// The sources of a mixture, in the order of their names; none for another corpus.
    pub sources: Vec<OpenedSource>,
    /// What packing made of the corpus; `None` if nothing was packed.
    pub packed: Option<Packed>,
    /// What is known about conversations, by the source that has them; the name of a corpus that is one
    /// source is empty.
    pub chat: BTreeMap<String, ChatFacts>,
    /// The set that `data.validation` holds out.
    pub validation: HeldOut,
    /// Further held-out sets, in the order of their names.
    pub sets: Vec<HeldOut>,
    /// The lowest loss that any model can reach on the held-out tokens, in nats per token, if known.
    pub floor: Option<f64>,
    /// BLAKE3 hash of the tokens and the tokenizer, in hexadecimal.
    pub hash: String,
    /// The share of held-out text of its own that is also trained on, from 0 to 1. For a source of a mixture
    /// it says less than the share in all sources.
    pub(super) apart_in_training: Option<f64>,
    /// Number of documents that `data.drop` lists and the corpus lacks. Another source of a mixture may have
    /// them.
    pub(super) absent_drops: usize,
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
        self.parts.iter().try_for_each(|part| part.tokens.check())?;
        self.held_out().try_for_each(|set| set.tokens.check())
    }

    /// Returns true if the corpus is pairs of answers.
    pub fn holds_pairs(&self) -> bool {
        self.chat.values().any(|chat| chat.pairs)
    }

    /// Returns every held-out set: the one of `data.validation` first, then the others by name.
    pub fn held_out(&self) -> impl Iterator<Item = &HeldOut> {
        std::iter::once(&self.validation).chain(&self.sets)
    }

    /// Returns the tokens to train on, those of one source behind those of another. A source that is still
    /// being tokenized is left out.
    pub fn train(&self) -> Stream {
        Stream::join(self.whole_parts())
    }

    fn whole_parts(&self) -> impl Iterator<Item = &Stream> {
        self.parts.iter().filter_map(|part| part.tokens.whole())
    }

    /// Returns the warnings about text that was tokenized after the dataset was opened.
    pub fn late_warnings(&self) -> Vec<String> {
        let late = self.parts.iter().filter_map(|part| Some((&part.name, part.tokens.late()?)));
        late.flat_map(|(name, summary)| {
            let warnings = summary.warnings.iter().cloned().chain(summary.lost_warning());
            warnings.map(|warning| warning_of(name, &warning))
        })
        .filter(|warning| !self.warnings.contains(warning))
        .collect()
    }

    /// Returns the number of tokens to train on, and true if it is not an estimate.
    pub fn train_tokens(&self) -> (usize, bool) {
        let expected = self.parts.iter().map(|part| part.tokens.expected()).sum();
        (expected, self.whole_parts().count() == self.parts.len())
    }

    /// Returns the bytes of memory that the tokens take. Tokens in token files stay on disk and count
    /// nothing.
    pub fn memory_bytes(&self) -> usize {
        self.whole_parts().chain(self.held_out().map(|set| &set.tokens)).map(Stream::memory_bytes).sum()
    }

    /// Returns what plans need to know about the sources of a mixture; nothing for another corpus.
    pub(super) fn source_facts(&self) -> Vec<SourceFacts> {
        let named = self.parts.iter().filter(|part| !part.name.is_empty());
        let facts = |part: &Part| {
            // Documents are all found, so the counts of rows are exact.
            let packed = part.rows.as_ref().map(|rows| rows.summary());
            let (name, train_tokens) = (part.name.clone(), part.tokens.expected());
            SourceFacts { name, train_tokens, packed, exact: part.tokens.whole().is_some() }
        };
        named.map(facts).collect()
    }

    /// Returns the UTF-8 bytes per token in the first million tokens of each source; `None` where a token
    /// does not always stand for the same bytes.
    ///
    /// # Errors
    /// If the tokens cannot be read.
    pub fn bytes_per_token(&self) -> Result<Vec<Option<f64>>> {
        let Some(bytes) = self.tokenizer.token_byte_counts() else { return Ok(vec![None; self.parts.len()]) };
        let rate = |part: &Part| {
            let known = part.tokens.wait_for(RATED_TOKENS)?;
            let end = known.map_or(RATED_TOKENS, |known| known.min(RATED_TOKENS));
            let tokens = part.tokens.read(0..end, self.tokenizer.vocab_size())?;
            let sum: u64 = tokens.iter().map(|&word| u64::from(bytes[marked::id(word) as usize])).sum();
            Ok((!tokens.is_empty()).then(|| sum as f64 / tokens.len() as f64))
        };
        self.parts.iter().map(rate).collect()
    }

    /// Returns the number of tokenizer entries and the token that opens a document.
    pub(super) fn vocabulary(&self) -> (usize, u32) {
        (self.tokenizer.vocab_size(), self.tokenizer.opening_token())
    }
}

/// Returns a warning about a source of a mixture; one about the whole corpus, which has no name, stays as it
/// is.
pub(super) fn warning_of(source: &str, warning: &str) -> String {
    match source {
        "" => warning.to_owned(),
        name => format!("source {name}: {warning}"),
    }
}

/// Opens one corpus without further held-out sets.
pub(super) fn open_corpus(
    spec: &Spec,
    seq_len: usize,
    tokenizer: Arc<Tokenizer>,
    cache: Option<&TokenCache>,
    opening: Opening,
) -> Result<Dataset> {
    let corpus = Corpus::find(spec)?;
    let Opened { train, validation, is_held_out_apart, content, summary } =
        Opened::open(&corpus, spec, seq_len, &tokenizer, cache, opening)?;
    let lost = summary.lost_warning();
    let CorpusSummary { floor, mut warnings, description, held_out_bytes, .. } = summary;
    warnings.extend(lost);
    let vocab = tokenizer.vocab_size();
    let digest =
        |stream: &Stream| stream.digest(vocab).map_err(|e| e.context(format!("corpus {}", spec.corpus)));
    let held_hash = digest(&validation)?;
    let mut hasher = blake3::Hasher::new();
    match (content, train.whole()) {
        (Some(content), _) => hasher.update(b"xrun corpus by its text").update(content.as_bytes()),
        (None, train) => {
            let train = train.ok_or_else(|| Error::failed("a corpus without a hash is tokenized"))?;
            hasher.update(digest(train)?.as_bytes()).update(held_hash.as_bytes());
            hasher.update(tokenizer.hash().as_bytes())
        }
    };
    let bytes = tokenizer.token_byte_counts().map(Arc::new);
    let loses_bytes = loses_bytes(&tokenizer, bytes.is_some(), summary.held_out_lost);
    if loses_bytes && summary.held_out_lost.is_some() {
        warnings.push(format!("the held-out text {NO_BITS_PER_BYTE}"));
    }
    let in_training = match corpus {
        Corpus::Files(_) => match train.whole() {
            Some(train) => share_in_training(train, &validation)?,
            None => None,
        },
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
    let apart_in_training = in_training.filter(|_| is_held_out_apart);
    let files = corpus.list(spec)?.into_iter().map(FileStamp::from_path).collect::<Result<_>>()?;
    let held_out = held_out_files(spec)?;
    for files in corpus.files().into_iter().chain(&held_out) {
        warnings.extend(files.check_tokenizer(&tokenizer)?);
    }
    let packed = train.whole().map(|train| pack(spec, train, &tokenizer, seq_len)).transpose()?;
    let (rows, packed) = packed.flatten().unzip();
    let packed = packed.or(summary.chat.as_ref().map(|chat| chat.packed));
    let parts = vec![Part { name: String::new(), tokens: train, rows: rows.map(Arc::new) }];
    Ok(Dataset {
        tokenizer,
        parts,
        sources: Vec::new(),
        packed,
        chat: summary.chat.map(|facts| (String::new(), facts)).into_iter().collect(),
        validation,
        sets: Vec::new(),
        floor,
        hash: hasher.finalize().to_hex().to_string(),
        apart_in_training,
        absent_drops: summary.absent_drops,
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
    // Conversations are laid into rows already.
    if spec.packing == Packing::Stream || seq_len == 0 || train.is_marked() {
        return Ok(None);
    }
    let documents = packing::documents(train, tokenizer)?;
    let rows = match spec.packing {
        Packing::Document => Rows::apart(&documents, seq_len),
        Packing::Stream | Packing::BestFit => Rows::pack(&documents, seq_len),
    };
    let packed = rows.summary();
    Ok(Some((rows, packed)))
}

/// Says of a text why its bits per byte are not reported.
pub(super) const NO_BITS_PER_BYTE: &str = "has bytes that the tokenizer loses, so bits per byte are not reported for it: a model is not asked to predict them";

/// Returns true if tokens of a text lose bytes of it, or may do so. `lost` is what is known of the text, and
/// `counts_bytes` true if the bytes of each token are known.
pub(super) fn loses_bytes(tokenizer: &Tokenizer, counts_bytes: bool, lost: Option<LostBytes>) -> bool {
    match lost {
        Some(lost) => lost.total() > 0,
        None => counts_bytes && !tokenizer.keeps_every_byte(),
    }
}

/// Refuses a further held-out set in which there is nothing to predict.
pub(super) fn check_set(location: &CorpusLocation, tokens: usize) -> Result<()> {
    match tokens {
        0 | 1 => Err(Error::usage(format!("{location} has no token to predict"))),
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
            let passed = spec.corpora().iter().find_map(|own| {
                let files = CorpusFiles::at(&own.location()?, &own.extensions).ok()?;
                files.passed_over(&own.extensions).ok()?.into_iter().next()
            });
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
