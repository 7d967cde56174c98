//! Turns conversations into words: renders them, encodes their texts, and marks the tokens of answers.

use super::super::chat::{Conversation, DropReason, Guards, Outcome, RESERVED, Rendered, Template};
use super::super::marked;
use super::super::tokenizer::{Tokenizer, timed};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Turns conversations into words. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Encoder {
    template: Template,
    /// The file of the template.
    pub file: String,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Encodes the names of special tokens as these.
    recognizing: Tokenizer,
    /// Encodes them as text.
    plain: Tokenizer,
    guards: Guards,
    /// The special tokens by name.
    special: BTreeMap<String, u32>,
}

/// What became of a conversation.
#[derive(Debug)]
pub(super) enum Encoded {
    Words {
        words: Vec<u32>,
        last_alone: bool,
        /// True if turns behind the last answer that fits a row were cut off.
        is_cut: bool,
    },
    Dropped {
        reason: DropReason,
        says: String,
    },
    /// The template does not fit the tokenizer.
    Wrong(String),
}

/// A token, with the bytes of text that it stands for.
type Token = (u32, Range<usize>);

/// The tokens of a text.
struct Tokens {
    tokens: Vec<Token>,
    /// The bytes of the text that are trained on.
    trained: Vec<Range<usize>>,
}

impl Encoder {
    /// # Errors
    /// If the tokenizer has too many entries.
    pub fn new(template: Template, file: String, tokenizer: &Tokenizer) -> Result<Self> {
        if tokenizer.vocab_size() > marked::MOST_IDS {
            return Err(Error::usage(format!(
                "a tokenizer of {} entries is too large for conversations",
                tokenizer.vocab_size()
            )));
        }
        let special = tokenizer.special_entries()?;
        let guards = Guards::new(special.keys().cloned());
        let recognizing = tokenizer.clone().recognizing_special_tokens();
        let inner = Inner { recognizing, plain: tokenizer.clone(), guards, special };
        Ok(Self { template, file, inner: Arc::new(inner) })
    }

    /// Returns the tokenizer that shows special tokens by their names.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.recognizing
    }

    /// Encodes conversations, in order. Each gives at most `row_len` words.
    ///
    /// # Errors
    /// If the template exceeds its limits, or the tokenizer fails.
    pub fn encode(&self, mut conversations: Vec<Conversation>, row_len: usize) -> Result<Vec<Encoded>> {
        let guarded: Vec<bool> =
            conversations.iter_mut().map(|conversation| self.inner.guards.guard(conversation)).collect();
        let outcomes = self.template.train(conversations).map_err(|e| e.context(self.file.clone()))?;
        let length = |outcome: &Outcome| match outcome {
            Outcome::Rendered(rendered) => rendered.text.len(),
            Outcome::Dropped { .. } | Outcome::Wrong(_) => 0,
        };
        let bytes = outcomes.iter().map(length).sum();
        let inner = Arc::clone(&self.inner);
        timed(bytes, move || {
            let encode = |(outcome, has_guards)| match outcome {
                Outcome::Rendered(rendered) => inner.words(&rendered, has_guards, row_len),
                Outcome::Dropped { reason, says } => Ok(Encoded::Dropped { reason, says }),
                Outcome::Wrong(says) => Ok(Encoded::Wrong(says)),
            };
            outcomes.into_iter().zip(guarded).map(encode).collect()
        })?
    }
}

impl Inner {
    fn words(&self, rendered: &Rendered, has_guards: bool, row_len: usize) -> Result<Encoded> {
        let dropped = |reason| Ok(Encoded::Dropped { reason, says: String::new() });
        let Tokens { tokens, trained } = match has_guards {
            false => Tokens {
                tokens: self.recognizing.encode_with_bytes(&rendered.text)?,
                trained: rendered.trained.clone(),
            },
            // Other tokenizers change a text that is cut, such as by a space before its first word.
            true if !self.plain.has_fixed_bytes() => return dropped(DropReason::ControlTokens),
            true => match self.unguarded(rendered)? {
                Some(encoded) => encoded,
                None => return dropped(DropReason::ControlTokens),
            },
        };
        let mut words = Vec::with_capacity(tokens.len());
        // The words up to the end of each answer.
        let mut ends = Vec::with_capacity(trained.len());
        let mut spans = trained.iter().peekable();
        for (i, (id, bytes)) in tokens.iter().enumerate() {
            while spans.next_if(|span| span.end <= bytes.start).is_some() {}
            // A token that an answer shares with the text before it counts to the answer.
            let is_in_answer =
                spans.peek().is_some_and(|span| span.start < bytes.end && bytes.start < span.end);
            // Nothing stands before the first token to predict it from.
            let is_trained = is_in_answer && i > 0;
            words.push(marked::word(*id, i == 0, is_trained));
            if is_in_answer && spans.peek().is_some_and(|span| span.end <= bytes.end) {
                if let Some(says) = self.wrong_end(*id) {
                    return Ok(Encoded::Wrong(says));
                }
                ends.push(i + 1);
            }
        }
        if ends.is_empty() {
            return dropped(DropReason::NothingToTrain);
        }
        let last_alone = rendered.last_alone;
        if words.len() <= row_len {
            return Ok(Encoded::Words { words, last_alone, is_cut: false });
        }
        match ends.into_iter().take_while(|end| *end <= row_len).last() {
            Some(end) => {
                words.truncate(end);
                Ok(Encoded::Words { words, last_alone, is_cut: true })
            }
            None => dropped(DropReason::TooLong),
        }
    }

    /// Says what is wrong with the token that ends an answer: only the end token ends a generation.
    fn wrong_end(&self, id: u32) -> Option<String> {
        let end = self.plain.end_token();
        if id == end {
            return None;
        }
        let end = self.plain.token_name(end).unwrap_or_default();
        let name = self.plain.token_name(id).unwrap_or_default();
        Some(match self.special.values().any(|special| *special == id) {
            true => format!(
                "the chat template ends an answer with {name:?}, and the tokenizer's end token is {end:?}, so a reply would \
                 not stop there; name {name:?} as \"eos_token\" in the tokenizer_config.json beside the tokenizer.json, or \
                 another template with data.chat_template"
            ),
            false => format!(
                "the chat template ends an answer without {end:?}, so a model would not learn to end one; add it behind \
                 the answer in the template, or name another with data.chat_template"
            ),
        })
    }

    /// Encodes a text in which names of special tokens are guarded: between the tokens that the template
    /// wrote, everything is text. Bytes are those of the text without guards. Returns `None` if a piece of
    /// text becomes a special token all the same.
    fn unguarded(&self, rendered: &Rendered) -> Result<Option<Tokens>> {
        let text = &rendered.text;
        let is_guard = |c: char| RESERVED.contains(&c);
        let (mut tokens, mut clean, mut segment_at) = (Vec::new(), String::with_capacity(text.len()), 0);
        // The bytes of the text without guards, by those of the text.
        let mut removed: Vec<usize> = Vec::new();
        let mut at = 0;
        while at < text.len() {
            if let Some(name) = self.guards.at(text, at) {
                if !self.encode_segment(&clean, segment_at, &mut tokens)? {
                    return Ok(None);
                }
                let from = clean.len();
                clean += name;
                tokens.push((self.special[name], from..clean.len()));
                (at, segment_at) = (at + name.len(), clean.len());
                continue;
            }
            let c = text[at..].chars().next().unwrap_or_default();
            if is_guard(c) {
                removed.push(at);
            } else {
                clean.push(c);
            }
            at += c.len_utf8();
        }
        if !self.encode_segment(&clean, segment_at, &mut tokens)? {
            return Ok(None);
        }
        let moved = |at: usize| {
            let before = removed.partition_point(|guard| *guard < at);
            at - before * RESERVED[0].len_utf8()
        };
        let trained = rendered.trained.iter().map(|span| moved(span.start)..moved(span.end)).collect();
        Ok(Some(Tokens { tokens, trained }))
    }

    /// Encodes the text behind byte `from` as text. Returns false if it becomes a special token.
    fn encode_segment(&self, text: &str, from: usize, tokens: &mut Vec<Token>) -> Result<bool> {
        if from == text.len() {
            return Ok(true);
        }
        let segment = self.plain.encode_with_bytes(&text[from..])?;
        if segment.iter().any(|(id, _)| self.special.values().any(|special| special == id)) {
            return Ok(false);
        }
        tokens.extend(segment.into_iter().map(|(id, bytes)| (id, from + bytes.start..from + bytes.end)));
        Ok(true)
    }
}
