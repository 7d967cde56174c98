//! Document formats, one file each, and how the format of a file is found.

mod content;
mod detect;
mod format;
mod gzip;
mod json_lines;
mod packed;
mod parquet;
mod plain_text;
mod zstd;

use super::file::CorpusFile;
use super::parallel::collect_in_order;
use crate::error::Result;
pub(super) use content::Content;
pub(super) use detect::{
    TextFile, check_tokens, format_in_words, format_of, holds_tokens, is_packed, may_be_text, unpacked,
};
pub(super) use format::{DocumentReader, DocumentSpan, Rules, Sample};
pub(super) use parquet::table_rows;
use rayon::prelude::*;
use std::path::PathBuf;

/// Opens files for reading documents, each in its own format.
///
/// # Errors
/// If a file cannot be read, is not a regular file, is not what its ending says, or is no text.
pub(super) fn open(paths: Vec<PathBuf>, rules: &Rules) -> Result<Vec<TextFile>> {
    collect_in_order(CorpusFile::open_all(paths)?.into_par_iter().map(|file| detect::open(file, rules)))
}
