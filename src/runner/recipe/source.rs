//! The location of a value: the text that sets it, and a byte range in that text.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A text that sets values: a recipe file, an environment variable or a command-line override.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    pub(super) origin: Origin,
    pub(super) text: String,
}

/// Origin of a [`Source`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A file; paths in it are relative to its folder.
    File(PathBuf),
    /// A recipe inside the binary.
    BuiltIn(&'static str),
    /// An environment variable, by name.
    Env(String),
    /// An argument.
    CommandLine,
}

impl Source {
    pub(super) fn new(origin: Origin, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { origin, text: text.into() })
    }

    /// Returns the file name for messages.
    pub(super) fn name(&self) -> String {
        match &self.origin {
            Origin::File(path) => path.display().to_string(),
            Origin::BuiltIn(name) => format!("built-in:{name}"),
            Origin::Env(_) => "environment".to_owned(),
            Origin::CommandLine => "command line".to_owned(),
        }
    }

    /// Returns what distinguishes this text from others with the same name.
    pub(super) fn id(&self) -> String {
        match &self.origin {
            Origin::Env(variable) => variable.clone(),
            Origin::CommandLine => self.text.clone(),
            Origin::File(_) | Origin::BuiltIn(_) => self.name(),
        }
    }

    /// Returns `NAME:LINE:COLUMN` of a byte of the text, as messages show it.
    pub(super) fn place(&self, at: usize) -> String {
        let before = &self.text[..self.clamp(at..at).start];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("{}:{line}:{column}", self.name())
    }

    /// Returns the folder that paths in this text are relative to; empty for the current directory.
    pub(super) fn folder(&self) -> &Path {
        match &self.origin {
            Origin::File(path) => path.parent().unwrap_or(Path::new("")),
            _ => Path::new(""),
        }
    }

    /// Returns the nearest range of whole characters within the text.
    pub(super) fn clamp(&self, span: Range<usize>) -> Range<usize> {
        let floor = |mut at: usize| {
            at = at.min(self.text.len());
            while !self.text.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        let start = floor(span.start);
        start..floor(span.end).max(start)
    }
}

/// The layer that a value comes from; later layers win.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The default value.
    Default,
    /// An unset key whose value is derived from others by this rule.
    Derived { rule: &'static str },
    /// A recipe file (`built-in:NAME` for one inside the binary) and the line in it, from 1.
    File { path: PathBuf, line: usize },
    /// An `XRUN__SECTION__KEY` environment variable.
    Env { var: String },
    /// An argument `section.key=value`.
    CommandLine { text: String },
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Derived { rule } => write!(f, "unset: {rule}"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env { var } => f.write_str(var),
            Self::CommandLine { text } => write!(f, "command line: {text}"),
        }
    }
}

/// The location of one assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub(super) source: Arc<Source>,
    /// Bytes of the key as spelled.
    pub(super) key: Range<usize>,
    /// Bytes of the value.
    pub(super) value: Range<usize>,
}

impl Location {
    /// Returns the line of the value, from 1.
    pub fn line(&self) -> usize {
        let value = self.source.clamp(self.value.clone());
        self.source.text[..value.start].matches('\n').count() + 1
    }

    /// Returns the layer of this location.
    pub fn layer(&self) -> Layer {
        match &self.source.origin {
            Origin::File(_) | Origin::BuiltIn(_) => {
                Layer::File { path: PathBuf::from(self.source.name()), line: self.line() }
            }
            Origin::Env(var) => Layer::Env { var: var.clone() },
            Origin::CommandLine => Layer::CommandLine { text: self.source.text.clone() },
        }
    }

    /// Returns the folder that a path in the value is relative to; empty for the current directory.
    pub fn folder(&self) -> &Path {
        self.source.folder()
    }
}
