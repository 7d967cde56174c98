//! Documents that training leaves out, listed by the hashes of their text.

use super::documents::Documents;
use super::parallel::collect_in_order;
use super::text::BLOCK_BYTES;
use crate::error::{Error, Result};
use crate::format::{plural, printable, shortened};
use crate::regular;
use rayon::prelude::*;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// First line of a list, which tells it from other files.
const HEADER: &str = "# xrun drop list 1: BLAKE3 of each document's text";

/// Largest list that is read, in bytes: some 15 million documents.
const MAX_BYTES: u64 = 1 << 30;

/// Longest part of a line that a message shows, in characters.
const SHOWN: usize = 60;

/// BLAKE3 of a document's text.
pub(super) type TextHash = [u8; 32];

/// A list of documents to leave out.
#[derive(Debug)]
pub(super) struct DropList {
    path: PathBuf,
    /// Number of listed documents with each text.
    hashes: HashMap<TextHash, usize>,
    hash: blake3::Hash,
}

impl DropList {
    /// Reads a list.
    ///
    /// # Errors
    /// If the file cannot be read, or is no list; the message has the line.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = regular::read_through_link(path, MAX_BYTES).map_err(|e| e.context("data.drop"))?;
        let wrong = |line: usize, what: &str| {
            Error::usage(format!(
                "data.drop: {}:{line}: {what}; `xrun data check RECIPE --drop FILE` writes such a list",
                path.display()
            ))
        };
        let text = std::str::from_utf8(&bytes).map_err(|_| wrong(1, "not UTF-8"))?;
        let mut lines = text.lines().zip(1..);
        if lines.next().is_none_or(|(first, _)| first != HEADER) {
            return Err(wrong(1, &format!("the first line of a list is `{HEADER}`")));
        }
        let mut hashes = HashMap::new();
        for (line, number) in lines.filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#')) {
            let hash = blake3::Hash::from_hex(line.trim()).map_err(|_| {
                let shown = shortened(&printable(line), SHOWN);
                wrong(number, &format!("a line is 64 hexadecimal digits, and this one is {shown}"))
            })?;
            *hashes.entry(*hash.as_bytes()).or_default() += 1;
        }
        Ok(Self { path: path.to_owned(), hashes, hash: blake3::hash(&bytes) })
    }

    /// Returns the number of listed documents.
    pub fn len(&self) -> usize {
        self.hashes.values().sum()
    }

    /// Returns the hash of the file's content.
    pub fn hash(&self) -> blake3::Hash {
        self.hash
    }

    /// Returns the documents among `which` whose text is not listed, and the number of listed documents that
    /// are not among them.
    ///
    /// # Errors
    /// If a document cannot be read, or none is left.
    pub fn kept(&self, documents: &Documents, which: Vec<usize>) -> Result<(Vec<usize>, usize)> {
        let hashes = collect_in_order(which.par_iter().map(|document| text_hash(documents, *document)))?;
        let is_listed = |hash: &TextHash| self.hashes.contains_key(hash);
        let mut absent = self.hashes.clone();
        for hash in &hashes {
            absent.remove(hash);
        }
        let kept: Vec<usize> =
            which.into_iter().zip(&hashes).filter(|(_, hash)| !is_listed(hash)).map(|(i, _)| i).collect();
        if kept.is_empty() {
            return Err(Error::usage(format!(
                "data.drop: {} lists every document, so nothing is left to train on",
                self.path.display()
            )));
        }
        Ok((kept, absent.values().sum()))
    }
}

/// Warns of documents that a list names and all of the training text lacks.
pub(super) fn absent_warning(list: Option<&Path>, absent: usize) -> Option<String> {
    let list = list.filter(|_| absent > 0)?;
    Some(format!(
        "data.drop: {absent} document{} of {} {} not in the training text: make the list anew with `xrun data \
         check`, if the text has changed",
        plural(absent),
        list.display(),
        if absent == 1 { "is" } else { "are" }
    ))
}

/// Writes a list of documents.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn write(path: &Path, hashes: &[TextHash]) -> Result<()> {
    crate::atomic::write_with(path, |file| {
        writeln!(file, "{HEADER}")?;
        hashes.iter().try_for_each(|hash| writeln!(file, "{}", blake3::Hash::from_bytes(*hash).to_hex()))
    })
}

/// Hashes the text of a document.
///
/// # Errors
/// If the document cannot be read.
pub(super) fn text_hash(documents: &Documents, document: usize) -> Result<TextHash> {
    let mut hasher = blake3::Hasher::new();
    let (mut reader, mut block) = (documents.reader(document)?, String::new());
    while reader.append(&mut block, BLOCK_BYTES)? {
        hasher.update(block.as_bytes());
        block.clear();
    }
    Ok(*hasher.finalize().as_bytes())
}
