//! Plain text: a file is one document, or a separator cuts it into several.

use super::content::Content;
use super::format::{DocumentReader, DocumentSpan, Rules, Sample, Scan, Source};
use crate::data::END_OF_TEXT;
use crate::data::text::{BLOCK_BYTES, TextReader};
use crate::error::Result;

#[derive(Debug)]
pub(super) struct PlainText;

impl Source for PlainText {
    fn tag(&self) -> u8 {
        0
    }

    fn has_fields(&self) -> bool {
        false
    }

    fn scan(&self, content: &dyn Content, rules: &Rules) -> Result<Scan> {
        match &rules.separator {
            Some(separator) => parts(content, separator),
            None => whole(content),
        }
    }

    fn read<'c>(
        &self,
        content: &'c dyn Content,
        span: &DocumentSpan,
        _: &Rules,
    ) -> Result<DocumentReader<'c>> {
        Ok(DocumentReader::Blocks(TextReader::range(content, span.at..span.at + span.bytes)))
    }

    fn sample(
        &self,
        content: &dyn Content,
        span: &DocumentSpan,
        (offset, most): (u64, usize),
        _: &Rules,
    ) -> Result<Sample> {
        let mut piece = vec![0; (span.bytes - offset).min(most as u64) as usize];
        let read = content.read_at(span.at + offset, &mut piece)?;
        // It may begin and end within a character.
        let text = String::from_utf8_lossy(&piece[..read]);
        let text = text.trim_matches(char::REPLACEMENT_CHARACTER).to_owned();
        Ok(Sample { text, bytes: read as u64 })
    }

    /// Warns if a file without a separator contains the end token as literal text.
    fn warning(&self, content: &dyn Content, rules: &Rules) -> Result<Option<String>> {
        if rules.separator.is_some() {
            return Ok(None);
        }
        let (mut reader, mut block) = (TextReader::whole(content)?, String::new());
        reader.append(&mut block, BLOCK_BYTES)?;
        let count = block.matches(END_OF_TEXT).count();
        Ok((count > 1).then(|| {
            format!(
                "{} holds the text {END_OF_TEXT} {count} times{}; it is read as plain text. If it separates documents, \
                 set {}.document_separator = \"{END_OF_TEXT}\"",
                content.file().path().display(),
                if reader.is_done() { "" } else { " in its first 4 MiB" },
                rules.table
            )
        }))
    }
}

/// Returns the file as one document, unless it is only white space.
fn whole(content: &dyn Content) -> Result<Scan> {
    let (mut reader, mut text) = (TextReader::whole(content)?, String::new());
    let (begin, mut has_text) = (reader.at(), false);
    while reader.append(&mut text, BLOCK_BYTES)? {
        has_text = has_text || !text.trim().is_empty();
        text.clear();
    }
    let span = DocumentSpan { at: begin, bytes: reader.at() - begin, line: 0 };
    let documents = if has_text { vec![span] } else { Vec::new() };
    Ok(Scan { empty: usize::from(!has_text), documents, ..Scan::default() })
}

/// Returns the documents between separators, without the line breaks around them.
fn parts(content: &dyn Content, separator: &str) -> Result<Scan> {
    let mut reader = TextReader::whole(content)?;
    let (mut text, mut at) = (String::new(), reader.at());
    let (mut spans, mut part) = (Vec::new(), Part::default());
    let mut is_separated = false;
    loop {
        let more = reader.append(&mut text, BLOCK_BYTES)?;
        let mut start = 0;
        while let Some(found) = text[start..].find(separator) {
            part.add(&text[start..start + found], at + start as u64);
            spans.extend(part.close());
            is_separated = true;
            start += found + separator.len();
        }
        // The end of a block may be the start of a separator.
        let kept = if more { separator.len() - 1 } else { 0 };
        let mut end = text.len().saturating_sub(kept).max(start);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        part.add(&text[start..end], at + start as u64);
        text.drain(..end);
        at += end as u64;
        if !more {
            spans.extend(part.close());
            // What is empty between separators is no document, but a file without any text is passed over.
            let empty = usize::from(spans.is_empty());
            return Ok(Scan { documents: spans, empty, is_separated, ..Scan::default() });
        }
    }
}

/// A document whose end is not reached yet.
#[derive(Default)]
struct Part {
    /// Its range in the content, from the first to the last character that is not a line break.
    span: Option<(u64, u64)>,
    /// True if the document has more than white space.
    has_text: bool,
}

impl Part {
    fn add(&mut self, text: &str, at: u64) {
        let breaks = |c| c == '\n' || c == '\r';
        let trimmed = text.trim_matches(breaks);
        if trimmed.is_empty() {
            return;
        }
        let from = at + (text.len() - text.trim_start_matches(breaks).len()) as u64;
        let start = self.span.map_or(from, |(start, _)| start);
        self.span = Some((start, from + trimmed.len() as u64));
        self.has_text = self.has_text || !trimmed.trim().is_empty();
    }

    /// Ends the document and returns its span.
    fn close(&mut self) -> Option<DocumentSpan> {
        let Self { span, has_text } = std::mem::take(self);
        let (start, end) = span.filter(|_| has_text)?;
        Some(DocumentSpan { at: start, bytes: end - start, line: 0 })
    }
}
