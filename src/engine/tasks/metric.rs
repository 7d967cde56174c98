//! The figures of tasks.

use super::rule::{RequestRule, Rules};
use serde::{Deserialize, Serialize};

/// A figure of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Share of items whose most likely choice is right; of completions, those that greedy decoding gives.
    Acc,
    /// `acc`, with log-likelihoods divided by the characters of the choice.
    AccNorm,
    /// `acc`, with log-likelihoods divided by the UTF-8 bytes of the choice.
    AccBytes,
    /// `acc`, with log-likelihoods divided by the scored tokens, as CORE does.
    AccTokens,
    /// Share of items to which the model generates a right answer.
    ExactMatch,
    /// Bits per byte of the right answer, without white space in front of it: the mean over items; of whole
    /// texts, all bits over all bytes.
    BitsPerByte,
    /// exp of the mean negative log-likelihood of an answer.
    Perplexity,
    /// exp of the negative log-likelihood per token.
    TokenPerplexity,
    /// exp of the negative log-likelihood per UTF-8 byte.
    BytePerplexity,
    /// exp of the negative log-likelihood per word; words are what white space divides.
    WordPerplexity,
}

/// How the contributions of items become a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aggregate {
    /// The sum of values over the sum of weights.
    Ratio,
    /// exp of that.
    ExpRatio,
}

impl Metric {
    /// Every metric.
    pub const ALL: [Self; 10] = [
        Self::Acc,
        Self::AccNorm,
        Self::AccBytes,
        Self::AccTokens,
        Self::ExactMatch,
        Self::BitsPerByte,
        Self::Perplexity,
        Self::TokenPerplexity,
        Self::BytePerplexity,
        Self::WordPerplexity,
    ];

    /// Returns the metric's name in definitions and results.
    pub fn word(self) -> &'static str {
        match self {
            Self::Acc => "acc",
            Self::AccNorm => "acc_norm",
            Self::AccBytes => "acc_bytes",
            Self::AccTokens => "acc_tokens",
            Self::ExactMatch => "exact_match",
            Self::BitsPerByte => "bits_per_byte",
            Self::Perplexity => "perplexity",
            Self::TokenPerplexity => "token_perplexity",
            Self::BytePerplexity => "byte_perplexity",
            Self::WordPerplexity => "word_perplexity",
        }
    }

    /// Returns the metric of this name.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.word() == word)
    }

    /// Returns true if more is better.
    pub fn is_accuracy(self) -> bool {
        matches!(self, Self::Acc | Self::AccNorm | Self::AccBytes | Self::AccTokens | Self::ExactMatch)
    }

    /// Returns true if tasks that ask like this have the figure. CORE scores only the tokens by which choices
    /// differ, so that it has no likelihood of a whole answer.
    pub fn applies(self, rule: &RequestRule, rules: Rules) -> bool {
        let (is_listed, is_choice) = match rule {
            RequestRule::Choices { .. } => (true, true),
            RequestRule::Contexts { .. } => (false, true),
            RequestRule::Completion | RequestRule::Text => (false, false),
            RequestRule::Generation => return self == Self::ExactMatch,
        };
        let is_text = *rule == RequestRule::Text;
        if rules == Rules::Core {
            return self == if is_choice { Self::AccTokens } else { Self::Acc };
        }
        match self {
            Self::Acc => !is_text,
            Self::AccNorm | Self::AccBytes => is_listed,
            Self::AccTokens => is_choice,
            Self::ExactMatch => false,
            Self::BitsPerByte => true,
            Self::Perplexity => !is_choice && !is_text,
            Self::TokenPerplexity | Self::BytePerplexity => !is_choice,
            Self::WordPerplexity => is_text,
        }
    }

    /// Returns the figures of tasks that ask like this.
    pub fn for_rule(rule: &RequestRule, rules: Rules) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |metric| metric.applies(rule, rules))
    }

    /// Returns their names.
    pub(super) fn words_for(rule: &RequestRule, rules: Rules) -> Vec<&'static str> {
        Self::for_rule(rule, rules).map(Self::word).collect()
    }

    pub(super) fn aggregate(self) -> Aggregate {
        match self {
            Self::Perplexity | Self::TokenPerplexity | Self::BytePerplexity | Self::WordPerplexity => {
                Aggregate::ExpRatio
            }
            _ => Aggregate::Ratio,
        }
    }
}
