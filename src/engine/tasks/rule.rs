//! How a task asks, and by whose rules.

use serde::Deserialize;

/// Whose rules make tokens of prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rules {
    /// lm-evaluation-harness: context and continuation are encoded together and cut at the length of the
    /// encoded context.
    #[default]
    LmEval,
    /// CORE of DCLM as nanochat computes it: whole prompts are encoded, and what they share is not scored.
    Core,
}

/// How an item becomes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRule {
    /// One context, and a continuation for each choice.
    Choices {
        /// How many choices an item has.
        choices: ChoiceRule,
    },
    /// A context for each choice, and one continuation.
    Contexts {
        /// How many contexts an item has.
        contexts: ChoiceRule,
    },
    /// One context and its one right continuation.
    Completion,
    /// One text, all of which is scored.
    Text,
    /// A prompt that the model continues with a text of its own.
    Generation,
}

/// Where an item's choices come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceRule {
    /// A template for each.
    Listed(usize),
    /// One template for every entry of a list of the item, which has `count` entries, if that is given.
    Each {
        /// The promised number of entries.
        count: Option<usize>,
    },
}
