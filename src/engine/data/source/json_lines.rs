//! JSON lines: the string `text` on each line is a document.

use super::content::Content;
use super::format::{DocumentReader, DocumentSpan, Source};
use crate::data::text::{BLOCK_BYTES, TextReader};
use crate::error::{Error, Result};
use rayon::prelude::*;
use serde::Deserialize;
use std::borrow::Cow;

/// One line; fields other than `text` are ignored.
#[derive(Deserialize)]
struct Record<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

#[derive(Debug)]
pub(super) struct JsonLines;

impl Source for JsonLines {
    fn tag(&self) -> u8 {
        1
    }

    fn scan(&self, content: &dyn Content, _: Option<&str>) -> Result<Vec<DocumentSpan>> {
        let mut reader = TextReader::whole(content)?;
        let (mut spans, mut line) = (Vec::new(), 0);
        let (mut text, mut at) = (String::new(), reader.at());
        loop {
            // A line longer than the block: read as much again.
            let block = BLOCK_BYTES.max(text.len());
            let more = reader.append(&mut text, block)?;
            let whole = if more { text.rfind('\n').map_or(0, |end| end + 1) } else { text.len() };
            let mut found = Vec::new();
            let mut start = 0;
            for part in text[..whole].split_inclusive('\n') {
                line += 1;
                found.push((line, start..start + part.trim_end().len()));
                start += part.len();
            }
            let kept = found.into_par_iter().map(|(line, range)| {
                let json = &text[range.clone()];
                if json.trim().is_empty() || record(content, line, json)?.text.trim().is_empty() {
                    return Ok(None);
                }
                Ok(Some(DocumentSpan { at: at + range.start as u64, bytes: range.len() as u64, line }))
            });
            spans.extend(kept.collect::<Result<Vec<_>>>()?.into_iter().flatten());
            text.drain(..whole);
            at += whole as u64;
            if !more {
                return Ok(spans);
            }
        }
    }

    fn read<'c>(&self, content: &'c dyn Content, span: &DocumentSpan) -> Result<DocumentReader<'c>> {
        let mut json = String::new();
        TextReader::range(content, span.at..span.at + span.bytes).append(&mut json, usize::MAX)?;
        Ok(DocumentReader::Whole(Some(record(content, span.line, &json)?.text.into_owned())))
    }

    fn sampled(&self, piece: &[u8]) -> String {
        let raw = String::from_utf8_lossy(piece);
        let whole = raw.lines().filter_map(|line| serde_json::from_str::<Record<'_>>(line).ok());
        let texts: String = whole.map(|record| record.text).collect();
        if texts.is_empty() { raw.into_owned() } else { texts }
    }

    fn warning(&self, content: &dyn Content, separator: Option<&str>) -> Result<Option<String>> {
        let path = content.file().path().display();
        Ok(separator
            .map(|_| format!("data.document_separator is not used: each line of {path} is a document")))
    }
}

fn record<'a>(content: &dyn Content, line: usize, json: &'a str) -> Result<Record<'a>> {
    serde_json::from_str(json).map_err(|e| {
        let path = content.file().path().display();
        Error::usage(format!("{path}:{line}: not a JSON object with a string \"text\": {e}"))
    })
}
