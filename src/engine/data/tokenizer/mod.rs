//! Tokenizers: `gpt2`, `byte` and `stories` are built in; any HuggingFace `tokenizer.json` can be opened by
//! its path.

mod builtin;
mod bytes;
mod gpt2;
mod guarded;
#[cfg(test)]
mod tests;

pub use guarded::GuardedTokenizer;

use super::END_OF_TEXT;
use crate::error::{Error, IoContext, Result};
use crate::regular;
use rayon::prelude::*;
use std::ops::Range;
use std::path::Path;

/// Names of the built-in tokenizers.
pub const BUILT_IN: [&str; 3] = ["gpt2", "byte", "stories"];

/// Entries of the GPT-2 vocabulary: 256 bytes, 50,000 merges, the end token.
const GPT2_VOCAB: usize = 50_257;

/// Largest tokenizer.json that is read; the largest in common use are below 40 MB.
pub const MAX_JSON_BYTES: u64 = 256 << 20;

/// Bytes per piece when text is cut to be encoded in parallel.
const PIECE_BYTES: usize = 64 << 10;

/// Common names of end tokens, tried in order if no tokenizer_config.json names one.
const END_TOKENS: [&str; 7] =
    [END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<|im_end|>"];

/// Where the text of a document may be cut without changing its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Between any two characters.
    Anywhere,
    /// Between a character that is not white space and one that is. No token spans the two, and what follows
    /// does not affect how the text before is split.
    BeforeSpace,
    /// Nowhere: no cut is safe for every tokenizer.json.
    Nowhere,
}

/// Turns text into token ids and back. Special tokens written in text are encoded as plain text: only the
/// loader places the end token.
#[derive(Debug)]
pub struct Tokenizer {
    inner: GuardedTokenizer,
    json: String,
    stories: bool,
    vocab: usize,
    end: u32,
    cut: Cut,
}

impl Tokenizer {
    /// Opens a built-in tokenizer by name, or the tokenizer.json at a path.
    ///
    /// # Errors
    /// If the tokenizer.json is unreadable, malformed or inconsistent, or has no end token.
    pub fn open(name: &str) -> Result<Self> {
        match name {
            "gpt2" => Self::built_in(gpt2::json(), Cut::BeforeSpace),
            "byte" => Self::built_in(builtin::byte_json(), Cut::Anywhere),
            "stories" => {
                Self::built_in(builtin::stories_json(), Cut::BeforeSpace).map(|t| Self { stories: true, ..t })
            }
            path => Self::from_file(Path::new(path)),
        }
    }

    /// Returns the vocabulary size and the end token, without building the tokenizer if it is a built-in one.
    pub fn size(name: &str) -> Result<(usize, u32)> {
        match name {
            "gpt2" => Ok((GPT2_VOCAB, gpt2::END)),
            "byte" => Ok((257, builtin::END)),
            "stories" => Ok((257 + super::stories::grammar().pieces().len(), builtin::END)),
            path => Self::from_file(Path::new(path)).map(|t| (t.vocab, t.end)),
        }
    }

    fn built_in(json: String, cut: Cut) -> Result<Self> {
        Self::from_json(json, Some(END_OF_TEXT), cut)
    }

    fn from_file(path: &Path) -> Result<Self> {
        let shown = path.display();
        if !path.is_file() {
            return Err(Error::usage(format!(
                "tokenizer {shown}: not a built-in one ({}) and no such file",
                BUILT_IN.join(", ")
            )));
        }
        let bytes = path.metadata().at("read", path)?.len();
        if bytes > MAX_JSON_BYTES {
            return Err(Error::usage(format!(
                "tokenizer {shown}: {bytes} bytes are too many for a tokenizer.json (at most {MAX_JSON_BYTES})"
            )));
        }
        let raw = regular::read_through_link(path, MAX_JSON_BYTES)?;
        let json = String::from_utf8(raw)
            .map_err(|e| Error::usage(format!("tokenizer {shown}: not UTF-8: {}", e.utf8_error())))?;
        let named = named_end(&path.with_file_name("tokenizer_config.json"))?;
        Self::from_json(json, named.as_deref(), Cut::Nowhere)
            .map_err(|e| e.context(format!("tokenizer {shown}")))
    }

    /// Opens the tokenizer.json of a run. `end` is the token that ends a document, from the run's checkpoint,
    /// so no tokenizer_config.json is needed.
    ///
    /// # Errors
    /// If [`Tokenizer::open`] would fail, or the end token is outside the vocabulary.
    pub fn from_run(json: String, end: Option<u32>) -> Result<Self> {
        let Some(end) = end else { return Self::from_json(json, None, Cut::Nowhere) };
        let inner = GuardedTokenizer::parse(&json)?;
        let vocab = check_dense(&inner)?;
        if end as usize >= vocab {
            return Err(Error::failed(format!(
                "the end token {end} is outside the vocabulary of {vocab} entries"
            )));
        }
        Ok(Self { inner, json, stories: false, vocab, end, cut: Cut::Nowhere })
    }

    fn from_json(json: String, end: Option<&str>, cut: Cut) -> Result<Self> {
        let inner = GuardedTokenizer::parse(&json)?;
        let vocab = check_dense(&inner)?;
        let end = match end {
            Some(name) => inner.token_to_id(name).ok_or_else(|| {
                Error::usage(format!("the end token {name:?} that tokenizer_config.json names is not in it"))
            })?,
            None => END_TOKENS.iter().find_map(|t| inner.token_to_id(t)).ok_or_else(|| {
                Error::usage(format!(
                    "it has no end token (looked for {}); name it as \"eos_token\" in a tokenizer_config.json \
                     beside it",
                    END_TOKENS.join(", ")
                ))
            })?,
        };
        Ok(Self { inner, json, stories: false, vocab, end, cut })
    }

    /// Encodes special tokens written in text as themselves, because chat templates write them.
    #[must_use]
    pub fn recognizing_special_tokens(mut self) -> Self {
        self.inner.recognize_special_tokens();
        // No cuts: a cut could fall inside a special token.
        self.cut = Cut::Nowhere;
        self
    }

    /// Returns the id of a vocabulary entry.
    pub fn token_to_id(&self, entry: &str) -> Option<u32> {
        self.inner.token_to_id(entry)
    }

    /// Returns true for `stories`, whose tokens the generator knows without encoding.
    pub(super) fn is_stories(&self) -> bool {
        self.stories
    }

    /// Returns the number of entries; every id is below it.
    pub fn vocab_size(&self) -> usize {
        self.vocab
    }

    /// Returns the token that ends a document.
    pub fn end_token(&self) -> u32 {
        self.end
    }

    /// Returns the HuggingFace tokenizer.json that encodes the same way. For a file it is the file's own
    /// text.
    pub fn to_json(&self) -> &str {
        &self.json
    }

    /// Returns the BLAKE3 hash of [`Tokenizer::to_json`], in hexadecimal.
    pub fn hash(&self) -> String {
        blake3::hash(self.json.as_bytes()).to_hex().to_string()
    }

    /// Returns true if the tokenizer.json has the same entries with the same ids.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn has_same_vocabulary(&self, json: &str) -> Result<bool> {
        Ok(json == self.json || GuardedTokenizer::parse(json)?.vocab()? == self.inner.vocab()?)
    }

    /// Returns the number of text bytes behind each token, by id; 0 for special tokens, which are not text.
    /// `None` if a token may stand for different bytes in different places, or the tokenizer does not keep
    /// text byte for byte.
    ///
    /// # Errors
    /// If the library fails.
    pub fn token_byte_counts(&self) -> Result<Option<Vec<u32>>> {
        Ok(bytes::token_byte_counts(&self.json, &self.inner.vocab()?))
    }

    /// Encodes a text. Long text is encoded in parallel if cutting provably does not change the tokens.
    ///
    /// # Errors
    /// If the tokenizer cannot express the text (a tokenizer.json without an unknown token or byte fallback).
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let pieces: Vec<Range<usize>> = self.pieces(text).collect();
        if let [whole] = &pieces[..] {
            return self.encode_piece(&text[whole.clone()]);
        }
        let encoded: Vec<Vec<u32>> =
            pieces.into_par_iter().map(|p| self.encode_piece(&text[p])).collect::<Result<_>>()?;
        Ok(encoded.concat())
    }

    fn encode_piece(&self, text: &str) -> Result<Vec<u32>> {
        if self.cut == Cut::Anywhere {
            // In the `byte` tokenizer, ids are the bytes. Its tokenizer.json gives the same result, a hundred
            // times slower.
            return Ok(text.bytes().map(u32::from).collect());
        }
        self.inner.encode(text)
    }

    /// Cuts a text into byte ranges that cover it in order. The tokens of the pieces joined are the tokens of
    /// the whole.
    pub(super) fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = Range<usize>> + 't {
        let cut = self.cut;
        let mut start = 0;
        let mut whole = text.is_empty();
        std::iter::from_fn(move || {
            if start == text.len() && !std::mem::take(&mut whole) {
                return None;
            }
            let end = cut.after(text, start.saturating_add(PIECE_BYTES));
            let piece = start..end;
            start = end;
            Some(piece)
        })
    }

    /// Decodes token ids. The end token is shown by its name, and bytes that are not UTF-8 become `�`.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.vocab) {
            return Err(Error::failed(format!(
                "token {id} is outside the vocabulary of {} entries",
                self.vocab
            )));
        }
        self.inner.decode(ids)
    }
}

impl Cut {
    /// Returns the first position at or after byte `from` where `text` may be cut.
    fn after(self, text: &str, from: usize) -> usize {
        if from >= text.len() || self == Cut::Nowhere {
            return text.len();
        }
        let from = (from..text.len()).find(|&i| text.is_char_boundary(i)).unwrap_or(text.len());
        if self == Cut::Anywhere {
            return from;
        }
        let mut spaced = true;
        for (i, c) in text[from..].char_indices() {
            if c.is_whitespace() && !spaced {
                return from + i;
            }
            spaced = c.is_whitespace();
        }
        text.len()
    }
}

/// Checks that every entry has its own id below the number of entries, and returns that number.
fn check_dense(inner: &GuardedTokenizer) -> Result<usize> {
    let vocab = inner.vocab()?;
    let mut seen = vec![false; vocab.len()];
    for (token, &id) in &vocab {
        match seen.get_mut(id as usize) {
            Some(slot) if !*slot => *slot = true,
            Some(_) => {
                return Err(Error::usage(format!("id {id} belongs to {token:?} and to another entry")));
            }
            None => {
                return Err(Error::usage(format!(
                    "entry {token:?} has id {id}, but there are only {} entries",
                    vocab.len()
                )));
            }
        }
    }
    Ok(vocab.len())
}

/// Reads `eos_token` from a HuggingFace tokenizer_config.json, if the file exists.
fn named_end(config: &Path) -> Result<Option<String>> {
    if !config.is_file() {
        return Ok(None);
    }
    let text = regular::read_text_through_link(config).map_err(|e| Error::usage(e.message()))?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| Error::usage(format!("{}: {e}", config.display())))?;
    Ok(token_text(&value["eos_token"]))
}

/// Returns a token in a tokenizer_config.json: either a string, or an object with `content`.
pub fn token_text(token: &serde_json::Value) -> Option<String> {
    token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
}
