//! The definition of a task, checked.

use super::generation::Generation;
use super::metric::Metric;
use super::rule::{RequestRule, Rules};
use super::template::Templates;
use serde::Deserialize;
use std::sync::Arc;

/// Most examples in front of an item.
pub const MAX_SHOTS: usize = 64;

/// A task: where its items are, how they become prompts, and how answers are scored.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The name, as on the command line.
    pub name: String,
    /// What the task asks, in a line.
    pub title: String,
    /// Where the task was published.
    pub citation: String,
    /// The implementation whose rules the definition follows, and its version.
    pub follows: String,
    /// Where the items are.
    pub source: Source,
    /// How an item becomes requests.
    pub request: RequestRule,
    /// The text between a prompt and its answer, and between examples.
    pub target_delimiter: String,
    pub example_delimiter: String,
    /// The list of an item whose entries become choices or right answers: names of fields, one within the
    /// other.
    pub(super) each: Option<String>,
    /// Where examples in front of an item come from.
    pub examples: Examples,
    /// How texts are generated and judged; `None` unless the request is a generation.
    pub generation: Option<Generation>,
    /// How scores become a figure.
    pub scoring: Scoring,
    /// The rules by which prompts become tokens.
    pub rules: Rules,
    /// BLAKE3 of the definition's text, in hexadecimal: it changes with every rule.
    pub hash: String,
    /// The definition's file, for messages.
    pub origin: String,
    pub(super) templates: Arc<Templates>,
}

/// Where the items of a task are.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The data set on the HuggingFace hub, `OWNER/NAME`, or the folder that holds `files`.
    pub repository: String,
    /// Its configurations, each with examples of its own; items follow in this order. Empty if there is one,
    /// which has no name.
    #[serde(default)]
    pub configurations: Vec<String>,
    /// The split with the items.
    pub split: String,
    /// Files of a split by another name than its own, below the folder of the data set.
    #[serde(default)]
    pub files: std::collections::BTreeMap<String, String>,
    /// The fields that every item must have.
    pub fields: Vec<String>,
    /// The field with the text that several items share, such as a passage: they are one cluster.
    #[serde(default)]
    pub cluster: Option<String>,
}

/// Where the examples in front of an item come from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Examples {
    /// The split.
    pub split: String,
    /// How they are taken from it.
    pub take: Take,
    /// How many there are, unless the user says otherwise.
    #[serde(default)]
    pub count: usize,
}

/// How examples are taken from a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Take {
    /// Drawn anew for each item.
    Sample,
    /// Drawn anew for each item, one more than needed; the item itself is left out if it is among them.
    SampleWithoutItem,
    /// The first of the split.
    First,
}

/// How scores become the figure of a task.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scoring {
    /// The figure that stands for the task.
    pub metric: Metric,
    /// The figure of a model that knows nothing, in the metric's unit; for accuracy it is left out, and the
    /// mean of 1 / choices over the items counts.
    #[serde(default)]
    pub chance: Option<f64>,
}

/// Keys of the templates, under which they are rendered.
pub(super) mod key {
    pub const CONTEXT: &str = "prompt.context";
    pub const CONTINUATION: &str = "prompt.continuation";
    pub const CHOICE: &str = "prompt.choice";
    pub const GOLD: &str = "prompt.gold";
    pub const TEXT: &str = "prompt.text";
    pub const ANSWER: &str = "prompt.answer";
    pub const DESCRIPTION: &str = "prompt.description";

    /// The key of choice `i` of those that are listed.
    pub fn listed(i: usize) -> String {
        format!("prompt.choices[{i}]")
    }
}

impl Definition {
    /// Returns the configurations with their names; one without a name if the task lists none.
    pub fn configurations(&self) -> Vec<&str> {
        match self.source.configurations.as_slice() {
            [] => vec![""],
            several => several.iter().map(String::as_str).collect(),
        }
    }
}
