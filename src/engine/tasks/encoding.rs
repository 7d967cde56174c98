//! Prompts into tokens, by the rules of the harness that a task follows.

use crate::data::Tokenizer;
use crate::data::tokenizer::{Begin, begin_token};
use crate::error::Error;
use std::fmt;

/// Tokens that a model reads, and those whose probabilities count.
///
/// The model reads `context` and all of `continuation` but its last token, at most `max_len` tokens, and each
/// token of `continuation` is predicted from those before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The tokens that are only read; at least one.
    pub context: Vec<u32>,
    /// The tokens that are scored; at least one.
    pub continuation: Vec<u32>,
}

impl Request {
    /// Returns the tokens that a model reads: all but the last, after which nothing is predicted.
    pub fn inputs(&self) -> impl Iterator<Item = u32> {
        let read = self.continuation.len().saturating_sub(1);
        self.context.iter().chain(&self.continuation[..read]).copied()
    }
}

/// A request, and how many tokens of its prompt were cut off on the left to make it fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub request: Request,
    pub dropped: usize,
}

/// What stands before a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The token that is put before every text, if any.
    pub added: Option<u32>,
    /// The token from which a continuation without context is predicted.
    pub prefix: u32,
}

impl Beginning {
    /// Returns what a run puts before texts, as its recipe says (`data.begin_token`). Without a token there,
    /// a continuation without context follows the token that the tokenizer's settings name as `bos_token`, or
    /// the end token.
    pub fn of_run(tokenizer: &Tokenizer) -> Self {
        match tokenizer.begins() {
            Begin::End | Begin::Token(_) => {
                Self { added: Some(tokenizer.opening_token()), prefix: tokenizer.opening_token() }
            }
            Begin::Nothing => Self { added: None, prefix: named(tokenizer) },
        }
    }

    /// Returns what `transformers` puts before texts for a published tokenizer: the token that its
    /// post-processor adds.
    pub fn as_published(tokenizer: &Tokenizer) -> Self {
        let added = begin_token(tokenizer.to_json()).and_then(|name| tokenizer.token_to_id(&name));
        Self { added, prefix: named(tokenizer) }
    }
}

/// Returns the token that is named as the first of a text, or the end token.
fn named(tokenizer: &Tokenizer) -> u32 {
    tokenizer.named_begin().unwrap_or_else(|| tokenizer.end_token())
}

/// Encodes prompts.
#[derive(Clone, Debug)]
pub struct Encoder {
    /// Knows special tokens that are written in a text, as `transformers` does.
    recognizing: Tokenizer,
    /// Takes them for text, as nanochat does.
    plain: Tokenizer,
    beginning: Beginning,
    /// The name of the prefix token: a text that begins with it gets no other token before it.
    prefix_name: String,
    max_len: usize,
}

/// Why a prompt cannot be scored.
#[derive(Debug)]
pub(super) enum Unscorable {
    /// The continuation leaves no token of its own.
    Joined,
    /// The continuation has more tokens than the model reads.
    TooLong { tokens: usize, max_len: usize },
    /// An answer of the promised length leaves no room for a prompt.
    NoRoom { max_tokens: usize, max_len: usize },
    /// The tokenizer fails.
    Tokenizer(Error),
}

impl fmt::Display for Unscorable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined => f.write_str(
                "the answer has no token of its own: the tokenizer joins it with the text before it, or makes nothing of \
                 it. Correct the item, or write a space between prompt and answer (prompt.target_delimiter)",
            ),
            Self::TooLong { tokens, max_len } => write!(
                f,
                "the answer has {tokens} tokens, and the model reads {max_len} at once; use a model with a longer context, \
                 or leave the item out"
            ),
            Self::NoRoom { max_tokens, max_len } => write!(
                f,
                "an answer has up to {max_tokens} tokens (generation.max_tokens), and the model reads {max_len} at once, \
                 which leaves no room for a prompt; use a model with a longer context"
            ),
            Self::Tokenizer(e) => f.write_str(e.message()),
        }
    }
}

impl From<Error> for Unscorable {
    fn from(error: Error) -> Self {
        Self::Tokenizer(error)
    }
}

type Encoded<T> = std::result::Result<T, Unscorable>;

impl Encoder {
    /// Makes an encoder for a model that reads at most `max_len` tokens at once.
    pub fn new(tokenizer: &Tokenizer, beginning: Beginning, max_len: usize) -> Self {
        Self {
            recognizing: tokenizer.clone().recognizing_special_tokens(),
            plain: tokenizer.clone(),
            beginning,
            prefix_name: tokenizer.token_name(beginning.prefix).unwrap_or_default(),
            max_len,
        }
    }

    /// Returns the most tokens that the model reads at once.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Encodes a text with what stands before every text.
    fn whole(&self, text: &str) -> Encoded<Vec<u32>> {
        let is_begun = !self.prefix_name.is_empty() && text.starts_with(&self.prefix_name);
        let mut tokens: Vec<u32> = self.beginning.added.filter(|_| !is_begun).into_iter().collect();
        tokens.extend(self.recognizing.encode(text)?);
        Ok(tokens)
    }

    /// Encodes continuations of one context (lm-evaluation-harness, `TemplateLM._encode_pair`): white space
    /// at the end of the context moves to the continuation, both are encoded together, and the tokens are cut
    /// at the number of tokens of the context alone. Without a context, the prefix token takes its place.
    pub(super) fn continuations(&self, context: &str, continuations: &[String]) -> Encoded<Vec<Made>> {
        let kept = context.trim_end_matches(super::python::is_space);
        let moved = &context[kept.len()..];
        // Of white space alone, the harness keeps an empty context and fails.
        let encoded = if kept.is_empty() { Vec::new() } else { self.whole(kept)? };
        let request = |continuation: &String| {
            let request = if kept.is_empty() {
                let prefix = self.beginning.prefix;
                let mut tokens = self.recognizing.encode(&format!("{moved}{continuation}"))?;
                if tokens.first() == Some(&prefix) {
                    tokens.remove(0);
                }
                Request { context: vec![prefix], continuation: tokens }
            } else {
                let mut tokens = self.whole(&format!("{kept}{moved}{continuation}"))?;
                let continuation = tokens.split_off(encoded.len().min(tokens.len()));
                Request { context: encoded.clone(), continuation }
            };
            self.cut(request)
        };
        continuations.iter().map(request).collect()
    }

    /// Encodes a prompt that the model continues by up to `max_tokens` tokens, and cuts it on the left to
    /// leave room for them (lm-evaluation-harness, `HFLM.generate_until`). Returns the number of tokens cut
    /// off too.
    pub(super) fn prompt(&self, text: &str, max_tokens: usize) -> Encoded<(Vec<u32>, usize)> {
        let room = self.max_len.saturating_sub(max_tokens);
        if room == 0 {
            return Err(Unscorable::NoRoom { max_tokens, max_len: self.max_len });
        }
        let mut tokens = self.whole(text)?;
        if tokens.is_empty() {
            tokens.push(self.beginning.prefix);
        }
        let excess = tokens.len().saturating_sub(room);
        tokens.drain(..excess);
        Ok((tokens, excess))
    }

    /// Returns the tokenizer of generated texts.
    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.plain
    }

    /// Cuts a request on the left to what the model reads: `max_len` tokens and the last one, which is only
    /// predicted.
    fn cut(&self, mut request: Request) -> Encoded<Made> {
        let tokens = request.continuation.len();
        if tokens == 0 {
            return Err(Unscorable::Joined);
        }
        if tokens > self.max_len {
            return Err(Unscorable::TooLong { tokens, max_len: self.max_len });
        }
        let excess = (request.context.len() + tokens).saturating_sub(self.max_len + 1);
        request.context.drain(..excess);
        Ok(Made { request, dropped: excess })
    }

    /// Divides a text into windows of `max_len` tokens, so that each of its tokens is predicted once, from as
    /// many tokens before it as fit (lm-evaluation-harness, `get_rolling_token_windows` with a context of 1,
    /// `make_disjoint_window`).
    pub(super) fn windows(&self, text: &str) -> Encoded<Vec<Made>> {
        let tokens = self.whole(text)?;
        if tokens.is_empty() {
            return Err(Unscorable::Joined);
        }
        let (mut windows, mut done) = (Vec::new(), 0);
        while done < tokens.len() {
            let end = (done + self.max_len.max(1)).min(tokens.len());
            let context = match done {
                0 => vec![self.beginning.prefix],
                _ => tokens[end.saturating_sub(self.max_len + 1)..done].to_vec(),
            };
            let request = Request { context, continuation: tokens[done..end].to_vec() };
            windows.push(Made { request, dropped: 0 });
            done = end;
        }
        Ok(windows)
    }

    /// Encodes whole prompts as nanochat does: the beginning in front, special tokens as text.
    fn prompts(&self, prompts: &[String]) -> Encoded<Vec<Vec<u32>>> {
        let encode = |prompt: &String| Ok([&[self.beginning.prefix], &*self.plain.encode(prompt)?].concat());
        prompts.iter().map(encode).collect()
    }

    /// Encodes the prompts of a multiple choice: what follows their common beginning is scored
    /// (`batch_sequences_mc` of nanochat). `None` for a prompt that has nothing else, because another one
    /// begins with all of it.
    pub(super) fn after_common_prefix(&self, prompts: &[String]) -> Encoded<Vec<Option<Made>>> {
        let tokens = self.prompts(prompts)?;
        let shared = common(&tokens, |tokens, i| tokens.get(i));
        let crop = |tokens: Vec<u32>| match tokens.len() > shared {
            true => self.crop(tokens, shared).map(Some),
            false => Ok(None),
        };
        tokens.into_iter().map(crop).collect()
    }

    /// Encodes the prompts of a schema: their common end is scored (`batch_sequences_schema` of nanochat).
    pub(super) fn common_suffix(&self, prompts: &[String]) -> Encoded<Vec<Made>> {
        let tokens = self.prompts(prompts)?;
        let shared = common(&tokens, |tokens, i| tokens.len().checked_sub(i + 1).map(|at| &tokens[at]));
        tokens
            .into_iter()
            .map(|tokens| {
                let start = tokens.len() - shared;
                self.crop(tokens, start)
            })
            .collect()
    }

    /// Encodes a prompt with and without its continuation, and scores the tokens by which they differ
    /// (`batch_sequences_lm` of nanochat).
    pub(super) fn after_prompt(&self, without: &str, with: &str) -> Encoded<Made> {
        let mut both = self.prompts(&[without.to_owned(), with.to_owned()])?;
        let (with, without) = (both.pop().unwrap_or_default(), both.pop().unwrap_or_default());
        if !with.starts_with(&without) {
            return Err(Unscorable::Joined);
        }
        self.crop(with, without.len())
    }

    /// Scores the tokens from `start` on, of the last `max_len` tokens (`evaluate_example` of nanochat).
    fn crop(&self, mut tokens: Vec<u32>, start: usize) -> Encoded<Made> {
        let continuation = tokens.split_off(start);
        if continuation.is_empty() {
            return Err(Unscorable::Joined);
        }
        let excess = (tokens.len() + continuation.len()).saturating_sub(self.max_len);
        if excess >= tokens.len() {
            return Err(Unscorable::TooLong { tokens: continuation.len(), max_len: self.max_len });
        }
        tokens.drain(..excess);
        Ok(Made { request: Request { context: tokens, continuation }, dropped: excess })
    }
}

/// Returns how many tokens all sequences share, from the first that `at` returns on.
fn common<'t>(all: &'t [Vec<u32>], at: impl Fn(&'t [u32], usize) -> Option<&'t u32>) -> usize {
    let Some((first, others)) = all.split_first() else { return 0 };
    let is_shared = |&i: &usize| others.iter().all(|tokens| at(tokens, i) == at(first, i));
    (0..first.len()).take_while(is_shared).count()
}
