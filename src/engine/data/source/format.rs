//! What a document format has to say.

use super::content::Content;
use crate::data::text::TextReader;
use crate::error::Result;
use std::fmt::Debug;

/// A document format: where a file's documents are, and what their text is.
pub(in crate::data) trait Source: Debug + Sync {
    /// What tells the format from others in the key of cached tokens. Never changed, never used again.
    fn tag(&self) -> u8;

    /// Finds the documents of a file, in order, and checks all of the file. Documents of white space alone
    /// are left out. `separator` cuts formats that do not say themselves where a document ends.
    ///
    /// # Errors
    /// Content that is not of the format, with file and line; a file that cannot be read, or changed.
    fn scan(&self, content: &dyn Content, separator: Option<&str>) -> Result<Vec<DocumentSpan>>;

    /// Opens the text of a document.
    ///
    /// # Errors
    /// As [`Source::scan`].
    fn read<'c>(&self, content: &'c dyn Content, span: &DocumentSpan) -> Result<DocumentReader<'c>>;

    /// Returns the text of the documents, whole or not, in a piece of a file's content.
    fn sampled(&self, piece: &[u8]) -> String;

    /// Returns what the beginning of a file gives reason to warn of.
    ///
    /// # Errors
    /// As [`Source::scan`].
    fn warning(&self, content: &dyn Content, separator: Option<&str>) -> Result<Option<String>>;
}

/// Where a document is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::data) struct DocumentSpan {
    /// Where the document begins: a byte of the content, or what else the format counts in.
    pub at: u64,
    /// Bytes of the content that it takes.
    pub bytes: u64,
    /// Its line, from 1, where the format has one document a line.
    pub line: usize,
}

/// The text of a document, read block by block.
pub(in crate::data) enum DocumentReader<'c> {
    /// Text that stands in the content as it is.
    Blocks(TextReader<'c>),
    /// Text in one piece, until it is taken.
    Whole(Option<String>),
}

impl DocumentReader<'_> {
    /// Appends the next block of about `most` bytes to `text`; false where nothing is left.
    ///
    /// # Errors
    /// As [`TextReader::append`].
    pub fn append(&mut self, text: &mut String, most: usize) -> Result<bool> {
        match self {
            Self::Blocks(reader) => reader.append(text, most),
            Self::Whole(whole) => {
                let whole = whole.take();
                text.push_str(whole.as_deref().unwrap_or_default());
                Ok(whole.is_some())
            }
        }
    }
}
