//! What is known about a corpus before a run: its sizes for the plan, and everything that would keep the run
//! from starting. Small text is tokenized; of more, every file is checked and the sizes are estimated.

use super::corpus::{Corpus, stories_tokenizer_warning, unused_by_shards, unused_fields, unused_seed};
use super::corpus_files::CorpusFiles;
use super::dataset::pack;
use super::dataset::{check_set, check_window};
use super::documents::Documents;
use super::packing::Packed;
use super::sample::{Sampled, sample};
use super::stories::Split;
use super::tokenizer::Tokenizer;
use super::{Dataset, Packing, Spec, Stream, TokenCache, Validation, generated, overlap, shard, token_cache};
use crate::error::{Error, Result};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Text up to this length, in bytes, is tokenized to plan with exact numbers.
const EXACT_BYTES: u64 = 1 << 20;

/// If an estimate is below this many windows, the text is tokenized: it may be too short to train on.
const DOUBTFUL_WINDOWS: usize = 4;

/// Token files of up to this many tokens are checked against the vocabulary as a whole; of more tokens, this
/// many, spread evenly, are checked. The run checks all.
const CHECKED_TOKENS: usize = 1 << 27;

/// Parts of longer token files that are checked.
const CHECKED_PARTS: usize = 128;

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
    /// What packing makes of the documents; `None` if nothing is packed, or the documents are not known.
    pub packed: Option<Packed>,
    /// Bytes of host memory that the tokens take in every process of a run; token files stay on disk. An
    /// estimate if the counts are.
    pub memory_bytes: usize,
    /// Notes for the user.
    pub warnings: Vec<String>,
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
            packed: dataset.packed,
            memory_bytes: dataset.memory_bytes(),
            warnings: dataset.warnings.clone(),
        }
    }
}

/// Returns the facts about the corpus that `spec` names. Generated corpora are known from the spec and their
/// (small) held-out part. Files are opened by the code that opens them for a run, so what a run of windows of
/// `seq_len + 1` tokens refuses is refused here; only long text is not tokenized, but sampled. A caller that
/// looks at many corpora passes the `tokenizer` that `spec` names, so that it is opened once. `cache` is the
/// one that the run has, and is not read: tokens in it take no memory.
///
/// # Errors
/// If the corpus or the tokenizer is missing or wrong, or a split is shorter than one window.
pub fn facts(
    spec: &Spec,
    seq_len: usize,
    tokenizer: Option<&Arc<Tokenizer>>,
    cache: Option<&TokenCache>,
) -> Result<CorpusFacts> {
    let tokenizer = OnDemand { spec, opened: tokenizer.cloned().map_or_else(OnceCell::new, OnceCell::from) };
    let corpus = Corpus::find(spec)?;
    let (mut facts, train) = match &corpus {
        Corpus::Stories => (stories(spec, &tokenizer)?, None),
        Corpus::Random => (random(spec, &tokenizer)?, None),
        Corpus::Files(files) => from_files(&corpus, files, spec, seq_len, &tokenizer, cache)?,
    };
    if facts.exact || matches!(corpus, Corpus::Stories) {
        check_window(spec, facts.train_tokens, facts.validation_tokens, seq_len)?;
    }
    if let Some(train) = &train {
        facts.packed = packed(spec, train, tokenizer.get()?, seq_len)?;
    }
    for (name, path) in &spec.sets {
        let in_set = |e: Error| e.context(format!("validation.sets.{name}"));
        let files = CorpusFiles::at(path, &spec.extensions).map_err(in_set)?;
        let set = tokenizer
            .get()
            .and_then(|tokenizer| whole(&files, spec, (2, seq_len), tokenizer, cache, &|e| e))
            .map_err(in_set)?;
        if set.exact {
            check_set(path, set.tokens).map_err(in_set)?;
        }
        facts.exact &= set.exact;
        facts.memory_bytes = facts.memory_bytes.saturating_add(set.memory_bytes());
        facts.warnings.extend(set.warnings);
        facts.warnings.extend(files.check_tokenizer(tokenizer.get()?)?);
        facts.warnings.extend(overlap(train.as_ref(), set.stream.as_ref(), &overlap::set_name(name))?);
        facts.set_tokens.insert(name.clone(), set.tokens);
    }
    facts.warnings.extend(unused_fields(spec)?);
    Ok(facts)
}

/// Opens the tokenizer on first use. Random tokens need only its size, which for built-in tokenizers is known
/// without building them.
struct OnDemand<'s> {
    spec: &'s Spec,
    opened: OnceCell<Arc<Tokenizer>>,
}

impl OnDemand<'_> {
    fn get(&self) -> Result<&Arc<Tokenizer>> {
        if self.opened.get().is_none() {
            // Nothing else sets it, so a value that is there already is this one.
            let _ = self
                .opened
                .set(Arc::new(Tokenizer::open_for(&self.spec.tokenizer, self.spec.begin_token.as_deref())?));
        }
        self.opened.get().ok_or_else(|| Error::failed("the tokenizer was not kept"))
    }

    fn vocab_size(&self) -> Result<usize> {
        match self.opened.get() {
            Some(tokenizer) => Ok(tokenizer.vocab_size()),
            None => Ok(Tokenizer::size(&self.spec.tokenizer)?.0),
        }
    }
}

fn stories(spec: &Spec, tokenizer: &OnDemand<'_>) -> Result<CorpusFacts> {
    generated::check_size(spec.validation_tokens)?;
    let tokenizer = tokenizer.get()?;
    let generated = spec.validation_tokens.min(MAX_GENERATED);
    let make = |split, tokens| generated::generate(spec.seed, split, tokens, tokenizer, &mut |_| Ok(()));
    let held = make(Split::Validation, generated)?;
    // A few stories may be longer than what was asked for, which decides whether a window fits.
    let train = match spec.train_tokens > MAX_GENERATED {
        true => spec.train_tokens,
        false => make(Split::Train, spec.train_tokens)?.tokens,
    };
    let floor = held.floor();
    Ok(CorpusFacts {
        vocab_size: tokenizer.vocab_size(),
        train_tokens: train,
        validation_tokens: if generated == spec.validation_tokens {
            held.tokens
        } else {
            spec.validation_tokens
        },
        floor,
        memory_bytes: in_memory(train.saturating_add(spec.validation_tokens)),
        warnings: Vec::from_iter(floor.is_none().then(|| super::corpus::NO_FLOOR.to_owned())),
        ..CorpusFacts::default()
    })
}

fn random(spec: &Spec, tokenizer: &OnDemand<'_>) -> Result<CorpusFacts> {
    let vocab_size = tokenizer.vocab_size()?;
    Ok(CorpusFacts {
        vocab_size,
        train_tokens: spec.train_tokens,
        validation_tokens: spec.validation_tokens,
        exact: true,
        floor: Some((vocab_size as f64).ln()),
        memory_bytes: in_memory(spec.train_tokens.saturating_add(spec.validation_tokens)),
        ..CorpusFacts::default()
    })
}

fn in_memory(tokens: usize) -> usize {
    tokens.saturating_mul(size_of::<u32>())
}

/// Returns the facts about a corpus of files, with its training tokens if they were read.
fn from_files(
    corpus: &Corpus,
    files: &CorpusFiles,
    spec: &Spec,
    seq_len: usize,
    tokenizer: &OnDemand<'_>,
    cache: Option<&TokenCache>,
) -> Result<(CorpusFacts, Option<Stream>)> {
    let tokenizer = tokenizer.get()?;
    let mut facts = CorpusFacts { vocab_size: tokenizer.vocab_size(), ..CorpusFacts::default() };
    let doubtful = seq_len.saturating_add(1).saturating_mul(DOUBTFUL_WINDOWS);
    let in_corpus = |e: Error| e.context(format!("corpus {}", spec.corpus));
    let exactly = |facts: CorpusFacts| {
        let loaded = corpus.load(spec, tokenizer, None)?;
        for stream in [&loaded.train, &loaded.validation] {
            check_ids(stream, tokenizer).map_err(in_corpus)?;
        }
        let lost = loaded.summary.lost_warning();
        let mut warnings: Vec<String> = loaded.summary.warnings.iter().cloned().chain(lost).collect();
        if loaded.is_held_out_apart {
            warnings.extend(overlap(Some(&loaded.train), Some(&loaded.validation), overlap::HELD_OUT)?);
        }
        let facts = CorpusFacts {
            train_tokens: loaded.train.len(),
            validation_tokens: loaded.validation.len(),
            memory_bytes: loaded.train.memory_bytes() + loaded.validation.memory_bytes(),
            warnings,
            exact: true,
            ..facts
        };
        Ok((facts, Some(loaded.train)))
    };
    let held = match &spec.validation {
        Validation::Path(path) => Some(CorpusFiles::at(path, &spec.extensions)?),
        Validation::Fraction(_) => None,
    };
    let (mut facts, train) = match (files, &held) {
        (CorpusFiles::Tokens(_), None | Some(CorpusFiles::Tokens(_))) => exactly(facts)?,
        // A few documents less change little in an estimate, but a count has to leave them out.
        (CorpusFiles::Text(text), Some(_))
            if spec.drop.is_some() && Documents::open(text, spec)?.total_bytes() <= EXACT_BYTES =>
        {
            exactly(facts)?
        }
        (_, Some(held)) => {
            let train = whole(files, spec, (doubtful, seq_len), tokenizer, cache, &in_corpus)?;
            let held = whole(held, spec, (doubtful, seq_len), tokenizer, cache, &in_corpus)?;
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
            facts.warnings.extend(overlap(train.stream.as_ref(), held.stream.as_ref(), overlap::HELD_OUT)?);
            (facts, train.stream)
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
                (facts, None)
            }
        }
    };
    for files in std::iter::once(files).chain(&held) {
        facts.warnings.extend(files.check_tokenizer(tokenizer)?);
    }
    Ok((facts, train))
}

/// Warns of held-out text that is trained on, if both were read and the training text is not long. A run
/// also looks through longer ones.
fn overlap(train: Option<&Stream>, held_out: Option<&Stream>, name: &str) -> Result<Option<String>> {
    match (train.filter(|train| train.len() <= CHECKED_TOKENS), held_out) {
        (Some(train), Some(held_out)) => {
            Ok(overlap::share_in_training(train, held_out)?.map(|share| overlap::warning(name, share)))
        }
        _ => Ok(None),
    }
}

/// All tokens of some files.
struct WholeFacts {
    tokens: usize,
    /// The tokens, if they were read.
    stream: Option<Stream>,
    exact: bool,
    is_in_memory: bool,
    /// What packing would make of the documents, if they were not read as tokens.
    packed: Option<Packed>,
    warnings: Vec<String>,
}

impl WholeFacts {
    fn memory_bytes(&self) -> usize {
        if self.is_in_memory { in_memory(self.tokens) } else { 0 }
    }
}

/// Counts or estimates the tokens in all files. Fewer than `doubtful` are counted. `named` says whose ids are
/// wrong.
fn whole(
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
            let warnings = Vec::from_iter(files.passed_over());
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
    let documents = Documents::open(text, spec)?;
    let mut warnings = documents.warnings()?;
    let sampled = sample(&documents, tokenizer)?;
    let exact = documents.total_bytes() <= EXACT_BYTES || sampled.estimate() < doubtful;
    let (tokens, stream, lost) = if exact {
        let whole = Corpus::whole(&text.path, spec, tokenizer, 0, None)?;
        let lost = whole.lost.zip(whole.text_bytes);
        let named = format!("the text of {}", text.path.display());
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
    (spec.packing == Packing::BestFit).then(|| Packed::estimate(lens, seq_len, share))
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
