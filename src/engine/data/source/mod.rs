//! Document formats, one file each, and the registry that finds a file's format by its extension.

mod content;
mod format;
mod gzip;
mod json_lines;
mod plain_text;

use super::file::CorpusFile;
use crate::error::Result;
pub(super) use content::Content;
pub(super) use format::{DocumentReader, DocumentSpan, Source};
use json_lines::JsonLines;
use plain_text::PlainText;
use std::path::{Path, PathBuf};

/// The content type of a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Format {
    /// Tokens, which are read in place.
    Tokens,
    /// Documents.
    Documents(&'static dyn Source),
}

/// Formats by file extension.
static FORMATS: &[(&str, Format)] = &[
    ("bin", Format::Tokens),
    ("jsonl", Format::Documents(&JsonLines)),
    ("ndjson", Format::Documents(&JsonLines)),
];

/// Opens a packed file.
type Open = fn(CorpusFile) -> Box<dyn Content>;

/// Ways to pack a file, by an extension after the format's own.
static PACKINGS: &[(&str, Open)] = &[("gz", gzip::open)];

/// The format of every other file, and of the files of a folder.
pub(super) static TEXT: &dyn Source = &PlainText;

/// Returns the format of a file by its extension. A packed token file counts as text, because token files are
/// read in place.
pub(super) fn format(path: &Path) -> Format {
    let unpacked = find(PACKINGS, path).map(|_| path.with_extension(""));
    match find(FORMATS, unpacked.as_deref().unwrap_or(path)) {
        Some(Format::Tokens) if unpacked.is_some() => Format::Documents(TEXT),
        known => known.unwrap_or(Format::Documents(TEXT)),
    }
}

/// Looks up the extension of a path in a table.
fn find<T: Copy>(table: &[(&str, T)], path: &Path) -> Option<T> {
    let ending = path.extension()?;
    table.iter().find(|(known, _)| ending == *known).map(|(_, found)| *found)
}

/// Opens files for reading documents.
///
/// # Errors
/// If a file cannot be read, or is not a regular file.
pub(super) fn open(paths: Vec<PathBuf>) -> Result<Vec<Box<dyn Content>>> {
    let content = |file: CorpusFile| match find(PACKINGS, file.path()) {
        Some(open) => open(file),
        None => Box::new(file),
    };
    Ok(CorpusFile::open_all(paths)?.into_iter().map(content).collect())
}
