//! What is known about a corpus before a run.

use super::chat_corpus::ChatFacts;
use super::packing::Packed;
use serde::Serialize;
use std::collections::BTreeMap;

/// What plans need to know about a corpus. By default nothing is known of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CorpusFacts {
    /// Vocabulary size of the tokenizer.
    pub vocab_size: usize,
    /// Tokens to train on.
    pub train_tokens: usize,
    /// False if the numbers of tokens are estimates, because they come from sampled text or leave out the
    /// last story.
    pub exact: bool,
    /// Tokens held out.
    pub validation_tokens: usize,
    /// Tokens in further held-out sets, by name.
    pub set_tokens: BTreeMap<String, usize>,
    /// The lowest loss that any model can reach on the held-out tokens, in nats per token, if known.
    pub floor: Option<f64>,
    /// The sources of a mixture, in the order of their names; empty for another corpus.
    pub sources: Vec<SourceFacts>,
    /// What packing makes of the documents; `None` if nothing is packed, or the documents are not known.
    pub packed: Option<Packed>,
    /// What is known about conversations, by the source that has them; the name of a corpus that is one
    /// source is empty.
    pub chat: BTreeMap<String, ChatFacts>,
    /// Bytes of host memory that the tokens take in every process of a run; token files stay on disk. An
    /// estimate if the counts are.
    pub memory_bytes: usize,
    /// What the model is asked when it is scored on tasks; empty without tasks, or if they were not read.
    pub tasks: Vec<TaskFacts>,
    /// Notes for the user.
    pub warnings: Vec<String>,
}

/// What a model is asked when it is scored on a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskFacts {
    /// Name of the task.
    pub name: String,
    /// Hash of its definition, its files, the examples and the limit, in hexadecimal.
    pub hash: String,
    /// Number of items.
    pub items: usize,
    /// Number of clusters of items that share a text, if the task's figure is an accuracy.
    pub accuracy_clusters: Option<usize>,
    /// Number of requests.
    pub requests: usize,
    /// Tokens that the model reads.
    pub tokens: usize,
    /// Tokens that are scored.
    pub scored: usize,
    /// The most tokens that are generated.
    pub generated: usize,
}

/// What plans need to know about a source of a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceFacts {
    /// Name of the source.
    pub name: String,
    /// Tokens to train on.
    pub train_tokens: usize,
    /// What packing makes of its documents; `None` if nothing is packed.
    pub packed: Option<Packed>,
    /// False if the numbers are estimates.
    pub exact: bool,
}
