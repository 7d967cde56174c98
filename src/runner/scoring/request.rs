//! What is scored, and what comes out.

use crate::error::{Error, Result};
use std::ops::Range;

/// A sequence of tokens whose last ones are scored, given those before them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The context, then the continuation.
    pub tokens: Vec<u32>,
    /// Where the continuation starts: at least 1, and before the end.
    pub start: usize,
}

impl Request {
    /// Returns the positions of the scored tokens.
    pub(super) fn scored(&self) -> Range<usize> {
        self.start..self.tokens.len()
    }

    /// Returns how many tokens the model reads: all but the last.
    pub(super) fn inputs(&self) -> &[u32] {
        &self.tokens[..self.tokens.len() - 1]
    }

    /// Checks a request for a model with this context and vocabulary.
    ///
    /// # Errors
    /// With a usage error that says what is wrong.
    pub fn check(&self, context: usize, vocabulary: usize) -> Result<()> {
        let len = self.tokens.len();
        if self.start == 0 || self.start >= len {
            return Err(Error::usage(format!(
                "its continuation starts at token {} of {len}; at least one token must come before it, and one in it",
                self.start
            )));
        }
        if len > context + 1 {
            return Err(Error::usage(format!(
                "it has {len} tokens, but the model reads {context} and scores the one after them; leave out \
                 tokens of the context"
            )));
        }
        match self.tokens.iter().find(|token| **token as usize >= vocabulary) {
            Some(token) => Err(Error::usage(format!(
                "its token {token} is outside the model's vocabulary of {vocabulary}; the tokenizer belongs to \
                 another model"
            ))),
            None => Ok(()),
        }
    }
}

/// The score of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Sum of the log-probabilities of the continuation's tokens, in nats, added in their order in f64. Not a
    /// number if a logit was none.
    pub log_prob: f64,
    /// True if each token of the continuation is the likeliest one after those before it. Of equally likely
    /// tokens, the one with the lowest id counts.
    pub greedy: bool,
}

/// How many tokens batches had room for, and how many of them were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Batches that were run.
    pub batches: usize,
    /// Tokens that they had room for.
    pub rows: usize,
    /// Tokens of requests that the model read.
    pub inputs: usize,
    /// Tokens that the head had room for.
    pub head_rows: usize,
    /// Tokens that were scored.
    pub scored: usize,
}

impl Usage {
    /// Returns the share of rows that held no token of a request, from 0 to 1.
    pub fn padding(&self) -> f64 {
        1.0 - self.inputs as f64 / self.rows.max(1) as f64
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.batches += other.batches;
        self.rows += other.rows;
        self.inputs += other.inputs;
        self.head_rows += other.head_rows;
        self.scored += other.scored;
    }
}
