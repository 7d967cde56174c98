//! What is known about a corpus before a run: its sizes for the plan, and everything that would keep the run
//! from starting. Small text is tokenized; of more, every file is checked and the sizes are estimated.

use super::corpus::{NO_FLOOR, unused_fields};
use super::corpus_facts::CorpusFacts;
use super::corpus_files::CorpusFiles;
use super::dataset::{check_set, check_window};
use super::file_facts::{FileFacts, in_memory, of_files, trained_on, whole};
use super::open::whole_corpus_warnings;
use super::stories::Split;
use super::tokenizer::Tokenizer;
use super::{Dataset, Spec, TokenCache, generated, mixture, overlap};
use crate::error::{Error, Result};
use crate::policy::CorpusSource;
use std::cell::OnceCell;
use std::sync::Arc;

/// Most held-out stories, in tokens, that are generated to compute the floor. A longer held-out set gets the
/// floor of its first part.
const MAX_GENERATED: usize = 1 << 18;

impl CorpusFacts {
    /// Returns the facts about a corpus that was opened. All counts are exact, but for a text that is still
    /// being tokenized.
    pub fn from_dataset(dataset: &Dataset) -> Self {
        let (train_tokens, exact) = dataset.train_tokens();
        Self {
            vocab_size: dataset.tokenizer.vocab_size(),
            train_tokens,
            exact,
            validation_tokens: dataset.validation.tokens.len(),
            set_tokens: dataset.sets.iter().map(|set| (set.name.clone(), set.tokens.len())).collect(),
            floor: dataset.floor,
            sources: dataset.source_facts(),
            packed: dataset.packed,
            chat: dataset.chat.clone(),
            memory_bytes: dataset.memory_bytes(),
            tasks: Vec::new(),
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
    let (mut facts, train) = match &spec.corpus {
        CorpusSource::Stories => (stories(spec, &tokenizer)?, None),
        CorpusSource::Random => (random(spec, &tokenizer)?, None),
        CorpusSource::Mixture => mixture::facts(spec, seq_len, tokenizer.get()?, cache)?,
        CorpusSource::Paths(_) => {
            let found = of_files(spec, seq_len, tokenizer.get()?, cache, false)?;
            let FileFacts { mut facts, train, apart_in_training, absent_drops, .. } = found;
            facts.warnings.extend(whole_corpus_warnings(spec, apart_in_training, absent_drops));
            (facts, train)
        }
    };
    if facts.exact || spec.corpus == CorpusSource::Stories {
        check_window(spec, facts.train_tokens, facts.validation_tokens, seq_len)?;
    }
    for (name, location) in &spec.sets {
        let in_set = |e: Error| e.context(format!("validation.sets.{name}"));
        let files = CorpusFiles::at(location, &spec.extensions).map_err(in_set)?;
        let set = tokenizer
            .get()
            .and_then(|tokenizer| whole(&files, spec, (2, seq_len), tokenizer, cache, &|e| e))
            .map_err(in_set)?;
        if set.exact {
            check_set(location, set.tokens).map_err(in_set)?;
        }
        facts.exact &= set.exact;
        facts.memory_bytes = facts.memory_bytes.saturating_add(set.memory_bytes());
        facts.warnings.extend(set.warnings);
        facts.warnings.extend(files.check_tokenizer(tokenizer.get()?)?);
        let share = trained_on(train.as_ref(), set.stream.as_ref())?;
        facts.warnings.extend(share.map(|share| overlap::warning(&overlap::set_name(name), share)));
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
        warnings: Vec::from_iter(floor.is_none().then(|| NO_FLOOR.to_owned())),
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
