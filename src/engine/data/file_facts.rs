//! What is known about a corpus of files before a run. Small text is tokenized; of more, every file is
//! checked and the sizes are estimated.

use super::corpus::{
    Corpus, Whole, held_out_files, stories_tokenizer_warning, unused_by_shards, unused_seed,
};
use super::corpus_facts::CorpusFacts;
use super::corpus_files::CorpusFiles;
use super::dataset::pack;
use super::documents::Documents;
use super::drop::DropList;
use super::packing::Packed;
use super::sample::{Sampled, sample};
use super::stories::Split;
use super::tokenizer::Tokenizer;
use super::{Packing, Spec, Stream, TokenCache, overlap, shard, token_cache};
use crate::error::{Error, Result};
use crate::format::plural;

/// Text up to this length, in bytes, is tokenized to plan with exact numbers.
const EXACT_BYTES: u64 = 1 << 20;

/// If an estimate is below this many windows, the text is tokenized: it may be too short to train on.
const DOUBTFUL_WINDOWS: usize = 4;

/// Token files of up to this many tokens are checked against the vocabulary as a whole; of more tokens, this
/// many, spread evenly, are checked. The run checks all.
const CHECKED_TOKENS: usize = 1 << 27;

/// Parts of longer token files that are checked.
const CHECKED_PARTS: usize = 128;

/// Returns the bytes that tokens take in memory.
pub(super) fn in_memory(tokens: usize) -> usize {
    tokens.saturating_mul(size_of::<u32>())
}

/// The facts about a corpus of files.
pub(super) struct FileFacts {
    pub facts: CorpusFacts,
    /// The training tokens, if they were read.
    pub train: Option<Stream>,
    /// The held-out tokens, if they were read.
    pub held_out: Option<Stream>,
    /// The share of held-out text of its own that is also trained on, from 0 to 1, if both were read.
    pub apart_in_training: Option<f64>,
    /// Number of documents that `data.drop` lists and the corpus lacks, if it was read.
    pub absent_drops: usize,
}

/// Returns the facts about a corpus of files without further held-out sets. `counted` asks for exact numbers,
/// however long the text is.
///
/// # Errors
/// If a run would refuse the corpus.
pub(super) fn of_files(
    spec: &Spec,
    seq_len: usize,
    tokenizer: &Tokenizer,
    cache: Option<&TokenCache>,
    counted: bool,
) -> Result<FileFacts> {
    let corpus = Corpus::find(spec)?;
    let Some(files) = corpus.files() else {
        return Err(Error::failed(format!("corpus {}: has no files", spec.corpus)));
    };
    let mut facts = CorpusFacts { vocab_size: tokenizer.vocab_size(), ..CorpusFacts::default() };
    let doubtful = seq_len.saturating_add(1).saturating_mul(DOUBTFUL_WINDOWS);
    let in_corpus = |e: Error| e.context(format!("corpus {}", spec.corpus));
    let (mut apart_in_training, mut absent_drops) = (None, 0);
    let mut exactly = |facts: CorpusFacts| {
        let loaded = corpus.load(spec, tokenizer, None)?;
        for stream in [&loaded.train, &loaded.validation] {
            check_ids(stream, tokenizer).map_err(in_corpus)?;
        }
        let lost = loaded.summary.lost_warning();
        let warnings: Vec<String> = loaded.summary.warnings.iter().cloned().chain(lost).collect();
        absent_drops = loaded.summary.absent_drops;
        let chat = loaded.summary.chat.map(|facts| (String::new(), facts)).into_iter().collect();
        if loaded.is_held_out_apart {
            apart_in_training = trained_on(Some(&loaded.train), Some(&loaded.validation))?;
        }
        let facts = CorpusFacts {
            train_tokens: loaded.train.len(),
            validation_tokens: loaded.validation.len(),
            memory_bytes: loaded.train.memory_bytes() + loaded.validation.memory_bytes(),
            warnings,
            exact: true,
            chat,
            ..facts
        };
        Ok((facts, Some(loaded.train), Some(loaded.validation)))
    };
    let held = held_out_files(spec)?;
    let is_dropped_from = spec.drop.is_some() && matches!(files, CorpusFiles::Text(_));
    let (mut facts, train, held_out) = match (files, &held) {
        (CorpusFiles::Tokens(_), None | Some(CorpusFiles::Tokens(_))) => exactly(facts)?,
        (CorpusFiles::Text(_), _) if spec.holds_conversations() => exactly(facts)?,
        (_, Some(held)) => {
            let train = whole(files, spec, (doubtful, seq_len), tokenizer, cache, &in_corpus)?;
            if is_dropped_from && train.exact {
                // A count has to leave out what is dropped.
                exactly(facts)?
            } else {
                let held =
                    whole(held, &spec.for_held_out(), (doubtful, seq_len), tokenizer, cache, &in_corpus)?;
                facts.memory_bytes = train.memory_bytes().saturating_add(held.memory_bytes());
                (facts.train_tokens, facts.validation_tokens) = (train.tokens, held.tokens);
                facts.exact = train.exact && held.exact;
                facts.packed = train.packed;
                let unused = match files {
                    CorpusFiles::Tokens(files) => unused_by_shards(files, spec),
                    CorpusFiles::Text(_) => Vec::new(),
                };
                facts.warnings = [train.warnings, unused, held.warnings].concat();
                facts.warnings.extend(stories_tokenizer_warning(spec));
                apart_in_training = trained_on(train.stream.as_ref(), held.stream.as_ref())?;
                (facts, train.stream, held.stream)
            }
        }
        (CorpusFiles::Text(text), None) => {
            let fraction = spec.fraction()?.unwrap_or_default();
            let documents = Documents::open(text, spec)?;
            let sampled = sample(&documents, tokenizer)?;
            let tokens = sampled.estimate();
            facts.validation_tokens = (tokens as f64 * fraction) as usize;
            facts.train_tokens = tokens - facts.validation_tokens;
            let least = facts.train_tokens.min(facts.validation_tokens);
            if documents.total_bytes() <= EXACT_BYTES || least < doubtful {
                exactly(facts)?
            } else {
                facts.packed = estimated_packing(spec, &documents, tokens, seq_len, 1.0 - fraction);
                facts.memory_bytes = if is_cached(&documents, cache) { 0 } else { in_memory(tokens) };
                facts.warnings = documents.warnings()?;
                facts.warnings.extend(unused_seed(&documents, spec));
                facts.warnings.extend(lost_in_sample(&sampled));
                facts.warnings.extend(stories_tokenizer_warning(spec));
                (facts, None, None)
            }
        }
    };
    for files in std::iter::once(files).chain(&held) {
        facts.warnings.extend(files.check_tokenizer(tokenizer)?);
    }
    if let Some(train) = &train {
        let rows_of_conversations = facts.chat.values().map(|chat| chat.packed).next();
        facts.packed = rows_of_conversations.or(packed(spec, train, tokenizer, seq_len)?);
    }
    if counted && !facts.exact {
        let (mut train, mut held_out) = (0, 0);
        corpus.feed(spec, tokenizer, &mut |split, tokens| {
            match split {
                Split::Train => train += tokens.len(),
                Split::Validation => held_out += tokens.len(),
            }
            Ok(())
        })?;
        (facts.train_tokens, facts.validation_tokens, facts.exact) = (train, held_out, true);
    }
    if let Some(list) = spec.drop.as_ref().filter(|_| is_dropped_from && !facts.exact) {
        let listed = DropList::read(list)?.len();
        facts.warnings.push(format!(
            "{listed} document{} in data.drop: the plan estimates the tokens of long text, and does not leave out \
             what a run drops",
            plural(listed)
        ));
    }
    Ok(FileFacts { facts, train, held_out, apart_in_training, absent_drops })
}

/// Returns the share of held-out text that is trained on, if both were read and the training text is not
/// long. A run also looks through longer ones.
pub(super) fn trained_on(train: Option<&Stream>, held_out: Option<&Stream>) -> Result<Option<f64>> {
    match (train.filter(|train| train.len() <= CHECKED_TOKENS), held_out) {
        (Some(train), Some(held_out)) => overlap::share_in_training(train, held_out),
        _ => Ok(None),
    }
}

/// All tokens of some files.
pub(super) struct WholeFacts {
    pub tokens: usize,
    /// The tokens, if they were read.
    pub stream: Option<Stream>,
    pub exact: bool,
    pub is_in_memory: bool,
    /// What packing would make of the documents, if they were not read as tokens.
    pub packed: Option<Packed>,
    pub warnings: Vec<String>,
}

impl WholeFacts {
    pub fn memory_bytes(&self) -> usize {
        if self.is_in_memory { in_memory(self.tokens) } else { 0 }
    }
}

/// Counts or estimates the tokens in all files. Fewer than `doubtful` are counted. `named` says whose ids are
/// wrong.
pub(super) fn whole(
    files: &CorpusFiles,
    spec: &Spec,
    (doubtful, seq_len): (usize, usize),
    tokenizer: &Tokenizer,
    cache: Option<&TokenCache>,
    named: &dyn Fn(Error) -> Error,
) -> Result<WholeFacts> {
    let text = match files {
        CorpusFiles::Text(text) => text,
        CorpusFiles::Tokens(files) => {
            let tokens = shard::open(&files.all())?;
            check_ids(&tokens, tokenizer).map_err(named)?;
            let warnings = files.passed_over();
            let stream = Some(tokens.clone());
            return Ok(WholeFacts {
                tokens: tokens.len(),
                stream,
                exact: true,
                is_in_memory: false,
                packed: None,
                warnings,
            });
        }
    };
    if spec.holds_conversations() {
        let Whole { tokens, warnings, .. } = Corpus::whole(&text.location, spec, tokenizer, 0, None)?;
        return Ok(WholeFacts {
            tokens: tokens.len(),
            stream: Some(tokens),
            exact: true,
            is_in_memory: true,
            packed: None,
            warnings,
        });
    }
    let documents = Documents::open(text, spec)?;
    let mut warnings = documents.warnings()?;
    let sampled = sample(&documents, tokenizer)?;
    let exact = documents.total_bytes() <= EXACT_BYTES || sampled.estimate() < doubtful;
    let (tokens, stream, lost) = if exact {
        let whole = Corpus::whole(&text.location, spec, tokenizer, 0, None)?;
        let lost = whole.lost.zip(whole.text_bytes);
        let named = format!("the text of {}", text.location);
        let lost = lost.and_then(|(lost, bytes)| lost.warning(&named, bytes));
        (whole.tokens.len(), Some(whole.tokens), lost)
    } else {
        (sampled.estimate(), None, lost_in_sample(&sampled))
    };
    warnings.extend(lost);
    let is_in_memory = !is_cached(&documents, cache);
    let packed = estimated_packing(spec, &documents, tokens, seq_len, 1.0).filter(|_| !exact);
    Ok(WholeFacts { tokens, stream, exact, is_in_memory, packed, warnings })
}

/// Returns what packing makes of a stream. Of a long one, the first part is packed, and the counts are
/// scaled.
fn packed(spec: &Spec, train: &Stream, tokenizer: &Tokenizer, seq_len: usize) -> Result<Option<Packed>> {
    let part = train.slice(0..train.len().min(CHECKED_TOKENS));
    let factor = train.len() as f64 / part.len().max(1) as f64;
    Ok(pack(spec, &part, tokenizer, seq_len)?.map(|(_, packed)| packed.scaled(factor)))
}

/// Estimates what packing makes of a share of documents that have `tokens` tokens in all.
fn estimated_packing(
    spec: &Spec,
    documents: &Documents,
    tokens: usize,
    seq_len: usize,
    share: f64,
) -> Option<Packed> {
    let per_byte = tokens as f64 / documents.total_bytes().max(1) as f64;
    let lens = (0..documents.len()).map(|i| (documents.bytes(i) as f64 * per_byte) as usize + 1);
    match spec.packing {
        Packing::Stream => None,
        Packing::BestFit => Some(Packed::estimate(lens, seq_len, share)),
        Packing::Document => Some(Packed::estimate_apart(lens, seq_len, share)),
    }
}

/// Returns true if a run reads the tokens of documents from the cache.
fn is_cached(documents: &Documents, cache: Option<&TokenCache>) -> bool {
    cache.is_some() && token_cache::is_cached(documents.files())
}

fn lost_in_sample(sampled: &Sampled) -> Option<String> {
    sampled.lost.warning("a sample of the text", sampled.text_bytes)
}

/// Checks ids against the vocabulary: all of them, or evenly spread parts of a long stream.
fn check_ids(stream: &Stream, tokenizer: &Tokenizer) -> Result<()> {
    let vocab = tokenizer.vocab_size();
    if stream.len() <= CHECKED_TOKENS {
        return stream.digest(vocab).map(drop);
    }
    let part = CHECKED_TOKENS / CHECKED_PARTS;
    (0..CHECKED_PARTS).try_for_each(|i| {
        let start = (stream.len() - part) / (CHECKED_PARTS - 1) * i;
        stream.tokens_in_vocab(start..start + part, vocab).map(drop)
    })
}
