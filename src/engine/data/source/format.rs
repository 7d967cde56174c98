//! The trait that a document format implements.

use super::content::Content;
use crate::data::text::TextReader;
use crate::error::Result;
use std::fmt::Debug;

/// A document format: finds the documents in a file and reads their text.
pub(in crate::data) trait Source: Debug + Sync {
    /// Returns the number that identifies the format in the key of cached tokens. It must never change or be
    /// reused.
    fn tag(&self) -> u8;

    /// Finds the documents of a file, in order, and checks the whole file. Documents that are only white
    /// space are left out and counted. `separator` is for formats that do not mark document boundaries
    /// themselves.
    ///
    /// # Errors
    /// If the content does not follow the format (the message has file and line), or the file cannot be read
    /// or has changed.
    fn scan(&self, content: &dyn Content, separator: Option<&str>) -> Result<Scan>;

    /// Opens the text of a document.
    ///
    /// # Errors
    /// If the file cannot be read or has changed, or the document does not follow the format.
    fn read<'c>(&self, content: &'c dyn Content, span: &DocumentSpan) -> Result<DocumentReader<'c>>;

    /// Returns the text of the documents, whole or partial, in a piece of a file's content.
    fn sampled(&self, piece: &[u8]) -> String;

    /// Looks at the beginning of a file and returns a warning if there is reason for one.
    ///
    /// # Errors
    /// If the file cannot be read or has changed, or its beginning is not text.
    fn warning(&self, content: &dyn Content, separator: Option<&str>) -> Result<Option<String>>;
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::data) struct Scan {
    /// The documents, in order.
    pub documents: Vec<DocumentSpan>,
    /// Number of documents left out because they have no text.
    pub empty: usize,
    /// True if the separator occurs in the file.
    pub is_separated: bool,
}

/// Where a document is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::data) struct DocumentSpan {
    /// Where the document begins: a byte of the content, or another position that the format defines.
    pub at: u64,
    /// Bytes of content that the document takes.
    pub bytes: u64,
    /// Line of the document, from 1, in formats with one document per line.
    pub line: usize,
}

/// The text of a document, read block by block.
pub(in crate::data) enum DocumentReader<'c> {
    /// Text that is in the content as it is.
    Blocks(TextReader<'c>),
    /// The whole text in one piece; `None` after it was taken.
    Whole(Option<String>),
}

impl DocumentReader<'_> {
    /// Appends the next block of about `most` bytes to `text`; returns false if nothing is left.
    ///
    /// # Errors
    /// If [`TextReader::append`] fails.
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
