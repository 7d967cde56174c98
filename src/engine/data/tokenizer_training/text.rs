//! The texts that a tokenizer is trained on, read in pieces.

use super::pattern::Pattern;
use crate::data::Spec;
use crate::data::corpus_files::CorpusFiles;
use crate::data::documents::Documents;
use crate::data::location::CorpusLocation;
use crate::data::text::BLOCK_BYTES;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// Bytes per piece: enough that few pre-tokens are counted in several pieces.
const PIECE_BYTES: usize = 1 << 20;

/// Bytes per piece, at least, if a part of the text is taken, and the number of pieces that are aimed for.
const MIN_PIECE_BYTES: usize = 4 << 10;
const PIECES: u64 = 256;

/// The longest piece in bytes. A text without a place where it may be cut is cut there anyway.
const MAX_PIECE_BYTES: usize = 64 << 20;

/// How the documents of a corpus are found.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Text that separates the documents of a text file.
    pub separator: Option<String>,
    /// Endings of the files that are read from a folder, dots included.
    pub extensions: Vec<String>,
}

/// A text corpus.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    documents: Documents,
    warnings: Vec<String>,
}

impl Source {
    /// Opens the text at a path.
    ///
    /// # Errors
    /// If there is no text at the path, or a file does not follow its format.
    pub fn open(path: &Path, reading: &Reading) -> Result<Self> {
        let text = match CorpusFiles::at(&CorpusLocation::at(path), &reading.extensions)? {
            CorpusFiles::Text(text) => text,
            CorpusFiles::Tokens(_) => {
                return Err(Error::usage(format!(
                    "corpus {}: it holds tokens, and a tokenizer is trained on text; name the text that they \
                     were made of",
                    path.display()
                )));
            }
        };
        let spec = Spec {
            document_separator: reading.separator.clone(),
            extensions: reading.extensions.clone(),
            ..Spec::new(&path.to_string_lossy(), "byte")
        };
        let documents = Documents::open(&text, &spec)?;
        let warnings = documents.warnings()?;
        Ok(Self { path: path.to_owned(), documents, warnings })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of documents.
    pub fn documents(&self) -> usize {
        self.documents.len()
    }

    /// Returns the bytes of content that the documents take.
    pub fn bytes(&self) -> u64 {
        self.documents.total_bytes()
    }

    /// Returns what the user should know about the corpus.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// A piece of a document. The pre-tokens of the pieces of a document joined are those of the document.
#[derive(Debug)]
pub(super) struct Piece {
    pub text: String,
    /// True for the first piece of its document.
    pub opens: bool,
}

/// Chooses pieces of all sources together, so that at most a limit of bytes is taken, spread evenly: a piece
/// is taken if the bytes taken, with it, do not exceed the limit's share of the bytes passed.
#[derive(Debug)]
pub(super) struct Share {
    limit: Option<u64>,
    /// Bytes of content of all sources, at least 1.
    all: u64,
    /// Bytes of content of the documents before the current one.
    passed: u64,
    taken: u64,
    /// Pieces that were cut at the greatest length.
    cut: u64,
}

impl Share {
    /// Starts before the first of the sources.
    pub fn new(limit: Option<u64>, sources: &[Source]) -> Self {
        let all: u64 = sources.iter().map(Source::bytes).sum();
        Self { limit: limit.filter(|limit| *limit < all), all: all.max(1), passed: 0, taken: 0, cut: 0 }
    }

    /// Returns the bytes of text taken so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the number of pieces that were cut because they have no place to cut within 64 MiB.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    fn piece_bytes(&self) -> usize {
        match self.limit {
            None => PIECE_BYTES,
            Some(limit) => ((limit / PIECES) as usize).clamp(MIN_PIECE_BYTES, PIECE_BYTES),
        }
    }

    /// Returns the bytes that may be taken after `passed` bytes of content.
    fn due(&self, passed: u64) -> u64 {
        let passed = u128::from(passed.min(self.all));
        self.limit.map_or(u64::MAX, |limit| (u128::from(limit) * passed / u128::from(self.all)) as u64)
    }

    /// Hands the chosen pieces of a source to `sink`, in order. The sources must come in the order that they
    /// had in [`Share::new`].
    ///
    /// # Errors
    /// If a document cannot be read, or the sink fails.
    pub fn read(
        &mut self,
        source: &Source,
        pattern: &Pattern,
        sink: &mut dyn FnMut(Piece) -> Result<()>,
    ) -> Result<()> {
        for number in 0..source.documents.len() {
            let after = self.passed + source.documents.bytes(number);
            // Without room for another byte, the document need not be read.
            if self.taken < self.due(after) {
                self.read_document(source, number, pattern, sink)?;
            }
            self.passed = after;
        }
        Ok(())
    }

    fn read_document(
        &mut self,
        source: &Source,
        number: usize,
        pattern: &Pattern,
        sink: &mut dyn FnMut(Piece) -> Result<()>,
    ) -> Result<()> {
        let (mut reader, mut text) = (source.documents.reader(number)?, String::new());
        let (piece_bytes, end) = (self.piece_bytes(), self.passed + source.documents.bytes(number));
        let mut at = self.passed;
        loop {
            // If the text has no cut yet, read as much again.
            let block = BLOCK_BYTES.max(text.len()).min(MAX_PIECE_BYTES);
            let more = reader.append(&mut text, block)?;
            let mut start = 0;
            while start < text.len() {
                let mut piece = start..pattern.cut().after(&text, start.saturating_add(piece_bytes));
                if piece.len() > MAX_PIECE_BYTES {
                    piece.end = (0..=start + MAX_PIECE_BYTES)
                        .rev()
                        .find(|&at| text.is_char_boundary(at))
                        .unwrap_or(0);
                    self.cut += 1;
                } else if more && piece.end == text.len() {
                    // The piece may continue in the next block.
                    break;
                }
                let opens = at == self.passed;
                start = piece.end;
                at += piece.len() as u64;
                // The content of a document may be longer than its text.
                let passed = if !more && start == text.len() { end } else { at.min(end) };
                if self.taken + piece.len() as u64 <= self.due(passed) {
                    self.taken += piece.len() as u64;
                    sink(Piece { text: text[piece].to_owned(), opens })?;
                }
            }
            text.drain(..start);
            if !more {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::spec::TEXT_EXTENSIONS;

    fn source(text: &str, separator: Option<&str>) -> (tempfile::TempDir, Source) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        std::fs::write(&path, text).unwrap();
        let reading = Reading {
            separator: separator.map(str::to_owned),
            extensions: TEXT_EXTENSIONS.map(str::to_owned).to_vec(),
        };
        let source = Source::open(&path, &reading).unwrap();
        (dir, source)
    }

    fn taken(source: &Source, limit: Option<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut share = Share::new(limit, std::slice::from_ref(source));
        let pattern = Pattern::parse("gpt4").unwrap();
        let mut take = |piece| {
            pieces.push(piece);
            Ok(())
        };
        share.read(source, &pattern, &mut take).unwrap();
        assert_eq!(pieces.iter().map(|piece: &Piece| piece.text.len() as u64).sum::<u64>(), share.taken());
        pieces
    }

    #[test]
    fn a_part_of_a_text_is_spread_evenly() {
        let text: String = (0..40_000).map(|line| format!("{line:06} words.\n")).collect();
        let (_dir, whole) = source(&text, None);
        let all = taken(&whole, None);
        assert_eq!(all.iter().map(|piece| &*piece.text).collect::<String>(), text);
        assert_eq!(all.iter().filter(|piece| piece.opens).count(), 1);
        for limit in [10_000, 100_000, 500_000] {
            let pieces = taken(&whole, Some(limit));
            let bytes: u64 = pieces.iter().map(|piece| piece.text.len() as u64).sum();
            assert!(bytes <= limit && bytes + 2 * MIN_PIECE_BYTES as u64 > limit, "{bytes} of {limit}");
            let first_half = pieces.iter().filter(|piece| piece.text[..6] < *"020000").count();
            assert!(first_half.abs_diff(pieces.len() - first_half) <= 2, "{first_half} of {}", pieces.len());
        }
    }

    #[test]
    fn documents_end_where_separators_are() {
        let (_dir, parts) = source("one|two words|three", Some("|"));
        let texts: Vec<_> = taken(&parts, None).into_iter().map(|piece| (piece.text, piece.opens)).collect();
        assert_eq!(texts, ["one", "two words", "three"].map(|text| (text.to_owned(), true)));
    }
}
