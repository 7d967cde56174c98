//! The crate's error type: a message for a person, and the exit code that a script sees.

mod advice;

use crate::format::shortened_lines;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::ErrorKind as IoErrorKind;
use std::path::Path;

/// Kinds of failures, which decide the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The run itself failed: exit 1.
    Failed,
    /// The command line, a recipe or an input file is wrong: exit 2.
    Usage,
    /// A regression or a stale report: exit 3.
    Regression,
    /// A comparison ended as it should and found something, such as *worse*: exit 3.
    Finding,
    /// Something does not fit in memory, by plan or in fact: exit 4.
    DoesNotFit,
    /// The disk is full, or the run trained and its state or results could not be saved: exit 74.
    Unsaved,
    /// A signal or a full disk stopped the run after it saved a checkpoint: exit 75.
    Interrupted,
}

impl ErrorKind {
    /// Returns the process exit code for this kind.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Failed => 1,
            ErrorKind::Usage => 2,
            ErrorKind::Regression | ErrorKind::Finding => 3,
            ErrorKind::DoesNotFit => 4,
            ErrorKind::Unsaved => 74,
            ErrorKind::Interrupted => 75,
        }
    }
}

/// An error message with its kind. The message is complete: it names the file, the value and the next step.
/// Lines that quote a long value are shortened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    problems: Vec<RecipeProblem>,
    from_other_rank: bool,
    /// Number of the operating system's error, if one is the cause.
    os_error: Option<i32>,
}

/// One mistake in a recipe, for code that must know what is wrong and where without reading the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeProblem {
    /// The keys at fault, the one to change first. An unknown key is here as it was spelled; a syntax error
    /// has no keys.
    pub keys: Vec<String>,
    /// `SOURCE:LINE:COLUMN` of what the message underlines; `None` if no text sets any of the keys.
    pub place: Option<String>,
}

/// The crate's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error of the given kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let (message, problems) = (shortened_lines(message.into()), Vec::new());
        Self { kind, message, problems, from_other_rank: false, os_error: None }
    }

    /// Creates the error for a failed run (exit 1).
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// Creates the error for a wrong command line, recipe or input file (exit 2).
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// Creates the error for something that does not fit in memory (exit 4).
    pub fn does_not_fit(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::DoesNotFit, message)
    }

    /// Creates the "error" with which a successful comparison reports what it found (exit 3).
    pub fn finding(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Finding, message)
    }

    /// Returns the last line that the program prints: the error, or for a finding why the exit code is not 0.
    pub fn last_line(&self) -> String {
        match self.kind {
            ErrorKind::Finding => format!("exit code {}: {}", self.kind.exit_code(), self.message),
            _ => format!("error: {}", self.message),
        }
    }

    /// Returns the kind, for deciding what to do next.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the message as it is shown.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the mistakes in a recipe that the message describes, in the same order. Empty for other
    /// errors.
    pub fn problems(&self) -> &[RecipeProblem] {
        &self.problems
    }

    /// Adds the mistakes that the message describes.
    #[must_use]
    pub fn with_problems(self, problems: Vec<RecipeProblem>) -> Self {
        Self { problems, ..self }
    }

    /// Returns what to do next after an error of a file system, as a sentence without its period: to free
    /// space on a full disk, but to mount a read-only one for writing.
    pub fn advice(&self) -> &'static str {
        advice::advice(self.os_error)
    }

    /// Returns true if a file of a network file system was removed or replaced while it was open.
    pub fn is_stale(&self) -> bool {
        self.os_error == Some(rustix::io::Errno::STALE.raw_os_error())
    }

    /// Adds [`Error::advice`] to the message.
    #[must_use]
    pub fn with_advice(self) -> Self {
        Self { message: format!("{}. {}", self.message, self.advice()), ..self }
    }

    /// Prefixes the message with what was being done.
    #[must_use]
    pub fn context(self, doing: impl fmt::Display) -> Self {
        Self { message: format!("{doing}: {}", self.message), ..self }
    }

    /// Marks the error as caused by another rank, whose failure ended this one.
    #[must_use]
    pub fn caused_by_other_rank(self) -> Self {
        Self { from_other_rank: true, ..self.context("another rank stopped the run") }
    }

    /// Returns true if this rank ended only because another rank failed.
    pub fn is_from_other_rank(&self) -> bool {
        self.from_other_rank
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Adds a path, and what was being done to it, to an I/O error.
pub trait IoContext<T> {
    /// Turns the error into "cannot VERB PATH: reason".
    fn at(self, verb: &str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for std::io::Result<T> {
    fn at(self, verb: &str, path: &Path) -> Result<T> {
        self.map_err(|e| {
            let is_full = matches!(e.kind(), IoErrorKind::StorageFull | IoErrorKind::QuotaExceeded);
            let kind = if is_full { ErrorKind::Unsaved } else { ErrorKind::Failed };
            let os_error = e.raw_os_error();
            Error { os_error, ..Error::new(kind, format!("cannot {verb} {}: {e}", path.display())) }
        })
    }
}
