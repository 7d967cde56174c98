//! Document formats: one file each, and the registry that finds a file's format by its ending.

mod content;
mod format;
mod json_lines;
mod plain_text;

use super::file::CorpusFile;
use crate::error::Result;
pub(super) use content::Content;
pub(super) use format::{DocumentReader, DocumentSpan, Source};
use json_lines::JsonLines;
use plain_text::PlainText;
use std::path::{Path, PathBuf};

/// What a file holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Format {
    /// Tokens, which are read where they are.
    Tokens,
    /// Documents.
    Documents(&'static dyn Source),
}

/// Formats by the endings of their files.
static FORMATS: &[(&str, Format)] = &[
    ("bin", Format::Tokens),
    ("jsonl", Format::Documents(&JsonLines)),
    ("ndjson", Format::Documents(&JsonLines)),
];

/// The format of every other file, and of the files of a folder.
pub(super) static TEXT: &dyn Source = &PlainText;

/// Returns the format of a file by its ending.
pub(super) fn format(path: &Path) -> Format {
    let known = FORMATS.iter().find(|(ending, _)| path.extension().is_some_and(|found| found == *ending));
    known.map_or(Format::Documents(TEXT), |(_, format)| *format)
}

/// Opens files for the content that documents are found in.
///
/// # Errors
/// A file that cannot be read, or is not a regular file.
pub(super) fn open(paths: Vec<PathBuf>) -> Result<Vec<Box<dyn Content>>> {
    Ok(CorpusFile::open_all(paths)?.into_iter().map(|file| Box::new(file) as Box<dyn Content>).collect())
}
