//! Where training text and held-out text come from.

use super::PathList;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// A corpus as a recipe names it: a generated one, or paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PathList", into = "PathList")]
pub enum CorpusSource {
    /// Generated stories, whose lowest possible loss is known.
    Stories,
    /// Uniform random tokens, for benchmarks.
    Random,
    /// The sources of `data.sources`, in proportion to their weights.
    Mixture,
    /// Text files, folders of text files, JSON lines or token shards.
    Paths(PathList),
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
    /// The corpus at these paths, and nothing of the training corpus.
    Paths(PathList),
}

impl Validation {
    /// Holds out the corpus at a path.
    pub fn at(path: impl Into<PathList>) -> Self {
        Self::Paths(path.into())
    }
}

impl From<PathList> for CorpusSource {
    fn from(paths: PathList) -> Self {
        match paths.single().and_then(Path::to_str) {
            Some("stories") => Self::Stories,
            Some("random") => Self::Random,
            Some("mixture") => Self::Mixture,
            _ => Self::Paths(paths),
        }
    }
}

impl From<&str> for CorpusSource {
    fn from(name: &str) -> Self {
        PathList::from(name).into()
    }
}

impl From<CorpusSource> for PathList {
    fn from(source: CorpusSource) -> Self {
        match source {
            CorpusSource::Stories => "stories".into(),
            CorpusSource::Random => "random".into(),
            CorpusSource::Mixture => "mixture".into(),
            CorpusSource::Paths(paths) => paths,
        }
    }
}

impl fmt::Display for CorpusSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        PathList::from(self.clone()).fmt(f)
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
                !matches!(source, CorpusSource::Paths(_)),
                CorpusSource::NAMES.contains(&name),
                "{name}"
            );
            let json = serde_json::to_string(&source).unwrap();
            assert_eq!(json, format!("{name:?}"));
            assert_eq!(serde_json::from_str::<CorpusSource>(&json).unwrap(), source);
        }
        for (json, again, shown) in [
            (r#"["a"]"#, r#""a""#, "a"),
            (r#"["a","stories"]"#, r#"["a","stories"]"#, "a and stories"),
            (r#"["a","b","c"]"#, r#"["a","b","c"]"#, "a and 2 more"),
        ] {
            let source: CorpusSource = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&source).unwrap(), again);
            assert_eq!(source.to_string(), shown);
        }
        assert!(serde_json::from_str::<CorpusSource>("[]").is_err());
    }
}
