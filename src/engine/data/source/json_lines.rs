//! JSON lines: the string `text` on each line is a document.

use super::content::Content;
use super::format::{DocumentReader, DocumentSpan, Scan, Source};
use crate::data::parallel::collect_in_order;
use crate::data::text::{BLOCK_BYTES, TextReader};
use crate::error::{Error, Result};
use crate::format::{printable, shortened};
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::error::Category;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Longest part of a line, in characters, and most fields that a message shows.
const SHOWN: usize = 60;
const SHOWN_FIELDS: usize = 8;

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

    fn scan(&self, content: &dyn Content, _: Option<&str>) -> Result<Scan> {
        let mut reader = TextReader::whole(content)?;
        let (mut scan, mut line) = (Scan::default(), 0);
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
                if !part.trim().is_empty() {
                    found.push((line, start..start + part.trim_end().len()));
                }
                start += part.len();
            }
            let kept = found.into_par_iter().map(|(line, range)| {
                let json = &text[range.clone()];
                if record(content, line, json)?.text.trim().is_empty() {
                    return Ok(None);
                }
                Ok(Some(DocumentSpan { at: at + range.start as u64, bytes: range.len() as u64, line }))
            });
            let kept = collect_in_order(kept)?;
            scan.empty += kept.iter().filter(|document| document.is_none()).count();
            scan.documents.extend(kept.into_iter().flatten());
            text.drain(..whole);
            at += whole as u64;
            if !more {
                return Ok(scan);
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
        let lines = raw.lines().filter(|line| is_object(line));
        let whole = lines.filter_map(|line| serde_json::from_str::<Record<'_>>(line).ok());
        let texts: String = whole.map(|record| record.text).collect();
        if texts.is_empty() { raw.into_owned() } else { texts }
    }

    fn warning(&self, content: &dyn Content, separator: Option<&str>) -> Result<Option<String>> {
        let path = content.file().path().display();
        Ok(separator
            .map(|_| format!("data.document_separator is not used: each line of {path} is a document")))
    }
}

/// Reads the record on a line. The derived reader would also take an array, by position.
fn record<'a>(content: &dyn Content, line: usize, json: &'a str) -> Result<Record<'a>> {
    let wrong = match is_object(json) {
        false => not_an_object(json),
        true => match serde_json::from_str(json) {
            Ok(record) => return Ok(record),
            Err(e) => wrong_object(json, &e),
        },
    };
    Err(Error::usage(format!("{}:{line}: {wrong}", content.file().path().display())))
}

fn is_object(json: &str) -> bool {
    json.trim_start().starts_with('{')
}

/// Says what a line is that does not begin like an object.
fn not_an_object(json: &str) -> String {
    let kind = match serde_json::from_str::<Value>(json) {
        Ok(value) => kind(&value),
        Err(_) => "not JSON",
    };
    let shown = shortened(&printable(json.trim()), SHOWN);
    format!("a line of JSON lines is an object with a string \"text\", and this one is {kind}: {shown}")
}

/// Says why a line that begins like an object is no record.
fn wrong_object(json: &str, e: &serde_json::Error) -> String {
    if e.classify() != Category::Data {
        return match non_finite(json) {
            Some((word, column)) => format!(
                "not JSON: {word} in column {column} is not a JSON value, though Python's json.dumps writes it for a \
                 number that is not finite; write null instead"
            ),
            None => {
                let reason = e.to_string();
                let reason = reason.split(" at line ").next().unwrap_or_default();
                format!("not JSON: {} in column {}", shortened(&printable(reason), SHOWN), e.column())
            }
        };
    }
    let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(json) else {
        return "not a JSON object with a string \"text\"".to_owned();
    };
    match fields.get("text") {
        Some(Value::String(_)) => "the field \"text\" occurs twice".to_owned(),
        Some(value) => format!("\"text\" is {}, and a document is a string", kind(value)),
        None => {
            let mut names: Vec<String> =
                fields.keys().take(SHOWN_FIELDS).map(|name| shortened(&printable(name), SHOWN)).collect();
            names.extend((fields.len() > SHOWN_FIELDS).then(|| "…".to_owned()));
            let has = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
            let example = longest_string(&fields)
                .map_or(String::new(), |name| format!(", as `jq -c '{{text: .{name}}}'` does for {name}"));
            format!(
                "the object has no \"text\", but {has}; write what is to be learned as one string \"text\" per \
                 line{example}"
            )
        }
    }
}

/// Returns the name of the longest string, if it needs no quotes.
fn longest_string(fields: &Map<String, Value>) -> Option<&str> {
    let strings = fields.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?.len())));
    let (name, _) = strings.max_by_key(|(_, len)| *len)?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (name.len() <= SHOWN && name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_word))
        .then_some(name)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Finds the first `NaN` or `Infinity` outside of strings, with its column in bytes, from 1.
fn non_finite(json: &str) -> Option<(&'static str, usize)> {
    let (mut in_string, mut is_escaped) = (false, false);
    for (at, byte) in json.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            _ => {
                let here = &json.as_bytes()[at..];
                let found = ["NaN", "Infinity"].into_iter().find(|word| here.starts_with(word.as_bytes()));
                if let Some(word) = found {
                    return Some((word, at + 1));
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_not_finite_are_found_outside_of_strings() {
        for (json, found) in [
            (r#"{"a": NaN}"#, Some(("NaN", 7))),
            (r#"{"a": "NaN", "b": -Infinity}"#, Some(("Infinity", 20))),
            (r#"{"a\"NaN": 1, "b": NaN}"#, Some(("NaN", 20))),
            (r#"{"text": "NaN"}"#, None),
        ] {
            assert_eq!(non_finite(json), found, "{json}");
        }
    }
}
