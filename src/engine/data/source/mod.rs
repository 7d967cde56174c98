//! Document formats, one file each, and how the format of a file is found.

mod content;
mod detect;
mod format;
mod gzip;
mod json_lines;
mod plain_text;

use super::file::CorpusFile;
use super::parallel::collect_in_order;
use crate::error::Result;
pub(super) use content::Content;
pub(super) use detect::{TextFile, check_tokens, holds_tokens, may_be_text};
pub(super) use format::{DocumentReader, DocumentSpan};
use rayon::prelude::*;
use std::path::PathBuf;

/// Opens files for reading documents, each in its own format.
///
/// # Errors
/// If a file cannot be read, is not a regular file, is not what its ending says, or is no text.
pub(super) fn open(paths: Vec<PathBuf>) -> Result<Vec<TextFile>> {
    collect_in_order(CorpusFile::open_all(paths)?.into_par_iter().map(detect::open))
}
