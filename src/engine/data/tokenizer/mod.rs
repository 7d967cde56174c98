//! Tokenizers: `gpt2`, `byte` and `stories` are built in; any HuggingFace `tokenizer.json` can be opened by
//! its path.

mod agreement;
mod builtin;
mod byte_pairs;
mod bytes;
mod coding;
mod cut;
mod entries;
mod gpt2;
mod guarded;
mod kind;
mod lost;
mod special;
#[cfg(test)]
mod tests;
mod timed;
mod words;

pub use builtin::byte_chars;
pub(super) use builtin::{byte_level, document};
pub(super) use cut::Cut;
pub use entries::{Entry, escaped};
pub use guarded::GuardedTokenizer;
pub(super) use guarded::check_expression;
pub use lost::LostBytes;
pub use special::{
    ADDED_TOKENS, Begin, MAX_SETTINGS_BYTES, SETTINGS, TOKEN_MAP, begin_token, json_beginning_with,
    settings_with_end, special_tokens,
};
pub(super) use timed::timed;

use crate::atomic;
use crate::error::{Error, IoContext, Result};
use crate::regular;
use byte_pairs::BytePairs;
use bytes::TokenBytes;
use lost::Characters;
use special::{END_TOKENS, Settings, implied_end, token_text};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// File name of a tokenizer in a folder.
pub const FILE: &str = "tokenizer.json";

/// Names of the built-in tokenizers.
pub const BUILT_IN: [&str; 3] = ["gpt2", "byte", "stories"];

/// Entries of the GPT-2 vocabulary: 256 bytes, 50,000 merges, the end token.
const GPT2_VOCAB: usize = 50_257;

/// Largest tokenizer.json that is read; the largest in common use are below 40 MB.
pub const MAX_JSON_BYTES: u64 = 256 << 20;

/// Most entries that the ids of a tokenizer may leave out, as a multiple of its entries. GPT-4o's leave out
/// 19 of 200,019.
const MAX_HOLES: usize = 1;

/// Turns text into token ids and back. Special tokens written in text are encoded as plain text: only the
/// loader places the tokens that open and end a document. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<GuardedTokenizer>,
    json: Arc<str>,
    /// The settings to store beside the tokenizer.json.
    settings: Arc<str>,
    stories: bool,
    /// True for a tokenizer.json of others, whose code runs within a time.
    foreign: bool,
    /// True if special tokens written in text are encoded as themselves.
    recognizes_special: bool,
    vocab: usize,
    end: u32,
    /// The end token that the tokenizer.json implies by itself.
    implied_end: Option<u32>,
    begin: Begin,
    /// The token that the files beside the tokenizer.json name as the first of a text.
    named_begin: Option<u32>,
    /// What is known about the bytes behind tokens, if they always stand for the same bytes.
    bytes: Option<Arc<TokenBytes>>,
    characters: Arc<Characters>,
    cut: Cut,
    /// Encodes long text, if the tokenizer is of its kind; made on first use.
    pairs: Arc<OnceLock<Option<BytePairs>>>,
}

impl Tokenizer {
    /// Opens a built-in tokenizer by name, or the tokenizer.json at a path with the files beside it.
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

    /// Opens a tokenizer like [`Tokenizer::open`], and begins texts like [`Tokenizer::beginning_with`].
    ///
    /// # Errors
    /// If either fails.
    pub fn open_for(name: &str, begin: Option<&str>) -> Result<Self> {
        Self::open(name)?.beginning_with(begin)
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
        let opened = Self::from_json(json, &Settings::default(), None, cut)?;
        Ok(Self { foreign: false, ..opened })
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
        let json = String::from_utf8(raw).map_err(|e| {
            Error::usage(format!(
                "tokenizer {shown}: not a tokenizer.json, which is text in UTF-8 ({}); a tokenizer.model of sentencepiece \
                 has to be converted, as `save_pretrained` of a fast tokenizer does",
                e.utf8_error()
            ))
        })?;
        let settings = Settings::beside(path).map_err(|e| e.context(format!("beside tokenizer {shown}")))?;
        Self::from_json(json, &settings, None, Cut::Nowhere)
            .map_err(|e| e.context(format!("tokenizer {shown}")))
    }

    /// Opens the tokenizer.json of a run. `end` is the token that ends a document, from the run's checkpoint,
    /// so no file beside it is needed.
    ///
    /// # Errors
    /// If [`Tokenizer::open`] would fail, or the end token is outside the vocabulary.
    pub fn from_run(json: String, end: Option<u32>) -> Result<Self> {
        Self::from_json(json, &Settings::default(), end, Cut::Nowhere)
    }

    /// Opens a tokenizer.json whose end token has the id `end` or, without one, the name in the settings.
    fn from_json(json: String, settings: &Settings, end: Option<u32>, cut: Cut) -> Result<Self> {
        let mut inner = GuardedTokenizer::parse(&json)?;
        let vocab = check_ids(&inner)?;
        let implied_end = implied_end(|name| inner.token_to_id(name));
        let end = match (end, settings.end()?) {
            (Some(id), _) if inner.id_to_token(id).is_some() => id,
            (Some(id), _) => {
                return Err(Error::failed(format!(
                    "the end token {id} is outside the vocabulary of {vocab} entries, or has no entry there"
                )));
            }
            (None, Some((name, file))) => inner.token_to_id(&name).ok_or_else(|| {
                Error::usage(format!("the end token {name:?} that {file} names is not in it"))
            })?,
            (None, None) => implied_end.ok_or_else(|| {
                Error::usage(format!(
                    "it has no end token (looked for {}); name it as \"eos_token\" in a {SETTINGS} beside it",
                    END_TOKENS.join(", ")
                ))
            })?,
        };
        let name = inner.id_to_token(end).unwrap_or_default();
        agreement::check(settings, &json, &inner, end)?;
        inner.make_special(end)?;
        let named_begin = settings.fields.get("bos_token").and_then(token_text);
        let named_begin = named_begin.and_then(|name| inner.token_to_id(&name));
        let bytes = bytes::token_bytes(&json, &inner.vocab()?, vocab, end).map(Arc::new);
        Ok(Self {
            inner: Arc::new(inner),
            json: json.into(),
            settings: settings.with_end(&name).into(),
            stories: false,
            foreign: true,
            recognizes_special: false,
            vocab,
            end,
            implied_end,
            begin: Begin::End,
            named_begin,
            bytes,
            characters: Arc::new(Characters::new()),
            cut,
            pairs: Arc::default(),
        })
    }

    /// Begins texts as `data.begin_token` says: with the end token if it is `None`, with nothing if it is
    /// empty, or with the entry of this name.
    ///
    /// # Errors
    /// If there is no such entry.
    pub fn beginning_with(mut self, token: Option<&str>) -> Result<Self> {
        self.begin = match token {
            None => Begin::End,
            Some("") => Begin::Nothing,
            Some(name) => {
                let id = self.token_to_id(name).ok_or_else(|| {
                    Error::usage(format!(
                        "data.begin_token = {name:?} is not an entry of the tokenizer; name one, or leave the key out to \
                         begin texts with the end token {:?}",
                        self.inner.id_to_token(self.end).unwrap_or_default()
                    ))
                })?;
                Arc::make_mut(&mut self.inner).make_special(id)?;
                if let Some(bytes) = &mut self.bytes {
                    Arc::make_mut(bytes).counts[id as usize] = 0;
                }
                if id == self.end { Begin::End } else { Begin::Token(id) }
            }
        };
        Ok(self)
    }

    /// Encodes special tokens written in text as themselves, because chat templates write them.
    #[must_use]
    pub fn recognizing_special_tokens(mut self) -> Self {
        Arc::make_mut(&mut self.inner).recognize_special_tokens();
        self.recognizes_special = true;
        // No cuts: a cut could fall inside a special token.
        self.cut = Cut::Nowhere;
        self
    }

    /// Returns the id of a vocabulary entry.
    pub fn token_to_id(&self, entry: &str) -> Option<u32> {
        self.inner.token_to_id(entry)
    }

    /// Returns the name of an entry, as the tokenizer.json writes it.
    pub fn token_name(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
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

    /// Returns the token that the settings beside the tokenizer.json name as the first of a text, whether or
    /// not texts begin with it.
    pub fn named_begin(&self) -> Option<u32> {
        self.named_begin
    }

    /// Returns what texts begin with.
    pub fn begins(&self) -> Begin {
        self.begin
    }

    /// Returns the token that opens every document of a stream.
    pub fn opening_token(&self) -> u32 {
        match self.begin {
            Begin::Token(id) => id,
            Begin::End | Begin::Nothing => self.end,
        }
    }

    /// Returns the token that stands between the end token of a document and the next document, if it is not
    /// the end token itself.
    pub(super) fn opening_after_end(&self) -> Option<u32> {
        match self.begin {
            Begin::Token(id) => Some(id),
            Begin::End | Begin::Nothing => None,
        }
    }

    /// Returns the tokens of a prompt, and how many of them stand before its text. A prompt without text
    /// begins with the opening token, because a model needs one to predict the next.
    ///
    /// # Errors
    /// Fails like [`Tokenizer::encode`].
    pub fn prompt(&self, text: &str) -> Result<(Vec<u32>, usize)> {
        let mut tokens = match self.begin {
            Begin::Nothing => Vec::new(),
            Begin::End | Begin::Token(_) => vec![self.opening_token()],
        };
        let mut before = tokens.len();
        tokens.extend(self.encode(text)?);
        if tokens.is_empty() {
            tokens.push(self.end);
            before = 1;
        }
        Ok((tokens, before))
    }

    /// Writes the tokenizer into a folder: its tokenizer.json, and beside it a tokenizer_config.json that
    /// names its end token. Settings there that already do so are left alone.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let json = folder.join(FILE);
        atomic::write(&json, self.json.as_bytes())?;
        let name = self.inner.id_to_token(self.end);
        let named = Settings::beside(&json).and_then(|settings| settings.end()).ok().flatten();
        match named.is_some() && named.map(|(named, _)| named) == name {
            true => Ok(()),
            false => atomic::write(&folder.join(SETTINGS), self.settings.as_bytes()),
        }
    }

    /// Returns the tokenizer_config.json that is stored with the tokenizer; it names its end token.
    pub fn settings(&self) -> &str {
        &self.settings
    }

    /// Returns the HuggingFace tokenizer.json that encodes the same way. For a file it is the file's own
    /// text.
    pub fn to_json(&self) -> &str {
        &self.json
    }

    /// Returns the hash of the tokenizer, in hexadecimal: the BLAKE3 hash of [`Tokenizer::to_json`] and, if
    /// that implies another end token than the one in use, of the end token.
    pub fn hash(&self) -> String {
        let json = blake3::hash(self.json.as_bytes());
        if self.implied_end == Some(self.end) {
            return json.to_hex().to_string();
        }
        let mut both = blake3::Hasher::new_derive_key("xrun tokenizer.json and end token");
        both.update(json.as_bytes()).update(&self.end.to_le_bytes());
        both.finalize().to_hex().to_string()
    }

    /// Describes the tokenizer's end token for a message, by id and name.
    pub fn end_in_words(&self) -> String {
        format!("{} ({:?})", self.end, self.inner.id_to_token(self.end).unwrap_or_default())
    }

    /// Returns true if the tokenizer.json has the same entries with the same ids.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn has_same_vocabulary(&self, json: &str) -> Result<bool> {
        Ok(json == &*self.json || GuardedTokenizer::parse(json)?.vocab()? == self.inner.vocab()?)
    }

    /// Returns the number of text bytes behind each token, by id; 0 for special tokens, which are not text.
    /// `None` if a token may stand for different bytes in different places, or the tokenizer does not keep
    /// text byte for byte. Bytes without an entry are behind no token ([`Tokenizer::keeps_every_byte`]).
    pub fn token_byte_counts(&self) -> Option<Vec<u32>> {
        self.bytes.as_ref().map(|bytes| bytes.counts.clone())
    }

    /// Returns true if the tokenizer is known to have an entry for every byte of every text.
    pub fn keeps_every_byte(&self) -> bool {
        self.bytes.as_ref().is_some_and(|bytes| bytes.is_complete)
    }
}

/// Checks that every entry has its own id, and that ids leave out few numbers. Returns the number of ids, the
/// highest one plus 1. Numbers without an entry decode to nothing.
fn check_ids(inner: &GuardedTokenizer) -> Result<usize> {
    let vocab = inner.vocab()?;
    let ids = vocab.len().saturating_mul(1 + MAX_HOLES);
    let mut seen = vec![false; ids];
    let mut highest = 0;
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
        highest = highest.max(id as usize);
    }
    if vocab.is_empty() {
        return Err(Error::usage("it has no entries"));
    }
    Ok(highest + 1)
}
