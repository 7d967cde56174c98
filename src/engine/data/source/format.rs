//! The trait that a document format implements.

use super::content::Content;
use crate::data::text::TextReader;
use crate::error::Result;
use crate::policy::{MissingField, TextFormat};
use std::fmt::Debug;

/// How the documents of a file are found, as a recipe says.
#[derive(Clone, Debug)]
pub(in crate::data) struct Rules {
    /// The recipe's table that has the keys of these rules, for messages: `data`, or that of a source.
    pub table: String,
    /// What the files are.
    pub format: TextFormat,
    /// Text between documents, for formats that do not mark document boundaries themselves.
    pub separator: Option<String>,
    /// The field or column that holds the text, for formats that have several.
    pub field: String,
    /// What happens to a document without that field.
    pub missing: MissingField,
}

/// A document format: finds the documents in a file and reads their text.
pub(in crate::data) trait Source: Debug + Sync {
    /// Returns the number that identifies the format in the key of cached tokens. It must never change or be
    /// reused.
    fn tag(&self) -> u8;

    /// Returns true if a document is one of several fields, so that [`Rules::field`] matters.
    fn has_fields(&self) -> bool;

    /// Finds the documents of a file, in order, and checks the whole file. Documents that are only white
    /// space, or that lack their text if the rules allow it, are left out and counted.
    ///
    /// # Errors
    /// If the content does not follow the format (the message has file and line), or the file cannot be read
    /// or has changed.
    fn scan(&self, content: &dyn Content, rules: &Rules) -> Result<Scan>;

    /// Opens the text of a document.
    ///
    /// # Errors
    /// If the file cannot be read or has changed, or the document does not follow the format.
    fn read<'c>(
        &self,
        content: &'c dyn Content,
        span: &DocumentSpan,
        rules: &Rules,
    ) -> Result<DocumentReader<'c>>;

    /// Returns text of a document for an estimate: at most `most` bytes of it, from byte `offset` of the
    /// document on or, in formats that read whole documents, from its beginning.
    ///
    /// # Errors
    /// If [`Source::read`] fails.
    fn sample(
        &self,
        content: &dyn Content,
        span: &DocumentSpan,
        (_offset, most): (u64, usize),
        rules: &Rules,
    ) -> Result<Sample> {
        let mut text = String::new();
        self.read(content, span, rules)?.append(&mut text, usize::MAX)?;
        let whole = text.len().max(1) as u64;
        let mut kept = text.len().min(most);
        while !text.is_char_boundary(kept) {
            kept -= 1;
        }
        text.truncate(kept);
        Ok(Sample { text, bytes: (u128::from(span.bytes) * kept as u128 / u128::from(whole)) as u64 })
    }

    /// Looks at the beginning of a file and returns a warning if there is reason for one.
    ///
    /// # Errors
    /// If the file cannot be read or has changed, or its beginning is not text.
    fn warning(&self, content: &dyn Content, rules: &Rules) -> Result<Option<String>>;
}

/// Text of a document, for an estimate.
#[derive(Debug)]
pub(in crate::data) struct Sample {
    pub text: String,
    /// Bytes of content that the text takes.
    pub bytes: u64,
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::data) struct Scan {
    /// The documents, in order.
    pub documents: Vec<DocumentSpan>,
    /// Number of documents left out because they have no text.
    pub empty: usize,
    /// Number of documents left out because they lack the field with their text.
    pub missing: usize,
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
