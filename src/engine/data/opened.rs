//! Opens both splits of a corpus: when all of it is tokenized, or while it is.

use super::corpus::{Corpus, CorpusSummary, Loaded, Whole, uncached_warnings};
use super::corpus_files::CorpusFiles;
use super::documents::Documents;
use super::growing::Growing;
use super::part::PartTokens;
use super::sample::sample;
use super::stream::Stream;
use super::text_files::TextFiles;
use super::token_cache::{Arrived, Key, Part, TokenCache};
use super::{Packing, Shuffle, Spec, Tokenizer};
use crate::error::Result;
use std::sync::Arc;

/// When a corpus is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// When all of it is tokenized.
    Tokenized,
    /// As soon as its held-out text and the first window are tokenized, if its order allows that
    /// ([`Shuffle::Blocks`]). The number of tokens to train on is an estimate then.
    WhileTokenized,
}

/// Both splits of a corpus that was opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub train: PartTokens,
    pub validation: Stream,
    /// True if the held-out tokens are of text of their own, not cut from the corpus or generated.
    pub is_held_out_apart: bool,
    /// Hash of everything that the tokens depend on, if the spec asks for it and the corpus is text.
    pub content: Option<blake3::Hash>,
    pub summary: CorpusSummary,
}

impl Opened {
    /// Opens the splits of a corpus whose windows have `seq_len + 1` tokens.
    ///
    /// # Errors
    /// If anything is wrong with the corpus.
    pub fn open(
        corpus: &Corpus,
        spec: &Spec,
        seq_len: usize,
        tokenizer: &Arc<Tokenizer>,
        cache: Option<&TokenCache>,
        opening: Opening,
    ) -> Result<Self> {
        if let (Corpus::Files(CorpusFiles::Text(text)), Some(cache)) = (corpus, cache)
            && !spec.holds_conversations()
            && !spec.holds_out_conversations()
            && (opening, spec.shuffle, spec.packing)
                == (Opening::WhileTokenized, Shuffle::Blocks, Packing::Stream)
            && let Some(opened) = Self::while_tokenized(text, spec, seq_len, tokenizer, cache)?
        {
            return Ok(opened);
        }
        corpus.load(spec, tokenizer, cache).map(Self::from)
    }

    /// Opens a text as soon as its held-out tokens and a window are there; `None` if it is not cached, or its
    /// tokens are there already.
    fn while_tokenized(
        text: &TextFiles,
        spec: &Spec,
        seq_len: usize,
        tokenizer: &Arc<Tokenizer>,
        cache: &TokenCache,
    ) -> Result<Option<Self>> {
        let key = Key::new(text, Part::Splits, spec, tokenizer).ok().flatten();
        let Some(key) = key.filter(|key| key.is_cached() && !cache.has(key)) else { return Ok(None) };
        let content = Some(key.content);
        let is_held_out_apart = spec.held_out().is_some();
        let apart = spec.held_out().map(|location| {
            let held_out = Corpus::whole(&location, &spec.for_held_out(), tokenizer, 0, Some(cache))?;
            let expected = sample(&Documents::open(text, spec)?, tokenizer)?.estimate();
            Ok((held_out, expected))
        });
        let apart: Option<(Whole, usize)> = apart.transpose()?;
        let growing = Growing::start(text, key, spec, tokenizer, cache)?;
        let held_out = match apart {
            Some(apart) => Some(apart),
            None => growing.held_out()?.map(|(tokens, Arrived { bytes, lost, .. })| {
                let fraction = spec.fraction().ok().flatten().unwrap_or(1.0);
                let expected = (tokens.len() as f64 * (1.0 - fraction) / fraction) as usize;
                let whole = Whole { tokens, text_bytes: Some(bytes), lost: Some(lost), warnings: Vec::new() };
                (whole, expected)
            }),
        };
        let known = growing.wait_for(seq_len.saturating_add(1))?;
        let (Some((held_out, expected)), None) = (held_out, growing.loaded()?) else {
            let loaded = growing.loaded()?.cloned();
            return Ok(loaded.map(|loaded| Self { content, ..Self::from(loaded) }));
        };
        let expected = known.unwrap_or(expected.max(seq_len.saturating_add(1)));
        let mut warnings = uncached_warnings(text, spec)?;
        warnings.extend(held_out.warnings);
        warnings.push(format!(
            "{}: its text is tokenized while the run trains on it, so it is not known yet whether held-out text is \
             also trained on; `xrun data check` finds it",
            text.location
        ));
        let summary = CorpusSummary {
            warnings,
            description: text.location.to_string(),
            held_out_bytes: held_out.text_bytes,
            held_out_lost: held_out.lost,
            ..CorpusSummary::default()
        };
        let train = PartTokens::Growing { corpus: Arc::new(growing), expected };
        let validation = held_out.tokens;
        Ok(Some(Self { train, validation, is_held_out_apart, content, summary }))
    }
}

impl From<Loaded> for Opened {
    fn from(loaded: Loaded) -> Self {
        let Loaded { train, validation, is_held_out_apart, content, summary } = loaded;
        Self { train: PartTokens::Whole(train), validation, is_held_out_apart, content, summary }
    }
}

#[cfg(test)]
mod tests;
