//! Why a table cannot be read, in words.

use super::super::format::Rules;
use super::super::packed;
use crate::data::file::CorpusFile;
use crate::error::{Error, Result};
use crate::format::{printable, shortened};
use crate::policy::{MissingField, TextFormat};

/// Longest name of a column that a message shows, in characters.
const SHOWN: usize = 60;

/// Why a table cannot be read.
#[derive(Debug)]
pub(super) enum Fault {
    /// The file cannot be read.
    File(Error),
    /// The bytes are wrong.
    Damaged(String),
    /// The bytes may be right, but xrun reads no such table.
    Unsupported(String),
    /// The column holds no text.
    Column(String),
    /// The recipe forbids it.
    Missing(String),
    /// This text is not UTF-8.
    Encoding(String),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::File(error)
    }
}

impl Fault {
    pub fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }

    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported(what.into())
    }

    /// Says in which row group something is wrong.
    pub fn in_group(self, number: usize) -> Self {
        let named = |what: String| format!("row group {number}: {what}");
        match self {
            Self::File(error) => Self::File(error),
            Self::Damaged(what) => Self::Damaged(named(what)),
            Self::Unsupported(what) => Self::Unsupported(named(what)),
            Self::Column(what) => Self::Column(what),
            Self::Missing(what) => Self::Missing(what),
            Self::Encoding(what) => Self::Encoding(named(what)),
        }
    }

    /// Makes the error about a file whose rows are read whole, with the next step.
    pub fn into_error_of_rows(self, file: &CorpusFile) -> Error {
        let rules = Rules {
            table: String::new(),
            format: TextFormat::Parquet,
            separator: None,
            field: String::new(),
            missing: MissingField::Error,
        };
        self.into_error(file, &rules)
    }

    /// Makes the error about a file, with the next step.
    pub fn into_error(self, file: &CorpusFile, rules: &Rules) -> Error {
        let table = &rules.table;
        let said;
        let (what, next) = match self {
            Self::File(error) => return error,
            Self::Damaged(what) => (
                what,
                "; the file is damaged or was not written whole: copy or download it again, and \
                 `pyarrow.parquet.read_table(FILE)` checks it",
            ),
            Self::Unsupported(what) => (
                what,
                "; write the table again, such as with `pyarrow.parquet.write_table(table, FILE, compression=\"zstd\")`",
            ),
            Self::Column(what) => {
                said = format!("; {table}.field names the column that holds the text");
                (what, said.as_str())
            }
            Self::Encoding(what) => (
                format!("{what} is not UTF-8"),
                "; write the column as strings, such as with `[text.decode(\"latin-1\") for text in column]` in Python",
            ),
            Self::Missing(what) => {
                said = format!("; {table}.missing = \"skip\" leaves such documents out");
                (what, said.as_str())
            }
        };
        Error::usage(format!("{}: {what}{next}", file.path().display()))
    }
}

/// Refuses pages that become far longer than text does.
pub(super) fn check_expansion(file: &CorpusFile, made: u64) -> Result<()> {
    packed::check_expansion(file, made, file.bytes(), "write its text as JSON lines")
}

/// Quotes the name of a column for a message.
pub(super) fn shown(name: &str) -> String {
    format!("\"{}\"", shortened(&printable(name), SHOWN))
}
