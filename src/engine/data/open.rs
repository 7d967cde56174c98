//! Opens what a recipe trains on and evaluates.

use super::corpus::{Corpus, CorpusSummary, Whole, unused_fields};
use super::corpus_files::CorpusFiles;
use super::dataset::{self, Dataset, NO_BITS_PER_BYTE, check_set, check_window, loses_bytes};
use super::held_out::{HeldOut, TextBytes};
use super::location::CorpusLocation;
use super::opened::Opening;
use super::overlap::{self, share_in_training};
use super::stories::Split;
use super::{Spec, TokenCache, Tokenizer, drop, mixture};
use crate::error::Result;
use crate::policy::CorpusSource;
use std::sync::Arc;

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
    open_as(spec, seq_len, tokenizer, cache, Opening::Tokenized)
}

/// Opens a corpus like [`open`], but waits for its whole text to be tokenized only if `opening` says so.
///
/// # Errors
/// The same as [`open`].
pub fn open_as(
    spec: &Spec,
    seq_len: usize,
    tokenizer: Option<&Arc<Tokenizer>>,
    cache: Option<&TokenCache>,
    opening: Opening,
) -> Result<Dataset> {
    let tokenizer = match tokenizer {
        Some(tokenizer) => Arc::clone(tokenizer),
        None => Arc::new(Tokenizer::open_for(&spec.tokenizer, spec.begin_token.as_deref())?),
    };
    let mut dataset = match spec.corpus {
        CorpusSource::Mixture => mixture::open(spec, seq_len, tokenizer, cache, opening)?,
        _ => {
            let mut dataset = dataset::open_corpus(spec, seq_len, tokenizer, cache, opening)?;
            let Dataset { apart_in_training, absent_drops, .. } = dataset;
            dataset.warnings.extend(whole_corpus_warnings(spec, apart_in_training, absent_drops));
            dataset
        }
    };
    let train = dataset.train();
    check_window(spec, dataset.train_tokens().0, dataset.validation.tokens.len(), seq_len)?;
    let held = dataset.memory_bytes() / size_of::<u32>();
    let bytes = dataset.tokenizer.token_byte_counts().map(Arc::new);
    let sets = open_sets(spec, &dataset.tokenizer, bytes.as_ref(), held, cache, &mut dataset.warnings)?;
    for mut set in sets {
        set.in_training = share_in_training(&train, &set.tokens)?;
        let name = overlap::set_name(&set.name);
        dataset.warnings.extend(set.in_training.map(|share| overlap::warning(&name, share)));
        dataset.sets.push(set);
    }
    dataset.sets.sort_by(|a, b| a.name.cmp(&b.name));
    for location in spec.sets.values() {
        let files = CorpusFiles::at(location, &spec.extensions)?;
        dataset.warnings.extend(files.check_tokenizer(&dataset.tokenizer)?);
    }
    dataset.warnings.extend(unused_fields(spec)?);
    Ok(dataset)
}

/// Returns the warnings about a corpus that is all of the training text: of a share of the held-out text that
/// is also trained on, and of listed documents that are not in it.
pub(super) fn whole_corpus_warnings(
    spec: &Spec,
    apart_in_training: Option<f64>,
    absent_drops: usize,
) -> impl Iterator<Item = String> {
    let overlap = apart_in_training.map(|share| overlap::warning(overlap::HELD_OUT, share));
    overlap.into_iter().chain(drop::absent_warning(spec.drop.as_deref(), absent_drops))
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
    let mut open = |(name, location): (&String, &CorpusLocation)| -> Result<HeldOut> {
        let Whole { tokens, text_bytes: whole, lost, warnings: found } =
            Corpus::whole(location, spec, tokenizer, held, cache)?;
        warnings.extend(found);
        warnings.extend(
            lost.zip(whole)
                .and_then(|(lost, whole)| lost.warning(&format!("the held-out set {name}"), whole)),
        );
        let loses_bytes = loses_bytes(tokenizer, bytes.is_some(), lost);
        if loses_bytes && lost.is_some() {
            warnings.push(format!("the held-out set {name} {NO_BITS_PER_BYTE}"));
        }
        check_set(location, tokens.len())?;
        held += tokens.memory_bytes() / size_of::<u32>();
        let hash = tokens.digest(tokenizer.vocab_size())?.to_hex().to_string();
        let text = TextBytes::new(bytes, whole, loses_bytes);
        Ok(HeldOut { name: name.clone(), tokens, hash, text, in_training: None })
    };
    let named = |name: &str| format!("validation.sets.{name}");
    spec.sets.iter().map(|set| open(set).map_err(|e| e.context(named(set.0)))).collect()
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
