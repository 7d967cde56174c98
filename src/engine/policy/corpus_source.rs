//! Where training text and held-out text come from.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// A corpus by its name in a recipe: a generated one, or a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum CorpusSource {
    /// Generated stories, whose lowest possible loss is known.
    Stories,
    /// Uniform random tokens, for benchmarks.
    Random,
    /// The sources of `data.sources`, in proportion to their weights.
    Mixture,
    /// A text file, a folder of text files, JSON lines or token shards.
    Path(PathBuf),
}

impl CorpusSource {
    /// The names of generated corpora.
    pub const GENERATED: [&str; 2] = ["stories", "random"];

    /// The names that are no paths.
    pub const NAMES: [&str; 3] = ["stories", "random", "mixture"];
}

/// What is held out for validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Validation {
    /// This share of the corpus, between 0 and 1: whole documents, or the end of a single one. Shards that
    /// come with held-out shards use those instead.
    Fraction(f64),
    /// The corpus at this path, and nothing of the training corpus.
    Path(PathBuf),
}

impl From<&str> for CorpusSource {
    fn from(name: &str) -> Self {
        match name {
            "stories" => Self::Stories,
            "random" => Self::Random,
            "mixture" => Self::Mixture,
            path => Self::Path(path.into()),
        }
    }
}

impl From<String> for CorpusSource {
    fn from(name: String) -> Self {
        name.as_str().into()
    }
}

impl From<CorpusSource> for String {
    fn from(source: CorpusSource) -> Self {
        source.to_string()
    }
}

impl fmt::Display for CorpusSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stories => f.write_str("stories"),
            Self::Random => f.write_str("random"),
            Self::Mixture => f.write_str("mixture"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_keep_the_name_as_it_was_written() {
        for name in ["stories", "random", "mixture", "a/b.txt", "Stories", ""] {
            let source = CorpusSource::from(name);
            assert_eq!(
                !matches!(source, CorpusSource::Path(_)),
                CorpusSource::NAMES.contains(&name),
                "{name}"
            );
            let json = serde_json::to_string(&source).unwrap();
            assert_eq!(json, format!("{name:?}"));
            assert_eq!(serde_json::from_str::<CorpusSource>(&json).unwrap(), source);
        }
    }
}
